"""Memory of a plan: bytes alive per device at every point of the schedule, and rows that limit them.

    bytes alive at t = arguments and constants
                     + buffers alive at t, each in the spec of its home
                     + partial results being summed at t
                     + fetched copies alive at t: a transfer whose target holds more than its source keeps both

Results that reuse a donated argument's buffer add nothing. A row for a point t limits that sum; the fetched copies depend
on two decisions, so a row brings, for each that can be large, an auxiliary node that says whether the copy exists:
choice u < U is "a copy in spec u", choice U + u is "read in place, in spec u" (allowed where the source holds at least as
many bytes), tied to its target's spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planner.flow import Transfer
from planner.instance import Instance
from planner.liveness import region_spans
from planner.places import ENTERING
from planner.problem import Edge, Problem, Row

Floats = npt.NDArray[np.float64]

LARGE_COPY = 1e-3
"""Fetched copies below this share of the limit are left out of rows (they are still counted in the peak)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Bytes per strategy of a node that a tensor keeps alive in [start, stop)."""

    tensor: int
    node: int
    bytes: Floats
    start: int
    stop: int
    share: float = 1.0
    """In which part of the tensor's own size it is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A fetched copy that may exist in [start, stop): bytes of the source's and of the target's spec, per strategy."""

    transfer: Transfer
    source_bytes: Floats
    target_bytes: Floats
    start: int
    stop: int

    def bytes(self, choice: Sequence[int]) -> float:
        """Bytes of the copy under a choice: 0 where the source is read in place."""
        target = float(self.target_bytes[choice[self.transfer.target]])
        return target if target > float(self.source_bytes[choice[self.transfer.source]]) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """Bytes that choices of nodes hold from `starts` to `stops`: of item i, `flat[offsets[i] + choice of nodes[i]]`."""

    nodes: npt.NDArray[np.intp]
    offsets: npt.NDArray[np.intp]
    flat: Floats
    starts: npt.NDArray[np.intp]
    stops: npt.NDArray[np.intp]

    @staticmethod
    def of(items: Sequence[tuple[int, Floats]], spans: Sequence[tuple[int, int]], steps: int) -> _Table:
        """The table of (node, bytes per choice) items and their spans; equal arrays are kept once."""
        where: dict[int, int] = {}
        pieces: list[Floats] = [np.zeros(0)]
        count = 0
        for _, values in items:
            if id(values) not in where:
                where[id(values)] = count
                count += len(values)
                pieces.append(values)
        return _Table(
            nodes=np.asarray([node for node, _ in items], np.intp),
            offsets=np.asarray([where[id(values)] for _, values in items], np.intp),
            flat=np.concatenate(pieces),
            starts=np.asarray([start for start, _ in spans], np.intp),
            stops=np.minimum(np.asarray([stop for _, stop in spans], np.intp), steps),
        )

    def bytes(self, choice: npt.NDArray[np.intp]) -> Floats:
        """The bytes of every item under a choice."""
        return self.flat[self.offsets + choice[self.nodes]]

    def add(self, change: Floats, sizes: Floats) -> None:
        """Adds to `change` what begins and ends at every point of the schedule."""
        np.add.at(change, self.starts, sizes)
        np.subtract.at(change, self.stops, sizes)

    def weights(self, prices: Mapping[int, float]) -> Floats:
        """The sum of the prices of the points of the schedule at which each item is held."""
        times = np.asarray(sorted(prices), np.intp)
        ranks = np.searchsorted(times, self.starts), np.searchsorted(times, self.stops)
        rising = np.concatenate([[0.0], np.cumsum([prices[time] for time in times.tolist()])])
        # A difference of sums is a rounding off where nothing lies between.
        return np.where(ranks[1] > ranks[0], rising[ranks[1]] - rising[ranks[0]], 0.0)

    def alive(self, time: int) -> list[int]:
        """The items that are held at a point of the schedule."""
        return np.flatnonzero((self.starts <= time) & (time < self.stops)).tolist()


@dataclass(kw_only=True)
class MemoryModel:
    """The memory of an instance."""

    instance: Instance
    _ties: dict[tuple[int, int], tuple[Floats, Floats, Floats]] = field(
        init=False, default_factory=dict[tuple[int, int], tuple[Floats, Floats, Floats]]
    )

    @property
    def steps(self) -> int:
        """The number of points of the schedule."""
        return self.instance.model.liveness.steps + 1

    @cached_property
    def charges(self) -> tuple[Charge, ...]:
        """What the nodes' choices keep alive, and when."""
        model, found = self.instance.model, list[Charge]()
        for tensor in model.graph.tensors:
            if tensor.producer is None and tensor.aval.bytes:
                stored = self.instance.stored_bytes(tensor.id)
                if stored is None:
                    continue
                found.append(Charge(tensor=tensor.id, node=stored[0], bytes=stored[1], start=0, stop=self.steps))
        summed: set[int] = set()
        for transfer in model.flow.transfers:
            producer = model.graph.tensors[transfer.tensor].producer
            if transfer.reduced and producer is not None:
                summed.add(transfer.tensor)
                found.append(
                    Charge(
                        tensor=transfer.tensor,
                        node=transfer.source,
                        bytes=self._bytes(transfer.source, transfer, transfer.source_dims),
                        start=producer,
                        stop=producer + 1,
                    )
                )
        for buffer in model.liveness.buffers:
            stored = self.instance.stored_bytes(buffer.tensor)
            if stored is not None:
                start = buffer.start + (buffer.tensor in summed)
                dtype = model.graph.tensors[buffer.tensor].aval.dtype
                # A TPU multiplies float32 of default precision as bfloat16, and stores it so where nothing else reads it.
                share = 0.5 if self.instance.tiled and buffer.for_matmuls and dtype == "float32" else 1.0
                found.append(
                    Charge(
                        tensor=buffer.tensor,
                        node=stored[0],
                        bytes=share * stored[1],
                        start=start,
                        stop=buffer.stop,
                        share=share,
                    )
                )
        return tuple(found)

    def _bytes(self, node: int, transfer: Transfer, dims: tuple[tuple[int, ...], ...]) -> Floats:
        return self.instance.resident_bytes(transfer.tensor, node, dims)

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """The copies that transfers may keep beside their source."""
        model = self.instance.model
        reads: dict[int, list[tuple[int, int]]] = {}
        for read, node in model.flow.fetched:
            reads.setdefault(node, []).append(read)
        spans = region_spans(model.graph)
        found: list[Copy] = []
        for transfer in self.instance.moving:
            if transfer.source == transfer.target or transfer.reduced:
                continue
            served = transfer.reads or tuple(reads.get(transfer.target, ()))
            if not served:
                continue
            start = min(op for op, _ in served)
            stop = max(
                spans[model.graph.ops[op].region][1] if model.graph.ops[op].kind in ENTERING else op + 1
                for op, _ in served
            )
            found.append(
                Copy(
                    transfer=transfer,
                    source_bytes=self._bytes(transfer.source, transfer, transfer.source_dims),
                    target_bytes=self._bytes(transfer.target, transfer, transfer.target_dims),
                    start=start,
                    stop=stop,
                )
            )
        return tuple(found)

    @cached_property
    def _charged(self) -> _Table:
        """The charges, for profiles: their bytes by choice."""
        charges = self.charges
        return _Table.of([(c.node, c.bytes) for c in charges], [(c.start, c.stop) for c in charges], self.steps)

    @cached_property
    def _copied(self) -> tuple[_Table, _Table]:
        """The copies, for profiles: the bytes of their sources and of their targets by choice."""
        copies, spans = self.copies, [(c.start, c.stop) for c in self.copies]
        sources = _Table.of([(c.transfer.source, c.source_bytes) for c in copies], spans, self.steps)
        return sources, _Table.of([(c.transfer.target, c.target_bytes) for c in copies], spans, self.steps)

    def profile(self, choice: Sequence[int]) -> Floats:
        """Bytes alive per device at every point of the schedule: shape (steps,)."""
        picks = np.asarray(choice, np.intp)
        change = np.zeros(self.steps + 1)
        self._charged.add(change, self._charged.bytes(picks))
        sources, targets = self._copied
        held = targets.bytes(picks)
        targets.add(change, np.where(held > sources.bytes(picks), held, 0.0))
        return np.cumsum(change)[: self.steps]

    def average_bytes(self) -> list[Floats]:
        """For every node, the bytes that its choices keep alive on average over the schedule, fetched copies aside."""
        found = [np.zeros(len(strategies)) for strategies in self.instance.strategies]
        for charge in self.charges:
            time = min(charge.stop, self.steps) - charge.start
            found[charge.node] += time / self.steps * charge.bytes
        return found

    def floor_bytes(self) -> float:
        """Bytes per device that no choice goes below: every argument in its most split form."""
        return sum(float(charge.bytes.min()) for charge in self.charges if charge.stop - charge.start == self.steps)

    def whole_bytes(self) -> float:
        """Bytes alive at the fullest point of the schedule, paddings and copies aside, if nothing is split.

        No plan on n devices needs less than an n-th of it on each.
        """
        tensors, change = self.instance.model.graph.tensors, np.zeros(self.steps + 1)
        for charge in self.charges:
            size = charge.share * tensors[charge.tensor].aval.bytes
            change[charge.start] += size
            change[min(charge.stop, self.steps)] -= size
        return float(np.cumsum(change)[: self.steps].max(initial=0.0))

    def alive(self, time: int, choice: Sequence[int]) -> list[tuple[str, float]]:
        """What is alive at a point of the schedule: (name, bytes per device), largest first."""
        tensors = self.instance.model.graph.tensors
        found = [
            (tensors[charge.tensor].name, float(charge.bytes[choice[charge.node]]))
            for charge in self.charges
            if charge.start <= time < charge.stop
        ]
        found += [
            (f"a fetched copy of {tensors[copy.transfer.tensor].name}", copy.bytes(choice))
            for copy in self.copies
            if copy.start <= time < copy.stop
        ]
        return sorted(found, key=lambda part: (-part[1], part[0]))

    def limited(self, problem: Problem, times: Sequence[int], limit_bytes: float) -> Problem:
        """`problem` with a memory row for each of these points of the schedule, and the auxiliary nodes they need."""
        nodes, names = list(problem.node_costs), list(problem.node_names)
        edges = list(problem.edges)
        auxiliary: dict[int, tuple[int, Floats]] = {}
        rows: list[Row] = []
        for time in times:
            usage: dict[int, Floats] = {}
            for charge in map(self.charges.__getitem__, self._charged.alive(time)):
                usage[charge.node] = usage.get(charge.node, np.zeros(len(charge.bytes))) + charge.bytes
            for copy in map(self.copies.__getitem__, self._copied[1].alive(time)):
                if copy.target_bytes.max() > LARGE_COPY * limit_bytes:
                    index = copy.transfer.id
                    if index not in auxiliary:
                        auxiliary[index] = (len(nodes), self._auxiliary(copy, nodes, names, edges))
                    usage[auxiliary[index][0]] = auxiliary[index][1]
            rows.append(
                Row(
                    name=self.describe(time),
                    limit=limit_bytes,
                    nodes=tuple(usage),
                    usages=tuple(usage.values()),
                )
            )
        return Problem(
            name=problem.name, node_costs=tuple(nodes), edges=tuple(edges), rows=tuple(rows), node_names=tuple(names)
        )

    def priced(self, problem: Problem, prices: Mapping[int, float], limit_bytes: float) -> Problem:
        """`problem` with a price for every byte alive at these points of the schedule; what rows leave out is free here."""
        nodes, names = list(problem.node_costs), list(problem.node_names)
        edges = list(problem.edges)
        weights = self._charged.weights(prices)
        for i in np.flatnonzero(weights > 0).tolist():
            charge = self.charges[i]
            nodes[charge.node] = nodes[charge.node] + weights[i] * charge.bytes
        weights = self._copied[1].weights(prices)
        for i in np.flatnonzero(weights > 0).tolist():
            copy = self.copies[i]
            if copy.target_bytes.max() > LARGE_COPY * limit_bytes:
                place = len(nodes)
                nodes[place] = weights[i] * self._auxiliary(copy, nodes, names, edges)
        return Problem(name=problem.name, node_costs=tuple(nodes), edges=tuple(edges), node_names=tuple(names))

    def _auxiliary(self, copy: Copy, nodes: list[Floats], names: list[str], edges: list[Edge]) -> Floats:
        """Adds the node that says whether a copy exists; returns its bytes per choice."""
        transfer, node = copy.transfer, len(nodes)
        usage, to_target, to_source = self._tied(copy)
        nodes.append(np.zeros(len(usage)))
        names.append(f"copy of {self.instance.model.graph.tensors[transfer.tensor].name}")
        edges.append(Edge(nodes=(node, transfer.target), costs=to_target))
        edges.append(Edge(nodes=(node, transfer.source), costs=to_source))
        return usage

    def _tied(self, copy: Copy) -> tuple[Floats, Floats, Floats]:
        """The bytes per choice of a copy's node, and its tables to target and source; copies that are alike share them."""
        key = (id(copy.source_bytes), id(copy.target_bytes))
        if key not in self._ties:
            sizes, spec_of = np.unique(copy.target_bytes, return_inverse=True)
            same = spec_of.ravel()[None, :] == np.arange(len(sizes))[:, None]
            in_place = copy.source_bytes[None, :] >= sizes[:, None]
            self._ties[key] = (
                np.concatenate([sizes, np.zeros(len(sizes))]),
                np.where(np.concatenate([same, same]), 0.0, np.inf),
                np.where(np.concatenate([np.ones_like(in_place), in_place]), 0.0, np.inf),
            )
        return self._ties[key]

    def describe(self, time: int) -> str:
        """A point of the schedule in the user's words."""
        ops = self.instance.model.graph.ops
        if time >= len(ops):
            return "memory at the end of the program"
        return f"memory at {ops[time].source} ({ops[time].kind})"
