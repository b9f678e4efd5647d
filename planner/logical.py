"""Logical axes: the indices that run through a program, each named once, and the mesh axes that split them; a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jax.sharding import PartitionSpec

Names = tuple[str | None, ...]
"""The logical axis of every dim of an array, None where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalAxis:
    """An index that runs through a program, such as the batch: its extent and the mesh axes that split it.

    `arguments` split it in the arguments, in most of their bytes where they differ, and `computed` in what is computed from
    them; None where it is in nothing that is stored.
    """

    name: str
    size: int
    arguments: tuple[str, ...]
    computed: tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalAxes:
    """A plan in terms of the indices that run through its program.

    `names` are those of the dims of every argument leaf, by its name. `exceptions` are the specs of the arguments that lie
    otherwise than `flax_rules` say.
    """

    axes: tuple[LogicalAxis, ...] = ()
    names: Mapping[str, Names] = field(default_factory=dict[str, Names])
    exceptions: Mapping[str, PartitionSpec] = field(default_factory=dict[str, PartitionSpec])

    @property
    def rules(self) -> Mapping[str, tuple[str, ...]]:
        """The mesh axes that split every logical axis in the arguments."""
        return {axis.name: axis.arguments for axis in self.axes}

    @property
    def flax_rules(self) -> list[tuple[str, str | tuple[str, ...] | None]]:
        """The same as the rules that `flax.linen.logical_to_mesh` takes."""
        return [
            (axis.name, axis.arguments[0] if len(axis.arguments) == 1 else axis.arguments or None) for axis in self.axes
        ]


NO_AXES = LogicalAxes()
"""Of a plan of which nothing is known."""


def spec_by_rules(names: Names, rules: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[tuple[str, ...], ...]:
    """The mesh axes of every dim by logical rules, as Flax reads them: the first rule that is left wins, and a mesh axis
    splits one dim."""
    found: dict[int, tuple[str, ...]] = {}
    used: set[str] = set()
    for name, axes in rules:
        dim = names.index(name) if name in names else None
        if dim is not None and dim not in found and not used & set(axes):
            found[dim] = axes
            used |= set(axes)
    return tuple(found.get(dim, ()) for dim in range(len(names)))
