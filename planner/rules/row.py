"""What a row of `rules.primitives` says of a primitive: its factor rule, and traits that the planner asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from planner.graph import Aval
from planner.halo import Slide
from planner.rules.build import RuleFunction

SlideFunction = Callable[[Sequence[Aval], Sequence[Aval], Mapping[str, Any]], tuple[Slide, ...]]
"""From the avals of an op's operands and results, and its params, to the dims along which its window slides."""

ByHand = Literal["parts", "barrier", "kernel"]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One primitive. Every trait is False (or None) for most, and for what has no row."""

    rule: RuleFunction | None
    """How it may be split; None: none of our rules says so."""

    _: KW_ONLY

    fused: bool = False
    """A compiler joins it with its neighbours into one pass over memory. Grouping asks, and liveness."""

    matmul: bool = False
    """It runs on the matrix unit, and computes an operand on the way unless that is costly. Liveness asks."""

    costly: bool = False
    """A compiler rather stores its result than computes it again inside a matmul. Liveness asks."""

    adds: bool = False
    """Its result may be a sum so far, to which later ones add. Liveness asks."""

    renames: bool = False
    """Its result is a name for its operand, in the same memory. Liveness asks."""

    streams: bool = False
    """Though no part of a pass, it reads its operands as those are computed. Liveness asks."""

    picks: bool = False
    """Of its first operand it reads no more than it returns. Costs ask, for ops that are not fused."""

    updates: int | None = None
    """The position of what it writes over a part of its first operand, in place. Liveness, costs and users' rules ask."""

    carries: bool = False
    """It does to partial results what it does to whole ones: it only moves elements. Rules made of others' ask."""

    partial: bool = False
    """Run alone on a part of what it reduces, it gives a partial result, and needs not to know which part it is. Others,
    such as a masked gather, do. Rules made of others' ask."""

    rounds: bool = False
    """Its result is a sum of many terms, or one of such sums: in 16-bit floats it is not exact. Numerics ask."""

    slides: SlideFunction | None = None
    """It slides a window: the dims whose split needs halos. Rules, costs and predictions ask; emission fetches them."""

    by_hand: ByHand | None = None
    """What keeps an op that is split from XLA's partitioner: "parts", it is run on the part of each device; "barrier", what
    it writes into is made a buffer of its own; "kernel", a rule of the user's says how. `planner.by_hand` asks."""

    opaque: bool = False
    """It lowers to code that nobody can look into. Asked before Shardy's registry is."""

    calls_back: bool = False
    """It calls Python. Kernels of users ask."""
