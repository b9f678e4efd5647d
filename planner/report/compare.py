"""Comparing two plans by what their files say alone: meshes, forms, figures, specs and collectives."""

from __future__ import annotations

from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.pricing.candidates.specs import entries_of
from planner.program.form import form_text
from planner.program.graph import type_text
from planner.program.spec_entries import parts_over
from planner.program.tracing.traced import Leaf
from planner.report.collectives import CollectiveUse, collective_uses, merged
from planner.report.comparison import FIGURE_NAMES, ArrayChange, CollectiveChange, Comparison, Figure, alike
from planner.report.rows import rows_of, split_into


def compare_decisions(a: Decision, b: Decision) -> Comparison:
    """Where two plans differ."""
    same_mesh = dict(a.mesh_shape) == dict(b.mesh_shape)
    arrays, only_a, only_b = _arrays(a, b)
    intermediates = _intermediates(a, b)
    return Comparison(
        a=f"{a.function_name} for {a.topology}",
        b=f"{b.function_name} for {b.topology}",
        notes=_notes(a, b, same_mesh=same_mesh),
        mesh_a=dict(a.mesh_shape),
        mesh_b=dict(b.mesh_shape),
        form_a=form_text(a.form),
        form_b=form_text(b.form),
        figures=tuple(
            Figure(name=name, unit=unit, a=float(getattr(a.predicted, name)), b=float(getattr(b.predicted, name)))
            for name, (_, unit) in FIGURE_NAMES.items()
        ),
        arrays=arrays,
        intermediates=intermediates,
        only_a=only_a,
        only_b=only_b,
        collectives=_collectives(a, b, by_axes=same_mesh),
    )


def _notes(a: Decision, b: Decision, *, same_mesh: bool) -> tuple[str, ...]:
    found: list[str] = []
    if a.function_name != b.function_name or a.arguments != b.arguments:
        found.append("the plans are of different functions or arguments: arrays are matched by name and type")
    elif a.fingerprint != b.fingerprint and a.form == b.form:
        found.append("the plans are of different versions of the function, or of different JAX releases")
    if a.topology != b.topology:
        found.append(
            f"the plans are for different chips or shapes, {a.topology} and {b.topology}: so are their figures"
        )
    if a.request.objective != b.request.objective:
        found.append(f"A minimises {a.request.objective}, B {b.request.objective}")
    if a.request.cost_model != b.request.cost_model:
        found.append(f"prices of A are {a.request.cost_model}, of B {b.request.cost_model}")
    if not same_mesh:
        found.append(
            "the meshes differ: specs are the same here where they cut every dim into as many parts, and collectives are "
            "told apart by the devices that take part"
        )
    if not alike(a.predicted.seconds, b.predicted.seconds) and _overlap(a, b):
        found.append(
            "a tie: the intervals of their seconds overlap, so that either may be the faster one on a machine; "
            "Options(autotune=...) asks a compiler or the devices"
        )
    return tuple(found)


def _overlap(a: Decision, b: Decision) -> bool:
    first, second = a.predicted.seconds_range, b.predicted.seconds_range
    return first is not None and second is not None and first[0] <= second[1] and second[0] <= first[1]


def _same_place(a: tuple[Decision, PartitionSpec], b: tuple[Decision, PartitionSpec]) -> bool:
    """Whether two specs say the same: by their axes on the same mesh, by the parts they cut dims into on different ones."""
    if dict(a[0].mesh_shape) == dict(b[0].mesh_shape):
        return _cuts(*a) == _cuts(*b)
    parts_a, parts_b = (
        [parts_over(axes, decision.mesh_shape) for axes in _cuts(decision, spec)] for decision, spec in (a, b)
    )
    return parts_a == parts_b


def _cuts(decision: Decision, spec: PartitionSpec) -> list[list[str]]:
    """The axes of more than one device that cut every dim, without dims at the end that none cuts."""
    entries = [[axis for axis in axes if decision.mesh_shape[axis] > 1] for axes in entries_of(spec)]
    while entries and not entries[-1]:
        entries.pop()
    return entries


def _leaves(decision: Decision) -> dict[tuple[str, str], tuple[Leaf, PartitionSpec]]:
    """Arguments and results by name and type."""
    leaves = (*decision.arguments, *decision.results)
    specs = (*decision.in_specs, *decision.out_specs)
    return {(leaf.name, type_text(leaf.aval)): (leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)}


def _arrays(a: Decision, b: Decision) -> tuple[tuple[ArrayChange, ...], tuple[str, ...], tuple[str, ...]]:
    """The arguments and results placed otherwise, and the names of those that one of the plans alone has."""
    of_a, of_b = _leaves(a), _leaves(b)
    groups: dict[tuple[PartitionSpec, PartitionSpec], list[Leaf]] = {}
    for key in of_a.keys() & of_b.keys():
        (leaf, spec_a), (_, spec_b) = of_a[key], of_b[key]
        if not _same_place((a, spec_a), (b, spec_b)):
            groups.setdefault((spec_a, spec_b), []).append(leaf)
    position = {key: i for i, key in enumerate(of_a)}
    found: list[ArrayChange] = []
    for (spec_a, spec_b), leaves in groups.items():
        leaves.sort(key=lambda leaf: position[leaf.name, type_text(leaf.aval)])
        pieces = split_into(spec_a, a.mesh_shape), split_into(spec_b, b.mesh_shape)
        for row in rows_of(leaves, [spec_a] * len(leaves), a.mesh_shape):
            name = f"{row.name} with {', '.join(row.also)}" if row.also else row.name
            found.append(
                ArrayChange(
                    name=name,
                    type=row.type,
                    count=row.count,
                    a=spec_a,
                    b=spec_b,
                    bytes_a=row.bytes,
                    bytes_b=row.bytes * pieces[0] / pieces[1],
                )
            )
    found.sort(key=lambda placed: (-max(placed.bytes_a, placed.bytes_b), placed.name))
    only = [tuple(name for name, _ in mine if (name, _) not in other) for mine, other in ((of_a, of_b), (of_b, of_a))]
    return tuple(found), only[0], only[1]


def _intermediates(a: Decision, b: Decision) -> tuple[ArrayChange, ...]:
    """The intermediates of the same name that are placed otherwise; their types are not kept, nor their bytes."""
    found = [
        ArrayChange(name=name, type="", count=1, a=spec, b=b.intermediates[name], bytes_a=0.0, bytes_b=0.0)
        for name, spec in a.intermediates.items()
        if name in b.intermediates and not _same_place((a, spec), (b, b.intermediates[name]))
    ]
    return tuple(sorted(found, key=lambda placed: (":" in placed.name, placed.name)))


def _collectives(a: Decision, b: Decision, *, by_axes: bool) -> tuple[CollectiveChange, ...]:
    """The collectives of both, by kind and what they run over, those first whose bytes differ the most."""

    def totals(decision: Decision) -> dict[tuple[str, str], CollectiveUse]:
        def key(use: CollectiveUse) -> tuple[str, str]:
            return use.kind, ",".join(use.axes) if by_axes else f"{parts_over(use.axes, decision.mesh_shape)} devices"

        return {key(use): use for use in merged(collective_uses(decision), key)}

    of_a, of_b = totals(a), totals(b)
    none_a, none_b = (
        CollectiveUse(
            kind="", axes=(), runs=0.0, bytes=0.0, seconds=0.0 if one.request.cost_model == "analytic" else None
        )
        for one in (a, b)
    )
    pairs = {key: (of_a.get(key, none_a), of_b.get(key, none_b)) for key in {**of_a, **of_b}}
    found = [
        CollectiveChange(
            kind=kind,
            over=over,
            runs_a=mine.runs,
            runs_b=other.runs,
            bytes_a=mine.bytes,
            bytes_b=other.bytes,
            seconds_a=mine.seconds,
            seconds_b=other.seconds,
        )
        for (kind, over), (mine, other) in pairs.items()
    ]
    return tuple(sorted(found, key=lambda m: (-abs(m.bytes_b - m.bytes_a), m.kind, m.over)))
