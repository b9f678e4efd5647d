"""Narrowing: a mesh's problem without the strategies that no plan below a cutoff can choose (see `solver.smaller.narrow`).

Where a good plan of another mesh is known, few strategies are left, and all that follows works on small tables: those of
the strategies that are dear by themselves are not even stated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pbqp.compiled import is_compiled
from pbqp.memory_rows import Indices
from pbqp.smaller.narrow import cheap, restricted, swept
from pbqp.smaller.smaller import Choice, floor_of
from planner.pricing.instance import Instance
from planner.search.shared_layers import SharedInstance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Narrowed:
    """What is stated with fewer strategies: a `Smaller` form; those that it lacks cost at least the cutoff, its `bound`.

    `kept[node]` are the positions of the strategies among those of the whole one. `floor` bounds what it is left with.
    """

    stated: Instance | SharedInstance
    kept: tuple[Indices, ...]
    bound: float
    floor: float

    def lift(self, choice: Choice) -> Indices:
        """A choice of the narrowed problem as one of the whole."""
        return np.asarray([positions[pick] for positions, pick in zip(self.kept, choice, strict=True)], np.intp)


def narrow(stated: Instance | SharedInstance, cutoff: float) -> Narrowed:
    """What is stated with the strategies that a plan of a value below `cutoff` may choose, at least one per node.

    A `floor` of at least the cutoff says that there is no such plan; then it is of no use to make it any smaller.
    """
    first = cheap(stated.node_values, cutoff)
    some = stated.restricted(first)
    kept, bound = swept(some.problem, cutoff, compiled=is_compiled(stated.node_values))
    if bound >= cutoff:
        return Narrowed(stated=some, kept=tuple(first), bound=cutoff, floor=bound)
    return Narrowed(
        stated=some.restricted(kept, restricted(some.problem, kept)),
        kept=tuple(positions[after] for positions, after in zip(first, kept, strict=True)),
        bound=cutoff,
        floor=max(floor_of(stated.node_values), bound),
    )
