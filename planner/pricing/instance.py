"""An instance: one program on one mesh, as a planning problem.

Node costs are the values of computing (and of reshards within a group), edge costs those of transfers, all in the unit
of the objective; memory rows are added on demand for points of the schedule. An instance does not change: `restricted`
and `spread` make another of it. What a choice means is in `chosen`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models import Objective
from pbqp.identity import numbered
from pbqp.problem import Edge, Problem
from pbqp.vectors import Floats, Indices, distinct_lines
from planner.compiler.analysis import Model
from planner.compiler.collectives.overlap import HIDDEN
from planner.compiler.collectives.savings import Savings
from planner.compiler.layout.multiplied import Order
from planner.decisions.decision_graph import LoopSum, Transfer
from planner.pricing.bodies.body_memory import BodyMemory
from planner.pricing.candidates.strategies import Kinds, Strategies
from planner.pricing.host_feeding import Fed, Feeding
from planner.pricing.mesh import Mesh
from planner.pricing.op_cost import Work
from planner.pricing.reshards.reshard import Locations, Patterns, Step, local_bytes, patterns_of, sliced_bytes
from planner.pricing.reshards.shares import (
    ALL,
    COUNTED,
    SUMMING,
    Shares,
    counted_kind,
    hideable,
    last_hides_alone,
    only,
    shares_of,
)
from planner.pricing.tpu_tiles import local_tiled_bytes
from planner.program.graph import Aval, Body
from planner.rules.rule import Dims

TIE = 1e-3
"""Weight of memory among equally good plans, as a share of the cost of reading the bytes once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """The strategies, costs and memory of a program on one mesh.

    Node n may choose among `tables[kind_of[n]]`; nodes of one kind have equal strategies. `works` and `node_values` are
    what these cost: the value of every strategy of every node, reshards within it included. `body_memory` is held on a
    device by the bodies of ops that stay one op. `pinned` are the tensors, `pinned_outputs` the positions of results whose
    spec the user gave. `patterns` are the reshards met on meshes of as many axes, `feeding` is how inputs come from hosts,
    `given` the problem where it is known already.
    """

    model: Model
    mesh: Mesh
    objective: Objective
    hbm_bytes_per_s: float
    pinned: frozenset[int]
    pinned_outputs: frozenset[int]
    patterns: Patterns
    tables: tuple[Strategies, ...]
    kind_of: tuple[int, ...]
    works: tuple[Work | None, ...]
    node_values: tuple[Floats, ...]
    body_memory: Mapping[Body, BodyMemory] = field(default_factory=dict[Body, BodyMemory])
    feeding: Feeding | None = None
    given: Problem | None = None
    _cache: dict[object, Floats] = field(init=False, default_factory=dict[object, Floats])
    _transfers: dict[tuple[int, int, int], Floats] = field(
        init=False, default_factory=dict[tuple[int, int, int], Floats]
    )
    _met: dict[object, tuple[npt.NDArray[np.int64], Indices, Indices]] = field(
        init=False, default_factory=dict[object, tuple[npt.NDArray[np.int64], Indices, Indices]]
    )

    @cached_property
    def strategies(self) -> tuple[Strategies, ...]:
        """The strategies of every node."""
        return tuple(map(self.tables.__getitem__, self.kind_of))

    def restricted(self, kept: Sequence[Indices], problem: Problem | None = None) -> Instance:
        """The instance with these strategies of every node only; `problem` is theirs, where it is known."""
        kinds = Kinds()
        kind_of: list[int] = []
        works: list[Work | None] = []
        values: list[Floats] = []
        distinct, work_of = numbered(self.works)
        taken: dict[object, Work] = {}
        taken_values: dict[object, Floats] = {}
        for node, (old, positions) in enumerate(zip(self.kind_of, kept, strict=True)):
            table, key = self.tables[old], (old, positions.tobytes())
            kind_of.append(kinds.number(key, lambda table=table, positions=positions: _kept(table, positions)))
            value = id(self.node_values[node]), key[1]
            if value not in taken_values:
                taken_values[value] = self.node_values[node][positions]
            values.append(taken_values[value])
            work = distinct[work_of[node]]
            if work is not None:
                known = (work_of[node], key[1])
                if known not in taken:
                    taken[known] = _taken(work, positions)
                work = taken[known]
            works.append(work)
        return replace(
            self,
            tables=tuple(kinds.tables),
            kind_of=tuple(kind_of),
            works=tuple(works),
            node_values=tuple(values),
            given=problem,
        )

    def whole(self) -> Instance:
        """The instance of all nodes: this one."""
        return self

    def spread(self, model: Model, members: Sequence[int]) -> Instance:
        """The instance of a larger model, each of whose nodes has what one of these has: `members[n]` for node n."""
        return replace(
            self,
            model=model,
            kind_of=tuple(map(self.kind_of.__getitem__, members)),
            works=tuple(map(self.works.__getitem__, members)),
            node_values=tuple(map(self.node_values.__getitem__, members)),
            given=None,
        )

    # ------------------------------------------------------------ values

    @property
    def weight(self) -> float:
        """How many devices' values count: all of them for energy, that of one (they run side by side) for time."""
        return float(self.mesh.num_devices) if self.objective.name == "energy" else 1.0

    def savings(self, transfer: Transfer, found: Savings | None = None) -> tuple[Shares, float]:
        """The parts of a transfer's collectives that count, and the seconds of them that matmuls hide at most.

        By the savings that were `found`; by default those where every sum that can be is merged with others.
        """
        mesh, found = self.mesh, self.model.savings if found is None else found
        if self.model.kernels is None:
            return ALL, 0.0
        flops = found.overlap_flops.get(transfer.id, 0.0) if self.objective.name == "time" else 0.0
        return shares_of(found, transfer.id), flops / (mesh.num_devices * mesh.matmul_flops_per_s)

    def counted(self, shares: Shares, step: Step) -> tuple[float, float]:
        """What of a step counts by the shares of its transfer: of its fixed price, and of its bytes."""
        if step.kind is None:
            return 0.0, 0.0
        share = shares[COUNTED.index(counted_kind(self.mesh, step.kind, step.mask, step.bytes))]
        return float(self.mesh.latency_share(share, step.bytes)), share[1]

    def transfer_values(self, transfer: Transfer) -> Floats:
        """The value of one transfer for every pair of strategies of its nodes: shape (n, m), trips included."""
        kind, kind_of = self.model.transfer_kinds[transfer.id], self.kind_of
        alike = kind, kind_of[transfer.source], kind_of[transfer.target]
        found = self._transfers.get(alike)
        if found is None:
            found = self._transfers[alike] = self._priced(transfer)
        return found

    def _priced(self, transfer: Transfer) -> Floats:
        aval, orders = self.model.graph.tensors[transfer.tensor].aval, self.model.memory_orders(transfer)
        shares, hidden = self.savings(transfer)
        source, target = self.strategies[transfer.source], self.strategies[transfer.target]
        s, p = source.locations(transfer.source_dims), source.splits(transfer.reduced)
        t = target.locations(transfer.target_dims)
        if aval.host_itemsize:
            # Nothing moves between the memories of hosts.
            stays = np.logical_and((s[:, None] == t[None]).all(axis=2), ~p.any(axis=1, keepdims=True))
            return np.where(stays, 0.0, np.inf)
        pairs = (s.tobytes(), p.tobytes(), t.tobytes(), aval.shape, aval.bytes, orders)
        often = (transfer.trips, transfer.trips_after_loop, transfer.widened)
        key = (pairs, often, shares, hidden, transfer.scatters, transfer.id in self.model.sliced)
        if key not in self._cache:
            index, row_of, column_of = self._reshards((s, p, t), aval, orders)

            def priced(counted: Shares, *, last: bool = False) -> Floats:
                return self.patterns.price(self.mesh, seconds=False, shares=counted, last=last).of(index, aval.bytes)

            values = priced(shares)
            if hidden:
                summing = bool(transfer.reduced)
                last = last_hides_alone(self.mesh, summing=summing)
                moves = priced(only(hideable(self.mesh, summing=summing), shares), last=last)
                values = values - np.minimum(HIDDEN * moves, hidden)
            found = transfer.trips * values[row_of][:, column_of]
            if transfer.id in self.model.sliced:
                found = found + transfer.trips * self._slicing(sliced_bytes(self.mesh.sizes, (s, p, t), aval.bytes))
            if transfer.region_after_loop is not None:
                # A sum that stays in place waits for the end of the loop (see `loop_all_reduce`).
                in_place = (s[:, None] == t[None, :]).all(axis=2)
                kind = "reduce-scatter" if self._scatters(transfer) else "all-reduce"
                once = self.mesh.values(kind, *self._partial(transfer), shares[COUNTED.index(kind)])
                found = np.where(in_place, transfer.trips_after_loop * once[:, None], found)
            self._cache[key] = self.weight * found
        return self._cache[key]

    def slicing_seconds(self, bytes: Floats) -> Floats:
        """What copying slices of so many bytes takes: they are read and written."""
        return 2 * bytes / self.hbm_bytes_per_s

    def _slicing(self, bytes: Floats) -> Floats:
        """The same in the unit of the objective."""
        return self.objective.compute(seconds=self.slicing_seconds(bytes), flops=0 * bytes, bytes=2 * bytes)

    def _scatters(self, transfer: Transfer) -> bool:
        """Whether the sum of a transfer behind a loop is scattered to its readers there."""
        return transfer.scatters and self.mesh.compiler.runs("reduce-scatter-creator")

    def _partial(self, transfer: Transfer) -> tuple[Indices, Floats]:
        """For every strategy of its source the axes that a sum behind a loop is over, and the bytes of its parts: (n,)."""
        source, aval = self.strategies[transfer.source], self.model.graph.tensors[transfer.tensor].aval
        held, partial = source.locations(transfer.source_dims), source.splits(transfer.reduced)
        bit = 1 << np.arange(held.shape[1])
        return partial @ bit, transfer.widened * aval.bytes / self.mesh.mask_sizes()[(held >= 0) @ bit]

    def loop_sum_values(self, loop_sum: LoopSum) -> Floats:
        """What a sum behind a loop costs more, by strategies of its source and of a reader: (n, m).

        Where what is read is not split along one dim by all axes that the sum is over, or the compiler cannot scatter it
        so, it is no reduce-scatter (`transfer_values`) but an all-reduce. What is summed in every trip is charged as well,
        if nothing that reads it is split; it would be summed better once.
        """
        term, read, share = loop_sum
        shares = self.savings(term)[0][COUNTED.index("all-reduce")]
        all_reduced, scattered = (self.mesh.values(kind, *self._partial(term), shares) for kind in SUMMING)
        more = (self.weight * share * term.trips_after_loop) * np.maximum(all_reduced - scattered, 0.0)
        return np.where(self._is_scattered(term, read), 0.0, more[:, None])

    def _is_scattered(self, term: Transfer, read: Transfer) -> npt.NDArray[np.bool_]:
        """Whether an accumulator is scattered to a reader, by strategies as above: (n, m).

        It lies as its terms do; where that is not known, it is taken for split by nothing.
        """
        aval, source = self.model.graph.tensors[read.tensor].aval, self.strategies[term.source]
        within = self.model.dims_in_sum(term, aval.shape)
        held = source.locations(term.source_dims)
        held = np.full_like(held, -1) if within is None else np.array([*within, -1], np.int8)[held]
        ends = held, source.splits(term.reduced), self.strategies[read.target].locations(read.target_dims)
        index, row_of, column_of = self._reshards(ends, aval, self.model.orders_of_sum(term, aval.shape))
        return self.patterns.scatter(index)[row_of][:, column_of]

    @property
    def loop_sums(self) -> Sequence[LoopSum]:
        """The sums behind loops that are scattered where what reads them is split."""
        return self.model.flow.scattered if self.mesh.compiler.runs("reduce-scatter-creator") else []

    @property
    def after_loops(self) -> tuple[Edge, ...]:
        """What sums after loops cost more where they are not scattered."""
        return tuple(
            Edge(nodes=(s.term.source, s.read.target), costs=self.loop_sum_values(s))
            for s in self.loop_sums
            if s.term.source != s.read.target
        )

    def _reshards(
        self,
        ends: tuple[Locations, npt.NDArray[np.bool_], Locations],
        aval: Aval,
        orders: tuple[tuple[int, ...], ...] | None,
    ) -> tuple[npt.NDArray[np.int64], Indices, Indices]:
        """The patterns between distinct specs of a source (with its partial sums) and a target, and which each has."""
        source, partial, target = ends
        pairs = (source.tobytes(), partial.tobytes(), target.tobytes(), aval.shape, aval.bytes, orders)
        if pairs in self._met:
            return self._met[pairs]
        rows, row_of = distinct_lines(np.concatenate([source, partial.astype(np.int8)], axis=1))
        columns, column_of = distinct_lines(target)
        # Nodes with other strategies often have the same specs.
        key = (self.mesh, rows.tobytes(), columns.tobytes(), aval.shape, aval.bytes, orders)
        known = self.patterns.indices
        if key not in known:
            axes = source.shape[1]
            known[key] = patterns_of(
                self.mesh,
                rows[:, :axes],
                rows[:, axes:].astype(np.bool_),
                columns,
                shape=aval.shape,
                whole_bytes=aval.bytes,
                patterns=self.patterns,
                orders=orders,
            )
        self._met[pairs] = known[key], row_of, column_of
        return self._met[pairs]

    def stated_values(self) -> list[Floats]:
        """The `node_values` worked out from works, transfers and storage: of nodes that are alike one object."""
        distinct, work_of = numbered(self.works)
        computing = [None if work is None else self._computing(work) for work in distinct]
        nothing = [np.zeros(len(table)) for table in self.tables]
        values = [
            nothing[kind] if (value := computing[number]) is None else value
            for kind, number in zip(self.kind_of, work_of, strict=True)
        ]
        sums: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        for transfer in self.model.moving:
            if transfer.source == transfer.target:
                value, moved = values[transfer.source], self.transfer_values(transfer)
                key = id(value), id(moved)
                if key not in sums:
                    # What an identity stands for stays alive.
                    sums[key] = value, value + np.diagonal(moved)
                values[transfer.source] = sums[key][1]
        self._storage(values)
        for node, value in self.feeding_values.items():
            values[node] = values[node] + value
        return values

    def _computing(self, work: Work) -> Floats:
        """The value of some work under every strategy."""
        value = self.objective.compute(seconds=work.seconds, flops=work.flops, bytes=work.traffic_bytes)
        return self.weight * (value + work.exchange)

    @property
    def problem(self) -> Problem:
        """The planning problem of this instance, without memory rows."""
        return self._stated if self.given is None else self.given

    @cached_property
    def _stated(self) -> Problem:
        between = [t for t in self.model.moving if t.source != t.target]
        return Problem(
            name=f"mesh {self.mesh.shape}",
            node_costs=self.node_values,
            edges=(
                *(Edge(nodes=(t.source, t.target), costs=self.transfer_values(t)) for t in between),
                *self.after_loops,
                *self.agreements,
            ),
            node_names=tuple(node.name for node in self.model.flow.nodes),
        )

    def _storage(self, values: list[Floats]) -> None:
        """Adds the price of holding an argument: a thousandth of reading it once, so that ties go to the smaller."""
        hbm = self.hbm_bytes_per_s
        for tensor in self.model.graph.tensors:
            stored = self.stored_bytes(tensor.id) if tensor.producer is None and tensor.aval.size > 1 else None
            if stored is not None:
                node, size = stored
                tiny = TIE * size
                values[node] = values[node] + self.weight * self.objective.compute(
                    seconds=tiny / hbm, flops=0 * tiny, bytes=tiny
                )

    @cached_property
    def feeding_values(self) -> Mapping[int, Floats]:
        """For nodes that decide how inputs are stored, what feeding them adds to the value of every strategy."""
        found: dict[int, Floats] = {}
        for tensor in () if self.feeding is None else self.feeding.inputs:
            place = self.fed(tensor)
            if place is not None:
                node, fed = place
                nothing = np.zeros_like(fed.seconds)
                value = self.objective.compute(seconds=fed.counted, flops=nothing, bytes=nothing)
                found[node] = found.get(node, nothing) + self.weight * value
        return found

    @cached_property
    def agreements(self) -> tuple[Edge, ...]:
        """What arrays of one batch cost more that are split otherwise than its largest."""
        feeding, found = self.feeding, list[Edge]()
        for batch in () if feeding is None else feeding.batches:
            stored = [(one, self._stored(one.tensor)) for one in batch]
            placed = [(one, home) for one, home in stored if home is not None]
            if feeding is None or not placed:
                continue
            largest, (first, where) = max(placed, key=lambda both: self.model.graph.tensors[both[0].tensor].aval.bytes)
            for one, (node, its) in placed:
                if node != first:
                    whole = self.model.graph.tensors[largest.tensor].aval.bytes
                    seconds = feeding.apart((largest, where), (one, its), whole)
                    nothing = np.zeros_like(seconds)
                    value = self.weight * self.objective.compute(seconds=seconds, flops=nothing, bytes=nothing)
                    found.append(Edge(nodes=(first, node), costs=value))
        return tuple(found)

    def _stored(self, tensor: int) -> tuple[int, Locations] | None:
        """The node that decides how a tensor is stored, and the spec that each of its strategies gives it."""
        home = self.model.flow.home[tensor]
        return None if home is None else (home[0], self.strategies[home[0]].locations(home[1]))

    def fed(self, tensor: int) -> tuple[int, Fed] | None:
        """The node that decides how an input is stored, and what feeding it takes under each of its strategies."""
        stored = self._stored(tensor)
        if stored is None or self.feeding is None:
            return None
        aval = self.model.graph.tensors[tensor].aval
        return stored[0], self.feeding.fed(self.feeding.inputs[tensor], aval, stored[1])

    # ------------------------------------------------------------ bytes

    def stored_bytes(self, tensor: int) -> tuple[int, Floats] | None:
        """The node that decides how a tensor is stored, and its bytes per device under each of its strategies."""
        home = self.model.flow.home[tensor]
        if home is None:
            return None
        return home[0], self.resident_bytes(self.model.graph.tensors[tensor].aval, home[0], home[1])

    def resident_bytes(self, aval: Aval, node: int, dims: Dims, *, in_rows: Order | None = None) -> Floats:
        """Bytes per device of a tensor in the spec each strategy of a node gives it, padding included.

        `in_rows`: how it lies in rows.
        """
        key = ("resident", self.kind_of[node], dims, aval, in_rows)
        if key not in self._cache:
            self._cache[key] = self._resident_bytes(aval, self.strategies[node].locations(dims), in_rows)
        return self._cache[key]

    def _resident_bytes(self, aval: Aval, locations: Locations, in_rows: Order | None) -> Floats:
        if not self.model.compiler.runs("tiling"):
            return local_bytes(locations, self.mesh.sizes, aval.bytes)
        return local_tiled_bytes(locations, self.mesh.sizes, aval.shape, aval.itemsize, in_rows=in_rows)


def _kept(table: Strategies, positions: Indices) -> Strategies:
    """Some of the strategies, in this order; the same object for all of them in their own."""
    return table if np.array_equal(positions, np.arange(len(table))) else table.keep(positions)


def _taken(work: Work, positions: Indices) -> Work:
    """The work of some strategies."""
    return Work(**{part.name: getattr(work, part.name)[positions] for part in fields(Work)})
