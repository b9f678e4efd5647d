"""Several programs on one mesh: the mesh and the layout of what they share for which all their calls together cost least.

    minimise    sum over programs   calls * value of a call(mesh, layout of the shared arrays)

One program leads: it is planned free, and the others with what they share pinned as it lies there. On every mesh each
program may lead, the one that costs most first; what is left free by those before is fixed by the first that has it. With
layouts of their own all are free, and the value of a call grows by what it takes to move the shared arrays from the layout
of the first program that has them, and back what it returns.

No program takes less than it does for itself on the same mesh, so the sum of these bounds what any layout could reach; the
certificate is of that sum. What is proven is that no layout is better by more, not that others were tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from jax.sharding import PartitionSpec

from pbqp.deadline import Deadline
from planner.decision import OPTIMAL_GAP, Certificate, Decision
from planner.errors import InfeasibleError, PinError
from planner.options import Options, telling
from planner.planning.candidates import Candidates
from planner.planning.driver import best_plan
from planner.plans.plan import Plan
from planner.pricing.mesh import Shape, mesh_text, shape_key
from planner.request.matching_arrays import SharedArrays
from planner.request.resolve import PlanRequest
from planner.studies.joint import UNITS, LayoutMove, Programs
from planner.studies.shared_specs import SharedSpecs, Specs
from planner.units import quantity

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


FREE_SHARE = 0.5
"""Part of the time left that the searches of all programs for themselves may take."""
TRYING_SHARE = 0.5
"""Part of the time limit after which no other mesh or leader is tried."""
WORTH_TELLING = 0.01
"""From this part on it is told what a program would gain by itself."""


def plans_of(
    requests: Mapping[str, PlanRequest],
    shared: SharedArrays,
    options: Options,
    *,
    counts: Mapping[str, float],
    own_layouts: bool,
) -> Programs:
    """The plans of programs that are called so often each, on one mesh. Raises: what `plan` does, for one of them."""
    search = _Search(requests, shared, options, counts=counts, own_layouts=own_layouts)
    processes = next(iter(requests.values())).target.processes
    # Only the leading process searches: it tells the others the mesh and the order.
    outcome = processes.decided(search.run)
    plans: dict[str, Plan] = {}
    specs = dict(search.pinned)
    for name in outcome["order"]:
        pins = {} if own_layouts else search.specs.pins(name, specs)
        plans[name] = search.singles.checked(name, outcome["mesh"], pins)
        search.specs.fix(name, plans[name].decision, specs)
    decisions = {name: plan.decision for name, plan in plans.items()}
    moves = search.specs.moves(outcome["order"], decisions) if own_layouts else ()
    value = search.total({name: decision.certificate.value for name, decision in decisions.items()}, moves)
    unit = next(iter(decisions.values())).certificate.unit
    certificate = Certificate(
        value=value,
        lower_bound=min(outcome["bound"], value),
        unit=unit,
        solve_seconds=outcome["seconds"],
        meshes=outcome["meshes"],
        guessed_share=_guessed_share({name: decision.certificate for name, decision in decisions.items()}, counts),
    )
    sharing_notes = _notes_on_sharing(shared, own_layouts)
    return Programs(
        {name: plans[name].with_notes((*plans[name].notes, *sharing_notes[name])) for name in requests},
        calls=dict(counts),
        shared=shared.count,
        moves=moves,
        certificate=certificate,
        notes=(*outcome["notes"], *search.losses(outcome["free"], decisions)),
    )


def _guessed_share(certificates: Mapping[str, Certificate], counts: Mapping[str, float]) -> float | None:
    """The share of the work of all calls that is guessed, each program's by what its calls cost; None where none is."""
    if all(one.guessed_share is None for one in certificates.values()):
        return None
    costs = {name: counts[name] * one.value for name, one in certificates.items()}
    guessed = sum(costs[name] * (one.guessed_share or 0.0) for name, one in certificates.items())
    return guessed / sum(costs.values()) if guessed else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """A mesh, the order in which programs fix what they share there, and what all calls cost."""

    mesh: Shape
    order: tuple[str, ...]
    value: float


@dataclass(eq=False)
class _Search:
    """What is found so far."""

    requests: Mapping[str, PlanRequest]
    shared: SharedArrays
    options: Options
    counts: Mapping[str, float] = field(kw_only=True)
    own_layouts: bool = field(kw_only=True)
    best: _Layout | None = field(init=False, default=None)
    refused: list[PinError | InfeasibleError] = field(init=False, default_factory=list["PinError | InfeasibleError"])

    def __post_init__(self) -> None:
        self.deadline = Deadline.after(self.options.time_limit_s)
        self.trying = self.deadline.share(TRYING_SHARE)
        self.singles = SinglePlans(requests=self.requests, options=self.options, deadline=self.deadline)
        self.specs = SharedSpecs(requests=self.requests, shared=self.shared)
        self.pinned: Specs = {} if self.own_layouts else self.specs.pinned_by_users()
        self.by_sum = next(iter(self.requests.values())).variants.request.objective != "memory"

    def run(self) -> dict[str, Any]:
        """What all processes must know of what is best. Raises: InfeasibleError, PinError where nothing fits."""
        free = {
            name: self.singles.best(
                name, None, self.specs.pins(name, self.pinned), FREE_SHARE / (len(self.requests) - i)
            )
            for i, name in enumerate(self.requests)
        }
        order = sorted(self.requests, key=lambda name: -self.counts[name] * free[name].certificate.value)
        bounds = {name: decision.certificate.lower_bound for name, decision in free.items()}
        first = {shape_key(free[name].mesh_shape): free[name].mesh_shape for name in order}
        offered = {shape_key(mesh): mesh for mesh in self.requests[order[0]].meshes}
        meshes = list({**first, **offered}.values())
        notes: list[str] = []
        lower = math.inf
        for examined, mesh in enumerate(meshes):
            floor = self.total(bounds)
            late = self.trying.passed
            if self.best is not None and (late or self.best.value <= floor * (1 + OPTIMAL_GAP)):
                lower = min(lower, floor)
                if late:
                    limit = f"the time limit of {self.options.time_limit_s:g} s"
                    notes.append(f"{limit} left {len(meshes) - examined} of {len(meshes)} meshes untried")
                break
            lower = min(lower, self.examine(mesh, order, bounds))
        if self.best is None:
            raise self.refused[0]
        if not self.own_layouts and len(self.requests) > 1:
            notes.append(f"what they share lies as is best for {self.best.order[0]}")
        return {
            "mesh": dict(self.best.mesh),
            "order": list(self.best.order),
            "bound": lower,
            "meshes": len(meshes),
            "seconds": self.deadline.elapsed,
            "free": {name: decision.certificate.value for name, decision in free.items()},
            "notes": notes,
        }

    def examine(self, mesh: Shape, order: Sequence[str], bounds: Mapping[str, float]) -> float:
        """A lower bound of what all calls cost on a mesh; a better layout there becomes the best."""
        here = dict(bounds)
        decisions: dict[str, Decision] = {}
        for name in order:
            if self.best is not None and self.total(here) >= self.best.value:
                return self.total(here)
            try:
                decisions[name] = self.singles.best(name, mesh, self.specs.pins(name, self.pinned))
            except (InfeasibleError, PinError) as error:
                self.refused.append(error)
                return math.inf
            here[name] = max(here[name], decisions[name].certificate.lower_bound)
        if self.own_layouts:
            values = {name: decision.certificate.value for name, decision in decisions.items()}
            self.take(
                _Layout(mesh=mesh, order=tuple(order), value=self.total(values, self.specs.moves(order, decisions)))
            )
            return self.total(here)
        for lead in order:
            late = self.trying.passed
            if self.best is not None and (late or self.best.value <= self.total(here) * (1 + OPTIMAL_GAP)):
                break
            with suppress(InfeasibleError, PinError):
                self.lead(mesh, (lead, *(name for name in order if name != lead)), here)
        if self.best is None:
            self.refused.append(
                InfeasibleError(
                    f"no layout that all programs have in common was found on the mesh {mesh_text(mesh)}, where each "
                    "has a plan for itself; give layouts='own', or more memory"
                )
            )
        return self.total(here)

    def lead(self, mesh: Shape, order: tuple[str, ...], bounds: Mapping[str, float]) -> None:
        """Plans the programs in an order, what they share as the first that has it, as long as that may be the best.

        Raises: InfeasibleError, PinError where one has no plan so.
        """
        specs, values = dict(self.pinned), dict(bounds)
        for name in order:
            if self.best is not None and self.total(values) >= self.best.value:
                return
            decision = self.singles.best(name, mesh, self.specs.pins(name, specs))
            values[name] = decision.certificate.value
            self.specs.fix(name, decision, specs)
        self.take(_Layout(mesh=mesh, order=order, value=self.total(values)))

    def take(self, found: _Layout) -> None:
        """Takes a layout for the best if it is."""
        if self.best is None or found.value < self.best.value:
            self.best = found

    def total(self, values: Mapping[str, float], moves: Sequence[LayoutMove] = ()) -> float:
        """What all calls cost: their sum, or of memory the greatest peak."""
        if not self.by_sum:
            return max(values.values())
        moved = sum(self.counts[move.program] * move.value for move in moves)
        return sum(self.counts[name] * value for name, value in values.items()) + moved

    def losses(self, free: Mapping[str, float], decisions: Mapping[str, Decision]) -> tuple[str, ...]:
        """What is told of programs that would take less by themselves."""
        return tuple(
            f"{name} takes {quantity(found.value, UNITS[found.unit])} here, and {quantity(free[name], UNITS[found.unit])} "
            "on a mesh and in a layout of its own"
            for name, found in ((name, decision.certificate) for name, decision in decisions.items())
            if found.value > free[name] * (1 + WORTH_TELLING)
        )


def _notes_on_sharing(shared: SharedArrays, own_layouts: bool) -> dict[str, tuple[str, ...]]:
    """What the plan of every program says of the others."""
    found: dict[str, tuple[str, ...]] = {}
    for name in shared.of:
        others = [other for other in shared.of if other != name]
        if not others:
            found[name] = ()
            continue
        what = ", ".join(shared.names(name)) or "nothing"
        how = "in layouts of their own" if own_layouts else "in one layout"
        found[name] = (f"planned together with {', '.join(others)} on one mesh, {how}: it shares arrays of {what}",)
    return found
