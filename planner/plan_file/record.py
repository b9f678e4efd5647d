"""The record of a plan: what its file holds, field by field, and the checks that make a decision of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import jax
from jax.sharding import PartitionSpec

from cost_models import OBJECTIVES, Chip, CostModelError, Topology, parse_topology
from planner.autotune_log import Refined
from planner.compiler.emission.options import options_of_plans
from planner.decision import Certificate, Checked, Decision, Guessed, Replicated, Request, Ruled, Tried
from planner.logical import NO_AXES, LogicalAxes
from planner.plan_file.codec import MOST_INTEGER, as_json, from_json
from planner.plan_file.treedef import leaves_in_words, words_of_tree
from planner.prediction import Collective, Predicted
from planner.pricing.candidates.specs import entries_of
from planner.program.form import AS_WRITTEN, Form
from planner.program.graph import Aval
from planner.program.slots import SlotKind
from planner.program.spec_entries import parts_over
from planner.program.tracing.traced import Leaf, Program

FORMAT = "meshwright plan"
VERSION = 1
MOST_DEVICES = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRecord:
    """An argument or a result."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: float
    weak: bool
    constant: bool
    spec: PartitionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRecord:
    """A place in the program, and the specs that are laid there one after the other."""

    at: SlotKind
    path: tuple[int | str, ...]
    index: int
    specs: tuple[PartitionSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What was planned for, but for the topology."""

    platform: str | None
    objective: str
    memory_limit: float
    cost_model: Literal["analytic", "measured"]
    profile: str | None
    while_trips: float | Mapping[str, float]
    pins: Mapping[str, PartitionSpec]
    annotations: Literal["keep", "free"] = "keep"
    host_local: Mapping[str, int] = field(default_factory=dict[str, int])
    inputs: Literal["auto"] | tuple[str, ...] = ()
    """Earlier planners knew of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """What a plan file holds: first what was decided, then what is told of it. Fields with defaults came later.

    `topology` is its name where that says all, else its figures; `in_tree` the structure of the arguments in words
    (`tree_words`), or None; `jax` the release by which it was made.
    """

    format: Literal["meshwright plan"] = FORMAT
    version: Literal[1] = VERSION
    function: str
    fingerprint: str
    form: Form = AS_WRITTEN
    topology: str | Topology
    request: RequestRecord
    mesh: Mapping[str, int]
    arguments: tuple[LeafRecord, ...]
    results: tuple[LeafRecord, ...]
    in_tree: Any
    donate_argnums: tuple[int, ...]
    static_argnums: tuple[int, ...]
    compiler_options: Mapping[str, str] = field(default_factory=dict[str, str])
    constraints: tuple[PlaceRecord, ...]
    intermediates: Mapping[str, PartitionSpec]
    named: tuple[str, ...] = ()
    logical: LogicalAxes = NO_AXES
    choice: tuple[int, ...]
    replicated: tuple[Replicated, ...]
    by_shardy: tuple[Ruled, ...]
    guessed: tuple[Guessed, ...] = ()
    predicted: Predicted
    certificate: Certificate
    checked: tuple[Checked, ...]
    notes: tuple[str, ...]
    refined: Refined | None = None
    tried: tuple[Tried, ...] = ()
    jax: str


GROWN = (
    *(PlanRecord, RequestRecord, Certificate, Form, Predicted, Collective, Checked),
    *(Replicated, Ruled, Guessed, Chip),
)
"""Records of which files of earlier planners lack fields."""
_PLAIN_REQUEST = tuple(f.name for f in fields(RequestRecord))
_SAME = (
    "fingerprint",
    "form",
    "donate_argnums",
    "static_argnums",
    "compiler_options",
    "intermediates",
    "named",
    "logical",
    "choice",
    "replicated",
    "by_shardy",
    "guessed",
    "predicted",
    "certificate",
    "checked",
    "notes",
    "refined",
    "tried",
)
"""Fields that a decision has under the same name."""


def record_of(decision: Decision, program: Program) -> dict[str, Any]:
    """A decision as what JSON can tell; `decision_of` reads it back."""
    topology = decision.request.topology
    record = PlanRecord(
        function=decision.function_name,
        topology=topology.name if _named(topology.name) == topology else topology,
        request=RequestRecord(**{name: getattr(decision.request, name) for name in _PLAIN_REQUEST}),
        mesh=decision.mesh_shape,
        arguments=_leaf_records(decision.arguments, decision.in_specs),
        results=_leaf_records(decision.results, decision.out_specs),
        in_tree=words_of_tree(program.in_tree),
        constraints=tuple(
            PlaceRecord(at=at, path=path, index=index, specs=specs)
            for (at, path, index), specs in decision.constraints.items()
        ),
        jax=jax.__version__,
        **{name: getattr(decision, name) for name in _SAME},
    )
    return as_json(record)


def _named(name: str) -> Topology | None:
    try:
        return parse_topology(name)
    except CostModelError:
        return None  # a topology of the user's own


def _leaf_records(leaves: Sequence[Leaf], specs: Sequence[PartitionSpec]) -> tuple[LeafRecord, ...]:
    return tuple(
        LeafRecord(
            name=leaf.name,
            shape=leaf.aval.shape,
            dtype=leaf.aval.dtype,
            itemsize=leaf.aval.itemsize,
            weak=leaf.weak,
            constant=leaf.constant,
            spec=spec,
        )
        for leaf, spec in zip(leaves, specs, strict=True)
    )


# ---------------------------------------------------------------- reading


def decision_of(record: Mapping[str, Any]) -> Decision:
    """The decision that a record tells. Raises: ValueError, CostModelError where it tells none, or none that can be."""
    read = from_json(PlanRecord, record, grown=GROWN)
    topology = parse_topology(read.topology) if isinstance(read.topology, str) else read.topology
    _check(read, topology)
    return Decision(
        function_name=read.function,
        topology=topology.name,
        request=Request(topology=topology, **{name: getattr(read.request, name) for name in _PLAIN_REQUEST}),
        mesh_shape=read.mesh,
        arguments=tuple(map(_leaf, read.arguments)),
        results=tuple(map(_leaf, read.results)),
        in_specs=tuple(leaf.spec for leaf in read.arguments),
        out_specs=tuple(leaf.spec for leaf in read.results),
        constraints={(place.at, place.path, place.index): place.specs for place in read.constraints},
        **{name: getattr(read, name) for name in _SAME},
    )


def _leaf(leaf: LeafRecord) -> Leaf:
    aval = Aval(shape=leaf.shape, dtype=leaf.dtype, itemsize=leaf.itemsize)
    return Leaf(name=leaf.name, aval=aval, weak=leaf.weak, constant=leaf.constant)


def _check(read: PlanRecord, topology: Topology) -> None:
    """Raises: ValueError where fields contradict each other, or tell what cannot be."""
    _check_topology(topology)
    _require(all(name and size >= 1 for name, size in read.mesh.items()), "mesh", "has an axis without a size or name")
    devices = math.prod(read.mesh.values())
    _require(devices <= topology.num_devices, "mesh", f"has {devices} devices, the topology {topology.num_devices}")
    _check_request(read, topology)
    for what, leaves in (("arguments", read.arguments), ("results", read.results)):
        for i, leaf in enumerate(leaves):
            _check_leaf(leaf, read.mesh, f"{what}[{i}]")
    if read.in_tree is not None:
        count = sum(not leaf.constant for leaf in read.arguments)
        _require(leaves_in_words(read.in_tree) == count, "in_tree", f"has not the {count} arrays that there are")
    positions = (*read.donate_argnums, *read.static_argnums)
    _require(len(set(positions)) == len(positions), "donate_argnums", "and static_argnums have one position twice")
    inside = [spec for place in read.constraints for spec in place.specs]
    for spec in (*inside, *read.intermediates.values()):
        _check_spec(spec, read.mesh, "a spec")
    places = {(place.at, place.path, place.index) for place in read.constraints}
    _require(len(places) == len(read.constraints), "constraints", "have one place twice")
    _require(min(read.choice, default=0) >= 0, "choice", "has a number below 0")
    _require(read.form.microbatches >= 1, "form.microbatches", "is below 1")
    _check_figures(read)


def _check_topology(topology: Topology) -> None:
    dims = len(topology.shape)
    each = (topology.wrap, topology.kind, topology.link_bytes_per_s, topology.link_latency_s)
    _require(
        dims > 0 and all(len(values) == dims for values in each), "topology", "has figures for other dims than its own"
    )
    _require(
        min(topology.shape) >= 1 and topology.num_devices <= MOST_DEVICES, "topology", "has a shape that cannot be"
    )
    chip = topology.chip
    rates = (chip.hbm_bytes, chip.hbm_bytes_per_s, chip.vector_flops_per_s, chip.matrix_efficiency)
    rates += (chip.host_link_bytes_per_s,)
    every = (*rates, *topology.link_bytes_per_s, *chip.peak_flops_per_s.values(), *chip.efficiencies.values())
    _require(min(every) > 0, "topology", "has a rate or size that is not above 0")
    _require(min(topology.link_latency_s) >= 0, "topology", "has a latency below 0")


def _check_request(read: PlanRecord, topology: Topology) -> None:
    request = read.request
    _require(request.platform in (None, "cpu", "gpu", "tpu"), "request.platform", "is no platform")
    _require(request.objective in (*OBJECTIVES, "memory"), "request.objective", "is no objective")
    _require(request.memory_limit > 0, "request.memory_limit", "is not above 0")
    ranks = {leaf.name: len(leaf.shape) for leaf in read.arguments}
    parts = request.host_local.items()
    _require(
        all(0 <= dim < ranks.get(name, 0) for name, dim in parts), "request.host_local", "names a dim that there is not"
    )
    trips = request.while_trips
    _require(
        min(trips.values() if isinstance(trips, Mapping) else [trips], default=1) > 0,
        "request.while_trips",
        "is not above 0",
    )
    known = options_of_plans(topology.chip.platform)
    for name, value in read.compiler_options.items():
        _require(
            known.get(name) == value, "compiler_options", f"has {name[:80]}, which no plan for {topology.name} sets so"
        )


def _check_leaf(leaf: LeafRecord, mesh: Mapping[str, int], where: str) -> None:
    size = math.prod(leaf.shape)
    _require(min(leaf.shape, default=0) >= 0 and size <= MOST_INTEGER, where, "has a shape that cannot be")
    _require(0 <= leaf.itemsize <= 16, where, "has an itemsize that cannot be")
    _check_spec(leaf.spec, mesh, where)
    _require(len(leaf.spec) <= len(leaf.shape), where, "has a spec longer than its shape")
    for extent, axes in zip(leaf.shape, entries_of(leaf.spec), strict=False):
        _require(
            extent % parts_over(axes, mesh) == 0,
            where,
            f"of shape {leaf.shape} is not divisible by its spec {leaf.spec}",
        )


def _check_spec(spec: PartitionSpec, mesh: Mapping[str, int], where: str) -> None:
    axes = [axis for entry in entries_of(spec) for axis in entry]
    for axis in axes:
        _require(axis in mesh, where, f"names the axis {axis[:80]!r}, which the mesh has not")
    _require(len(set(axes)) == len(axes), where, "names an axis twice")


def _check_figures(read: PlanRecord) -> None:
    told, certificate, refined = read.predicted, read.certificate, read.refined
    amounts = [getattr(told, f.name) for f in fields(told) if f.name != "collectives"]
    _require(min(amounts) >= 0, "predicted", "has a figure below 0")
    _require(certificate.lower_bound <= certificate.value, "certificate", "has a bound above its value")
    share = certificate.guessed_share
    _require(share is None or 0 <= share <= 1, "certificate.guessed_share", "is no share")
    if refined is not None and refined.chosen is not None:
        _require(0 <= refined.chosen < len(refined.trials), "refined.chosen", "is none of the trials")
    for collective in told.collectives:
        unknown: Iterable[str] = set(collective.axes) - set(read.mesh)
        _require(
            not unknown,
            "predicted.collectives",
            f"run over axes that the mesh has not: {', '.join(sorted(unknown))[:80]}",
        )
        _require(min(collective.bytes, collective.count) >= 0, "predicted.collectives", "have a figure below 0")


def _require(holds: bool, where: str, words: str) -> None:
    if not holds:
        raise ValueError(f"{where} {words}")
