"""An instance: one program on one mesh, as a planning problem, and back from a choice to what it means.

Node costs are the values of computing (and of reshards within a group), edge costs those of transfers, all in the unit
of the objective; memory rows are added on demand for points of the schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models import CostModel, Objective
from planner.candidates import Strategies, group_strategies, tensor_strategies
from planner.costs import Work, group_work
from planner.errors import InfeasibleError
from planner.flow import Node, Transfer
from planner.graph import Aval
from planner.groups import Dims
from planner.mesh import Mesh
from planner.model import PLACED_BY_USER, Model
from planner.problem import Edge, Problem
from planner.reshard import Locations, Patterns, Step, local_bytes, reshard_steps, reshard_values
from planner.tiling import tiled_bytes

Floats = npt.NDArray[np.float64]

TIE = 1e-3
"""Weight of memory among equally good plans, as a share of the cost of reading the bytes once."""


@dataclass(kw_only=True)
class Instance:
    """The strategies, costs and memory of a program on one mesh.

    `tiled`: arrays are stored in tiles, as on TPUs (see `tiling`). `pins` maps a tensor, `output_pins` an output position,
    to the spec (a row of locations) it must have.
    """

    model: Model
    mesh: Mesh
    cost_model: CostModel
    objective: Objective
    hbm_bytes_per_s: float
    tiled: bool
    pins: Mapping[int, tuple[int, ...]]
    output_pins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    strategies: list[Strategies] = field(init=False)
    works: list[Work | None] = field(init=False)
    _offered: dict[object, Strategies] = field(init=False, default_factory=dict[object, Strategies])
    _cache: dict[object, Floats] = field(init=False, default_factory=dict[object, Floats])
    _located: dict[object, tuple[int, ...]] = field(init=False, default_factory=dict[object, tuple[int, ...]])
    _steps: dict[object, tuple[Step, ...]] = field(init=False, default_factory=dict[object, tuple[Step, ...]])
    _moves: dict[tuple[int, ...], tuple[tuple[Transfer, tuple[Step, ...]], ...]] = field(
        init=False, default_factory=dict[tuple[int, ...], tuple[tuple[Transfer, tuple[Step, ...]], ...]]
    )

    def __post_init__(self) -> None:
        model = self.model
        self.strategies = [self._strategies(node) for node in model.flow.nodes]
        self._pin()
        known: dict[tuple[int, int], Work] = {}
        self.works = []
        for node in model.flow.nodes:
            if node.group is None:
                self.works.append(None)
                continue
            key = (model.alike[node.group], id(self.strategies[node.id]))
            if key not in known:
                group = model.grouping.groups[node.group]
                known[key] = group_work(
                    model.graph,
                    model.grouping,
                    group,
                    model.fused_pass(group),
                    self.strategies[node.id],
                    self.cost_model,
                    self.mesh,
                )
            self.works.append(known[key])

    def forget(self) -> None:
        """Makes what is worked out from the strategies this instance's own, to be worked out anew."""
        self.strategies, self.works, self._cache, self._located = [*self.strategies], [*self.works], {}, {}
        self._moves = {}
        for name in ("node_values", "problem"):
            self.__dict__.pop(name, None)

    def _strategies(self, node: Node) -> Strategies:
        """The strategies of a node: one object for all nodes that are alike, or have the same ones."""
        graph = self.model.graph
        shape = graph.tensors[node.tensor].aval.shape if node.tensor is not None else ()
        key = ("tensor", shape) if node.group is None else ("group", self.model.alike[node.group])
        if key not in self._offered:
            made = tensor_strategies(shape, self.mesh.sizes)[0] if node.group is None else self.of_group(node.group)
            content = (made.assignment.tobytes(), made.num_factors)
            self._offered[key] = self._offered.setdefault(content, made)
        return self._offered[key]

    def of_group(self, number: int) -> Strategies:
        """The strategies of a group, worked out anew and without pins."""
        grouping, sizes = self.model.grouping, self.mesh.sizes
        group = grouping.groups[number]
        return group_strategies(grouping, group, sizes, self.model.factor_bytes(group))

    def _pin(self) -> None:
        """Keeps, at every pinned tensor's home, the strategies that give it the pinned spec."""
        flow, graph = self.model.flow, self.model.graph
        wanted_at = [(graph.tensors[t].name, flow.home[t], spec, ()) for t, spec in self.pins.items()]
        wanted_at += self._demanded()
        for transfer in flow.transfers:
            if transfer.output is not None and transfer.output in self.output_pins:
                place = (transfer.target, transfer.target_dims)
                wanted_at.append((graph.output_names[transfer.output], place, self.output_pins[transfer.output], ()))
        for name, home, wanted, free in wanted_at:
            if home is None:
                continue
            node, dims = home
            old = self.strategies[node]
            found, spec = old.locations(dims), np.asarray(wanted, np.int8)
            keep = ((found == spec) | ((spec < 0) & np.isin(found, free))).all(axis=1)
            if not keep.any():
                raise InfeasibleError(
                    f"the pin on {name} leaves {flow.nodes[node].name} no "
                    f"strategy on the mesh {self.mesh.shape}: it conflicts with another pin or with a dim that an op "
                    "needs whole; relax the pin"
                )
            self.strategies[node] = old.keep(keep)

    def _demanded(self) -> list[tuple[str, tuple[int, Dims] | None, tuple[int, ...], tuple[int, ...]]]:
        """(source line, node and dims, spec, free dims) of what constraints and `shard_map`s of the program demand."""
        found: list[tuple[str, tuple[int, Dims] | None, tuple[int, ...], tuple[int, ...]]] = []
        graph, grouping, names = self.model.graph, self.model.grouping, self.mesh.names
        for op in graph.of_kinds(PLACED_BY_USER):
            # One that could not be read as a rule is placed whole, and told as such.
            if op.id in grouping.unruled:
                continue
            placement = grouping.placements[op.id]
            for dims, spec in zip(
                (*placement.operands, *placement.results),
                (*op.params["operand_specs"], *op.params["result_specs"]),
                strict=True,
            ):
                if spec is None or not set(op.params["mesh"]) <= set(names):
                    continue
                location = [-1] * len(names)
                for dim, axes in enumerate(spec):
                    for axis in axes or ():
                        if self.mesh.shape[axis] > 1:
                            location[names.index(axis)] = dim
                free = tuple(dim for dim, axes in enumerate(spec) if axes is None)
                found.append((f"{op.source} {op.kind}", (grouping.group_of[op.id], dims), tuple(location), free))
        return found

    # ------------------------------------------------------------ values

    @property
    def weight(self) -> float:
        """How many devices' values count: all of them for energy, that of one (they run side by side) for time."""
        return float(self.mesh.num_devices) if self.objective.name == "energy" else 1.0

    def transfer_values(self, transfer: Transfer, *, seconds: bool = False) -> Floats:
        """The value of one transfer for every pair of strategies of its nodes: shape (n, m), trips included."""
        aval = self.model.graph.tensors[transfer.tensor].aval
        source, target = self.strategies[transfer.source], self.strategies[transfer.target]
        weight = 1.0 if seconds else self.weight
        alike = (
            *(id(source), transfer.source_dims, transfer.reduced, id(target), transfer.target_dims),
            *(aval.shape, aval.bytes, transfer.trips, seconds),
        )
        found = self._cache.get(alike)
        if found is not None:
            return found
        s, p = source.locations(transfer.source_dims), source.splits(transfer.reduced)
        t = target.locations(transfer.target_dims)
        key = (s.tobytes(), p.tobytes(), t.tobytes(), aval.shape, aval.bytes, transfer.trips, seconds)
        if key not in self._cache:
            rows, row_of = _distinct(np.concatenate([s, p.astype(np.int8)], axis=1))
            columns, column_of = _distinct(t)
            axes = s.shape[1]
            values = reshard_values(
                self.mesh,
                rows[:, :axes],
                rows[:, axes:].astype(np.bool_),
                columns,
                shape=aval.shape,
                whole_bytes=aval.bytes,
                patterns=self.model.patterns.setdefault(axes, Patterns()),
                seconds=seconds,
            )
            self._cache[key] = weight * transfer.trips * values[row_of][:, column_of]
        self._cache[alike] = self._cache[key]
        return self._cache[key]

    @property
    def moving(self) -> tuple[Transfer, ...]:
        """The transfers that can cost anything."""
        return self.model.moving

    @cached_property
    def node_values(self) -> list[Floats]:
        """The value of every strategy of every node, reshards within it included."""
        values: list[Floats] = []
        for node, strategies in enumerate(self.strategies):
            work = self.works[node]
            if work is None:
                values.append(np.zeros(len(strategies)))
            else:
                value = self.objective.compute(seconds=work.seconds, flops=work.flops, bytes=work.traffic_bytes)
                values.append(self.weight * (value + work.exchange))
        for transfer in self.moving:
            if transfer.source == transfer.target:
                values[transfer.source] = values[transfer.source] + np.diagonal(self.transfer_values(transfer))
        self._storage(values)
        return values

    @cached_property
    def problem(self) -> Problem:
        """The planning problem of this instance, without memory rows."""
        edges = [
            Edge(nodes=(t.source, t.target), costs=self.transfer_values(t)) for t in self.moving if t.source != t.target
        ]
        return Problem(
            name=f"mesh {self.mesh.shape}",
            node_costs=tuple(self.node_values),
            edges=tuple(edges),
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

    # ------------------------------------------------------------ meaning of a choice

    def location(self, tensor: int, choice: Sequence[int]) -> tuple[int, ...]:
        """The spec a tensor is stored in: for every axis the dim it splits, or -1."""
        home = self.model.flow.home[tensor]
        if home is None:
            return (-1,) * len(self.mesh.sizes)
        return self.location_at(home[0], home[1], choice)

    def location_at(self, node: int, dims: Dims, choice: Sequence[int]) -> tuple[int, ...]:
        """The spec a node's choice gives a tensor with these dims."""
        strategies = self.strategies[node]
        key = (id(strategies), choice[node], dims)
        if key not in self._located:
            where = {factor: dim for dim, factors in enumerate(dims) for factor in factors}
            chosen = strategies.assignment[choice[node]].tolist()
            self._located[key] = tuple(where.get(factor, -1) for factor in chosen)
        return self._located[key]

    def moves(self, choice: Sequence[int]) -> tuple[tuple[Transfer, tuple[Step, ...]], ...]:
        """The transfers that take any steps under a choice, with these; those of the last choice are kept."""
        key = tuple(choice)
        if key not in self._moves:
            found = [(transfer, self._steps_of(transfer, key)) for transfer in self.moving]
            self._moves = {key: tuple([move for move in found if move[1]])}
        return self._moves[key]

    def _steps_of(self, transfer: Transfer, choice: Sequence[int]) -> tuple[Step, ...]:
        aval = self.model.graph.tensors[transfer.tensor].aval
        source = self.location_at(transfer.source, transfer.source_dims, choice)
        target = self.location_at(transfer.target, transfer.target_dims, choice)
        chosen = (
            self.strategies[transfer.source].assignment[choice[transfer.source]].tolist() if transfer.reduced else ()
        )
        partial = tuple(factor in transfer.reduced for factor in chosen) or (False,) * len(source)
        key = (source, partial, target, aval.shape, aval.bytes)
        if key not in self._steps:
            made = reshard_steps(self.mesh, source, partial, target, shape=aval.shape, whole_bytes=aval.bytes)
            self._steps[key] = tuple(made)
        return self._steps[key]

    def stored_bytes(self, tensor: int) -> tuple[int, Floats] | None:
        """The node that decides how a tensor is stored, and its bytes per device under each of its strategies."""
        home = self.model.flow.home[tensor]
        if home is None:
            return None
        return home[0], self.resident_bytes(self.model.graph.tensors[tensor].aval, home[0], home[1])

    def resident_bytes(self, aval: Aval, node: int, dims: Dims) -> Floats:
        """Bytes per device of a tensor in the spec each strategy of a node gives it, padding included."""
        key = ("resident", id(self.strategies[node]), dims, aval)
        if key not in self._cache:
            self._cache[key] = self._resident_bytes(aval, self.strategies[node].locations(dims))
        return self._cache[key]

    def _resident_bytes(self, aval: Aval, locations: Locations) -> Floats:
        if not self.tiled:
            return local_bytes(locations, self.mesh.sizes, aval.bytes)
        rows, row_of = _distinct(locations)
        sizes = np.zeros(len(rows))
        for i, row in enumerate(rows.tolist()):
            shape = list(aval.shape)
            for axis, dim in enumerate(row):
                if dim >= 0:
                    shape[dim] //= self.mesh.sizes[axis]
            sizes[i] = tiled_bytes(tuple(shape), aval.itemsize)
        return sizes[row_of]

    def seconds(self, choice: Sequence[int]) -> tuple[float, float]:
        """(seconds of computing, seconds of communication) per device and call."""
        compute = sum(float(work.seconds[choice[node]]) for node, work in enumerate(self.works) if work is not None)
        mesh = self.mesh
        moved = sum(
            t.trips
            * float(mesh.fixed_seconds[step.kind][step.mask] + mesh.seconds_per_byte[step.kind][step.mask] * step.bytes)
            for t, steps in self.moves(choice)
            for step in steps
            if step.kind is not None
        )
        moved += sum(
            float(work.exchange_seconds[choice[node]]) for node, work in enumerate(self.works) if work is not None
        )
        return compute, moved

    def total(self, attribute: str, choice: Sequence[int]) -> float:
        """The sum over groups of one field of `Work` under a choice."""
        return sum(
            float(getattr(work, attribute)[choice[node]]) for node, work in enumerate(self.works) if work is not None
        )


def _distinct(lines: npt.NDArray[np.int8]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.intp]]:
    """The distinct lines of a table of small numbers from -1 up, and for every line which of them it is."""
    base = int(lines.max(initial=-1)) + 2
    if lines.shape[1] * np.log2(base) >= 62:
        rows, of = np.unique(lines, axis=0, return_inverse=True)
        return rows, of.ravel()
    codes = (lines.astype(np.int64) + 1) @ base ** np.arange(lines.shape[1])[::-1]
    _, firsts, of = np.unique(codes, return_index=True, return_inverse=True)
    return lines[firsts], of
