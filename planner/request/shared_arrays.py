"""Shared arrays: which arguments and results of several programs are one array, told by `same_arrays` pair by pair."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from planner.program.tracing.traced import Leaf
from planner.request.matching_arrays import RESULTS, same_arrays

Use = tuple[str, int]
"""A program, and the position of an array among its arguments and results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArrays:
    """`of[program]` are the numbers of the arrays that it shares with others, by position among its `leaves`.

    `pinned[program]` are the patterns of the pins that its user gave, which go before those of logical names and of `like`.
    """

    leaves: Mapping[str, Sequence[Leaf]]
    of: Mapping[str, Mapping[int, int]]
    pinned: Mapping[str, Collection[str]] = field(default_factory=dict[str, Collection[str]])

    @property
    def count(self) -> int:
        """How many arrays are shared."""
        return len({number for numbers in self.of.values() for number in numbers.values()})

    def names(self, program: str) -> list[str]:
        """The names of the arguments and results of a program that are shared, cut to what is named in its signature."""
        leaves = self.leaves[program]
        return list(dict.fromkeys(_top(leaves[position].name) for position in self.of[program]))


def shared_arrays(leaves: Mapping[str, Sequence[Leaf]], apart: Mapping[str, Collection[str]]) -> SharedArrays:
    """The arrays that programs with these arguments and results share, but for those of the names `apart`."""
    groups = _Groups()
    for one, other in permutations(leaves, 2):
        same = same_arrays(leaves[other], leaves[one])
        for position, counterpart in same.of.items():
            mine, its = leaves[other][position], leaves[one][counterpart]
            if mine.name not in apart[other] and its.name not in apart[one]:
                groups.join((one, counterpart), its, (other, position), mine)
    numbers: dict[Use, int] = {}
    of: dict[str, dict[int, int]] = {name: {} for name in leaves}
    for name, those in leaves.items():
        for position in range(len(those)):
            first = groups.first((name, position))
            if first is not None:
                of[name][position] = numbers.setdefault(first, len(numbers))
    return SharedArrays(leaves=leaves, of=of)


@dataclass(slots=True)
class _Groups:
    """Uses that are of one array: every program has it as one argument, one result or both."""

    members: dict[Use, dict[tuple[str, bool], Use]] = field(default_factory=dict[Use, dict[tuple[str, bool], Use]])
    leader: dict[Use, Use] = field(default_factory=dict[Use, Use])

    def first(self, use: Use) -> Use | None:
        """What stands for the array of a use; None where no other program has it."""
        return self.leader.get(use)

    def join(self, one: Use, its: Leaf, other: Use, mine: Leaf) -> None:
        """Makes two uses those of one array, unless a program had two arguments of it then."""
        here, there = self._group(one, its), self._group(other, mine)
        if here is there or here.keys() & there.keys():
            return
        here.update(there)
        head = min(here.values())
        for use in here.values():
            self.leader[use] = head
            self.members[use] = here

    def _group(self, use: Use, leaf: Leaf) -> dict[tuple[str, bool], Use]:
        return self.members.get(use) or {(use[0], _top(leaf.name) == RESULTS): use}


def _top(name: str) -> str:
    return name.split("/")[0]
