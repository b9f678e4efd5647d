"""What if: another spec, mesh or memory limit, priced on the problem that a plan solves: nothing is traced or searched.

The program, its form (microbatches, saved values) and its model stay. On one mesh, with the pins in place, three choices
are looked at:

1. the best without a memory limit, which bounds all others; where it fits, it is the answer;
2. else the plan's own choice but for the pins, and the best near it: mostly they fit where the plan does;
3. where these do not fit, the mesh is another one, or there is time left, what prices of memory lead to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import PartitionSpec

from pbqp.deadline import Deadline
from pbqp.marginals import cheapest_near
from pbqp.options import GAP, SolveOptions
from pbqp.smaller.quotient import solve_shared
from planner.decision import Decision
from planner.errors import ArgumentError, InfeasibleError, MeshError
from planner.explain.explain import Alternatives
from planner.options import Unit
from planner.plans.finalize import decide
from planner.pricing.candidates.pins import check_pins
from planner.pricing.candidates.specs import spec_text
from planner.pricing.instance import Instance
from planner.pricing.memory.memory_model import MemoryModel
from planner.pricing.mesh import Shape, mesh_text, shape_key
from planner.printing.parts import Part
from planner.printing.printed import Printed
from planner.report.compare import compare_decisions
from planner.report.comparison import Comparison, comparison_parts
from planner.search.best_on_mesh import Candidate
from planner.search.within_limit import OVER, LimitSearch
from planner.units import quantity

FREE_SECONDS = 10.0
"""Most seconds for the best choice without a memory limit; it takes tenths of one where a program is of usual size."""
NEAR_SECONDS = 0.5
"""Most seconds for the best choice near the plan's."""
SECONDS = 0.8
"""Where a choice is known that fits, a better one is sought only while the search has taken less."""
LIMIT_SECONDS = 10.0
"""Most seconds for a choice within the memory limit where none is near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf(Printed):
    """What would change: `comparison` of the plan (A) with what it would be (B), and that as a `decision`.

    `fits`: whether B keeps to the memory limit. `proven`: whether no plan of this mesh and form is better by a thousandth.
    """

    comparison: Comparison
    decision: Decision
    fits: bool
    proven: bool

    def _parts(self) -> list[Part]:
        return comparison_parts(self.comparison)


def what_if(
    of: Alternatives,
    decision: Decision,
    pins: Mapping[str, PartitionSpec] | None,
    mesh: Shape | None,
    memory_limit: float | None,
    *,
    seed: int,
) -> WhatIf:
    """A plan beside what it would be with other pins, another mesh or another memory limit.

    Raises: ArgumentError, PinError, MeshError; InfeasibleError where the pins leave no choice, or no choice was found.
    """
    started = time.monotonic()
    limit = _checked_limit(decision, pins, mesh, memory_limit)
    own = of.problem_of_program
    problem = own.with_objective(own.request.objective, limit)
    shape = dict(decision.mesh_shape if mesh is None else mesh)
    _check_mesh(of, shape)
    added = check_pins(pins)
    instance = problem.pinned_instance({**problem.request.pins, **added}, problem.mesh(shape))
    # The plan may take what memory it takes already.
    room = max(problem.roomy_limit, min(limit, decision.predicted.peak_bytes))
    start = _start(of, instance) if mesh is None or shape_key(shape) == shape_key(decision.mesh_shape) else None
    found = _Search(MemoryModel(instance=instance, apart_above=room), room, seed).best(start)
    candidate = Candidate(
        state=lambda: instance,
        choice=found.choice,
        value=found.value,
        bound=found.bound,
        peak_bytes=found.peak_bytes,
    )
    made = decide(problem, candidate, bound=found.bound, seconds=time.monotonic() - started, meshes=1, notes=())
    made = replace(made, request=replace(made.request, pins={**problem.request.pins, **added}))
    fits, proven = found.peak_bytes <= limit * OVER, found.value - found.bound <= GAP * abs(found.value)
    changed = [f"{name} is {spec_text(spec)}" for name, spec in added.items()]
    changed += [f"the mesh is {mesh_text(shape)}"] if mesh is not None else []
    changed += [f"the memory limit is {quantity(limit, 'B')}"] if memory_limit is not None else []
    comparison = compare_decisions(decision, made)
    comparison = replace(
        comparison,
        b=f"{comparison.b} if {', '.join(changed)}",
        notes=(*comparison.notes, *_notes(found, shape, limit, of.unit, fits=fits, proven=proven)),
    )
    return WhatIf(comparison=comparison, decision=made, fits=fits, proven=proven)


def _checked_limit(decision: Decision, pins: Any, mesh: Any, memory_limit: Any) -> float:
    if pins is None and mesh is None and memory_limit is None:
        raise ArgumentError("nothing is asked; give pins, mesh or memory_limit")
    if decision.request.objective == "memory":
        raise ArgumentError(
            "the plan minimises memory, and what_if prices time or energy; make a plan with objective='time'"
        )
    if memory_limit is None:
        return decision.request.memory_limit
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, (int, float)) or not memory_limit > 0:
        raise ArgumentError(f"memory_limit is {memory_limit!r}; give positive bytes")
    return float(memory_limit)


def _check_mesh(of: Alternatives, shape: Shape) -> None:
    program = of.problem_of_program.program
    own = program.parallelism
    if own is not None and shape_key(own.shape) != shape_key(shape):
        raise MeshError(
            f"{program.function_name} names the mesh {dict(own.shape)} itself; plan it with Options(annotations='free') "
            "to price others"
        )


def _start(of: Alternatives, instance: Instance) -> list[int]:
    """The choice of the plan in an instance with other pins: of every node the strategy with the fewest axes elsewhere."""
    pairs = zip(of.instance.strategies, instance.strategies, of.choice, strict=True)
    return [int((new.assignment != old.assignment[pick]).sum(axis=1).argmin()) for old, new, pick in pairs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    choice: tuple[int, ...]
    value: float
    bound: float
    peak_bytes: float
    how: str


class _Search:
    """The search of one mesh, as the module describes it."""

    def __init__(self, memory: MemoryModel, limit_bytes: float, seed: int) -> None:
        self._memory, self._limit, self._seed = memory, limit_bytes, seed
        self._problem = memory.instance.problem

    def best(self, start: Sequence[int] | None) -> _Found:
        """The best choice found. Raises: InfeasibleError where there is none."""
        budget = Deadline.after(SECONDS)
        free = solve_shared(self._problem, self._solving(FREE_SECONDS))
        if free.choice is None:
            raise InfeasibleError("no placement was found with these pins; relax one of them")
        search = LimitSearch(self._memory, free, self._limit)
        near: set[tuple[int, ...]] = set()
        if search.best is None and start is not None:
            _, better = cheapest_near(self._problem, start, seconds=NEAR_SECONDS, seed=self._seed)
            near = {search.meet(choice).choice for choice in (start, better) if self._is_allowed(choice)}
        fits_free = search.best is not None and not near
        if not fits_free and (search.best is None or not budget.passed):
            seconds = LIMIT_SECONDS if search.best is None else budget.left()
            search.by_prices(self._solving(seconds), cutoff=math.inf)
        plan = search.best or min(search.met, key=lambda met: float(met.profile.max()))
        return _Found(
            choice=plan.choice,
            value=plan.value,
            bound=min(search.bound, plan.value),
            peak_bytes=float(self._memory.profile(plan.choice).max()),
            how="" if fits_free else " near the plan" if plan.choice in near else " by prices of memory",
        )

    def _is_allowed(self, choice: Sequence[int]) -> bool:
        return math.isfinite(self._problem.evaluate(choice))

    def _solving(self, seconds: float) -> SolveOptions:
        return SolveOptions(deadline=Deadline.after(seconds), seed=self._seed, gap=GAP)


def _notes(found: _Found, shape: Shape, limit: float, unit: Unit, *, fits: bool, proven: bool) -> list[str]:
    bound = f"no placement on this mesh takes less than {quantity(found.bound, unit)}"
    certainty = "none on this mesh is better by a thousandth" if proven else bound
    notes = [
        f"everything else is chosen anew{found.how} on the mesh {mesh_text(shape)}, in the form of the plan; {certainty}"
    ]
    if not fits:
        notes.append(
            f"B does not fit: it needs {quantity(found.peak_bytes, 'B')} per device, and the limit is "
            f"{quantity(limit, 'B')}"
        )
    return [*notes, "B is priced, not compiled or checked; plan with the same pins and mesh to run it"]
