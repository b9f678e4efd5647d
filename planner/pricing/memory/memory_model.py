"""Memory of a plan: bytes alive per device at every point of the schedule, and rows that limit them.

    bytes alive at t = arguments and constants
                     + buffers alive at t, each in the spec of its home
                     + partial results being summed at t
                     + fetched copies alive at t: a transfer whose target holds more than its source keeps both

Of transfers that bring one array into one form there is one copy, from the first of them to the last, as compilers gather
it once; where that would take more than the memory there is, it is fetched again (`refetched`). Rows and prices, which know
two decisions at a time, count each by itself.

Results that reuse a donated argument's buffer add nothing. A row for a point t limits that sum; the fetched copies depend
on two decisions, so a row brings, for each of them but the smallest, an auxiliary node that says whether the copy exists:
choice u < U is "a copy in spec u", choice U + u is "read in place, in spec u" (allowed where the source holds at least as
many bytes), tied to its target's spec. Prices need none: what a copy costs is a table between the two decisions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pbqp.problem import Edge, Problem, Row
from pbqp.vectors import Floats, Indices
from planner.compiler.analysis import Model
from planner.compiler.schedule.live_ranges import Beside, Holdings, TensorForm
from planner.compiler.schedule.refetched import waits_for
from planner.decisions.decision_graph import Transfer
from planner.pricing.instance import Instance
from planner.pricing.memory.copy_classes import Classes, Pairs, classes_of
from planner.pricing.memory.equal_copies import CopiesHeld, Equal, apart, as_one
from planner.pricing.op_cost import stays_on_chip
from planner.pricing.reshards.alternatives import holds_several, local_extents

LEFT_OUT = 1e-3
"""The smallest fetched copies of a point of the schedule are left out of its row as long as they are at most this share of
the limit together (they are still counted in the peak)."""

NOT_ALL = 0.99
"""A sum has been scattered over all devices if it is larger by more than this share of their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """Bytes per strategy of a node that a tensor keeps alive in [start, stop)."""

    tensor: int
    node: int
    bytes: Floats
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy that may exist in [start, stop): the bytes of the target's spec, per strategy of its node.

    It is `needed` by class of the source and class of the target. Copies of one `kind` have the same classes and bytes.
    """

    transfer: Transfer
    source: int
    target: int
    kind: tuple[int, int, Beside]
    source_classes: Indices
    target_classes: Indices
    needed: npt.NDArray[np.bool_]
    target_bytes: Floats
    start: int
    stop: int

    def bytes(self, choice: Sequence[int]) -> float:
        """Bytes of the copy under a choice: 0 where the source is read in place."""
        target = choice[self.target]
        kept = self.needed[self.source_classes[choice[self.source]], self.target_classes[target]]
        return float(self.target_bytes[target]) if kept else 0.0

    def bytes_of_pairs(self) -> Floats:
        """The same for every choice of the source and every choice of the target: shape (source, target)."""
        return self.needed[self.source_classes][:, self.target_classes] * self.target_bytes[None, :]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Table:
    """Holdings with the bytes that choices of their nodes give them: of item i, `flat[offsets[i] + choice of nodes[i]]`.

    The same are `pieces[which[i]]`, one array for all items of one form with the same strategies, of which
    `firsts[which[i]]` is the first.
    """

    nodes: npt.NDArray[np.intp]
    offsets: npt.NDArray[np.intp]
    flat: Floats
    starts: npt.NDArray[np.intp]
    stops: npt.NDArray[np.intp]
    pieces: list[Floats]
    which: npt.NDArray[np.intp]
    firsts: npt.NDArray[np.intp]

    @staticmethod
    def of(instance: Instance, strategies_of: npt.NDArray[np.intp], holdings: Holdings) -> _Table:
        """The table of an instance whose nodes have these strategies (numbers, equal for equal ones)."""
        codes = strategies_of[holdings.nodes] * len(holdings.forms) + holdings.form
        _, first, which = np.unique(codes, return_index=True, return_inverse=True)
        pieces: list[Floats] = []
        for i in first.tolist():
            pieces.append(_bytes(instance, int(holdings.nodes[i]), holdings.forms[holdings.form[i]]))
        ends = np.cumsum([0, *map(len, pieces)])
        return _Table(
            nodes=holdings.nodes,
            offsets=ends[which.ravel()],
            flat=np.concatenate([*pieces, np.zeros(0)]),
            starts=holdings.starts,
            stops=np.minimum(holdings.stops, instance.model.compiled.steps + 1),
            pieces=pieces,
            which=which.ravel(),
            firsts=first,
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


class _Alike(NamedTuple):
    """Copies that may be equal, by start: those with equal numbers `forms[offsets[copy] + choice of its target]` are."""

    copies: Indices
    offsets: Indices
    forms: Indices


@dataclass(kw_only=True)
class MemoryModel:
    """The memory of an instance, in which copies that are equal are held as one up to `apart_above` bytes in all."""

    instance: Instance
    apart_above: float = math.inf
    _ties: dict[tuple[int, int, Beside], tuple[Floats, Floats, Floats]] = field(
        init=False, default_factory=dict[tuple[int, int, Beside], tuple[Floats, Floats, Floats]]
    )
    _waiting: dict[int, int | None] = field(init=False, default_factory=dict[int, "int | None"])

    @property
    def steps(self) -> int:
        """The number of points of the schedule."""
        return self.instance.model.compiled.steps + 1

    @cached_property
    def _strategies_of(self) -> npt.NDArray[np.intp]:
        """A number for every node, equal where nodes have the same strategies."""
        return np.asarray(self.instance.kind_of, np.intp)

    def _table(self, holdings: Holdings) -> _Table:
        return _Table.of(self.instance, self._strategies_of, holdings)

    @cached_property
    def _charged(self) -> _Table:
        return self._table(self.instance.model.held)

    @cached_property
    def _copied(self) -> tuple[_Table, _Table]:
        """The copies with the bytes of their sources, and of their targets."""
        copies = self.instance.model.copied
        return self._table(copies.sources), self._table(copies.targets)

    @cached_property
    def charges(self) -> tuple[Charge, ...]:
        """What the nodes' choices keep alive, and when."""
        table, held = self._charged, self.instance.model.held
        columns = (held.tensors, held.nodes, held.starts, held.stops, table.which)
        return tuple(
            Charge(tensor=tensor, node=node, bytes=table.pieces[piece], start=start, stop=stop)
            for tensor, node, start, stop, piece in zip(*(column.tolist() for column in columns), strict=True)
        )

    @cached_property
    def _pairs(self) -> Pairs:
        """Which copies are needed, by the choices of the nodes of their source and target."""
        copied, (sources, targets) = self.instance.model.copied, self._copied
        return Pairs.of(
            (self._classes(copied.sources, sources), self._classes(copied.targets, targets)),
            (sources.which, targets.which),
            copied.beside,
        )

    def _classes(self, holdings: Holdings, table: _Table) -> list[Classes]:
        return [
            classes_of(self.instance, int(holdings.nodes[first]), holdings.forms[holdings.form[first]], sizes)
            for first, sizes in zip(table.firsts.tolist(), table.pieces, strict=True)
        ]

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """The copies that transfers may keep beside their source."""
        copied, (sources, targets), pairs = self.instance.model.copied, self._copied, self._pairs
        columns = (sources.nodes, targets.nodes, sources.which, targets.which, sources.starts, sources.stops)
        return tuple(
            Copy(
                transfer=transfer,
                source=source,
                target=target,
                kind=(of_source, of_target, beside),
                source_classes=pairs.classes[0][of_source].of,
                target_classes=pairs.classes[1][of_target].of,
                needed=pairs.tables[of_source, of_target, beside],
                target_bytes=targets.pieces[of_target],
                start=start,
                stop=stop,
            )
            for transfer, beside, source, target, of_source, of_target, start, stop in zip(
                copied.transfers, copied.beside, *(column.tolist() for column in columns), strict=True
            )
        )

    def profile(self, choice: Sequence[int], *, apart_above: float | None = None) -> Floats:
        """Bytes alive per device at every point of the schedule: shape (steps,). `apart_above`: by default the model's."""
        picks = np.asarray(choice, np.intp)
        return self._profile(picks, self._copies_held(picks, self.apart_above if apart_above is None else apart_above))

    def _profile(self, picks: Indices, copies: CopiesHeld) -> Floats:
        change = np.zeros(self.steps + 1)
        self._charged.add(change, self._charged.bytes(picks))
        np.add.at(change, self._copied[1].starts, copies.sizes)
        np.subtract.at(change, copies.stops, copies.sizes)
        return np.cumsum(change)[: self.steps]

    def refetched(self, choice: Sequence[int]) -> dict[int, int]:
        """The transfers that fetch what others brought before, instead of holding it, by the tensor that they wait for."""
        found = self._copies_held(np.asarray(choice, np.intp), self.apart_above).refetched
        return {self.instance.model.copied.transfers[copy].id: tensor for copy, tensor in found.items()}

    def _copies_held(self, picks: Indices, apart_above: float) -> CopiesHeld:
        """The copies under a choice: equal ones as one, up to those that are fetched again as memory is short."""
        sources, targets = self._copied
        needed = self._pairs.needed(picks[sources.nodes], picks[targets.nodes])
        sizes, alike = np.where(needed, targets.bytes(picks), 0.0), self._alike
        there = alike.copies[needed[alike.copies]]
        if not len(there):
            return CopiesHeld(sizes, targets.stops, {})
        equal = Equal(there, alike.forms[alike.offsets[there] + picks[targets.nodes[there]]])
        held = as_one(sizes, targets.stops, equal)
        if math.isinf(apart_above) or not ((profile := self._profile(picks, held)) > apart_above).any():
            return held
        return apart((sizes, targets.starts, targets.stops), equal, self._waits_for, profile, apart_above)

    def _waits_for(self, copy: int, after: int) -> int | None:
        """The tensor made after a time that a copy's transfer can wait for if it fetches again."""
        model = self.instance.model
        if copy not in self._waiting:
            self._waiting[copy] = waits_for(model.compiled, model.copied.transfers[copy].reads)
        tensor = self._waiting[copy]
        return None if tensor is None or (model.graph.tensors[tensor].producer or 0) < after else tensor

    @cached_property
    def _alike(self) -> _Alike:
        """The copies that may be equal to others: of one tensor, as narrow, from one node, in one region."""
        copied = self.instance.model.copied
        fractions = (copied.targets.forms[form].fraction for form in copied.targets.form.tolist())
        kept = zip(copied.transfers, copied.targets.tensors.tolist(), fractions, strict=True)
        places = [(tensor, t.source, t.region, fraction) for t, tensor, fraction in kept]
        counts = Counter(places)
        several = [i for i, place in enumerate(places) if counts[place] > 1]
        several.sort(key=lambda i: (int(self._copied[1].starts[i]), i))
        offsets = np.zeros(len(places), np.intp)
        numbers: dict[Hashable, int] = {}
        forms: list[int] = []
        for i in several:
            transfer, offsets[i] = copied.transfers[i], len(forms)
            located = self.instance.strategies[transfer.target].locations(transfer.target_dims)
            forms += [numbers.setdefault((places[i], *row), len(numbers)) for row in located.tolist()]
        return _Alike(np.asarray(several, np.intp), offsets, np.asarray(forms, np.intp))

    def profile_of(self, choice: Sequence[int], tensors: npt.NDArray[np.bool_]) -> Floats:
        """The same of some tensors alone, fetched copies aside."""
        change = np.zeros(self.steps + 1)
        sizes = self._charged.bytes(np.asarray(choice, np.intp))
        self._charged.add(change, np.where(tensors[self.instance.model.held.tensors], sizes, 0.0))
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

    def alive(self, time: int, choice: Sequence[int]) -> list[tuple[str, float]]:
        """What is alive at a point of the schedule: (name, bytes per device), largest first."""
        tensors, held = self.instance.model.graph.tensors, self.instance.model.held
        inside = ["" if form.inside is None else "what is read and computed inside for " for form in held.forms]
        found = [
            (inside[held.form[i]] + tensors[charge.tensor].name, float(charge.bytes[choice[charge.node]]))
            for i, charge in enumerate(self.charges)
            if charge.start <= time < charge.stop
        ]
        held = self._copies_held(np.asarray(choice, np.intp), self.apart_above)
        found += [
            (f"a fetched copy of {tensors[copy.transfer.tensor].name}", float(size))
            for copy, size, stop in zip(self.copies, held.sizes, held.stops, strict=True)
            if copy.start <= time < stop
        ]
        return sorted(found, key=lambda part: (-part[1], part[0]))

    def limited(self, problem: Problem, times: Sequence[int], limit_bytes: float) -> Problem:
        """`problem` with a memory row for each of these points of the schedule, and the auxiliary nodes they need."""
        nodes, names = list(problem.node_costs), list(problem.node_names)
        edges = list(problem.edges)
        auxiliary: dict[tuple[int, Beside], tuple[int, Floats]] = {}
        rows: list[Row] = []
        for time in times:
            usage: dict[int, Floats] = {}
            for charge in map(self.charges.__getitem__, self._charged.alive(time)):
                usage[charge.node] = usage.get(charge.node, np.zeros(len(charge.bytes))) + charge.bytes
            for copy in self._counted(time, limit_bytes):
                index = copy.transfer.id, copy.kind[2]
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

    def priced(self, problem: Problem, prices: Mapping[int, float]) -> Problem:
        """`problem` with a price for every byte alive at these points of the schedule."""
        nodes, edges = list(problem.node_costs), list(problem.edges)
        weights = self._charged.weights(prices)
        for i in np.flatnonzero(weights > 0).tolist():
            charge = self.charges[i]
            nodes[charge.node] = nodes[charge.node] + weights[i] * charge.bytes
        weights = self._copied[1].weights(prices)
        tables: dict[tuple[tuple[int, int, Beside], float], Floats] = {}
        for i in np.flatnonzero(weights > 0).tolist():
            copy, weight = self.copies[i], float(weights[i])
            key = copy.kind, weight
            if key not in tables:
                tables[key] = weight * copy.bytes_of_pairs()
            if copy.source == copy.target:
                nodes[copy.target] = nodes[copy.target] + tables[key].diagonal()
            elif tables[key].any():
                edges.append(Edge(nodes=(copy.source, copy.target), costs=tables[key]))
        return replace(problem, node_costs=tuple(nodes), edges=tuple(edges))

    def _counted(self, time: int, limit_bytes: float) -> list[Copy]:
        """The copies at a point of the schedule but for the smallest, which together are below a share of the limit."""
        alive = [self.copies[i] for i in self._copied[1].alive(time)]
        most = np.asarray([float(copy.target_bytes.max()) for copy in alive])
        order = np.argsort(most, kind="stable")
        counts = np.cumsum(most[order]) > LEFT_OUT * limit_bytes
        return [alive[i] for i in np.sort(order[counts]).tolist()]

    def _auxiliary(self, copy: Copy, nodes: list[Floats], names: list[str], edges: list[Edge]) -> Floats:
        """Adds the node that says whether a copy exists; returns its bytes per choice."""
        node = len(nodes)
        usage, to_target, to_source = self._tied(copy)
        nodes.append(np.zeros(len(usage)))
        names.append(f"copy of {self.instance.model.graph.tensors[copy.transfer.tensor].name}")
        edges.append(Edge(nodes=(node, copy.target), costs=to_target))
        edges.append(Edge(nodes=(node, copy.source), costs=to_source))
        return usage

    def _tied(self, copy: Copy) -> tuple[Floats, Floats, Floats]:
        """The bytes per choice of a copy's node, and its tables to target and source; copies that are alike share them."""
        if copy.kind not in self._ties:
            # Targets are alike that have the same bytes and are needed beside the same sources.
            table = np.concatenate([copy.target_bytes[None, :], copy.needed[:, copy.target_classes]])
            alike, spec_of = np.unique(table, axis=1, return_inverse=True)
            same = spec_of.ravel()[None, :] == np.arange(alike.shape[1])[:, None]
            in_place = alike[1:].T[:, copy.source_classes] == 0
            self._ties[copy.kind] = (
                np.concatenate([alike[0], np.zeros(alike.shape[1])]),
                np.where(np.concatenate([same, same]), 0.0, np.inf),
                np.where(np.concatenate([np.ones_like(in_place), in_place]), 0.0, np.inf),
            )
        return self._ties[copy.kind]

    def describe(self, time: int) -> str:
        """A point of the schedule in the user's words."""
        ops = self.instance.model.graph.ops
        if time >= len(ops):
            return "memory at the end of the program"
        return f"memory at {ops[time].name}"


def whole_bytes(model: Model, on_chips_bytes: float) -> float:
    """Bytes alive at the fullest point of the schedule, paddings and copies aside, if nothing is split.

    No plan on n devices that have `on_chips_bytes` on their chips, all of them together, needs less than an n-th of it on
    each: what may stay there does not count.
    """
    held, steps = model.held, model.compiled.steps + 1
    known = [
        not form.several and (form.split, form.halo, form.inside, form.over_all) == (None,) * 4 for form in held.forms
    ]
    each = [form.fraction * form.aval.bytes * counts for form, counts in zip(held.forms, known, strict=True)]
    on_chips = [stays_on_chip(np.asarray(form.aval.bytes), form.at_once, on_chips_bytes) for form in held.forms]
    sizes = np.where(on_chips, 0.0, each)[held.form] if each else np.zeros(0)
    change = np.zeros(steps + 1)
    np.add.at(change, held.starts, sizes)
    np.subtract.at(change, np.minimum(held.stops, steps), sizes)
    return float(np.cumsum(change)[:steps].max(initial=0.0))


def _bytes(instance: Instance, node: int, form: TensorForm) -> Floats:
    """Bytes of a tensor of a form under each strategy of a node."""
    if form.inside is not None:
        # What the body of an op holds: on each of its devices, or of whole arrays.
        body = form.inside.body
        group, strategies = instance.model.grouping.groups[node], instance.strategies[node]
        parts = strategies.shards(frozenset(range(len(group.sizes)))) if body.axes is None else 1.0
        return np.full(len(strategies), instance.body_memory[body].bytes(form.inside, instance.mesh)) / parts
    sizes = instance.resident_bytes(form.aval, node, form.dims, in_rows=form.in_rows)
    if form.reduced is not None:
        return _summed_bytes(instance, node, sizes, form.reduced)
    if form.several:
        locations = instance.strategies[node].locations(form.dims)
        sizes = sizes * holds_several(locations, instance.mesh.sizes, form.aval.shape, form.several)
    if form.halo is not None:
        extents = local_extents(instance.strategies[node].locations(form.dims), instance.mesh.sizes, form.aval.shape)
        shares = [
            np.where(extents[:, d] < form.aval.shape[d], width / extents[:, d], 0.0) for d, width in form.halo.widths
        ]
        fetched = np.sum(shares, axis=0)
        sizes = sizes * (fetched + np.where(fetched > 0, form.halo.own, 0.0))
    if form.over_all is not None:
        sizes = np.where(instance.strategies[node].shards(form.over_all) == instance.mesh.num_devices, sizes, 0.0)
    if form.split is not None:
        sizes = np.where(instance.strategies[node].shards(form.split) > 1, sizes, 0.0)
    sizes = np.where(stays_on_chip(sizes, form.at_once, instance.mesh.on_chip_bytes), 0.0, sizes)
    return sizes if form.fraction == 1 else form.fraction * sizes


def _summed_bytes(instance: Instance, node: int, sizes: Floats, reduced: frozenset[int]) -> Floats:
    """Bytes of a whole sum, if it is kept, under each strategy of the node that leaves partial results.

    A TPU's compiler that sums over all devices at once, to give each its part, keeps the sum and reads the parts from it.
    Of the node that stores the parts: the most bytes of a sum that is not one over all devices for these parts.
    """
    mesh, kept = instance.mesh, instance.model.compiler.runs("whole-sum-kept")
    if not reduced:
        return sizes * mesh.num_devices * NOT_ALL
    over_all = instance.strategies[node].shards(reduced) == mesh.num_devices
    as_one = sizes <= mesh.all_reduced["reduce-scatter"][-1]
    return np.where(over_all & as_one & kept, sizes, 0.0)
