"""Candidates in one number of microbatches: the best plan of all meshes, and what is tried where its checks fail.

Compilers reject or miscompile what was not foreseen; then the next best mesh is tried, and at last the best plan without
constraints inside. Of a plan that does not fit by its compiler, or that is slower than promised and leaves no room in the
memory, one that promises to take less is sought, on any mesh and in any form; of one that computes longer than promised,
one that saves less (`dearer_saving`). Where nothing is predicted to fit, plans that come near it are proposed if a compiler
judges them. A suspicious plan is kept while others are tried that may be faster; the fastest by its compiler's schedule is
proposed again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, final

from pbqp.deadline import Deadline
from planner.compiler.targets.table import COMPILERS
from planner.decision import Decision
from planner.errors import ArgumentError, CompileError, InfeasibleError, PinError
from planner.options import Options
from planner.planning.checks import Verdict, why_not_compiled
from planner.plans.finalize import decide
from planner.pricing.mesh import Shape, ShapeKey, mesh_text, shape_key
from planner.program.tracing.gc_pause import paused
from planner.search.fewer_devices import on_fewer_devices
from planner.search.mesh_search import SearchOptions, SearchResult, search
from planner.search.problem import PlanningProblem
from planner.units import quantity
from planner.variants.dearer_saving import with_dearer_saving
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_result import VariantResult
from planner.variants.variant_search import best_variant

FALLBACKS = 3
"""How many next best plans are tried when a check fails."""
JUDGED = "nothing is predicted to fit: the compiler finds that this plan does, and may compute values again for it"
"""What a plan above the limit says, which is handed over only if the compiler finds so."""
OTHERS_SAVED = " with other values saved"
"""What is told of a plan beside that of another form."""
ONE_DEVICE = {"x": 1}
NOTED_SHARE = 0.9
"""The share of a lower limit from which on a plan says that it keeps to that."""


@final
class MeshCandidates:
    """The plans of a program on these meshes, best first; see `planner.planning.candidates.Candidates`.

    `notes` are told by all of them.
    """

    def __init__(
        self, variants: ProblemVariants, meshes: Sequence[Shape], options: Options, notes: Sequence[str]
    ) -> None:
        self._variants, self._meshes, self._options = variants, meshes, options
        self._own_notes = self._notes = tuple(notes)
        self._deadline = Deadline.after(options.time_limit_s)
        # That of the best form, once it is known.
        self._problem = variants.base
        # What the next plan may promise to take, what any may, and why none is predicted to fit, if that is so.
        self._limit_bytes = self._most_bytes = self._bound = 0.0
        self._any_form: float | None = None
        self._none_fits: InfeasibleError | None = None
        self._tried: list[Decision] = []
        self._verdict = Verdict()
        self._stage: Literal["meshes", "one device", "no constraints"] = "meshes"
        # By mesh, why nothing more is tried there; and what the notes of later plans say.
        self._dropped: dict[ShapeKey, str] = {}
        self._failures: list[str] = []
        # Plans that may be handed over, with the seconds of their schedules; bytes that those need which do not fit.
        self._kept: list[tuple[float, Decision]] = []
        self._needed: list[float] = []
        # Where the last plan saves less than the one before: the problem, the notes and the limit of that.
        self._more_saved: tuple[PlanningProblem, tuple[str, ...], float] | None = None

    def propose(self) -> Decision:
        """See `planner.planning.candidates.Candidates`."""
        if not self._tried:
            target, options = self._variants.target, self._options
            with paused():
                best = best_variant(
                    self._variants,
                    self._meshes,
                    options,
                    # The CPU's compiler has no limit to keep to, and its peak is not trustworthy.
                    judged=lambda: COMPILERS[target.platform].reports_peak and not why_not_compiled(target, options),
                )
            self._problem, self._limit_bytes, self._none_fits = best.problem, best.limit_bytes, best.none_fits
            self._notes = (*self._own_notes, *best.notes)
            self._most_bytes = max(self._limit_bytes, self._problem.request.memory_limit)
            self._bound, self._any_form = best.result.bound, best.any_form
            return self._decision(best.result)
        if self._stage == "meshes":
            found = None if self._verdict.accepted or self._is_hopeless else self._next_best()
            if found is not None and len(self._tried) <= FALLBACKS:
                return self._decision(found)
            if self._kept:
                return self._fastest()
            if self._none_fits is not None or (self._needed and len(self._needed) == len(self._tried)):
                raise self._nothing_fits()
            # Some programs run on one device only, for no reason that could be read in them.
            self._stage = "one device"
            alone = self._again([ONE_DEVICE]) if ONE_DEVICE in self._meshes else None
            if alone is not None:
                return self._decision(alone)
        # What a compiler gets wrong is mostly one constraint: the best plan's borders alone leave the rest to it.
        if not self._kept and self._stage == "one device" and self._tried[0].constraints:
            self._stage = "no constraints"
            return self._without_constraints()
        if self._kept:
            return self._fastest()
        raise CompileError(
            f"every plan that was tried was dropped: {'; '.join(self._failures)}. Fix another mesh, or report this program "
            "with the plan's text"
        )

    def feedback(self, verdict: Verdict) -> None:
        """See `planner.planning.candidates.Candidates`."""
        self._verdict, decision = verdict, self._tried[-1]
        if verdict.rejected is None:
            self._kept.append((verdict.seconds or 0.0, decision))
        if verdict.accepted:
            return
        shape = dict(decision.mesh_shape)
        verb = "is suspicious" if verdict.rejected is None else "failed"
        self._failures.append(f"the plan on the mesh {shape} {verb}: {verdict.rejected or verdict.suspicious}")
        if verdict.memory_share is None:
            self._dropped[shape_key(shape)] = self._failures[-1]
        elif verdict.rejected is not None:
            self._needed.append(decision.predicted.peak_bytes / verdict.memory_share)

    def _decision(self, found: SearchResult) -> Decision:
        """The best plan found, in the program's own terms."""
        left = [shape for shape in self._meshes if shape_key(shape) not in self._dropped]
        best, why = on_fewer_devices(
            found.candidates[0],
            left or self._meshes,
            self._problem.instance,
            limit_bytes=self._limit_bytes,
            objective=self._problem.request.objective,
            bound=self._bound,
        )
        made = decide(
            self._problem,
            best,
            bound=self._bound,
            any_form=self._any_form,
            seconds=self._deadline.elapsed,
            meshes=len(self._meshes),
            notes=(*self._notes, *found.notes, *(() if self._failures else why), *self._failures),
        )
        room = room_note(self._problem, self._limit_bytes, made.predicted.peak_bytes)
        beyond = () if self._none_fits is None else (JUDGED,)
        made = replace(made, notes=(*made.notes, *room, *beyond), tried=found.tried)
        self._tried.append(made)
        return made

    def _without_constraints(self) -> Decision:
        """The best plan of all, with the places of its arguments and results alone."""
        note = "emitted without constraints inside: the compiler may place that differently from the prediction"
        bare = replace(
            self._tried[0], constraints={}, refetched={}, notes=(*self._tried[0].notes, *self._failures, note)
        )
        self._tried.append(bare)
        return bare

    @property
    def _is_hopeless(self) -> bool:
        """Whether nothing else is to be tried: nothing is predicted to fit, and the compiler did not say by how much."""
        return self._none_fits is not None and self._verdict.memory_share is None

    def _next_best(self) -> SearchResult | None:
        """The best of the plans left; None where there are none, or none that may be faster than what is kept."""
        if self._verdict.suspicious is not None and self._deadline.passed:
            return None
        if self._verdict.memory_share is not None:
            found = self._within(self._problem.request.memory_limit * self._verdict.memory_share)
            if found is not None:
                return found
            # No plan that promises to take so little will do: on another mesh the compiler may need what was promised.
            self._limit_bytes = self._most_bytes
            self._dropped[shape_key(self._tried[-1].mesh_shape)] = self._failures[-1]
        return self._with_less_saved() or self._again(self._meshes)

    def _within(self, limit: float) -> SearchResult | None:
        """The best plans within a lower limit, in the same form or else in any; None where none may be faster."""
        self._limit_bytes = limit
        found = self._again(self._meshes)
        if found is not None:
            return found
        request = self._variants.request
        limited = replace(self._variants, request=replace(request, memory_limit=limit))
        options = replace(self._options, time_limit_s=self._deadline.left(1.0))
        left = [shape for shape in self._meshes if shape_key(shape) not in self._dropped]
        try:
            best = best_variant(limited, left, options, judged=lambda: False, explained=False)
        except (InfeasibleError, PinError):
            return None
        if best.result.candidates[0].value >= self._fastest_kept:
            return None
        return self._taking(best)

    def _with_less_saved(self) -> SearchResult | None:
        """The best plans that save less, where the last one computes longer than promised; None where none may be faster.

        On other meshes, with the same saved, compilers compute as long. If less saved was no faster, what is tried next is
        in the form before.
        """
        fastest = min(self._kept, key=lambda pair: pair[0])[1] if self._kept else None
        if self._more_saved is not None and fastest is not self._tried[-1]:
            (self._problem, self._notes, self._limit_bytes), self._more_saved = self._more_saved, None
            return None
        if not self._verdict.computing_more:
            return None
        kept = {shape_key(decision.mesh_shape) for _, decision in self._kept}
        best = None
        with suppress(ArgumentError, PinError):  # of an op or a value that the other form does not have
            best = with_dearer_saving(
                self._variants,
                self._problem,
                [shape for shape in self._meshes if shape_key(shape) not in self._dropped or shape_key(shape) in kept],
                self._options,
                seconds=self._verdict.computing_more,
                below=self._fastest_kept,
                deadline=Deadline.after(self._deadline.left(1.0)),
            )
        if best is None or any(decision.form == best.problem.program.form for decision in self._tried):
            return None
        self._more_saved = self._problem, self._notes, self._limit_bytes
        return self._taking(best)

    def _taking(self, best: VariantResult) -> SearchResult:
        """The plans of another form, which are gone on with."""
        request = self._variants.request
        self._problem = best.problem.with_objective(request.objective, request.memory_limit)
        self._notes = (*self._own_notes, *best.notes)
        self._limit_bytes, self._bound = best.limit_bytes, min(self._bound, best.result.unlimited)
        return best.result

    @property
    def _fastest_kept(self) -> float:
        return min((seconds for seconds, _ in self._kept), default=math.inf)

    def _again(self, meshes: Sequence[Shape]) -> SearchResult | None:
        """The next best plans for these meshes, in the time that is left; None where none may be faster than those kept."""
        try:
            found = search(
                meshes,
                self._problem,
                SearchOptions(
                    limit_bytes=self._limit_bytes,
                    options=replace(self._options, time_limit_s=self._deadline.left(1.0)),
                    without=self._dropped,
                    explained=False,
                    below=self._fastest_kept,
                ),
            )
        except (InfeasibleError, PinError):
            return None
        return found if found.candidates else None

    def _fastest(self) -> Decision:
        """The plan to hand over: the fastest by the compiler's schedule, the earliest of several."""
        seconds, best = min(self._kept, key=lambda pair: pair[0])
        if len(self._kept) == 1:
            return replace(best, notes=tuple(dict.fromkeys((*best.notes, *self._failures))))
        others = ", ".join(
            f"{mesh_text(decision.mesh_shape)}{OTHERS_SAVED * (decision.form != best.form)} {quantity(other, 's')}"
            for other, decision in self._kept
            if decision is not best
        )
        taken = quantity(seconds, "s")
        note = f"the fastest of {len(self._kept)} plans by the compiler's schedule, {taken} (others: {others})"
        return replace(best, notes=tuple(dict.fromkeys((*best.notes, *self._failures, note))))

    def _nothing_fits(self) -> InfeasibleError:
        """The error that says so."""
        tried = "; ".join(self._failures)
        if self._none_fits is not None:
            return self._none_fits.with_sentence(
                "Nor does the compiler, which may compute values again, say that a plan fits that is predicted to need "
                f"little more: {tried}"
            )
        return InfeasibleError(
            f"no plan fits {quantity(self._problem.request.memory_limit, 'B')} per device by the compiler, of the "
            f"{len(self._needed)} that were tried the least needs {quantity(min(self._needed), 'B')}: {tried}. Use more "
            "devices, or recompute more (jax.checkpoint); Options(check='never') gives the plan as predicted"
        )


def room_note(problem: PlanningProblem, limit: float, peak: float) -> tuple[str, ...]:
    """Says of a plan whose peak is near a limit lower than what was asked for that it is kept to that."""
    if not NOTED_SHARE * limit < peak <= limit < problem.request.memory_limit:
        return ()
    share = limit / problem.request.topology.chip.hbm_bytes
    return (f"the plan keeps to {share:.0%} of the memory: nearer to the limit the compiler computes values again",)
