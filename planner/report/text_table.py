"""Tables of plain text, as printed plans have them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 118

Part = str | Table
"""A part of a printed report: a paragraph or a table."""


def text_of(parts: Iterable[Part]) -> str:
    """The parts as printed on a screen of `WIDTH` columns without colours."""
    buffer = io.StringIO()
    # In a notebook rich displays what it prints, and writes nothing.
    console = Console(
        file=buffer,
        width=WIDTH,
        no_color=True,
        highlight=False,
        markup=False,
        force_terminal=False,
        force_jupyter=False,
    )
    for part in parts:
        # A plain string would have its ":name:" replaced by emoji.
        console.print(Text(part) if isinstance(part, str) else part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def table_of(columns: str, rows: Iterable[Sequence[str]]) -> Table:
    """A table of plain text: brackets in cells are no markup, and cells that a row lacks at its end are empty.

    `columns` are the headings, separated by bars, those of right-aligned columns behind ">": "spec|>bytes". Where all are
    empty there is no line of headings.
    """
    headings = columns.split("|")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(headings))
    for heading in headings:
        justify = "right" if heading.startswith(">") else "left"
        table.add_column(Text(heading.removeprefix(">")), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def section(title: str, columns: str, rows: Sequence[Sequence[str]], most: int) -> list[Part]:
    """A titled table of the first `most` rows, and how many more there are; nothing where there are no rows."""
    if not rows:
        return []
    more = [f"... and {len(rows) - most} more"] if len(rows) > most else []
    return [f"\n{title}", table_of(columns, rows[:most]), *more]


def count(number: int, noun: str, plural: str = "") -> str:
    """A number of things: "1 mesh", "3 meshes"."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
