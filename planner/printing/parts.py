"""Paragraphs and tables: what a record says, before it is known where it will be read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALARM = re.compile(r"\b(?:FAILED|UNDONE)\b")
"""Words that stand out where there are colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Cells of plain text under headings; `right` says which columns are aligned to the right."""

    headings: tuple[str, ...]
    right: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]


Part = str | Table
"""A part of what is printed: a paragraph, whose spaces count, or a table."""


def table_of(columns: str, rows: Iterable[Sequence[str]]) -> Table:
    """A table; cells that a row lacks at its end are empty.

    `columns` are the headings, separated by bars, those of right-aligned columns behind ">": "spec|>bytes". Where all are
    empty there is no line of headings.
    """
    headings = columns.split("|")
    return Table(
        headings=tuple(heading.removeprefix(">") for heading in headings),
        right=tuple(heading.startswith(">") for heading in headings),
        rows=tuple(tuple(row) + ("",) * (len(headings) - len(row)) for row in rows),
    )


def section(title: str, columns: str, rows: Sequence[Sequence[str]], most: int) -> list[Part]:
    """A titled table of the first `most` rows, and how many more there are; nothing where there are no rows."""
    if not rows:
        return []
    more = [f"... and {len(rows) - most} more"] if len(rows) > most else []
    return [f"\n{title}", table_of(columns, rows[:most]), *more]


def count(number: int, noun: str, plural: str = "") -> str:
    """A number of things: "1 mesh", "3 meshes"."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"
