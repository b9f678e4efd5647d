"""Draws `collectives.svg`: what four devices hold before and after each collective.

python docs/draw_collectives.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DEVICES = range(4)
COLOURS = ("#9ec5fe", "#a3cfbb", "#ffe69c", "#f1aeb5")
SUM = "#c5b3e6"
CELL, GAP, HIGH = 34, 14, 22
LEFT, BETWEEN, ROW = 170, 70, 130

Held = Sequence[Sequence[str]]
"""The cells of every device from above; a cell is the number of who made it, or "sum", and the part after a dot."""

COLLECTIVES: dict[str, tuple[Held, Held]] = {
    "all-gather": ([[f"{i}"] for i in DEVICES], [[f"{j}" for j in DEVICES] for _ in DEVICES]),
    "all-reduce": ([[f"{i}.{j}" for j in DEVICES] for i in DEVICES], [[f"sum.{j}" for j in DEVICES] for _ in DEVICES]),
    "reduce-scatter": ([[f"{i}.{j}" for j in DEVICES] for i in DEVICES], [[f"sum.{i}"] for i in DEVICES]),
    "all-to-all": ([[f"{i}.{j}" for j in DEVICES] for i in DEVICES], [[f"{j}.{i}" for j in DEVICES] for i in DEVICES]),
    "collective-permute": ([[f"{i}"] for i in DEVICES], [[f"{(i - 1) % 4}"] for i in DEVICES]),
}


def picture() -> str:
    """The drawing as SVG."""
    side = len(DEVICES) * (CELL + GAP)
    width, height = LEFT + 2 * side + BETWEEN, ROW * len(COLLECTIVES) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="12" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">",
        "<title>What four devices hold before and after each collective; the text below says it in words</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        *(_text(LEFT + i * (side + BETWEEN), 22, word) for i, word in enumerate(("before", "after"))),
    ]
    for row, (name, (before, after)) in enumerate(COLLECTIVES.items()):
        top = 36 + row * ROW
        lines.append(_text(16, top + 36, name, bold=True))
        lines += _devices(before, LEFT, top)
        lines.append(_text(LEFT + side + BETWEEN / 2 - 24, top + 36, "→"))
        lines += _devices(after, LEFT + side + BETWEEN, top)
    return "\n".join([*lines, "</svg>", ""])


def _devices(held: Held, left: float, top: float) -> list[str]:
    lines: list[str] = []
    for device, cells in enumerate(held):
        x = left + device * (CELL + GAP)
        for i, cell in enumerate(cells):
            maker = cell.split(".")[0]
            colour = SUM if maker == "sum" else COLOURS[int(maker)]
            y = top + i * HIGH
            lines.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{HIGH}" fill="{colour}" stroke="#5b6470"/>')
            lines.append(_text(x + 4, y + 15, cell.replace("sum", "Σ")))
        lines.append(_text(x + 2, top + 4 * HIGH + 14, f"dev {device}"))
    return lines


def _text(x: float, y: float, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="#1f2328"{weight}>{text}</text>'


if __name__ == "__main__":
    Path(__file__).with_name("collectives.svg").write_text(picture())
