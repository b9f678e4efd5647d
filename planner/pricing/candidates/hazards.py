"""Hazards: splits that XLA's partitioner computes wrongly or dies of, in one table, and what keeps plans from them.

Every hazard was seen with constraints on the operands and the result of a single op that all belong to one strategy of its
rule. Two things keep a plan from one: the rule keeps the factor whole; or the op is emitted by hand (see `by_hand`), as a
`shard_map` in which nothing is left to the partitioner, or behind a barrier. The tests hold a reproduction of each, which
tells on every JAX whether the hazard is still there, and search for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.rules.primitives import kinds_where


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """A kind of split of some primitives that the compiler gets wrong, and the `remedy` that keeps plans from it.

    `seen` is what was seen, and where.
    """

    primitives: frozenset[str]
    effect: Literal["wrong numbers", "death"]
    seen: str
    remedy: Literal["rule", "by hand"]


HAZARDS: Mapping[str, Hazard] = {
    "space and output features of a convolution": Hazard(
        primitives=frozenset(("conv_general_dilated",)),
        effect="wrong numbers",
        seen="off by a factor wherever output features are split by an earlier axis of the mesh than a space dim; windows "
        "of more than one element, forward and both gradients, JAX 0.10.2 and 0.12.0.1",
        remedy="by hand",
    ),
    "space in the kernel gradient of a convolution": Hazard(
        primitives=frozenset(("conv_general_dilated",)),
        effect="wrong numbers",
        seen="multiplied by the size of the axes that do not split space, wherever there are any, JAX 0.10.2 and 0.12.0.1",
        remedy="by hand",
    ),
    "groups of a convolution with a window of one element": Hazard(
        primitives=frozenset(("conv_general_dilated",)),
        effect="wrong numbers",
        seen="off by as much as the result wherever groups are split, even by the only axis of a mesh of two devices; "
        "refused ('Expected output feature dimension to be divisible by feature_group_count') where more devices "
        "share them; forward and both gradients, JAX 0.10.2 and 0.12.0.1",
        remedy="by hand",
    ),
    "channels of a depthwise convolution with a window of one element": Hazard(
        primitives=frozenset(("conv_general_dilated",)),
        effect="death",
        seen="'free(): invalid pointer' where one of two axes splits the channels, JAX 0.10.2 and 0.12.0.1",
        remedy="by hand",
    ),
    "reduced dim of a reduction with an initial value of its own": Hazard(
        primitives=frozenset(("reduce",)),
        effect="wrong numbers",
        seen="the initial value counts once per shard; where the operand is a concatenation, as an all-to-all makes one, "
        "it is lost or repeated even on one device; JAX 0.10.2 and 0.12.0.1",
        remedy="rule",
    ),
    "dim of a dynamic update of one element": Hazard(
        primitives=frozenset(("dynamic_update_slice",)),
        effect="wrong numbers",
        seen="an update that starts past the end is dropped instead of moved to the last place, JAX 0.10.2 and 0.12.0.1",
        remedy="by hand",
    ),
    "indexed dim of a scatter of one update": Hazard(
        primitives=kinds_where(lambda row: row.by_hand == "barrier"),
        effect="wrong numbers",
        seen="where the operand arrives whole, each device takes its part of it and writes an element of another part "
        "into the place next to that of an update it does not hold: XLA makes one slice of the two and forgets that the "
        "second stays within the first, on one device as well; JAX 0.10.2, not 0.12.0.1",
        remedy="by hand",
    ),
}
"""Every known hazard by name; the tests have a reproduction under each of these names."""
