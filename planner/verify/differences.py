"""Differences between promised and compiled collectives: what became what, where, and why where that is known.

Kinds are compared with kinds and axes with axes, by the bytes of a call, so that a gather in several pieces is the gather
that was promised. What is left over on either side is paired: first what moves as much over the same axes at the same
line of code, then less and less alike, for compilers combine collectives and move them out of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from planner.units import quantity

Key = tuple[str, tuple[str, ...]]
"""A kind of collective and the mesh axes it runs over; ("?",) for devices that no set of axes joins."""
MOST_UNLIKE = 2.0
"""How many times as many bytes the one may move that is called what became of the other."""
K = TypeVar("K", bound=Hashable)

WINDOWS = (
    "a windowed einsum: the compiler made a loop of permutes of it and of the matmul beside it, which reads the other "
    "operand again in every pass"
)
OF_ALL_DEVICES = "over a group of all devices the compiler sums where it could gather or scatter"
SUMMED_WHOLE = "every device sums the whole and keeps its part"
IN_ORDER = "it puts the parts of what is scattered or gathered there in order"
COMBINED = "the compiler combined it with others or moved it out of a loop"

_LAID = ("sharding_constraint", "shard_map")
"""In the names of operations that emission lays down to move a tensor, as opposed to those the partitioner changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A collective, promised or compiled: `each_bytes` in each of `runs` a call, or of `bytes` and `seconds` a part of it.

    `line`, by which promised and compiled ones are told to be the same, and the user's own `source`, which is told, are
    "folder/file.py:line", or "". `op_name` and `windowed` are of compiled ones, as `CompiledCollective` has them.
    """

    kind: str
    axes: tuple[str, ...]
    line: str
    source: str
    each_bytes: float
    runs: float
    bytes: float
    seconds: float
    op_name: str = ""
    windowed: bool = False

    @property
    def key(self) -> Key:
        """Its kind and axes."""
        return self.kind, self.axes

    def share(self, part: float) -> Moved:
        """The same collective, of which only a part counts."""
        return replace(self, bytes=part * self.bytes, seconds=part * self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A promise that became something else (`promised` and `compiled`), nothing (`compiled` is None), or was none.

    Bytes and seconds are those of a call. `source` and `op_name` are those of the largest of `lines` source lines, and
    `largest_bytes` what that moves in one of its `runs`.
    """

    promised: Key | None
    compiled: Key | None
    promised_bytes: float
    compiled_bytes: float
    promised_seconds: float
    compiled_seconds: float
    source: str
    op_name: str
    lines: int
    largest_bytes: float
    runs: float
    reason: str

    @property
    def seconds(self) -> float:
        """The seconds that are promised and not compiled, or the other way round, whichever are more."""
        return max(self.promised_seconds, self.compiled_seconds)

    def __str__(self) -> str:
        times = f" {self.runs:.4g} times" if self.runs > 1.5 else ""
        more = f" and on {self.lines - 1} other line{'s' * (self.lines > 2)}" if self.lines > 1 else ""
        first = self.promised or self.compiled or ("", ())
        what = f"{_named(first)} of {quantity(self.largest_bytes, 'B')}{times} at {self.source or '?'}{more}"
        because = f"; {self.reason}" if self.reason else ""
        promised = _costs(self.promised_bytes, self.promised_seconds)
        compiled = _costs(self.compiled_bytes, self.compiled_seconds)
        if self.promised is None:
            by = self.op_name or "no operation of the program"
            return f"{what} was not asked for: {compiled} a call, by {by}{because}"
        if self.compiled is None:
            return f"{what} was not compiled: {promised} a call{because}"
        became = _named(self.compiled) if self.compiled[1] != self.promised[1] else _with_article(self.compiled[0])
        return f"{what} became {became}: {compiled} a call for {promised}{because}"


def differences(
    promised: Sequence[Moved], compiled: Sequence[Moved], *, every_axis: tuple[str, ...]
) -> tuple[Difference, ...]:
    """The differences, the most seconds first. `every_axis` are the axes of the mesh that split devices, in its order."""
    promised, compiled = _merged(promised), _merged(compiled)
    missing, extra = _left_over(promised, compiled), _left_over(compiled, promised)
    whole = {(c.line, c.axes) for c in compiled if c.kind in ("reduce-scatter", "all-gather")}
    windowed = {(c.line, c.axes) for c in compiled if c.windowed}

    def reason(before: Moved | None, after: Moved | None) -> str:
        if after is None:
            return ""
        if after.windowed or (after.kind == "collective-permute" and (after.line, after.axes) in windowed):
            return WINDOWS
        if before is None and after.kind == "collective-permute" and (after.line, after.axes) in whole:
            return IN_ORDER
        return _reason(before, after, every_axis)

    groups: dict[object, list[tuple[Moved | None, Moved | None]]] = {}
    for before, after in _paired(missing, extra):
        key = (before and before.key, after and after.key, reason(before, after))
        groups.setdefault(key, []).append((before, after))
    found = [_difference(pairs, reason(*pairs[0])) for pairs in groups.values()]
    return tuple(sorted(found, key=lambda d: (-d.seconds, str(d.promised), str(d.compiled), d.reason)))


def surplus(compiled: Sequence[Moved], promised: Sequence[Moved]) -> list[Moved]:
    """What is compiled and not promised, line by line: what is left once as much of its kind and axes is taken away."""
    return _left_over(_merged(compiled), _merged(promised))


def bytes_by(collectives: Sequence[Moved], key: Callable[[Moved], K]) -> dict[K, float]:
    """The bytes of a call by some key."""
    found: dict[K, float] = {}
    for m in collectives:
        found[key(m)] = found.get(key(m), 0.0) + m.bytes
    return found


def _merged(collectives: Sequence[Moved]) -> list[Moved]:
    """The collectives, those that are alike as one that runs as often as they together: the layers of deep programs."""
    groups: dict[object, list[Moved]] = {}
    for m in collectives:
        groups.setdefault((m.key, m.line, m.source, m.each_bytes, m.op_name == "", m.windowed), []).append(m)
    return [
        replace(
            max(alike, key=lambda m: m.bytes),
            runs=sum(m.runs for m in alike),
            bytes=sum(m.bytes for m in alike),
            seconds=sum(m.seconds for m in alike),
        )
        for alike in groups.values()
    ]


def _left_over(ours: Sequence[Moved], theirs: Sequence[Moved]) -> list[Moved]:
    """What is left of `ours` once as many bytes of the same kind and axes as `theirs` are taken away.

    Taken away is what stands at the same line first.
    """
    mine, other = bytes_by(ours, lambda m: m.key), bytes_by(theirs, lambda m: m.key)
    at = bytes_by(theirs, lambda m: (m.key, m.line))
    here = bytes_by(ours, lambda m: (m.key, m.line))
    over = {key: max(0.0, moved - at.get(key, 0.0)) for key, moved in here.items()}
    total: dict[object, float] = {}
    for (key, _), moved in over.items():
        total[key] = total.get(key, 0.0) + moved
    left: list[Moved] = []
    for m in ours:
        excess = mine[m.key] - other.get(m.key, 0.0)
        if excess > 1 and m.bytes > 0:
            spot = (m.key, m.line)
            left.append(m.share(over[spot] / here[spot] * excess / total[m.key]))
    return [m for m in left if m.bytes > 0]


_ALIKE: tuple[Callable[[Moved], object], ...] = (
    lambda m: (m.line, m.axes, f"{m.each_bytes:.2g}"),
    lambda m: (m.line, m.axes),
    lambda m: (m.axes, f"{m.each_bytes:.2g}"),
    lambda m: m.axes,
    lambda m: (m.line, m.axes[0]),
    lambda m: (m.line, m.axes[-1]),
)
"""What a promised collective and what became of it have in common, from the surest sign to the weakest."""


def _paired(missing: list[Moved], extra: list[Moved]) -> list[tuple[Moved | None, Moved | None]]:
    """Promised and compiled collectives, those paired of which the one became the other."""
    pairs: list[tuple[Moved | None, Moved | None]] = []
    for alike in _ALIKE:
        before, after = _grouped(missing, alike), _grouped(extra, alike)
        missing, extra = [], []
        for key in {**before, **after}:
            ours, theirs = before.get(key, []), after.get(key, [])
            a, b = sum(m.bytes for m in ours), sum(m.bytes for m in theirs)
            used = (min(1.0, MOST_UNLIKE * b / a) if a else 0.0, min(1.0, MOST_UNLIKE * a / b) if b else 0.0)
            pairs += [
                (m.share(used[0] * n.bytes / b), n.share(used[1] * m.bytes / a))
                for m in ours
                for n in theirs
                if a and b
            ]
            missing += [m.share(1 - used[0]) for m in ours if used[0] < 1]
            extra += [n.share(1 - used[1]) for n in theirs if used[1] < 1]
    return [*pairs, *((m, None) for m in missing), *((None, n) for n in extra)]


def _grouped(collectives: Sequence[Moved], alike: Callable[[Moved], object]) -> dict[object, list[Moved]]:
    groups: dict[object, list[Moved]] = {}
    for m in collectives:
        groups.setdefault(alike(m), []).append(m)
    return groups


def _difference(pairs: Sequence[tuple[Moved | None, Moved | None]], reason: str) -> Difference:
    """One difference of all pairs of one kind."""
    before, after = [p for p, _ in pairs if p is not None], [c for _, c in pairs if c is not None]
    at = before or after
    by_line = bytes_by(at, lambda m: m.source)
    source = max(by_line, key=lambda line: by_line[line])
    largest = max((m for m in at if m.source == source), key=lambda m: m.bytes)
    by_name = bytes_by(after, lambda m: m.op_name)
    return Difference(
        promised=before[0].key if before else None,
        compiled=after[0].key if after else None,
        promised_bytes=sum(m.bytes for m in before),
        compiled_bytes=sum(m.bytes for m in after),
        promised_seconds=sum(m.seconds for m in before),
        compiled_seconds=sum(m.seconds for m in after),
        source=source,
        op_name=max(by_name, key=lambda name: by_name[name], default=""),
        lines=len(by_line),
        largest_bytes=largest.each_bytes,
        runs=largest.runs,
        reason=reason,
    )


def _reason(before: Moved | None, after: Moved, every_axis: tuple[str, ...]) -> str:
    """Why a promise became something else, or something came that was none; "" where that is not known."""
    if before is not None and after.kind == "all-reduce" and before.kind in ("all-gather", "reduce-scatter"):
        return OF_ALL_DEVICES if after.axes == every_axis else SUMMED_WHOLE if before.kind == "reduce-scatter" else ""
    if not after.op_name:
        return COMBINED
    operation = after.op_name.rsplit("/", 1)[-1]
    if before is None and not any(word in after.op_name.rsplit("/", 2)[-1] for word in _LAID):
        return f"the partitioner moves by itself what {operation} reads or makes"
    return ""


def _named(key: Key) -> str:
    kind, axes = key
    return f"{kind} over {','.join(axes)}"


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _costs(bytes: float, seconds: float) -> str:
    return f"{quantity(bytes, 'B')} in {quantity(seconds, 's')}"
