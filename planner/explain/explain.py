"""Explaining a plan: what each other spec of a tensor would cost, everything else re-optimised around it, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import networkx as nx
import numpy as np

from pbqp.marginals import Effort, Marginals, marginals
from pbqp.problem import Edge, Problem
from pbqp.vectors import Indices
from planner.errors import ArgumentError
from planner.explain.decided_graph import decided
from planner.explain.explanation import (
    CHEAPER,
    MOST_ALTERNATIVES,
    Alternative,
    Explanation,
    Move,
    TensorExplanation,
)
from planner.explain.op_graph import OpGraph, nodes_of
from planner.explain.reasons import Reason, cost_reason, memory_reason
from planner.explain.recipe import Recipes
from planner.explain.recipes import recipes
from planner.explain.saved_values import SavedValue, SavedValues, naming
from planner.pricing.assignment import Chosen
from planner.pricing.candidates.pins import base_name, close_names, matcher
from planner.pricing.candidates.specs import spec_of
from planner.pricing.instance import Instance
from planner.pricing.memory.memory_model import MemoryModel
from planner.pricing.reshards.reshard import local_bytes
from planner.program.graph import Aval
from planner.rules.rule import Dims
from planner.search.problem import PlanningProblem

MOST_TENSORS = 8
MOST_SAVED = 16
"""Most values that a backward pass reads in one explanation: the largest."""
MOST_UNASKED = 5
"""Most tensors in one explanation: the first that a pattern names, or else the largest arguments, no two alike."""
MOST_LOOKED_AT = 10
"""Most specs of a tensor that are looked at where the problem is too large for exact figures."""
TIME_LIMIT_S = 20.0
"""Seconds for one explanation, shared by its tensors, where the problem is too large for exact figures."""
MOST_SWAPPED = 16
"""Choices of a node that are tried in the place of the plan's, where memory is minimised."""
NEAR_PEAK = 0.98
"""Points of the schedule at which a plan holds this part of its peak count as its fullest."""
TIE_BREAK = 1e-3
"""The value of a whole plan, where memory is what counts, as a part of the value of its peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the spec of a named tensor is decided: a node, and the tensor's dims in the node's factors."""

    name: str
    tensor: int
    aval: Aval
    node: int
    dims: Dims
    pinned: bool


@dataclass(kw_only=True, repr=False)
class Alternatives:
    """The problem behind a plan and what was chosen, kept for several explanations.

    `problem_of_program` is the problem for any mesh, `instance` that on the plan's.
    `minimised` is its objective, `limit_bytes` its memory limit per device, `platform` that of the chips it is for; `saved`
    are the values that a backward pass reads, `apart_above` as in `MemoryModel`.
    """

    problem_of_program: PlanningProblem
    instance: Instance
    choice: Sequence[int]
    minimised: str
    limit_bytes: float
    apart_above: float
    function_name: str
    platform: str
    saved: SavedValues

    def __repr__(self) -> str:
        return f"<Alternatives to the plan of {self.function_name} on {dict(self.instance.mesh.shape)}>"

    @cached_property
    def problem(self) -> Problem:
        """The problem without memory rows; where memory is minimised, with a price for what the fullest points hold."""
        return self.instance.problem if self.minimised != "memory" else self._priced()

    @cached_property
    def chosen(self) -> Chosen:
        """The plan's choice."""
        return self._of(self.choice)

    def _of(self, choice: Sequence[int]) -> Chosen:
        return Chosen(instance=self.instance, choice=tuple(choice), apart_above=self.apart_above)

    @cached_property
    def memory(self) -> MemoryModel:
        """What is held, and when."""
        return self.chosen.memory

    @cached_property
    def network(self) -> OpGraph:
        """The op graph as decided, frozen."""
        return nx.freeze(decided(self.chosen, platform=self.platform, name=self.function_name))

    @cached_property
    def recipes(self) -> Recipes:
        """The plan beside the usual recipes, which are priced when this is first read."""
        return recipes(self.problem_of_program, self.chosen)

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
        """What the plan itself costs, in what was minimised."""
        return self._peak(self.choice) if self.minimised == "memory" else self.instance.problem.evaluate(self.choice)

    @property
    def unit(self) -> Literal["s", "J", "B"]:
        """The unit of values."""
        return "B" if self.minimised == "memory" else "J" if self.minimised == "energy" else "s"

    def of(self, place: _Place, time_limit_s: float) -> TensorExplanation:
        """The alternatives of one tensor."""
        instance = self.instance
        locations = instance.strategies[place.node].locations(place.dims)
        distinct, firsts, classes = np.unique(locations, axis=0, return_index=True, return_inverse=True)
        classes, mine = classes.ravel(), int(classes.ravel()[self.choice[place.node]])
        effort = Effort(most=MOST_LOOKED_AT, seconds=time_limit_s)
        found = marginals(self.problem, place.node, classes=classes, start=self.choice, effort=effort)
        sizes = local_bytes(locations, instance.mesh.sizes, place.aval.bytes)
        plans = {
            of: self._plan(found, of, place.node, np.flatnonzero(classes == of)) for of in self._ranked(found, mine)
        }
        ranked = [(of, *self._figures(found, of, mine, plan)) for of, plan in plans.items()]
        alternatives = [
            Alternative(
                spec=spec_of(tuple(map(int, distinct[of])), len(place.aval.shape), instance.mesh.names),
                value=value,
                exact=exact,
                bytes=float(sizes[firsts[of]]),
                chosen=of == mine,
            )
            for of, value, exact in ranked
        ]
        by_spec = {a.spec: of for a, (of, _, _) in zip(alternatives, ranked, strict=True)}
        alternatives.sort(key=lambda a: (a.value, a.bytes, str(a.spec)))
        explained = TensorExplanation(
            name=place.name,
            shape=place.aval.shape,
            decided_by=instance.model.flow.nodes[place.node].name,
            pinned=place.pinned,
            alternatives=tuple(alternatives),
            unseen=int((~found.seen).sum()),
            moves=self.moves(place.tensor),
            unit=self.unit,
            memory=self.materialization(place.tensor),
        )
        described = [a for of in explained.alike[: MOST_ALTERNATIVES + 1] if not of[0].chosen for a in of]
        baseline = self._baseline(found, mine)
        reasons = {a.spec: self._reason(baseline, plans[by_spec[a.spec]], a) for a in described}
        with_reasons = tuple(replace(a, reason=reasons.get(a.spec)) for a in alternatives)
        return replace(explained, alternatives=with_reasons)

    def _ranked(self, found: Marginals, mine: int) -> list[int]:
        """The specs that are told of: those that can be, where memory is minimised the best few, and the chosen one."""
        order = [of for of in np.argsort(found.values, kind="stable").tolist() if np.isfinite(found.values[of])]
        few = order[:MOST_LOOKED_AT] if self.minimised == "memory" else order
        return few if mine in few else [*few, mine]

    def _plan(self, found: Marginals, of: int, node: int, picks: Indices) -> tuple[int, ...]:
        """The best plan found that has a spec, which these choices of the node give; where memory counts also this plan
        with the node's choice alone exchanged."""
        if not np.isfinite(found.values[of]):
            return tuple(self.choice)
        plans = [found.choice(of)]
        if self.minimised == "memory":
            plans += [(*self.choice[:node], int(pick), *self.choice[node + 1 :]) for pick in picks[:MOST_SWAPPED]]
        return min(plans, key=self._peak) if len(plans) > 1 else plans[0]

    def _figures(self, found: Marginals, of: int, mine: int, plan: Sequence[int]) -> tuple[float, bool]:
        """The value of the best plan that has a spec, and whether it is proven to be the best."""
        value, exact = (
            (self._peak(plan), False)
            if self.minimised == "memory"
            else (float(found.values[of]), bool(found.exact[of]))
        )
        return (min(value, self.value) if of == mine else value), exact

    def _baseline(self, found: Marginals, mine: int) -> Chosen:
        """What alternatives are compared with: the plan, unless a memory limit keeps it from the best it could be."""
        limited = found.values[mine] < self.value * (1 - CHEAPER) and self.minimised != "memory"
        return self._of(found.choice(mine)) if limited else self.chosen

    def _reason(self, baseline: Chosen, other: Sequence[int], alternative: Alternative) -> Reason | None:
        """What a plan has more than the baseline: in what was minimised, or else in memory above the limit."""
        if self.minimised == "memory":
            if alternative.value <= self.value:
                return None
            return memory_reason(self.memory, self.choice, other, self.value, "more at the peak")
        if alternative.value < self.value * (1 - CHEAPER) and self._peak(other) > self.limit_bytes:
            what = "more at the peak than the memory limit"
            return memory_reason(self.memory, self.choice, other, self.limit_bytes, what)
        return cost_reason(baseline, self._of(other), self._unit_of_costs)

    @property
    def _unit_of_costs(self) -> Literal["s", "J"]:
        return "J" if self.minimised == "energy" else "s"

    def _peak(self, choice: Sequence[int]) -> float:
        return float(self.memory.profile(choice).max())

    def _priced(self) -> Problem:
        profile = self.memory.profile(self.choice)
        fullest: Indices = np.flatnonzero(profile >= NEAR_PEAK * profile.max())
        bare, peak = self.instance.problem, float(profile.max())
        scale = TIE_BREAK * peak / max(bare.evaluate(self.choice), 1e-300)
        tables = {id(edge.costs): scale * edge.costs for edge in bare.edges}
        scaled = Problem(
            name=bare.name,
            node_costs=tuple(scale * costs for costs in bare.node_costs),
            edges=tuple(Edge(nodes=edge.nodes, costs=tables[id(edge.costs)]) for edge in bare.edges),
            node_names=bare.node_names,
        )
        return self.memory.priced(scaled, {int(time): 1 / fullest.size for time in fullest})

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

    def materialization(self, tensor: int) -> str:
        """Whether an intermediate value is materialized, by which pass, read off which releases; "" of other tensors."""
        model = self.instance.model
        program, seen = model.compiled, model.seen.of(tensor)
        found = program.materializing_pass(seen)
        if found is None or model.graph.tensors[seen].kind != "intermediate":
            return ""
        word = "materialized" if program.materialized[seen] else "not materialized"
        return f"{word}: {found.name} ({', '.join(model.compiler.releases_of(found))})"

    @cached_property
    def _nodes(self) -> list[str]:
        return nodes_of(self.instance.model.graph)


def explain(alternatives: Alternatives, path: str | None) -> Explanation:
    """The explanation of the tensors and saved values `path` names, or of the largest arguments, one of each type and spec.

    Without a path, the usual recipes are beside the plan. Raises: ArgumentError.
    """
    graph, places, saved = alternatives.instance.model.graph, alternatives.places, list[SavedValue]()
    if path is None:
        largest = sorted(graph.inputs, key=lambda t: -graph.tensors[t].aval.bytes)
        arguments = [places[name] for t in largest if (name := graph.tensors[t].name) in places]
        names = _unlike(arguments, alternatives)[:MOST_UNASKED]
    elif isinstance(path, str):
        matches = matcher(path)
        names = [name for name in places if matches(name) or matches(base_name(name))]
        # Arguments are not among them, and to find them takes a while for large programs.
        known = [] if path in {graph.tensors[t].name for t in graph.inputs} else alternatives.saved.known
        named = naming(path)
        saved = [value for value in known if named(value.name)][:MOST_SAVED]
        if not names and not saved:
            close = close_names(path, [*places, *(value.name for value in known)])
            raise ArgumentError(f"no tensor is named {path!r}; names look like {close}")
    else:
        raise ArgumentError(f"path is {path!r}; give a tensor's name or a pattern over names")
    chosen = [places[name] for name in names if name in places][:MOST_TENSORS]
    return Explanation(
        tensors=tuple(alternatives.of(place, TIME_LIMIT_S / len(chosen)) for place in chosen),
        unit="bytes" if alternatives.minimised == "memory" else alternatives.instance.objective.unit,
        minimised=alternatives.minimised,
        saved=tuple(saved),
        recipes=alternatives.recipes if path is None else None,
    )


def _unlike(places: Sequence[_Place], alternatives: Alternatives) -> list[str]:
    """The names of these tensors, of several of one type and spec that of the one read most often."""
    chosen, readers = alternatives.chosen, alternatives.instance.model.graph.consumers
    found: dict[object, _Place] = {}
    for place in places:
        key = (place.aval, chosen.at(place.node, place.dims))
        found[key] = max(found.get(key, place), place, key=lambda one: len(readers[one.tensor]))
    return [place.name for place in found.values()]
