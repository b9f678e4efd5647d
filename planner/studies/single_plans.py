"""Plans of single programs among several: each searched once for a mesh and what is pinned of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace

from jax.sharding import PartitionSpec

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.options import Options, telling
from planner.planning.call import Call
from planner.plans.plan import Plan
from planner.pricing.mesh import Shape, shape_key
from planner.variants.problem_variants import Sessions
from planner.variants.verdict import Answer, again

ONE_SHARE = 0.25
"""Part of the time left that a search may take."""
LEAST_SECONDS = 1.0
"""What a search gets even where no time is left."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """The best plan of a program on some meshes and with some pins, and what is proposed after it."""

    call: Call
    decision: Decision
    following: Generator[Decision, Answer]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SinglePlans:
    """The plans found of every program; `known` by program, mesh and pins."""

    calls: Mapping[str, Call]
    options: Options
    deadline: Deadline
    known: dict[object, Tried] = field(init=False, default_factory=dict[object, Tried])

    def tried(
        self, name: str, mesh: Shape | None, pins: Mapping[str, PartitionSpec], share: float = ONE_SHARE
    ) -> Tried:
        """The best plan of a program on a mesh, or on any. Raises: InfeasibleError, PinError."""
        offered = self.calls[name].ready.meshes
        mesh = offered[0] if mesh is None and len(offered) == 1 else mesh
        key = (name, mesh and shape_key(mesh), tuple(pins.items()))
        if key not in self.known:
            call = self.call(name, mesh, pins, max(share * self.deadline.left(), LEAST_SECONDS))
            # What compilers or runs have to say is asked of the plan that is taken, once.
            unrefined = replace(call.options, refine="never")
            proposed = call.proposed_in_any_form(call.session, unrefined)
            decision = next(proposed)
            self.known[key] = Tried(call=call, decision=decision, following=proposed)
        return self.known[key]

    def call(self, name: str, mesh: Shape | None, pins: Mapping[str, PartitionSpec], seconds: float) -> Call:
        """The call of a program on a mesh, or on any, with further pins."""
        call = self.calls[name]
        ready, sessions = call.ready, call.sessions
        if pins:
            request = replace(sessions.request, pins={**sessions.request.pins, **pins})
            sessions = Sessions(program=sessions.program, target=sessions.target, request=request)
        if mesh is not None:
            ready = replace(ready, meshes=[mesh])
        options = telling(replace(self.options, time_limit_s=seconds), name)
        return Call(replace(ready, sessions=sessions), options)

    def handed_over(self, name: str, mesh: Shape, pins: Mapping[str, PartitionSpec]) -> Plan:
        """The checked plan of a program. Raises: what `plan` does."""
        known = self.known.get((name, shape_key(mesh), tuple(pins.items())))
        if known is not None and self.options.refine == "never":
            return known.call.handed_over(again(known.decision, known.following))
        call = self.call(name, mesh, pins, max(ONE_SHARE * self.deadline.left(), LEAST_SECONDS))
        return call.handed_over(call.proposed_in_any_form(call.session, call.options))
