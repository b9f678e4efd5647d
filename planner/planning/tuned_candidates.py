"""Candidates that compilers or runs prefer to all others, and after them those of predictions alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, final

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.options import Options, tell
from planner.planning.autotune.judges import CompilerJudge, why_no_judge
from planner.planning.autotune.measuring import Judge, MeasuringJudge, why_not_measured
from planner.planning.autotune.prospects import Prospects
from planner.planning.autotune.rounds import REFINING_SHARE, Result, refine
from planner.planning.checks import Verdict
from planner.planning.mesh_candidates import FALLBACKS, MeshCandidates
from planner.pricing.mesh import Shape
from planner.rules.op_work import flops_of
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_search import best_variant
from planner.verify.compile_pool import CompilePool
from planner.verify.kept_reports import KeptReports


@final
class TunedCandidates:
    """The plans that came out fastest in trials; where none of them passes, those of `MeshCandidates`.

    See `planner.planning.candidates.Candidates`. `values` are the flat arguments, or shapes.
    """

    def __init__(
        self,
        variants: ProblemVariants,
        meshes: Sequence[Shape],
        options: Options,
        notes: Sequence[str],
        *,
        values: Sequence[Any],
    ) -> None:
        self._variants, self._meshes, self._options, self._values = variants, meshes, options, values
        self._notes = list(notes)
        self._tuned: Result | str = ""
        self._tried: list[Decision] = []
        self._rest: MeshCandidates | None = None
        self._accepted = False

    def propose(self) -> Decision:
        """See `planner.planning.candidates.Candidates`."""
        if self._accepted:
            # Compilers or runs have preferred it to the others already.
            return self._tried[-1]
        if not self._tried and self._rest is None:
            self._tuned = _tuned(self._variants, self._meshes, self._options, self._values)
            if isinstance(self._tuned, str):
                self._notes.append(self._tuned)
                self._rest = MeshCandidates(self._variants, self._meshes, self._options, self._notes)
        if isinstance(self._tuned, str):
            return self._by_predictions()
        fastest = self._tuned.decisions[: FALLBACKS + 1]
        if self._rest is None and len(self._tried) < len(fastest):
            decision = fastest[len(self._tried)]
            self._tried.append(replace(decision, notes=(*decision.notes, *self._notes)))
            return self._tried[-1]
        if self._rest is None:
            ended = self._tuned.refined.ended
            self._notes.append(f"none of the plans tried is taken ({ended}): this is the best by predictions alone")
        return replace(self._by_predictions(), refined=self._tuned.refined)

    def _by_predictions(self) -> Decision:
        """The next candidate by predictions alone."""
        if self._rest is None:
            self._rest = MeshCandidates(self._variants, self._meshes, self._options, self._notes)
        return self._rest.propose()

    def feedback(self, verdict: Verdict) -> None:
        """See `planner.planning.candidates.Candidates`."""
        if self._rest is not None:
            self._rest.feedback(verdict)
            return
        self._accepted = verdict.rejected is None
        if not self._accepted:
            shape = dict(self._tried[-1].mesh_shape)
            self._notes.append(f"the plan on the mesh {shape} failed: {verdict.rejected}")


def _tuned(variants: ProblemVariants, meshes: Sequence[Shape], options: Options, values: Sequence[Any]) -> Result | str:
    """The plans tried, best first; or why none could be."""
    how = "compile" if options.autotune == "compile" else "measure"
    deadline, problem = Deadline.after(options.time_limit_s), variants.base
    limit = problem.request.memory_limit
    why = why_no_judge(problem.target) if how == "compile" else ""
    if how == "measure":
        why = why_not_measured(problem.program, problem.target, flops_of(problem.graph), options)
    if why:
        return f"the plan is not refined: {why}"
    best = best_variant(variants, meshes, options, judged=lambda: how == "compile")
    problem, found = best.problem, best.result
    prospects = Prospects(problem, options, limit_bytes=limit, meshes=len(meshes))
    with ExitStack() as stack:
        judge: Judge
        if how == "compile":
            pool = stack.enter_context(CompilePool(KeptReports(options.cache)))
            judge = CompilerJudge(problem, pool, deadline)
        else:
            judge = MeasuringJudge(problem, values, deadline.share(REFINING_SHARE))
        result = refine(
            found.candidates,
            meshes,
            prospects,
            judge,
            deadline,
            how=how,
            limit_bytes=limit,
            tell=partial(tell, options),
        )
    certified = [prospects.certified(decision, found) for decision in result.decisions[: FALLBACKS + 1]]
    return replace(
        result,
        decisions=tuple(
            replace(one, notes=(*one.notes, *best.notes), certificate=one.certificate.with_any_form(best.any_form))
            for one in certified
        ),
    )
