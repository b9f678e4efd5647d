"""The search for fallbacks: for every topology that may be left two plans, of which one is taken.

One is the fastest plan for the topology. The other is the fastest of those whose state lies as it does today, by axes of
the same names, which may be of other sizes. Of the two that one is taken whose state takes less time to move, where both
take about the same time per call (`within`), else the faster one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import jax
from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.errors import CompileError, InfeasibleError, MeshError, PinError
from planner.machine.target import Target
from planner.options import Options, telling
from planner.planning.candidates import Candidates
from planner.planning.driver import best_plan
from planner.plans.plan import Plan
from planner.pricing.candidates.pins import exactly
from planner.pricing.mesh import Shape, mesh_text, shape_key
from planner.request.resolve import PlanRequest
from planner.search.offered_meshes import offered_meshes
from planner.studies.fallbacks.moved import Laid, Move, move, survivors
from planner.studies.fallbacks.record import Fallback, Fallbacks
from planner.variants.problem_variants import problem_variants

FASTEST, AS_TODAY = "fastest", "as today"


def fallbacks_of(
    plan: Plan, targets: Sequence[Target], options: Options, *, within: float, compile_ahead: bool
) -> Fallbacks:
    """The fallbacks of a plan for these targets, as `planner.fallbacks` describes them."""
    options = replace(
        options,
        autotune="never",
        time_limit_s=options.time_limit_s / (2 * len(targets)),
        affordable_compile_s=options.affordable_compile_s / len(targets),
    )
    search = _Search(plan, options, within=within, compile_ahead=compile_ahead)
    rows = [search.row(target) for target in targets]
    notes = [
        "what is left of the machine is taken to be its first devices in every dim; what no device left holds comes from a "
        "checkpoint through hosts, and reading it there is not counted",
    ]
    if any(row.compiled for row in rows):
        folder: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore
        kept = (
            f"processes that see the same devices find it in {folder}"
            if folder
            else "it is kept for this process alone"
        )
        more = "" if folder else "; set jax_compilation_cache_dir to keep it for others that see the same devices"
        notes.append(f"of what was compiled here: {kept}{more}")
    return Fallbacks(rows, of=plan, notes=notes)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Found:
    """A plan that may be taken: its request, its candidates, the first of them, and what moving to it takes."""

    layout: str
    request: PlanRequest
    candidates: Candidates
    decision: Decision
    move: Move


class _Search:
    """The fallbacks of one plan."""

    def __init__(self, plan: Plan, options: Options, *, within: float, compile_ahead: bool) -> None:
        self.plan, self.options, self.within, self.compile_ahead = plan, options, within, compile_ahead
        analysis = plan.alternatives.problem_of_program.analysis
        self.state = [
            i
            for i, (leaf, tensor) in enumerate(zip(plan.decision.arguments, analysis.graph.inputs, strict=True))
            if not leaf.constant and tensor not in analysis.inputs
        ]

    def row(self, target: Target) -> Fallback:
        """That of a target."""
        try:
            taken = self._taken(self._on_devices(target))
            made = best_plan(taken.request, taken.candidates)
            ahead = self.compile_ahead and made.target.devices is not None and not made.why_not_run
            if ahead:
                _ = made.runner.executable
        except (CompileError, InfeasibleError, MeshError, PinError) as error:
            return Fallback(topology=target.topology, why_none=str(error))
        return Fallback(
            topology=target.topology,
            plan=made,
            move=self._move(made.decision, made.target),
            layout=taken.layout,
            compiled=ahead,
        )

    def _on_devices(self, target: Target) -> Target:
        """The target on the devices of the plan that are left, where it has such, and all that the topology needs."""
        devices = self.plan.target.devices
        left = survivors(self.plan.target.topology, target.topology)
        if devices is None or (left < 0).any() or left.max() >= len(devices):
            return target
        return replace(target, devices=tuple(devices[i] for i in left))

    def _taken(self, target: Target) -> _Found:
        found = self._found(FASTEST, target, {})
        decision = self.plan.decision
        pins = {exactly(decision.arguments[i].name): decision.in_specs[i] for i in self.state}
        try:
            other = self._found(AS_TODAY, target, pins)
        except (InfeasibleError, MeshError, PinError):
            # Some dim does not divide, or it does not fit: that layout is not to be had.
            return found
        best = min(found.decision.certificate.value, other.decision.certificate.value)
        near = [one for one in (found, other) if one.decision.certificate.value <= best * (1 + self.within)]
        return min(near, key=lambda one: one.move.seconds)

    def _found(self, layout: str, target: Target, pins: dict[str, PartitionSpec]) -> _Found:
        """The best plan with these pins. Raises: InfeasibleError, MeshError, PinError."""
        options = telling(self.options, f"{target.topology.name}, {layout}")
        request = self._request(target, pins, options)
        request.check_pins()
        candidates = Candidates(request, request.problem, options)
        decision = candidates.propose()
        return _Found(
            layout=layout,
            request=request,
            candidates=candidates,
            decision=decision,
            move=self._move(decision, target),
        )

    def _request(self, target: Target, pins: dict[str, PartitionSpec], options: Options) -> PlanRequest:
        """The question that the plan answers, for another target. Raises: MeshError, PinError."""
        today, program = self.plan.decision, self.plan.runner.program.as_written
        of_chip = today.request.memory_limit == today.request.topology.chip.hbm_bytes
        request = replace(
            today.request,
            topology=target.topology,
            platform=target.devices[0].platform if target.devices else None,
            memory_limit=float(target.topology.chip.hbm_bytes) if of_chip else today.request.memory_limit,
            pins={**today.request.pins, **pins},
            process_local={},
        )
        meshes = _shrunk(today.mesh_shape, target) if program.parallelism is None else []
        if not pins:
            with suppress(PinError):  # the pins of the plan name axes of its mesh, which only the meshes like it have
                meshes += offered_meshes(program, target, request, None, options.max_axes)
        if not meshes:
            raise MeshError(f"no mesh like {mesh_text(today.mesh_shape)} lies on {target.topology.name}")
        meshes, notes = target.shared_by_all(list({shape_key(mesh): mesh for mesh in meshes}.values()))
        return PlanRequest(
            variants=problem_variants(program=program, target=target, request=request),
            meshes=meshes,
            notes=notes,
            has_values=False,
            args=tuple(map(self.plan.runner.static_args.get, range(program.num_args))),
            options=options,
        )

    def _move(self, decision: Decision, target: Target) -> Move:
        today = self.plan.decision
        return move(
            self._laid(today, self.plan.target),
            self._laid(decision, target),
            [today.arguments[i].aval for i in self.state],
        )

    def _laid(self, decision: Decision, target: Target) -> Laid:
        return Laid(target=target, shape=decision.mesh_shape, specs=[decision.in_specs[i] for i in self.state])


def _shrunk(today: Shape, target: Target) -> list[Shape]:
    """The meshes with the axes of today's, none longer, that have the most devices of those that lie on a target."""
    parts = [[size for size in range(1, extent + 1) if extent % size == 0] for extent in today.values()]
    found: dict[int, list[Shape]] = {}
    for sizes in product(*parts):
        if math.prod(sizes) <= target.count and target.topology.links(sizes) is not None:
            found.setdefault(math.prod(sizes), []).append(dict(zip(today, sizes, strict=True)))
    return found[max(found)] if found else []
