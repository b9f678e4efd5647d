"""A line that tells in IPython how far something is: under the cell of a notebook, or in the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from html import escape
from typing import Any

BAR = 24
"""Columns of the bar in a terminal."""
Show = Callable[[str, int, int], None]
"""Shows a text, and how many are finished of how many; of none where that is not known."""


def shown_in_ipython() -> Show | None:
    """What shows progress until the cell that runs has ended; None outside of IPython."""
    module: Any = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if shell is None:
        return None
    in_notebook = getattr(shell, "kernel", None) is not None
    return _until_cell_ends(shell, _in_notebook(module) if in_notebook else _in_terminal())


def _until_cell_ends(shell: Any, draw: Callable[[str, int, int, bool], None]) -> Show:
    """Draws what is shown; when the cell has ended, its last text stays without a bar."""
    last: list[str] = []

    def end(*_: object) -> None:
        shell.events.unregister("post_run_cell", end)
        draw(last.pop(), 0, 0, True)

    def show(text: str, finished: int, total: int) -> None:
        if not last:
            shell.events.register("post_run_cell", end)
        last[:] = [text]
        draw(text, finished, total, False)

    return show


def _in_notebook(module: Any) -> Callable[[str, int, int, bool], None]:
    handle: Any = None

    def draw(text: str, finished: int, total: int, ended: bool) -> None:
        nonlocal handle
        share = f'value="{finished}" max="{total}"' if total else ""
        bar = "" if ended else f"<progress {share}></progress> "
        data = {"text/plain": text, "text/html": f"<div>{bar}{escape(text)}</div>"}
        if handle is None:
            handle = module.display.display(data, raw=True, display_id=True)
        else:
            handle.update(data, raw=True)

    return draw


def _in_terminal() -> Callable[[str, int, int, bool], None]:
    def draw(text: str, finished: int, total: int, ended: bool) -> None:
        done = BAR * finished // total if total else 0
        bar = "" if ended or not total else f"{'━' * done}{'╌' * (BAR - done)} "
        line = f"{bar}{text}"[: shutil.get_terminal_size().columns - 1]
        print(f"\r\x1b[2K{line}", end="\n" if ended else "", file=sys.stderr, flush=True)

    return draw
