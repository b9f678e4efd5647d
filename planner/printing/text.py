"""Paragraphs and tables as text: of a fixed width without colours, or as the terminal has them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from planner.printing.parts import ALARM, Part, Table

WIDTH = 118
_WORDS = re.compile(r" *[^ ]+")
_PIECES = re.compile(r"[^/]*/|[^/]+")


def text_of(parts: Iterable[Part]) -> str:
    """The parts as text of `WIDTH` columns without colours."""
    # In a notebook rich displays what it prints, and writes nothing.
    console = Console(file=io.StringIO(), width=WIDTH, no_color=True, force_terminal=False, force_jupyter=False)
    return _printed(parts, console)


def terminal_text(parts: Iterable[Part], file: TextIO) -> str:
    """The parts in the width and colours of the terminal that `file` writes to; elsewhere as `text_of`.

    NO_COLOR in the environment is kept, as rich keeps it.
    """
    console = Console(file=file, force_jupyter=False)
    return _printed(parts, console) if console.is_terminal else text_of(parts)


def rendered(parts: Iterable[Part]) -> Group:
    """The parts for `rich.print`."""
    return Group(*(_Words(part) if isinstance(part, str) else _rich_table(part) for part in parts))


def _printed(parts: Iterable[Part], console: Console) -> str:
    with console.capture() as capture:
        console.print(rendered(parts))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def _rich_table(table: Table) -> RichTable:
    made = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(table.headings))
    for heading, right in zip(table.headings, table.right, strict=True):
        made.add_column(Text(heading), justify="right" if right else "left")
    for row in table.rows:
        made.add_row(*map(_Words, row))
    return made


class _Words:
    """Text of which lines break at spaces; names that are longer than a line break behind slashes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        lines = [line for given in self._text.split("\n") for line in broken(given, options.max_width)]
        # Plain text: brackets are no markup, and ":name:" is no emoji.
        text = Text("\n".join(lines), justify=options.justify, no_wrap=True, overflow="fold")
        text.highlight_regex(ALARM, "bold red")
        yield text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        words = self._text.split()
        longest = max((len(piece) for word in words for piece in _PIECES.findall(word)), default=0)
        return Measurement(longest, max(map(len, self._text.split("\n")))).with_maximum(options.max_width)


def broken(line: str, width: int) -> Sequence[str]:
    """A line as lines of at most `width` columns."""
    lines = [""]
    for word in _WORDS.findall(line):
        if len(lines[-1]) + len(word) <= width:
            lines[-1] += word
            continue
        rest = word.lstrip(" ") if lines[-1] else word
        lines += [""] if lines[-1] else []
        for piece in [rest] if len(rest) <= width else _PIECES.findall(rest):
            lines += [""] if lines[-1] and len(lines[-1]) + len(piece) > width else []
            lines[-1] += piece
            while len(lines[-1]) > width:
                lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return lines
