"""Same arrays: which arguments and results of one program are arrays that others have too, so that all may lie alike.

Programs that work on one state take it under other names, at other places and with more or less around it: `init` returns
`params`, a train step takes them within a train state, `eval` as `variables["params"]`. What they share is structure. So
whole parts of pytrees are compared, the largest first: two are the same where the names of the paths within them and the
types of all their arrays are. Of several that are, the one whose own path ends in most of the same names is taken (the
parameters, not the optimizer's moments of them), then the one nearest to the top. Every array has one counterpart.

One array alone says less: it counts where its whole path, or its own name, is the same. Where nothing is found so, a result
of the one and an argument of the other are taken for the same that are the only ones of their type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from planner.program.graph import Aval
from planner.program.tracing.traced import Leaf

RESULTS = "out"
"""The first name of the path of a result."""

Path = tuple[str, ...]
Signature = tuple[tuple[Path, Aval], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """`of[position]` is the counterpart of an array; `parts` are the names of what was found to be the same, in pairs."""

    of: dict[int, int] = field(default_factory=dict[int, int])
    parts: tuple[tuple[str, str], ...] = ()


def same_arrays(mine: Sequence[Leaf], theirs: Sequence[Leaf]) -> Same:
    """The counterparts of arrays among those of another program: its arguments first, then its results.

    Both are arguments and results of a program, told apart by their names.
    """
    found: dict[int, int] = {}
    parts: list[tuple[str, str]] = []
    sides = [[i for i, leaf in enumerate(theirs) if _is_result(leaf) == result] for result in (False, True)]
    wanted = [[i for i, leaf in enumerate(mine) if _is_result(leaf) == result] for result in (False, True)]
    for ours in wanted:
        for side in sides:
            _match_parts(mine, theirs, ours, side, found, parts)
    if not found:
        for ours, side in zip(wanted, reversed(sides), strict=True):
            _match_alone(mine, theirs, ours, side, found, parts)
    return Same(of=found, parts=tuple(parts))


def _is_result(leaf: Leaf) -> bool:
    return _path(leaf)[0] == RESULTS


def _path(leaf: Leaf) -> Path:
    return tuple(leaf.name.split("/"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a pytree: its path and the positions of its arrays."""

    path: Path
    leaves: tuple[int, ...]

    @property
    def is_top(self) -> bool:
        """Whether it is an argument, the result, or one of the results."""
        return len(self.path) == 1 or (len(self.path) == 2 and self.path[0] == RESULTS)


def _parts(leaves: Sequence[Leaf], positions: Collection[int]) -> dict[Signature, list[_Part]]:
    """All parts of the pytrees of these arrays, by what they hold."""
    held: dict[Path, list[int]] = {}
    for i in positions:
        path = _path(leaves[i])
        for depth in range(1, len(path) + 1):
            held.setdefault(path[:depth], []).append(i)
    found: dict[Signature, list[_Part]] = {}
    for path, inside in held.items():
        content = sorted(((_path(leaves[i])[len(path) :], leaves[i].aval, i) for i in inside), key=lambda row: row[0])
        signature = tuple((rest, aval) for rest, aval, _ in content)
        found.setdefault(signature, []).append(_Part(path=path, leaves=tuple(i for _, _, i in content)))
    return found


def _match_parts(
    mine: Sequence[Leaf],
    theirs: Sequence[Leaf],
    wanted: Collection[int],
    offered: Collection[int],
    found: dict[int, int],
    parts: list[tuple[str, str]],
) -> None:
    """Finds counterparts of the wanted arrays among those offered, part by part."""
    ours = _parts(mine, [i for i in wanted if i not in found])
    others, used = _parts(theirs, offered), set[int]()
    for signature in sorted(ours, key=len, reverse=True):
        for part, other in _pairs(ours[signature], others.get(signature, [])):
            if any(i in found for i in part.leaves) or any(i in used for i in other.leaves):
                continue
            found.update(zip(part.leaves, other.leaves, strict=True))
            used.update(other.leaves)
            parts.append(("/".join(part.path), "/".join(other.path)))


def _pairs(ours: Sequence[_Part], others: Sequence[_Part]) -> Iterator[tuple[_Part, _Part]]:
    """The pairs of parts that may be the same, those first that are so most likely."""
    ends: dict[Path, list[_Part]] = {}
    for other in sorted(others, key=lambda part: len(part.path)):
        for start in range(len(other.path) + 1):
            ends.setdefault(other.path[start:], []).append(other)
    longest = max((len(part.path) for part in ours), default=0)
    for common in range(longest, -1, -1):
        for part in sorted(ours, key=lambda part: len(part.path)):
            if common <= len(part.path):
                end = part.path[len(part.path) - common :]
                for other in ends.get(end, ()):
                    if _may_be_same(part, other, end):
                        yield part, other


def _may_be_same(part: _Part, other: _Part, end: Path) -> bool:
    """Whether two parts with the same content, whose paths have this end in common, are taken for the same."""
    if part.path == other.path and part.path[0] != RESULTS:
        return True
    if len(part.leaves) > 1 and (part.is_top or other.is_top):
        return True
    is_named = bool(end) and not end[-1].isdigit()
    within = not (len(part.path) == 1 and part.path[0] == RESULTS)
    return is_named and within


def _match_alone(
    mine: Sequence[Leaf],
    theirs: Sequence[Leaf],
    wanted: Collection[int],
    offered: Collection[int],
    found: dict[int, int],
    parts: list[tuple[str, str]],
) -> None:
    """Finds counterparts of arrays that are the only ones of their type on both sides."""
    ours = [i for i in wanted if mine[i].aval.shape]
    counts, held = Counter(mine[i].aval for i in ours), Counter(theirs[i].aval for i in offered)
    place = {theirs[i].aval: i for i in offered}
    for i in ours:
        aval = mine[i].aval
        if counts[aval] == held[aval] == 1:
            found[i] = place[aval]
            parts.append((mine[i].name, theirs[place[aval]].name))


# ---------------------------------------------------------------- shared arrays


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
