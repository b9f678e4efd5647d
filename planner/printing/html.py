"""Paragraphs and tables as HTML for a cell of a notebook; it has the notebook's own colours."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from planner.printing.parts import ALARM, Part, Table


def html_of(parts: Iterable[Part]) -> str:
    """The parts as HTML that needs nothing else."""
    return "\n".join(["<div>", *map(_html, parts), "</div>"])


def _html(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    return f'<pre style="white-space:pre-wrap;margin:.3em 0">{_text(part.strip(chr(10)))}</pre>'


def _table(table: Table) -> str:
    aligned = ["right" if right else "left" for right in table.right]
    rows = [("th", table.headings)] if any(table.headings) else []
    rows += [("td", row) for row in table.rows]
    lines = ["".join(_cell(tag, *pair) for pair in zip(aligned, row, strict=True)) for tag, row in rows]
    return "\n".join(["<table>", *(f"<tr>{line}</tr>" for line in lines), "</table>"])


def _cell(tag: str, side: str, text: str) -> str:
    return f'<{tag} style="text-align:{side};white-space:pre-wrap">{_text(text)}</{tag}>'


def _text(text: str) -> str:
    """Text escaped, in which names may break behind slashes, and alarms stand out."""
    breakable = escape(text).replace("/", "/<wbr>")
    return ALARM.sub(r'<strong style="color:#c62828">\g<0></strong>', breakable)
