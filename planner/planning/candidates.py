"""Candidates: the plans to check one after the other, each proposed in the light of the verdicts on those before it.

Where nothing fits the memory in the number of microbatches that the program begins with, and that number is left to the
planner, the candidates go on with the least number of microbatches in which a plan fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import jax

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.errors import InfeasibleError
from planner.options import Options
from planner.planning.checks import Verdict
from planner.planning.mesh_candidates import MeshCandidates
from planner.planning.tuned_candidates import TunedCandidates
from planner.request.resolve import PlanRequest
from planner.search.problem import PlanningProblem
from planner.transforms.batch import Refused, part_counts
from planner.units import quantity
from planner.variants.variant_search import fitting_count

Source = MeshCandidates | TunedCandidates
"""Candidates in one number of microbatches."""


@final
class Candidates:
    """The candidates for a request, with what `problem` minimises, beginning in its form, in the time of `options`.

    `notes` are told by all of them. `within_bytes`: they keep to this limit, which is below that of the request; then their
    number of microbatches is settled.
    """

    def __init__(
        self,
        request: PlanRequest,
        problem: PlanningProblem,
        options: Options,
        *,
        notes: Sequence[str] = (),
        within_bytes: float | None = None,
    ) -> None:
        self._request, self._problem, self._options, self._within_bytes = request, problem, options, within_bytes
        self._deadline = Deadline.after(options.time_limit_s)
        self._source = self._source_of(problem, options, notes)
        self._pending: Decision | None = None
        # Why the first source has no plan; the numbers of microbatches left to try, and the one that was tried last.
        self._none_fits: InfeasibleError | None = None
        self._counts: list[int] = []
        self._count, self._sentence = 0, ""

    def propose(self) -> Decision:
        """The candidate to check: the same one until `feedback` is given.

        It may be again an earlier one, which is then to be handed over. Raises: PinError, InfeasibleError where there is
        none, or none that fits by its compiler; CompileError once all were rejected.
        """
        while self._pending is None:
            try:
                self._pending = self._as_requested(self._source.propose())
            except InfeasibleError as error:
                none_fits, counts = self._counts_left(error)
                options = replace(self._options, time_limit_s=self._deadline.left(1.0))
                count = fitting_count(self._request.variants, self._problem, self._request.meshes, options, counts)
                if count is None:
                    raise none_fits.with_sentence(self._sentence) from none_fits
                self._source = self._source_in(count, options, none_fits)
        return self._pending

    def feedback(self, verdict: Verdict) -> None:
        """Takes note of what became of the candidate."""
        self._source.feedback(verdict)
        self._pending = None

    def _as_requested(self, decision: Decision) -> Decision:
        """A decision for a lower limit as one for the request, and the best within that limit."""
        if self._within_bytes is None:
            return decision
        limit = self._request.variants.request.memory_limit
        return replace(
            decision,
            request=replace(decision.request, memory_limit=limit),
            certificate=replace(decision.certificate, within_bytes=self._within_bytes),
        )

    def _source_of(self, problem: PlanningProblem, options: Options, notes: Sequence[str]) -> Source:
        request = self._request
        variants, notes = request.variants.starting(problem), (*request.notes, *notes)
        if options.autotune == "never":
            return MeshCandidates(variants, request.meshes, options, notes)
        program = problem.program
        leaves = jax.tree.leaves([request.args[i] for i in program.dynamic_argnums])
        return TunedCandidates(variants, request.meshes, options, notes, values=(*leaves, *program.constants))

    def _counts_left(self, error: InfeasibleError) -> tuple[InfeasibleError, list[int]]:
        """Why no plan fits in the form to begin with, and the numbers of microbatches that are left to try.

        Raises: InfeasibleError where the number of microbatches is settled.
        """
        if self._none_fits is None:
            settled = self._within_bytes is not None or self._options.microbatches != "auto"
            if settled or error.least_bytes is None:
                raise error
            batch = self._request.variants.batch
            if isinstance(batch, Refused):
                raise error.with_sentence(f"It cannot run as microbatches: {batch.why}") from error
            self._none_fits, self._counts = error, part_counts(batch.extent)
            self._sentence = f"Nor does any plan fit with the batch of {batch.extent} in microbatches"
        elif self._counts and self._deadline.passed:
            tried = f"Nor does any plan of {self._count} microbatches fit by the compiler"
            self._sentence, self._counts = f"{tried}; more were not tried in the time limit", []
        return self._none_fits, self._counts

    def _source_in(self, count: int, options: Options, none_fits: InfeasibleError) -> Source:
        """The candidates in so many microbatches, as the whole batch at once does not fit."""
        variants, limit = self._request.variants, self._problem.request.memory_limit
        self._count, self._counts = count, [other for other in self._counts if other > count]
        needed = quantity(none_fits.least_bytes or 0.0, "B")
        why = (
            f"{variants.describe(count)}: the whole batch at once needs about {needed} per device, above the limit of "
            f"{quantity(limit, 'B')}"
        )
        return self._source_of(variants.in_microbatches(self._problem, count), options, (why,))


def candidates_between(
    request: PlanRequest, problem: PlanningProblem, options: Options, *, fewest: int, most: int
) -> Candidates:
    """The candidates for a lower memory limit than the request has, in the best of so many microbatches.

    Plans of less memory than the limit have the one number, plans of more the other. Raises: InfeasibleError where nothing
    fits in any of these numbers.
    """
    deadline, variants = Deadline.after(options.time_limit_s), request.variants
    counts = [count for count in (1, *part_counts(most)) if count >= fewest] or [most]
    count = counts[0] if len(counts) == 1 else fitting_count(variants, problem, request.meshes, options, counts)
    limit = problem.request.memory_limit
    if count is None:
        raise InfeasibleError(f"no plan fits {quantity(limit, 'B')} per device in {fewest} to {most} microbatches")
    is_choice = count > 1 and options.microbatches == "auto"
    why = f"{variants.describe(count)}: the best of what was tried within {quantity(limit, 'B')} per device"
    return Candidates(
        request,
        variants.in_microbatches(problem, count),
        replace(options, time_limit_s=deadline.left(1.0)),
        notes=(why,) if is_choice else (),
        within_bytes=limit,
    )
