"""Markup that escapes by construction: elements of text and elements; what is not an element is text."""

from __future__ import annotations

import html
import json
from typing import Any, final


@final
class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def el(name: str, attributes: dict[str, Any] | None = None, *children: Any) -> Markup:
    """An element; attributes of None are left out, children of None too, and other children that are no markup escaped."""
    words = "".join(
        f' {key}="{html.escape(str(value), quote=True)}"'
        for key, value in (attributes or {}).items()
        if value is not None
    )
    inside = join(*children)
    return Markup(f"<{name}{words}>{inside}</{name}>")


def join(*children: Any) -> Markup:
    """Several children as one piece."""
    return Markup("".join(_inside(child) for child in children))


def _inside(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, (list, tuple)):
        return join(*child)
    return child if isinstance(child, Markup) else html.escape(str(child), quote=False)


def data_script(name: str, data: Any) -> Markup:
    """An element that holds data for a script of the page."""
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    return Markup(f'<script type="application/json" id="{html.escape(name, quote=True)}">{text}</script>')


def percent(part: float, whole: float) -> str:
    """A share as a length of CSS."""
    return f"{100 * part / whole if whole > 0 else 0:.3f}%"
