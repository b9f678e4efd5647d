"""Recomputation: whether the compiled program computes again what the plan does, or has merged it with its original.

Products of matrices tell, by the lines of code they came from: a line at which half or more of what is to be computed again
is missing has been merged. That changes no result; it holds more in memory and takes less time than was promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.prediction import Products
from planner.units import quantity

MISSING = 0.5
"""The part of what is computed again at a line that must be missing for the compiler to have undone it."""
SMALL = 0.01
"""Lines at which less than this part of all products is computed again are not looked at: compilers rewrite small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """Operations of products of matrices, per device and call: `predicted`, of them `again` computed again, `compiled`.

    `undone` are the lines of code ("folder/file.py:line") whose recomputation the compiler has merged with its original.
    `ok`: there are none; None where that cannot be told, and `reason` says why.
    """

    ok: bool | None
    reason: str
    predicted: float = 0.0
    again: float = 0.0
    compiled: float = 0.0
    undone: tuple[str, ...] = ()


def compare_recomputation(
    promised: Sequence[Products], compiled: Mapping[str, float] | None, platform: str
) -> Recomputation | None:
    """The products promised beside those compiled, by line; None where none are computed again."""
    predicted, again = sum(one.flops for one in promised), sum(one.again for one in promised)
    if not again:
        return None
    if platform == "gpu":
        return Recomputation(ok=None, reason="not compared: products of a GPU are calls of libraries", again=again)
    if compiled is None:
        return Recomputation(ok=None, reason="not compared: how often some loop runs is not known", again=again)
    undone = tuple(
        one.line
        for one in promised
        if one.again > SMALL * predicted and compiled.get(one.line, 0.0) < one.flops - MISSING * one.again
    )
    found = sum(compiled.values())
    reason = (
        f"products of matrices: {quantity(found, 'FLOP')} compiled, {quantity(predicted, 'FLOP')} predicted, of which "
        f"{quantity(again, 'FLOP')} are computed again"
    )
    if undone:
        reason += f"; the compiler computes once, and holds, what was to be computed again at {', '.join(undone)}"
    return Recomputation(ok=not undone, reason=reason, predicted=predicted, again=again, compiled=found, undone=undone)
