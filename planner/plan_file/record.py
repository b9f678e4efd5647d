"""The record of a plan: the fields of its decision as its file holds them, and the checks that they can be a plan.

The file differs from `Decision` in four places: the topology stands beside the request, the spec of an argument or a result
in its row, places inside the program are rows, and three fields have shorter names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from cattrs import override
from jax.sharding import PartitionSpec

from cost_models import OBJECTIVES, CostModelError, Topology, parse_topology
from cost_models.hardware import Platform
from cost_models.network.collectives import CollectiveKind
from planner.compiler.emission.options import options_of_plans
from planner.decision import Decision, Request
from planner.plan_file.codec import CONVERTER, MOST_INTEGER, as_json, from_json, read_by_fields
from planner.plan_file.treedef import leaves_in_json
from planner.pricing.candidates.specs import entries_of
from planner.program.graph import Aval
from planner.program.slots import Refetch, Slot, SlotKind
from planner.program.spec_entries import parts_over
from planner.program.tracing.traced import Leaf

FORMAT = "meshwright plan"
VERSION = 1
MOST_DEVICES = 2**31
FILE_NAMES = {"function_name": "function", "mesh_shape": "mesh", "jax_version": "jax"}
"""Fields of a decision that have another name in its file."""
REQUEST_NAMES = {"process_local": "host_local"}
"""And of its request, so that files of the last release are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafRow:
    """An argument or a result in a file, and its spec. Raises: ValueError for what no array can be."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: float
    weak: bool
    constant: bool
    spec: PartitionSpec

    def __post_init__(self) -> None:
        if min(self.shape, default=0) < 0 or math.prod(self.shape) > MOST_INTEGER:
            raise ValueError("has a shape that cannot be")
        if not 0 <= self.itemsize <= 16:
            raise ValueError("has an itemsize that cannot be")
        if len(self.spec) > len(self.shape):
            raise ValueError("has a spec longer than its shape")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRow:
    """A place in the program in a file, and the specs that are laid there one after the other."""

    at: SlotKind
    path: tuple[int | str, ...]
    index: int
    specs: tuple[PartitionSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefetchRow:
    """An operand that is fetched again in a file, and the place of the result that it waits for."""

    path: tuple[int | str, ...]
    index: int
    shared: int
    behind_path: tuple[int | str, ...]
    behind_index: int


def record_of(decision: Decision) -> dict[str, Any]:
    """A decision as what JSON can tell; `decision_of` reads it back."""
    data: dict[str, Any] = as_json(decision)
    request = data["request"]
    topology = request.pop("topology")
    if _named(decision.topology) != decision.request.topology:
        data["topology"] = topology
    for leaves, specs in (("arguments", "in_specs"), ("results", "out_specs")):
        data[leaves] = [_row(leaf, spec) for leaf, spec in zip(data[leaves], data.pop(specs), strict=True)]
    data["constraints"] = [
        {"at": at, "path": list(path), "index": index, "specs": specs}
        for (at, path, index), specs in data["constraints"].items()
    ]
    data["refetched"] = [
        {
            "path": list(path),
            "index": index,
            "shared": shared,
            "behind_path": list(behind[1]),
            "behind_index": behind[2],
        }
        for (_, path, index), (shared, behind) in decision.refetched.items()
    ]
    data["request"] = {REQUEST_NAMES.get(name, name): request[name] for name in request}
    return {"format": FORMAT, "version": VERSION, **{FILE_NAMES.get(name, name): data[name] for name in data}}


def _named(name: str) -> Topology | None:
    try:
        return parse_topology(name)
    except CostModelError:
        return None  # a topology of the user's own


def _row(leaf: dict[str, Any], spec: Any) -> dict[str, Any]:
    aval = {name: value for name, value in leaf["aval"].items() if name != "host_itemsize"}
    return {"name": leaf["name"], **aval, "weak": leaf["weak"], "constant": leaf["constant"], "spec": spec}


# ---------------------------------------------------------------- reading


def decision_of(record: Mapping[str, Any]) -> Decision:
    """The decision that a record tells. Raises: ValueError, CostModelError where it tells none, or none that can be."""
    data = dict(record)
    if (data.pop("format", None), data.pop("version", None)) != (FORMAT, VERSION):
        raise ValueError(f"format is not {FORMAT!r} of version {VERSION}")
    topology = data.get("topology")
    topology = parse_topology(topology) if isinstance(topology, str) else from_json(Topology, topology)
    data["topology"] = topology.name
    if isinstance(data.get("request"), dict):
        data["request"] = {"topology": topology, **data["request"]}
    decision = from_json(Decision, data, read=_read_decision, names=FILE_NAMES)
    _check(decision)
    return decision


def _leaves(rows: Any, _: Any) -> tuple[Leaf, ...]:
    """The leaves of rows, whose specs `_specs` reads: a decision has them in two fields, its file in one."""
    return tuple(
        Leaf(
            name=row.name,
            aval=Aval(shape=row.shape, dtype=row.dtype, itemsize=row.itemsize),
            weak=row.weak,
            constant=row.constant,
        )
        for row in CONVERTER.structure(rows, tuple[LeafRow, ...])
    )


def _specs(rows: Any, _: Any) -> tuple[PartitionSpec, ...]:
    return tuple(row.spec for row in CONVERTER.structure(rows, tuple[LeafRow, ...]))


def _places(rows: Any, _: Any) -> dict[Slot, tuple[PartitionSpec, ...]]:
    places = CONVERTER.structure(rows, tuple[PlaceRow, ...])
    found: dict[Slot, tuple[PartitionSpec, ...]] = {(row.at, row.path, row.index): row.specs for row in places}
    if len(found) < len(places):
        raise ValueError("have one place twice")
    return found


def _refetched(rows: Any, _: Any) -> dict[Slot, Refetch]:
    return {
        ("operand", row.path, row.index): Refetch(row.shared, ("result", row.behind_path, row.behind_index))
        for row in CONVERTER.structure(rows, tuple[RefetchRow, ...])
    }


def _topology(value: Any, _: Any) -> Topology:
    if not isinstance(value, Topology):
        raise ValueError("is a field that no plan has")
    return value


def _limit(value: Any, kind: Any) -> float:
    return value if value == math.inf else CONVERTER.structure(value, kind)


_read_request = read_by_fields(
    Request,
    CONVERTER,
    **{name: override(rename=its) for name, its in REQUEST_NAMES.items()},
    topology=override(struct_hook=_topology),
    memory_limit=override(struct_hook=_limit),
)
_read_decision = read_by_fields(
    Decision,
    CONVERTER,
    **{name: override(rename=its) for name, its in FILE_NAMES.items()},
    request=override(struct_hook=_read_request),
    arguments=override(struct_hook=_leaves),
    in_specs=override(rename="arguments", struct_hook=_specs),
    results=override(struct_hook=_leaves),
    out_specs=override(rename="results", struct_hook=_specs),
    constraints=override(struct_hook=_places),
    refetched=override(struct_hook=_refetched),
)


def _check(read: Decision) -> None:
    """Raises: ValueError where fields contradict each other, or cannot be true of any plan."""
    topology, mesh = read.request.topology, read.mesh_shape
    _check_topology(topology)
    _require(all(name and size >= 1 for name, size in mesh.items()), "mesh", "has an axis without a size or name")
    devices = math.prod(mesh.values())
    _require(devices <= topology.num_devices, "mesh", f"has {devices} devices, the topology {topology.num_devices}")
    _check_request(read, topology)
    for what, leaves, specs in (
        ("arguments", read.arguments, read.in_specs),
        ("results", read.results, read.out_specs),
    ):
        for i, (leaf, spec) in enumerate(zip(leaves, specs, strict=True)):
            _check_leaf(leaf, spec, mesh, f"{what}[{i}]")
    if read.in_tree is not None:
        count = sum(not leaf.constant for leaf in read.arguments)
        _require(leaves_in_json(read.in_tree) == count, "in_tree", f"has not the {count} arrays that there are")
    positions = (*read.donate_argnums, *read.static_argnums)
    _require(len(set(positions)) == len(positions), "donate_argnums", "and static_argnums have one position twice")
    _require(len(set(read.keywords)) == len(read.keywords), "keywords", "has one name twice")
    inside = [spec for specs in read.constraints.values() for spec in specs]
    for spec in (*inside, *read.intermediates.values()):
        _check_spec(spec, mesh, "a spec")
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


def _check_request(read: Decision, topology: Topology) -> None:
    request = read.request
    _require(request.platform in (None, *get_args(Platform)), "request.platform", "is no platform")
    _require(request.objective in (*OBJECTIVES, "memory"), "request.objective", "is no objective")
    _require(request.memory_limit > 0, "request.memory_limit", "is not above 0")
    ranks = {leaf.name: len(leaf.aval.shape) for leaf in read.arguments}
    parts = request.process_local.items()
    _require(
        all(0 <= dim < ranks.get(name, 0) for name, dim in parts),
        "request.host_local",
        "names a dim that there is not",
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
            value in known.get(name, ()),
            "compiler_options",
            f"has {name[:80]}, which no plan for {topology.name} sets so",
        )


def _check_leaf(leaf: Leaf, spec: PartitionSpec, mesh: Mapping[str, int], where: str) -> None:
    _check_spec(spec, mesh, where)
    for extent, axes in zip(leaf.aval.shape, entries_of(spec), strict=False):
        _require(
            extent % parts_over(axes, mesh) == 0,
            where,
            f"of shape {leaf.aval.shape} is not divisible by its spec {spec}",
        )


def _check_spec(spec: PartitionSpec, mesh: Mapping[str, int], where: str) -> None:
    axes = [axis for entry in entries_of(spec) for axis in entry]
    for axis in axes:
        _require(axis in mesh, where, f"names the axis {axis[:80]!r}, which the mesh has not")
    _require(len(set(axes)) == len(axes), where, "names an axis twice")


def _check_figures(read: Decision) -> None:
    predicted, certificate, refined = read.predicted, read.certificate, read.refined
    apart = ("collectives", "seconds_range")
    amounts = [getattr(predicted, f.name) for f in fields(predicted) if f.name not in apart]
    _require(min(*amounts, *(predicted.seconds_range or ())) >= 0, "predicted", "has a figure below 0")
    _require(certificate.lower_bound <= certificate.value, "certificate", "has a bound above its value")
    any_form = certificate.any_form
    _require(any_form is None or any_form <= certificate.lower_bound, "certificate", "has a higher bound for any form")
    share = certificate.guessed_share
    _require(share is None or 0 <= share <= 1, "certificate.guessed_share", "is no share")
    if refined is not None and refined.chosen is not None:
        _require(0 <= refined.chosen < len(refined.trials), "refined.chosen", "is none of the trials")
    for collective in predicted.collectives:
        _require(collective.kind in get_args(CollectiveKind), "predicted.collectives", "have a kind that there is not")
        unknown: Iterable[str] = set(collective.axes) - set(read.mesh_shape)
        _require(
            not unknown,
            "predicted.collectives",
            f"run over axes that the mesh has not: {', '.join(sorted(unknown))[:80]}",
        )
        _require(min(collective.bytes, collective.count) >= 0, "predicted.collectives", "have a figure below 0")


def _require(holds: bool, where: str, why: str) -> None:
    if not holds:
        raise ValueError(f"{where} {why}")
