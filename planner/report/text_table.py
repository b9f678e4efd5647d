"""Tables of plain text, as printed plans have them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Literal

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 118

Justify = Literal["left", "right"]


def text_of(parts: Sequence[RenderableType]) -> str:
    """What rich makes of the parts on a screen of `WIDTH` columns without colours."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=WIDTH, no_color=True, highlight=False, markup=False, force_terminal=False)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def table_of(*columns: tuple[str, Justify], header: bool = True) -> Table:
    """An empty table with these columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=header)
    for name, justify in columns:
        table.add_column(Text(name), justify=justify, overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """Adds a row of plain text: brackets are no markup."""
    table.add_row(*map(Text, cells))
