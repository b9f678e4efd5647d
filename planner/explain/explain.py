"""Explaining a plan: what each other spec of a tensor would cost, everything else re-optimised around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np
from jax.sharding import PartitionSpec

from planner.errors import ArgumentError
from planner.explain.decided_graph import decided
from planner.explain.op_graph import OpGraph, nodes_of
from planner.one_mesh.chosen import Chosen
from planner.one_mesh.instance import Instance
from planner.one_mesh.pins import base_name, close_names, matcher
from planner.one_mesh.reshard import local_bytes
from planner.one_mesh.specs import spec_of
from planner.program.graph import Aval
from planner.rules.rule import Dims
from planner.solver.marginals import marginals
from planner.solver.problem import Problem
from planner.units import quantity

MOST_TENSORS = 8
"""Most tensors in one explanation: the largest, or the first that a pattern names."""
MOST_MOVES = 4
"""Most moves of one tensor that are printed: those that take longest."""
CHEAPER = 1e-6
"""An alternative counts as cheaper than the plan when it is so by this share."""
TIME_LIMIT_S = 40.0
"""Seconds for one explanation, shared by its tensors, where the problem is too large for exact figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One spec a tensor could have: the best value of any plan that has it, and the bytes per device it takes.

    Where `exact` is False, `value` is that of the best plan found around the chosen one.
    """

    spec: PartitionSpec
    value: float
    exact: bool
    bytes: float
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What the plan does to bring a tensor to one of its readers, an edge of the op graph; bytes and seconds per call."""

    reader: str
    spec: str
    collective: str
    bytes: float
    seconds: float

    def __str__(self) -> str:
        shared = "" if self.seconds else ", run for an earlier reader"
        figures = f"{quantity(self.bytes, 'B')} in {quantity(self.seconds, 's')}{shared}"
        return f"{self.collective} to {self.spec} for {self.reader}: {figures}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorExplanation:
    """A tensor's spec among its alternatives, best first; `pinned` where the user left no alternative.

    `moves` are the collectives that bring it to its readers in the chosen plan, those that take longest first.
    """

    name: str
    shape: tuple[int, ...]
    decided_by: str
    pinned: bool
    alternatives: tuple[Alternative, ...]
    moves: tuple[Move, ...]

    @property
    def cheaper(self) -> bool:
        """Whether an alternative costs less than what was chosen."""
        mine = min((a.value for a in self.alternatives if a.chosen), default=-np.inf)
        return any(a.value < mine * (1 - CHEAPER) for a in self.alternatives)

    def __str__(self) -> str:
        best = min((a.value for a in self.alternatives), default=0.0)
        place = "pinned" if self.pinned else f"decided at {self.decided_by}"
        lines = [f"{self.name} {list(self.shape)}, {place}"]
        for a in self.alternatives:
            mark = "->" if a.chosen else "  "
            extra = "" if a.value == best else f"  (+{100 * (a.value - best) / best if best else 0:.2g} %)"
            value = f"{'' if a.exact else '~'}{a.value:.6g}"
            lines.append(f"  {mark} {a.spec!s:<40} {value:>12} {a.bytes / 1e6:>12.3f} MB{extra}")
        lines += [f"     moved by {move}" for move in self.moves[:MOST_MOVES]]
        if len(self.moves) > MOST_MOVES:
            lines.append(f"     and {len(self.moves) - MOST_MOVES} moves more")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why tensors are placed as they are.

    Values are in `unit` per call, of plans on this mesh without a memory limit; `minimised` is the plan's objective.
    """

    tensors: tuple[TensorExplanation, ...]
    unit: str
    minimised: str

    @property
    def limited(self) -> bool:
        """Whether an alternative costs less than the plan: something else than its cost ruled it out."""
        return any(tensor.cheaper for tensor in self.tensors)

    def __str__(self) -> str:
        lines = [f"Each spec with the best plan that has it, in {self.unit} per call, and its bytes per device:"]
        lines += map(str, self.tensors)
        if not all(a.exact for tensor in self.tensors for a in tensor.alternatives):
            lines.append("~ the best plan found, not proven to be the best with that spec.")
        if self.minimised == "memory":
            lines.append("The plan has the least memory, not the least of these values.")
        elif self.limited:
            lines.append(
                "What costs less than the plan breaks its memory limit, or was not found in the search's time."
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the spec of a named tensor is decided: a node, and the tensor's dims in the node's factors."""

    name: str
    tensor: int
    aval: Aval
    node: int
    dims: Dims
    pinned: bool


@dataclass(kw_only=True)
class Alternatives:
    """The problem behind a plan and what was chosen, kept for several explanations.

    `minimised` is its objective, `platform` that of the chips it is for.
    """

    instance: Instance
    choice: Sequence[int]
    minimised: str
    function_name: str
    platform: str

    @cached_property
    def problem(self) -> Problem:
        """The problem without memory rows."""
        return self.instance.problem

    @cached_property
    def network(self) -> OpGraph:
        """The op graph as decided, frozen."""
        return nx.freeze(
            decided(
                Chosen(instance=self.instance, choice=tuple(self.choice)),
                platform=self.platform,
                name=self.function_name,
            )
        )

    @cached_property
    def places(self) -> dict[str, _Place]:
        """Every named tensor whose spec is decided somewhere, arguments first, results last."""
        graph, flow, instance = self.instance.model.graph, self.instance.model.flow, self.instance
        found: dict[str, _Place] = {}

        def add(name: str, tensor: int, home: tuple[int, Dims] | None, *, pinned: bool) -> None:
            if home is not None:
                aval = graph.tensors[tensor].aval
                place = _Place(name=name, tensor=tensor, aval=aval, node=home[0], dims=home[1], pinned=pinned)
                found.setdefault(name, place)

        for tensor in graph.tensors:
            if tensor.kind != "constant":
                add(tensor.name, tensor.id, flow.home[tensor.id], pinned=tensor.id in instance.pinned)
        returned = {t.output: (t.target, t.target_dims) for t in flow.transfers if t.output is not None}
        for position, (name, tensor) in enumerate(zip(graph.output_names, graph.outputs, strict=True)):
            home = returned.get(position, flow.home[tensor])
            add(name, tensor, home, pinned=position in instance.pinned_outputs or tensor in instance.pinned)
        return found

    @cached_property
    def value(self) -> float:
        """What the plan itself costs."""
        return self.problem.evaluate(self.choice)

    def of(self, place: _Place, time_limit_s: float) -> TensorExplanation:
        """The alternatives of one tensor."""
        instance, mine = self.instance, self.choice[place.node]
        found = marginals(self.problem, place.node, start=self.choice, time_limit=time_limit_s)
        values = found.values.copy()
        values[mine] = min(values[mine], self.value)
        locations = instance.strategies[place.node].locations(place.dims)
        sizes = local_bytes(locations, instance.mesh.sizes, place.aval.bytes)
        keys = [tuple(int(a) for a in row) for row in locations]
        best: dict[tuple[int, ...], int] = {}
        for pick in np.argsort(values, kind="stable").tolist():
            if np.isfinite(values[pick]):
                best.setdefault(keys[pick], pick)
        alternatives = [
            Alternative(
                spec=spec_of(key, len(place.aval.shape), instance.mesh.names),
                value=float(values[pick]),
                exact=bool(found.exact[pick]),
                bytes=float(sizes[pick]),
                chosen=key == keys[mine],
            )
            for key, pick in best.items()
        ]
        alternatives.sort(key=lambda a: (a.value, a.bytes, str(a.spec)))
        return TensorExplanation(
            name=place.name,
            shape=place.aval.shape,
            decided_by=instance.model.flow.nodes[place.node].name,
            pinned=place.pinned,
            alternatives=tuple(alternatives),
            moves=self.moves(place.tensor),
        )

    def moves(self, tensor: int) -> tuple[Move, ...]:
        """The edges of the op graph on which collectives move a tensor, those that take longest first."""
        name, network = self.instance.model.graph.tensors[tensor].name, self.network
        found = [
            Move(
                reader=network.nodes[reader]["label"],
                spec=edge["spec_to"],
                collective=edge["collective"],
                bytes=edge["bytes"],
                seconds=edge["seconds"],
            )
            for _, reader, edge in network.out_edges(self._nodes[tensor], data=True)
            if edge["tensor"] == name and edge["collective"]
        ]
        return tuple(sorted(found, key=lambda move: -move.seconds))

    @cached_property
    def _nodes(self) -> list[str]:
        return nodes_of(self.instance.model.graph)


def explain(alternatives: Alternatives, path: str | None) -> Explanation:
    """The explanation of the tensors `path` names, or of the largest arguments. Raises: ArgumentError."""
    graph, places = alternatives.instance.model.graph, alternatives.places
    if path is None:
        largest = sorted(graph.inputs, key=lambda t: -graph.tensors[t].aval.bytes)
        names = [graph.tensors[t].name for t in largest]
    elif isinstance(path, str):
        matches = matcher(path)
        names = [name for name in places if matches(name) or matches(base_name(name))]
        if not names:
            raise ArgumentError(f"no tensor is named {path!r}; names look like {close_names(path, places)}")
    else:
        raise ArgumentError(f"path is {path!r}; give a tensor's name or a pattern over names")
    chosen = [places[name] for name in names if name in places][:MOST_TENSORS]
    return Explanation(
        tensors=tuple(alternatives.of(place, TIME_LIMIT_S / len(chosen)) for place in chosen),
        unit=alternatives.instance.objective.unit,
        minimised=alternatives.minimised,
    )
