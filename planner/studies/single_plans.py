"""Plans of single programs among several: each searched once for a mesh and what is pinned of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jax.sharding import PartitionSpec

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.options import Options, telling
from planner.planning.candidates import Candidates
from planner.planning.driver import best_plan
from planner.plans.plan import Plan
from planner.pricing.mesh import Shape, shape_key
from planner.request.resolve import PlanRequest

ONE_SHARE = 0.25
"""Part of the time left that a search may take."""
LEAST_SECONDS = 1.0
"""What a search gets even where no time is left."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SinglePlan:
    """The best plan of a program on some meshes and with some pins, and the candidates that it is the first of."""

    request: PlanRequest
    decision: Decision
    candidates: Candidates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SinglePlans:
    """The plans found of every program; `known` by program, mesh and pins."""

    requests: Mapping[str, PlanRequest]
    options: Options
    deadline: Deadline
    known: dict[object, SinglePlan] = field(init=False, default_factory=dict[object, SinglePlan])

    def best(
        self, name: str, mesh: Shape | None, pins: Mapping[str, PartitionSpec], share: float = ONE_SHARE
    ) -> Decision:
        """The best plan of a program on a mesh, or on any. Raises: InfeasibleError, PinError."""
        offered = self.requests[name].meshes
        mesh = offered[0] if mesh is None and len(offered) == 1 else mesh
        key = (name, mesh and shape_key(mesh), tuple(pins.items()))
        if key not in self.known:
            request = self.request(name, mesh, pins, max(share * self.deadline.left(), LEAST_SECONDS))
            # What compilers or runs have to say is asked of the plan that is taken, once.
            candidates = Candidates(request, request.problem, replace(request.options, autotune="never"))
            self.known[key] = SinglePlan(request=request, decision=candidates.propose(), candidates=candidates)
        return self.known[key].decision

    def request(self, name: str, mesh: Shape | None, pins: Mapping[str, PartitionSpec], seconds: float) -> PlanRequest:
        """The request of a program on a mesh, or on any, with further pins."""
        request = self.requests[name]
        variants, meshes = request.variants, request.meshes if mesh is None else [mesh]
        if pins:
            variants = variants.with_request(replace(variants.request, pins={**variants.request.pins, **pins}))
        options = telling(replace(self.options, time_limit_s=seconds), name)
        return replace(request, variants=variants, meshes=meshes, options=options)

    def checked(self, name: str, mesh: Shape, pins: Mapping[str, PartitionSpec]) -> Plan:
        """The checked plan of a program. Raises: what `plan` does."""
        known = self.known.get((name, shape_key(mesh), tuple(pins.items())))
        if known is not None and self.options.autotune == "never":
            return best_plan(known.request, known.candidates)
        return best_plan(self.request(name, mesh, pins, max(ONE_SHARE * self.deadline.left(), LEAST_SECONDS)))
