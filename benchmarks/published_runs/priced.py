"""A published run as the planner prices it: on its own mesh, its arrays pinned as it had them, in one pass, as written."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

import planner
from benchmarks.published_runs.decoder import (
    Decoder,
    Row,
    decode_arguments,
    decode_step,
    train_arguments,
    train_step,
)
from cost_models import Roofline, Topology, parse_topology
from planner.pricing.assignment import Chosen
from planner.rules.kernels.kernel_parts import kernel_of
from planner.rules.op_work import op_engine

UNLIMITED = 1e15
"""Bytes: runs that keep activations on their hosts are priced as if these lay on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The predicted seconds of a run by what takes them: matmuls, attention kernels, all else, exposed communication."""

    matmul: float
    attention: float
    other: float
    communication: float


def topology_of(row: Row) -> Topology:
    """The topology of a run, with the network between its nodes where the row says one."""
    topology = parse_topology(row["topology"])
    if row.get("megacore"):
        topology = topology.megacore()
    rate = row.get("network_bytes_per_s")
    if rate is None:
        return topology
    chip = dataclasses.replace(topology.chip, network_bytes_per_s=rate)
    return dataclasses.replace(topology, chip=chip, link_bytes_per_s=(rate, *topology.link_bytes_per_s[1:]))


def pins_of(row: Row) -> dict[str, PartitionSpec]:
    """Where a run keeps its arrays: weights split over `fsdp` and `tensor`, the batch over `data` and `fsdp`, and what
    goes from layer to layer over `tensor` as well."""
    axes, model, spec = row["mesh"], row["model"], PartitionSpec
    fsdp, tensor = ("fsdp" if "fsdp" in axes else None), ("tensor" if "tensor" in axes else None)
    batch = tuple(axis for axis in ("data", "fsdp") if axis in axes) or None
    lead = (None, None) if model.get("experts") else (None,)
    weights = {
        "embed": spec(tensor, fsdp),
        **{f"layers/{name}": spec(None, fsdp, tensor) for name in ("query", "key", "value")},
        "layers/out": spec(None, tensor, None, None, fsdp),
        "layers/wi/*": spec(*lead, fsdp, tensor),
        "layers/wo": spec(*lead, tensor, fsdp),
        "norm": spec(),
        "layers/norm_*": spec(),
    }
    if model.get("experts"):
        weights["layers/router"] = spec(None, fsdp)
    if not model.get("tied"):
        weights["head"] = spec(fsdp, tensor)
    if row["kind"] == "decode":
        weights = {f"params/{name}": where for name, where in weights.items()}
        return {**weights, "cache/*": spec(None, None, None, tensor), "tokens": spec()}
    state = {f"state/{part}/{name}": where for part in ("params", "mu", "nu") for name, where in weights.items()}
    return {**state, "tokens": spec(batch), "decoder_layer_input": spec(batch, None, tensor)}


def planned(row: Row) -> planner.Plan:
    """The plan of a run."""
    of = Decoder(row=row)
    decodes = row["kind"] == "decode"
    step, arguments = (decode_step, decode_arguments) if decodes else (train_step, train_arguments)
    return planner.plan(
        functools.partial(step, of),
        arguments(of),
        topology=topology_of(row),
        mesh=row["mesh"],
        pins=pins_of(row),
        memory_limit=UNLIMITED,
        donate_argnums=(1,) if decodes else (0,),
        options=planner.Options(check="never", remat="as written", microbatches=1),
    )


def parts_of(chosen: Chosen) -> Parts:
    """What the seconds of a plan are made of."""
    graph, grouping = chosen.instance.model.graph, chosen.instance.model.grouping
    found = dict.fromkeys(("matmul", "attention", "other"), 0.0)
    for node, (group, work) in enumerate(zip(grouping.groups, chosen.instance.works, strict=False)):
        if work is None:
            continue
        op = graph.ops[group.ops[0]]
        kernel = kernel_of(op)
        single = chosen.instance.model.fused_pass(group) is None
        what = "other"
        if single and kernel is not None and kernel.work.attends:
            what = "attention"
        elif single and op_engine(op) == "matrix":
            what = "matmul"
        found[what] += float(work.seconds[chosen.choice[node]])
    return Parts(**found, communication=chosen.seconds[1])


def collective_seconds(what: Mapping[str, Any], topology: Topology) -> float:
    """The seconds of a collective over an axis of a mesh."""
    links = topology.links(tuple(what["mesh"]))
    if links is None:
        raise ValueError(f"the mesh {what['mesh']} does not fit {topology.name}; correct the row")
    latency_s, per_byte = Roofline(topology=topology).collective_affine(what["kind"], (links[what["axis"]],))
    return latency_s + per_byte * what["bytes"]
