"""What all records have that people read."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TextIO

from planner.printing.html import html_of
from planner.printing.parts import Part
from planner.printing.text import rendered, terminal_text, text_of


class Printed(ABC):
    """A record that reads the same wherever it is shown: by `print`, `rich.print`, IPython, in a cell of a notebook."""

    __slots__ = ()

    @abstractmethod
    def _parts(self) -> Iterable[Part]:
        """The paragraphs and tables that it says."""

    def __str__(self) -> str:
        return text_of(self._parts())

    def __rich__(self) -> Any:
        return rendered(self._parts())

    def _repr_html_(self) -> str:
        return html_of(self._parts())

    def _repr_mimebundle_(self, **asked: Any) -> dict[str, str]:
        # IPython takes the text from here: `_repr_pretty_` gives way to the `__repr__` of a subclass.
        return {"text/plain": terminal_text(self._parts(), sys.stdout)}

    def show(self, file: TextIO | None = None) -> None:
        """Prints it to a file, by default the standard output: in the width and colours of a terminal, where it is one.

        NO_COLOR in the environment is kept.
        """
        to = sys.stdout if file is None else file
        print(terminal_text(self._parts(), to), file=to)
