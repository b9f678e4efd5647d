"""The op graph as people hold it: a `networkx.MultiDiGraph` of a program before anything is decided, ready to be exported.

A node for every argument, constant, op and result, in program order, which is a topological order; an edge for every read
of a tensor. Their names are `argument0`, `constant0`, `op0`, `result0` and so on; the attributes are strings and numbers:

    nodes    label          the name of an argument or result, or an op's, by its module or source line
             op             the primitive or boundary op; "argument", "constant", "result"
             source         the user's own source line
             region         the bodies of loops and branches that it stands in, outermost first: "program/scan 1"
             trips          how often it runs per call
             group          the number of its group: ops with the same number are one decision; -1 for what is no op
             rule           whose rule says how it splits: "own", "shardy", or "none"; "" for what is no op
             flops, bytes   computed, and read from and written to memory, per call
             strategy       the specs of what it reads and makes; "" before anything is decided
             seconds        of computing, per call; nan before anything is decided
    edges    position       of the operand or result that is read
             tensor, type   its name, and its type as jaxprs print it
             tensor_bytes   of the whole tensor
             spec_from      as it is made or stored; "" before anything is decided
             partial        the axes over which partial sums of it are left, separated by commas
             spec_to        as it is read; "" before anything is decided
             collective     the kinds of collectives that take it there, joined by "+"; "" for none
             axes           the mesh axes over which they run, separated by commas
             bytes          that are moved, per call: before anything is decided the whole tensor at every trip
             seconds        of moving them, per call; nan before anything is decided

Before anything is decided all figures are those of the whole program on one device; `decided_graph` has those of a plan.
What the ops of a fused group read in common is read by the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, final

import networkx as nx
import numpy as np

from planner.compiler.fusion.loop_fusion import pass_parts
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import CPU
from planner.decisions.groups import Grouping, group_ops
from planner.pricing.op_cost import moved_bytes
from planner.program.graph import Graph, Op, Region, Tensor, type_text
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.traced import Program
from planner.rules.op_work import declared_bytes, op_flops

OpGraph = nx.MultiDiGraph
Attributes = dict[str, str | int | float]


class Descriptions(Protocol):
    """What is told of nodes and edges beside their place in the program: `Undecided`, or what a plan says."""

    def of_op(self, op: Op) -> Attributes:
        """flops, bytes, strategy, seconds."""
        ...

    def of_tensor(self, tensor: int) -> Attributes:
        """The same for an argument or constant."""
        ...

    def of_result(self, position: int) -> Attributes:
        """The same for a result."""
        ...

    def of_read(self, op: Op, position: int) -> Attributes:
        """spec_from, partial, spec_to, collective, axes, bytes, seconds of what an op reads."""
        ...

    def of_return(self, position: int) -> Attributes:
        """The same of what is returned."""
        ...


def program_graph(program: Program, *, while_trips: float | Mapping[str, float]) -> OpGraph:
    """The op graph of a traced program before anything is decided."""
    graph = build_graph(program, while_trips=while_trips)
    return undecided(compiled(graph, group_ops(graph), CPU), name=program.function_name)


def undecided(program: CompiledProgram, *, name: str) -> OpGraph:
    """The op graph of a program before anything is decided."""
    return network_of(program.graph, program.grouping, Undecided(program), name=name)


@paused()
def network_of(graph: Graph, grouping: Grouping, descriptions: Descriptions, *, name: str) -> OpGraph:
    """The op graph of a program, with what is told of it."""
    network: OpGraph = nx.MultiDiGraph(name=name)
    makers = nodes_of(graph)
    for tensor in graph.tensors:
        if tensor.producer is None and makers[tensor.id]:
            kind = "argument" if tensor.id in graph.taken else "constant"
            network.add_node(makers[tensor.id], **_outside(tensor.name, kind), **descriptions.of_tensor(tensor.id))
    network.add_nodes_from(_ops(graph, grouping, descriptions))
    for position, output in enumerate(graph.output_names):
        network.add_node(f"result{position}", **_outside(output, "result"), **descriptions.of_result(position))
    network.add_edges_from(_reads(graph, makers, descriptions))
    return network


def nodes_of(graph: Graph) -> list[str]:
    """For every tensor the name of the node that it comes from; "" for a constant that nothing reads."""
    found = [_op(tensor.producer) if tensor.producer is not None else "" for tensor in graph.tensors]
    for position, tensor in enumerate(graph.inputs):
        found[tensor] = f"argument{position}"
    read = [t.id for t in graph.tensors if not found[t.id] and (graph.consumers[t.id] or t.id in graph.returned)]
    for number, tensor in enumerate(read):
        found[tensor] = f"constant{number}"
    return found


def _op(number: int) -> str:
    return f"op{number}"


def _outside(label: str, kind: str) -> Attributes:
    """The attributes of what stands outside of all loops and is no op."""
    place: Attributes = {"source": "", "region": "program", "trips": 1.0, "group": -1, "rule": ""}
    return {"label": label, "op": kind, **place}


def _ops(graph: Graph, grouping: Grouping, descriptions: Descriptions) -> Iterator[tuple[str, Attributes]]:
    regions = region_text(graph.regions)
    rules = dict.fromkeys(grouping.by_shardy, "shardy") | dict.fromkeys(grouping.unruled, "none")
    for op in graph.ops:
        place: Attributes = {
            "label": op.name,
            "op": op.kind,
            "source": op.source,
            "region": regions[op.region],
            "trips": float(graph.regions[op.region].trips),
            "group": grouping.group_of[op.id],
            "rule": rules.get(op.id, "own"),
        }
        yield _op(op.id), place | descriptions.of_op(op)


def region_text(regions: Sequence[Region]) -> list[str]:
    """Every region with those around it, outermost first."""
    found: list[str] = []
    for region in regions:
        outer = f"{found[region.parent]}/" if region.parent is not None else ""
        found.append(f"{outer}{region.kind}{f' {region.id}' if outer else ''}")
    return found


def _reads(graph: Graph, makers: Sequence[str], descriptions: Descriptions) -> Iterator[tuple[str, str, Attributes]]:
    for op in graph.ops:
        for position, tensor in enumerate(op.operands):
            yield (
                makers[tensor],
                _op(op.id),
                _carried(graph.tensors[tensor], position) | descriptions.of_read(op, position),
            )
    for position, tensor in enumerate(graph.outputs):
        carried = _carried(graph.tensors[tensor], position)
        yield makers[tensor], f"result{position}", carried | descriptions.of_return(position)


def _carried(tensor: Tensor, position: int) -> Attributes:
    kind = type_text(tensor.aval)
    return {"position": position, "tensor": tensor.name, "type": kind, "tensor_bytes": float(tensor.aval.bytes)}


@final
class Undecided:
    """What is told of a program before anything is decided: the figures of the whole program on one device."""

    def __init__(self, program: CompiledProgram) -> None:
        self.program, self.graph, groups = program, program.graph, program.grouping.groups
        self.fused: dict[int, tuple[float, float]] = {
            part.op: (part.flops, math.fsum(amount for _, amount in part.traffic))
            for group in groups
            if group.fused
            for part in pass_parts(program, group)
        }
        self.heavy = {group.ops[0] for group in groups if not group.fused}

    def of_op(self, op: Op) -> Attributes:
        """The figures of an op."""
        if op.id not in self.heavy:
            return _unknown(*self.fused.get(op.id, (0.0, 0.0)))
        trips = self.graph.regions[op.region].trips
        sizes = [[np.asarray(a.bytes) for a in self.graph.avals(of)] for of in (op.operands, op.results)]
        declared = declared_bytes(self.graph, op)
        moved = float(moved_bytes(self.program, op, *sizes)) if declared is None else declared
        return _unknown(trips * op_flops(self.graph, op), trips * moved)

    def of_tensor(self, tensor: int) -> Attributes:
        """An argument or constant costs nothing by itself."""
        return _unknown(0.0, 0.0)

    def of_result(self, position: int) -> Attributes:
        """Nor does a result."""
        return _unknown(0.0, 0.0)

    def of_read(self, op: Op, position: int) -> Attributes:
        """The bytes of what is read, as often as it is."""
        return self._travelling(op.operands[position], self.graph.regions[op.region].trips)

    def of_return(self, position: int) -> Attributes:
        """The bytes of what is returned."""
        return self._travelling(self.graph.outputs[position], 1.0)

    def _travelling(self, tensor: int, trips: float) -> Attributes:
        moved = float(trips * self.graph.tensors[tensor].aval.bytes)
        specs: Attributes = {"spec_from": "", "partial": "", "spec_to": "", "collective": "", "axes": ""}
        return {**specs, "bytes": moved, "seconds": math.nan}


def _unknown(flops: float, moved: float) -> Attributes:
    return {"flops": float(flops), "bytes": float(moved), "strategy": "", "seconds": math.nan}
