"""Lessons: what one compiled plan teaches about the prices of its program, by prediction and outcome side by side.

    computing       seconds found that nothing below accounts for, beside the predicted ones
    a collective    of a kind over some axes: the seconds of those that stand for it in the compiled program, times the
                    share of all communication that is exposed, beside the predicted ones. Where a kind runs less than
                    predicted and another over the same axes more, the compiler made the one of the other
    extra           collectives over axes, or at lines, where nothing like them was predicted: seconds that are charged to
                    the strategies chosen at these lines
    memory          temporaries found, beside the predicted ones

Priced anew by these, the plan costs what was found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.prediction import Predicted
from planner.pricing.assignment import Chosen
from planner.pricing.calibrated import Split
from planner.pricing.mesh import COLLECTIVES, Mesh
from planner.verify.hlo.collectives import CompiledCollective

NOTABLE = 0.01
"""Extra collectives of less than this part of the seconds found are charged to no strategy."""
CONVERTED = 0.25
"""Collectives that were not predicted stand for missing ones if those are at least this part of them."""
LEAST_EXPOSED = 0.1
"""What is hidden under one plan's computing is not so under any other's: no collective counts for less than this part."""

Key = tuple[str, int]
"""A kind of collectives and the bit set of the axes that they run over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Promise:
    """What the cost model says of a plan, as the solver sees it: seconds by what takes them, and bytes of memory.

    `lines` are (source line, bit set of axes) of all that moves. `splits` are, by source line, the strategies chosen for
    the groups there, with the number of those.
    """

    mesh: Mesh
    computing: float
    collectives: Mapping[Key, float]
    lines: frozenset[tuple[str, int]]
    splits: Mapping[str, Mapping[Split, int]]
    argument_bytes: float
    peak_bytes: float

    @property
    def seconds(self) -> float:
        """Their sum."""
        return self.computing + sum(self.collectives.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialOutcome:
    """What was found of a plan that ran, or whose schedule could be read.

    `seconds_most` is what a machine may take at most by the spread of the rates; of a run, its seconds. `exposed` and
    `communicating` seconds and the `collectives` are None where only all `seconds` are known.
    """

    seconds: float
    seconds_most: float
    exposed: float | None
    communicating: float | None
    collectives: Sequence[CompiledCollective] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """Found and predicted seconds of computing, of collectives by key, and what is charged to strategies besides."""

    mesh: Mesh
    computing: tuple[float, float]
    collectives: Mapping[Key, tuple[float, float]]
    extra: Mapping[Split, float] = field(default_factory=dict[Split, float])


def promise_of(chosen: Chosen, predicted: Predicted) -> Promise:
    """What is promised of a choice at the prices of its instance."""
    instance = chosen.instance
    mesh, model = instance.mesh, instance.model
    seconds: dict[Key, float] = defaultdict(float)
    lines: set[tuple[str, int]] = set()
    for transfer, steps in chosen.moves:
        for step, taken in zip(steps, chosen.step_seconds(transfer, steps), strict=True):
            if step.kind is not None:
                seconds[step.kind, step.mask] += chosen.trips(transfer) * taken
                lines.add((transfer.compiled_line, step.mask))
    splits: dict[str, dict[Split, int]] = {}
    for node in model.flow.nodes:
        if node.group is None:
            continue
        rows = instance.strategies[node.id].assignment
        split = (model.alike[node.group], tuple(map(int, rows[chosen.choice[node.id]])))
        for line in {model.graph.ops[op].line for op in model.grouping.groups[node.group].ops}:
            at = splits.setdefault(line, {})
            at[split] = at.get(split, 0) + 1
    return Promise(
        mesh=mesh,
        computing=chosen.seconds[0] + chosen.total("exchange_seconds"),
        collectives=dict(seconds),
        lines=frozenset(lines),
        splits=splits,
        argument_bytes=predicted.argument_bytes,
        peak_bytes=predicted.peak_bytes,
    )


def lesson(promise: Promise, outcome: TrialOutcome) -> Lesson:
    """What the outcome teaches of the prices that the promise was made at."""
    if outcome.collectives is None or outcome.exposed is None or not outcome.communicating:
        # All that is known is by how much the whole was off.
        off = outcome.seconds / promise.seconds if promise.seconds > 0 else 1.0
        return Lesson(
            mesh=promise.mesh,
            computing=(off * promise.computing, promise.computing),
            collectives={key: (off * seconds, seconds) for key, seconds in promise.collectives.items()},
        )
    share = max(outcome.exposed / outcome.communicating, LEAST_EXPOSED)
    attributed, loose = _attributed(promise, outcome.collectives)
    extra: dict[Split, float] = defaultdict(float)
    for line, seconds in loose.items():
        at = promise.splits.get(line)
        if at and seconds * share >= NOTABLE * outcome.seconds:
            each = seconds * share / sum(at.values())
            for split in at:
                extra[split] += each
    counts: dict[Split, int] = defaultdict(int)
    for at in promise.splits.values():
        for split, count in at.items():
            counts[split] = max(counts[split], count)
    explained = share * sum(attributed.values()) + sum(seconds * counts[split] for split, seconds in extra.items())
    return Lesson(
        mesh=promise.mesh,
        computing=(max(outcome.seconds - explained, 0.0), promise.computing),
        collectives={key: (share * attributed[key], seconds) for key, seconds in promise.collectives.items()},
        extra=dict(extra),
    )


@dataclass(slots=True)
class _Ran:
    """Seconds of what ran over some axes: by kind, and by kind and line."""

    kinds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lines: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))


def _ran(mesh: Mesh, compiled: Sequence[CompiledCollective]) -> dict[int, _Ran]:
    """What the compiled program runs, priced as the cost model prices it, by bit set of axes."""
    found: dict[int, _Ran] = defaultdict(_Ran)
    everything = (1 << len(mesh.sizes)) - 1
    for collective in compiled:
        axes = collective.axes(mesh.shape)
        mask = everything if axes is None else sum(1 << a for a, name in enumerate(mesh.names) if name in axes)
        kind = collective.kind if collective.kind in COLLECTIVES else "all-to-all"
        seconds = collective.known_trips * mesh.collective_seconds(kind, mask, collective.bytes)
        found[mask].kinds[kind] += seconds
        found[mask].lines[kind, _short(collective.source)] += seconds
    return found


def _short(source: str) -> str:
    """A source line of a compiled program as those of graphs are written: its last two parts."""
    return "/".join(source.replace("\\", "/").split("/")[-2:])


def _attributed(promise: Promise, compiled: Sequence[CompiledCollective]) -> tuple[dict[Key, float], dict[str, float]]:
    """For every predicted key the seconds of what stands for it, and by line those of what stands for none."""
    ran = _ran(promise.mesh, compiled)
    loose: dict[str, float] = defaultdict(float)
    found: dict[Key, float] = {}
    for mask in sorted({*ran, *(mask for _, mask in promise.collectives)}):
        predicted = {kind: s for (kind, of), s in promise.collectives.items() if of == mask}
        here = ran.get(mask, _Ran())
        matched, left = _over_same_axes(predicted, here, {line for line, of in promise.lines if of == mask})
        found.update({(kind, mask): seconds for kind, seconds in matched.items()})
        for line, seconds in left.items():
            loose[line] += seconds
    missing = {key: max(s - found[key], 0.0) for key, s in promise.collectives.items()}
    total, short = sum(loose.values()), sum(missing.values())
    if total and short >= CONVERTED * total:
        # A gather over two axes may have become one over each.
        return {key: s + total * missing[key] / short for key, s in found.items()}, {}
    return found, dict(loose)


def _over_same_axes(
    predicted: Mapping[str, float], ran: _Ran, lines: set[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """For each predicted kind the seconds of what stands for it, and by line those of the rest."""
    missing = {kind: max(seconds - ran.kinds.get(kind, 0.0), 0.0) for kind, seconds in predicted.items()}
    surplus = sum(max(seconds - predicted.get(kind, 0.0), 0.0) for kind, seconds in ran.kinds.items())
    short = sum(missing.values())
    if short and short >= CONVERTED * surplus:
        kept = {kind: min(seconds, ran.kinds.get(kind, 0.0)) for kind, seconds in predicted.items()}
        return {kind: kept[kind] + surplus * missing[kind] / short for kind in predicted}, {}
    found = {kind: ran.kinds.get(kind, 0.0) for kind in predicted}
    loose: dict[str, float] = defaultdict(float)
    for (kind, line), seconds in ran.lines.items():
        room = found[kind] - predicted[kind] if kind in predicted else seconds
        strange = min(seconds, room) if kind not in predicted or line not in lines else 0.0
        if strange > 0:
            loose[line] += strange
            if kind in found:
                found[kind] -= strange
    return found, loose
