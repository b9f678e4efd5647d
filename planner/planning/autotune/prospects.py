"""Prospects: plans that may be the fastest, one or more for every mesh, at prices corrected so far.

Of a mesh the best plan at its prices is one. Where the solver mixes moves of arguments with moves of what is computed, a
compiler may do better with plans of one kind, such as people write: so two more are sought, in which the moves of the
one kind are several times as dear. All are told by what they promise at the prices as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal, final

from pbqp.deadline import Deadline
from pbqp.problem import Problem
from planner.decision import Decision
from planner.decisions.decision_graph import Transfer
from planner.emit.predict import predict
from planner.errors import InfeasibleError, PinError
from planner.options import Options
from planner.planning.autotune.corrections import Corrections
from planner.planning.autotune.lessons import Promise, promise_of
from planner.plans.finalize import decide
from planner.pricing.assignment import Chosen
from planner.pricing.calibrated import corrected, leaning
from planner.pricing.instance import Instance
from planner.pricing.mesh import Shape, ShapeKey, shape_key
from planner.program.graph import Graph
from planner.program.slots import ENTERING
from planner.rules.primitives import traits
from planner.search.best_on_mesh import Candidate, Postponed, free_plan
from planner.search.mesh_search import SearchResult, solve_options
from planner.search.problem import PlanningProblem
from planner.search.shared_layers import SharedInstance

Leaning = Literal["", "arguments stay", "computed values stay"]
"""Which moves are made dearer: none, those of arguments, or those of all else."""
DEARER = 8.0
"""How many times as dear they are."""
MESH_SECONDS, LEANING_SECONDS = 6.0, 2.0
"""Most seconds for one plan of one mesh; for a leaning one, which need not be the best of its kind."""
MOST_NODES = 1500
"""Leaning plans are sought where there are no more decisions: all of them are told apart there."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prospect:
    """A plan worth a trial: what it promises, and how it came about (`why`). Few are tried, so `decide` waits for that."""

    promise: Promise
    why: str
    decide: Callable[[], Decision]

    @cached_property
    def decision(self) -> Decision:
        """What is decided."""
        return self.decide()

    @property
    def signature(self) -> tuple[object, ...]:
        """What is equal of plans that come to the same program, whatever the names and the number of their axes."""
        mesh, moved = self.promise.mesh, list[tuple[object, ...]]()
        sizes = mesh.mask_sizes()
        for (kind, mask), seconds in self.promise.collectives.items():
            moved.append((kind, int(sizes[mask]), _rounded(seconds)))
        return _rounded(self.promise.computing), _rounded(self.promise.argument_bytes), tuple(sorted(map(repr, moved)))


def _rounded(value: float) -> str:
    return f"{value:.4g}"


@final
class Prospects:
    """Finds prospects of a problem, of plans within `limit_bytes` that its compiler, as far as is known, lets fit."""

    def __init__(self, problem: PlanningProblem, options: Options, *, limit_bytes: float, meshes: int) -> None:
        self._problem, self._options = problem, options
        self._limit_bytes, self._meshes = limit_bytes, meshes
        self._plain: dict[ShapeKey, Instance] = {}

    def of(self, candidate: Candidate, why: str) -> Prospect:
        """The prospect of a plan found; at the prices as they are, whatever those were at which it was found."""
        plain = self._instance(candidate.instance.mesh.shape)
        promised = replace(candidate, state=lambda: plain)
        choice = tuple(map(int, candidate.choice))
        chosen = Chosen(instance=plain, choice=choice, apart_above=candidate.peak_bytes)
        return Prospect(
            promise=promise_of(chosen, predict(chosen, self._problem.request.topology)),
            why=why,
            decide=partial(decide, self._problem, promised, bound=0.0, seconds=0.0, meshes=self._meshes, notes=()),
        )

    def best(
        self, shape: Shape, corrections: Corrections, *, below: float, deadline: Deadline, lean: Leaning = ""
    ) -> Prospect | None:
        """The best plan on a mesh at corrected prices, if one below so many seconds is found in time.

        With a leaning, the best at prices that lean; those may be above.
        """
        try:
            instance = self._instance(shape)
            alike = not lean and self._problem.analysis.members is not None
            shared = self._problem.state(instance.mesh) if alike else None
        except (PinError, InfeasibleError):
            return None
        prices = corrections.prices(instance.mesh)
        stated: Instance | SharedInstance
        if isinstance(shared, SharedInstance):
            stated = replace(shared, instance=corrected(shared.instance, prices))
        else:
            stated = corrected(instance, prices)
            if lean:
                stated = replace(stated, given=self._leaning(stated, lean))
        limit = corrections.limit(instance.mesh, self._limit_bytes)
        solving = solve_options(self._options, deadline.within(LEANING_SECONDS if lean else MESH_SECONDS))
        cutoff = math.inf if lean else below
        found = free_plan(stated, limit, solving, best=cutoff)
        if isinstance(found, Postponed):
            found = found.limited(solving, cutoff=cutoff)
            if found.open is not None:
                found = found.open.closed(solving, cutoff=cutoff)
        if found.candidate is None:
            return None
        return self.of(found.candidate, lean or "best of its mesh")

    def certified(self, decision: Decision, found: SearchResult) -> Decision:
        """A decision with its value at the prices as they are, beside the bound of a search at those prices."""
        value = self._instance(decision.mesh_shape).problem.evaluate(decision.choice)
        certificate = replace(
            decision.certificate,
            value=value,
            lower_bound=min(found.bound, value),
            solve_seconds=found.seconds if decision.refined is None else decision.refined.seconds,
        )
        return replace(decision, certificate=certificate, notes=(*decision.notes, *found.notes), tried=found.tried)

    @property
    def leans(self) -> bool:
        """Whether leaning plans are sought: not where that would take too long."""
        return len(self._problem.model.flow.nodes) <= MOST_NODES

    def _instance(self, shape: Shape) -> Instance:
        """The problem on a mesh at the prices as they are. Raises: PinError, InfeasibleError."""
        key = shape_key(shape)
        if key not in self._plain:
            self._plain[key] = self._problem.instance(shape)
        return self._plain[key]

    def _leaning(self, instance: Instance, lean: Leaning) -> Problem:
        """The problem of an instance in which the moves of one kind are several times as dear."""
        of_arguments = lean == "arguments stay"

        def dearer(transfer: Transfer) -> float:
            return DEARER if (transfer.tensor in self._from_arguments) == of_arguments else 1.0

        between = [transfer for transfer in instance.model.moving if transfer.source != transfer.target]
        return leaning(instance.problem, between, dearer)

    @cached_property
    def _from_arguments(self) -> frozenset[int]:
        return from_arguments(self._problem.graph)


def from_arguments(graph: Graph) -> frozenset[int]:
    """The tensors that are arguments, or made of the elements of a single one: casts and slices of it, in other shapes."""
    found = set(graph.inputs)
    for op in graph.ops:
        large = [tensor for tensor in op.operands if tensor >= 0 and graph.tensors[tensor].aval.size > 1]
        if len(large) == 1 and large[0] in found and (op.kind in ENTERING or traits(op.kind).fused):
            most = graph.tensors[large[0]].aval.size
            found.update(tensor for tensor in op.results if 1 < graph.tensors[tensor].aval.size <= most)
    return frozenset(found)
