"""Numbers with units, and lists, for people."""

from __future__ import annotations

import re
from collections.abc import Sequence

PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))

SMALL = ("s", "J")
"""Units of which parts are told."""


BYTE_UNITS = {
    "": 1.0,
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
}


def bytes_of(text: str) -> float:
    """Bytes of "14GB", "15.75GiB", "500 MB" or "1.4e10". Raises: ValueError with what to write."""
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): factor for unit, factor in BYTE_UNITS.items()}
    try:
        if match is None:
            raise ValueError
        return float(match[1]) * units[match[2].lower()]
    except (ValueError, KeyError):
        known = ", ".join(unit for unit in BYTE_UNITS if unit)
        raise ValueError(f"{text!r} is no size; write a number and a unit of {known}: 14GB") from None


def _three(value: float) -> str:
    """Three digits, and no exponent for what has more before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def quantity(value: float, unit: str) -> str:
    """A number with a metric prefix: 1536 -> "1.54 kB"."""
    for prefix, factor in PREFIXES if unit != "s" else ():
        if abs(value) >= factor:
            return f"{_three(value / factor)} {prefix}{unit}"
    if unit in SMALL and 0 < abs(value) < 1:
        return f"{value * 1e3:.3g} m{unit}" if value >= 1e-3 else f"{value * 1e6:.3g} u{unit}"
    return f"{_three(value)} {unit}"


def listed(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
