"""Auditing: a user's shardings as pins, the plan that completes them best, and what each of them costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from planner.decision import Decision
from planner.errors import ArgumentError, InfeasibleError
from planner.folded import fold_numbers
from planner.plans.plan import Plan
from planner.pricing.candidates.pins import exactly
from planner.pricing.candidates.specs import entries_of
from planner.program.graph import type_text
from planner.program.spec_entries import parts_over
from planner.program.tracing.jitted import brought
from planner.program.tracing.traced import Leaf
from planner.report.collectives import CollectiveUse, by_cost, collective_uses, merged
from planner.report.rows import bytes_on_device, returned_as_taken
from planner.studies.audit import Audit, Gain, HeldWhole
from planner.studies.compiled_shardings import as_compiled, compile_note
from planner.units import quantity
from planner.verify.aot import AotReport

MOST_FREED = 8
"""Lots of alike arguments that are freed one after the other: those that take most."""
LARGE = 0.005
"""An array is large that takes this share of the memory of a device."""
WORTH = 1e-4
"""A change gains where it saves this share of the time, or of the peak."""

Planned = Callable[[Mapping[Any, Any] | None, float | None], Plan]
"""The best plan with some pins, within a memory limit; with None for pins, on any mesh, and with what the program names
itself free."""
Standing = Callable[[Plan], AotReport]
"""What the compiler makes of the program on the mesh of a plan, with its pins alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """A function with the shardings of its arguments and results, as `jax.jit` takes them.

    `donated` and `static` are the positions that a jitted function says so of, from which the function was taken.
    """

    fn: Callable[..., Any]
    in_shardings: Any
    out_shardings: Any
    donated: Collection[int] = ()
    static: Collection[int] = ()


class _LeafGroup(NamedTuple):
    """Arguments that are alike, under a folded name, and the results that are returned as they are taken."""

    name: str
    members: tuple[int, ...]
    results: tuple[int, ...]


def audit_request(fn: Callable[..., Any], count: int, in_shardings: Any, out_shardings: Any) -> AuditRequest:
    """What is to be audited; of a jitted function with shardings the function that it wraps, and these.

    `count` is the number of its arguments.

    Raises: ArgumentError where a jitted function has shardings and others are given.
    """
    info = getattr(fn, "_jit_info", None) if isinstance(fn, jax.stages.Wrapped) else None
    own = [
        _unflattened(getattr(info, f"{side}_shardings_treedef"), getattr(info, f"{side}_shardings_leaves"))
        for side in (("in", "out") if info is not None else ())
    ]
    if not any(one is not None for one in own):
        return AuditRequest(fn=fn, in_shardings=in_shardings, out_shardings=out_shardings)
    if in_shardings is not None or out_shardings is not None:
        raise ArgumentError("the jitted function has shardings of its own, and others are given; leave one of them out")
    says = brought(fn, count)
    return AuditRequest(
        fn=getattr(fn, "__wrapped__", fn),
        in_shardings=own[0],
        out_shardings=own[1],
        donated=says.donate,
        static=says.static,
    )


def _unflattened(tree: Any, leaves: Sequence[Any]) -> Any:
    """The shardings of a jitted function; None where it has none."""
    given = [leaf if isinstance(leaf, NamedSharding) else None for leaf in leaves]
    return jax.tree.unflatten(tree, given) if any(leaf is not None for leaf in given) else None


def pins_of(requested: AuditRequest, count: int, static: Sequence[int]) -> dict[Any, Any]:
    """The shardings as pins, by position of the argument, and `out`. Raises: ArgumentError."""
    given = requested.in_shardings
    if given is None or isinstance(given, (PartitionSpec, jax.sharding.Sharding)):
        given = (given,) * count
    taken = [i for i in range(count) if i not in {s % count for s in static}]
    if not isinstance(given, (tuple, list)) or len(given) not in (count, len(taken)):
        what = f"{len(given)} entries" if isinstance(given, (tuple, list)) else f"a {type(given).__name__}"
        raise ArgumentError(
            f"in_shardings has {what}, but there are {count} arguments; give one entry for each, or one for all"
        )
    positions = range(count) if len(given) == count else taken
    pins: dict[Any, Any] = {i: value for i, value in zip(positions, given, strict=True) if value is not None}
    if requested.out_shardings is not None:
        pins["out"] = requested.out_shardings
    return pins


def audited(pins: Mapping[Any, Any], planned: Planned, standing: Standing, *, limit_bytes: float | None) -> Audit:
    """The audit of these pins. Raises: what `planned` raises but where it is the memory limit alone that they break."""
    notes: list[str] = []
    try:
        completion = planned(pins, limit_bytes)
    except InfeasibleError:
        completion = planned(pins, math.inf)
        peak = quantity(completion.predicted.peak_bytes, "B")
        notes.append(
            f"with your shardings nothing is predicted to fit the memory limit: the plan needs {peak} per device"
        )
    own, report = completion.decision, standing(completion)
    compiled = as_compiled(completion, report)
    notes[:0] = [compile_note(own, report, compiled)]
    best = planned(None, limit_bytes).decision
    if dict(best.mesh_shape) != dict(own.mesh_shape):
        notes.append("the free plan is on another mesh: its axes are others than yours, whatever their names")
    gains, left = _gains(own, planned, own.request.memory_limit)
    if left:
        notes.append(f"of {left} lots of smaller arguments it was not tried to leave them to the planner")
    return Audit(
        own=own,
        compiled=compiled,
        free=best,
        surprises=_surprises(own, best),
        whole=_whole(own, best),
        gains=gains,
        notes=(*notes, *own.notes),
    )


def _surprises(own: Decision, free: Decision) -> tuple[CollectiveUse, ...]:
    """The collectives on arrays for which the free plan has none of the kind, those that take longest first."""
    known = {(one.kind, one.tensor) for one in free.predicted.collectives}
    uses = [use for use in collective_uses(own) if (use.kind, use.tensor) not in known]
    return tuple(sorted(merged(uses, lambda use: (use.kind, use.axes, use.tensor, use.source)), key=by_cost))


def _whole(own: Decision, free: Decision) -> tuple[HeldWhole, ...]:
    """Large arguments and results that axes could split that do not, those first that would spare most."""
    its = dict(zip(_names(free), (*free.in_specs, *free.out_specs), strict=True))
    chip = own.request.topology.chip.hbm_bytes
    taken = returned_as_taken(own.arguments, own.in_specs, own.results, own.out_specs)
    results = [i for i in range(len(own.results)) if i not in taken]
    leaves = (*own.arguments, *(own.results[i] for i in results))
    specs = (*own.in_specs, *(own.out_specs[i] for i in results))
    found: list[HeldWhole] = []
    for leaf, spec in zip(leaves, specs, strict=True):
        size = bytes_on_device(leaf, spec, own.mesh_shape)
        axes = _could(leaf, spec, own.mesh_shape)
        if axes and size >= LARGE * chip:
            saved = size * (1 - 1 / parts_over(axes, own.mesh_shape))
            found.append(
                HeldWhole(name=leaf.name, spec=spec, free=its.get(leaf.name), axes=axes, bytes=size, saved=saved)
            )
    return tuple(sorted(found, key=lambda one: (-one.saved, one.name)))


def _could(leaf: Leaf, spec: PartitionSpec, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes that do not split an array, and could: each in turn on the dim with the most elements left per device."""
    entries = entries_of(spec)
    used = {axis for entry in entries for axis in entry}
    left = [
        extent // parts_over(entries[d] if d < len(entries) else (), mesh) for d, extent in enumerate(leaf.aval.shape)
    ]
    found: list[str] = []
    for axis, size in mesh.items():
        dims = [d for d, extent in enumerate(left) if extent % size == 0 and extent >= size]
        if axis not in used and size > 1 and dims:
            left[max(dims, key=lambda d: left[d])] //= size
            found.append(axis)
    return tuple(found)


def _names(decision: Decision) -> list[str]:
    return [leaf.name for leaf in (*decision.arguments, *decision.results)]


# ---------------------------------------------------------------- single changes


def _gains(own: Decision, planned: Planned, limit_bytes: float) -> tuple[tuple[Gain, ...], int]:
    """What freeing each lot of alike arguments gains, and how many lots were left out."""
    pins = own.request.pins
    groups = [
        group for group in _leaf_groups(own) if any(exactly(own.arguments[i].name) in pins for i in group.members)
    ]
    found: list[Gain] = []
    for group in groups[:MOST_FREED]:
        leaves = [own.arguments[i].name for i in group.members] + [own.results[i].name for i in group.results]
        freed = {exactly(name) for name in leaves}
        try:
            left = {pattern: spec for pattern, spec in pins.items() if pattern not in freed}
            other = planned(left, limit_bytes).decision
        except InfeasibleError:
            continue
        first = group.members[0]
        seconds = own.predicted.seconds - other.predicted.seconds
        size = own.predicted.peak_bytes - other.predicted.peak_bytes
        if seconds > WORTH * own.predicted.seconds or size > WORTH * own.predicted.peak_bytes:
            found.append(
                Gain(
                    name=group.name,
                    count=len(group.members),
                    spec=own.in_specs[first],
                    better=other.in_specs[first],
                    seconds=seconds,
                    bytes=size,
                )
            )
    return tuple(sorted(found, key=lambda gain: (-gain.seconds, -gain.bytes, gain.name))), len(groups[MOST_FREED:])


def _leaf_groups(own: Decision) -> list[_LeafGroup]:
    """The arguments, those of one type, spec and name but for numbers together, the largest first."""
    taken = {argument: result for result, argument in _returned(own).items()}
    alike = [(type_text(leaf.aval), spec) for leaf, spec in zip(own.arguments, own.in_specs, strict=True)]
    folded = fold_numbers([leaf.name for leaf in own.arguments], alike)
    groups = [_LeafGroup(f.name, f.members, tuple(taken[i] for i in f.members if i in taken)) for f in folded]

    def size(group: _LeafGroup) -> float:
        return sum(own.arguments[i].aval.bytes for i in group.members)

    return sorted(groups, key=lambda group: (-size(group), group.name))


def _returned(own: Decision) -> dict[int, int]:
    return returned_as_taken(own.arguments, own.in_specs, own.results, own.out_specs)
