"""Numbers with units, and lists, for people."""

from __future__ import annotations

from collections.abc import Sequence

PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))

SMALL = ("s", "J")
"""Units of which parts are told."""


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
