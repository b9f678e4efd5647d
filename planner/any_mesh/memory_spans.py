"""Holdings: what a program keeps in memory and when, whatever the mesh; `memory` gives it bytes on one.

An item is a tensor in the form that the choice of a node gives it, over a span of the schedule. Items of one form (a type,
the factors of its dims, the share of its bytes) have the same bytes wherever nodes have the same strategies, so
that bytes are worked out per form and not per item.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.any_mesh.flow import Flow, Transfer
from planner.any_mesh.liveness import Liveness, region_spans
from planner.any_mesh.share import WHOLE, Share
from planner.program.gc_pause import paused
from planner.program.graph import Aval, Graph
from planner.program.slots import ENTERING
from planner.rules.rule import Dims
from planner.vectors import Indices

TensorForm = tuple[Aval, Dims, Share]
"""Type of a tensor, the factors of its dims, and in how many of its bytes it stands."""

Item = tuple[int, int, Dims, Share, int, int]
"""Tensor, node, dims, share of its bytes, start and stop."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holdings:
    """Items by column: item i is `tensors[i]` as `nodes[i]` decides, of `forms[form[i]]`, in [`starts[i]`, `stops[i]`)."""

    tensors: Indices
    nodes: Indices
    form: Indices
    starts: Indices
    stops: Indices
    forms: tuple[TensorForm, ...]

    @staticmethod
    def of(graph: Graph, items: Iterable[Item]) -> Holdings:
        """The columns of these items."""
        avals = graph.aval_numbers
        numbers: dict[tuple[int, Dims, Share], int] = {}
        rows = [
            (tensor, node, numbers.setdefault((avals[tensor], dims, share), len(numbers)), start, stop)
            for tensor, node, dims, share, start, stop in items
        ]
        of_type = {number: graph.tensors[tensor].aval for tensor, _, number, _, _ in rows}
        tensors, nodes, form, starts, stops = np.asarray(rows, np.intp).reshape(-1, 5).T
        return Holdings(
            tensors=tensors,
            nodes=nodes,
            form=form,
            starts=starts,
            stops=stops,
            forms=tuple((of_type[number], dims, share) for (_, dims, share), number in numbers.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copied:
    """The copies that transfers may keep beside their source: copy i is of `transfers[i]`, item i of both columns."""

    transfers: tuple[Transfer, ...]
    sources: Holdings
    targets: Holdings


@paused()
def held(graph: Graph, flow: Flow, liveness: Liveness) -> Holdings:
    """Arguments and constants, partial results being summed, and buffers. There is one more point in time than ops."""
    return Holdings.of(graph, _held(graph, flow, liveness))


def _held(graph: Graph, flow: Flow, liveness: Liveness) -> Iterable[Item]:
    for tensor in graph.tensors:
        home = flow.home[tensor.id]
        if tensor.producer is None and home is not None and tensor.aval.bytes:
            yield tensor.id, home[0], home[1], WHOLE, 0, liveness.steps + 1
    summed: set[int] = set()
    for transfer in flow.transfers:
        made = graph.tensors[transfer.tensor]
        if transfer.reduced and made.producer is not None:
            summed.add(made.id)
            yield made.id, transfer.source, transfer.source_dims, WHOLE, made.producer, made.producer + 1
    for buffer in liveness.buffers:
        home = flow.home[buffer.tensor]
        if home is not None:
            start = buffer.start + (buffer.tensor in summed)
            yield buffer.tensor, home[0], home[1], buffer.share, start, buffer.stop


@paused()
def copied(graph: Graph, flow: Flow, moving: Sequence[Transfer]) -> Copied:
    """The copies that these transfers make, held while those run that read them."""
    reads: dict[int, list[tuple[int, int]]] = {}
    for read, node in flow.fetched:
        reads.setdefault(node, []).append(read)
    ops, spans = graph.ops, region_spans(graph)
    transfers: list[Transfer] = []
    sources: list[Item] = []
    targets: list[Item] = []
    for transfer in moving:
        if transfer.source == transfer.target or transfer.reduced:
            continue
        served = transfer.reads or tuple(reads.get(transfer.target, ()))
        if not served:
            continue
        start = min([op for op, _ in served])
        stop = max([spans[ops[op].region][1] if ops[op].kind in ENTERING else op + 1 for op, _ in served])
        transfers.append(transfer)
        sources.append((transfer.tensor, transfer.source, transfer.source_dims, WHOLE, start, stop))
        targets.append((transfer.tensor, transfer.target, transfer.target_dims, WHOLE, start, stop))
    return Copied(transfers=tuple(transfers), sources=Holdings.of(graph, sources), targets=Holdings.of(graph, targets))
