"""Refining: solve, try the most promising plans, correct the prices by what comes out, solve again.

A round seeks the best plan of every mesh at the prices as they are corrected by then, and of the most promising meshes
plans of one kind (see `prospects`). What is tried next is what is expected to be the fastest, as long as it may come out
faster than the best so far, judging by how far the last trials were off; of plans close to the best other emissions are
tried, too. It ends when a round brings nothing new that may be better, when time is over, or when it is interrupted. Then
the plan tried is taken that a machine may take the least time for at most: where the intervals of two plans lie apart, that
is the faster one, and where they overlap, the one that is better in the worst case. Where none served, what was planned
without trials is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from pbqp.deadline import Deadline
from planner.autotune_log import Refined
from planner.decision import Decision
from planner.emit.alternatives import variants
from planner.planning.autotune.measuring import Judge
from planner.planning.autotune.prospects import Leaning, Prospects
from planner.planning.autotune.trials import EndedTrial, Trying, Variants
from planner.pricing.mesh import Shape, mesh_text
from planner.search.best_on_mesh import Candidate
from planner.units import quantity

REFINING_SHARE = 0.5
"""Part of the time after which no more trials are begun, if there is a plan by then."""
MOST_ROUNDS = 6
"""Rounds at most; mostly two or three bring something new."""
LEANING_MESHES = 3
"""Of so many meshes, the most promising, plans of one kind are sought."""
LEANINGS: tuple[Leaning, ...] = ("computed values stay", "arguments stay")
FIRST_REACH = 1.5
"""In the first round, meshes whose best plan takes up to so many times the best of all are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The decisions tried that serve, those of the least seconds at most first, and the record of it all."""

    decisions: tuple[Decision, ...]
    refined: Refined


def refine(
    candidates: Sequence[Candidate],
    meshes: Sequence[Shape],
    prospects: Prospects,
    judge: Judge,
    deadline: Deadline,
    *,
    how: Literal["compile", "measure"],
    limit_bytes: float,
    emissions: Variants = variants,
    tell: Callable[[str], None] = lambda _: None,
) -> Result:
    """The best of the plans tried, from `candidates` on, the best by the prices as they are first.

    What was tried is told as it comes, in words.
    """
    trying = Trying(judge, emissions, limit_bytes=limit_bytes)
    run = _Refining(candidates, meshes, prospects, trying, deadline, tell)
    try:
        ended = run.rounds()
    except KeyboardInterrupt:
        ended = "it was interrupted"
    order = sorted(
        (i for i, tried in enumerate(trying.tried) if math.isfinite(tried.seconds)),
        key=lambda i: (trying.tried[i].seconds_most, trying.tried[i].seconds, i),
    )
    refined = Refined(
        how=how,
        rounds=run.round,
        trials=tuple(tried.trial for tried in trying.tried),
        corrections=trying.corrections.notable(),
        chosen=None,
        seconds=deadline.elapsed,
        ended=ended,
    )
    return Result(
        decisions=tuple(_decision(trying, trying.tried[i], replace(refined, chosen=i)) for i in order), refined=refined
    )


def _decision(trying: Trying, tried: EndedTrial, refined: Refined) -> Decision:
    """What was emitted in a trial, with the record of all, and why it goes before a faster one, if it does."""
    decision = tried.emitted.decision
    faster = [
        other for other in trying.tried if other.seconds < tried.seconds and other.seconds_most > tried.seconds_most
    ]
    if faster:
        fastest = min(faster, key=lambda other: other.seconds)
        note = (
            f"a plan on the mesh {mesh_text(fastest.trial.mesh)} takes {quantity(fastest.seconds, 's')} by its schedule, "
            f"and this one {quantity(tried.seconds, 's')}; by the spread of the rates that one may take up to "
            f"{quantity(fastest.seconds_most, 's')}, and this one {quantity(tried.seconds_most, 's')}"
        )
        decision = replace(decision, notes=(*decision.notes, note))
    return replace(decision, refined=refined)


@final
class _Refining:
    def __init__(
        self,
        candidates: Sequence[Candidate],
        meshes: Sequence[Shape],
        prospects: Prospects,
        trying: Trying,
        deadline: Deadline,
        tell: Callable[[str], None],
    ) -> None:
        self._candidates, self._prospects, self._trying, self._tell = candidates, prospects, trying, tell
        # When no more trials are begun; when those that run are given up if none has come to an end.
        self._soft, self._hard = deadline.share(REFINING_SHARE), deadline
        # Those of most devices first: mostly they are faster, and those of fewer are ruled out by them at once.
        self._meshes = sorted(meshes, key=lambda shape: (-math.prod(shape.values()), len(shape)))
        self.round = 0

    def rounds(self) -> str:
        """Runs them; says why there are no more."""
        while self.round < MOST_ROUNDS:
            self.round += 1
            before = len(self._trying.tried)
            new = self._look_around()
            if self.round > 1 and not new:
                return "no plan that was not tried is expected to be faster"
            while self._step(wait=True):
                pass
            if self._trying.unavailable:
                return self._trying.unavailable
            if self._over or self._trying.judge.pending:  # a trial is waited for until then
                return "the time was over"
            if len(self._trying.tried) == before:
                return "no plan that was not tried is expected to be faster"
        return f"{MOST_ROUNDS} rounds are made at most"

    @property
    def _over(self) -> bool:
        return self._until.passed

    @property
    def _until(self) -> Deadline:
        """The end: the later one as long as there is no plan."""
        return self._hard if math.isinf(self._trying.best) else self._soft

    def _step(self, *, wait: bool) -> bool:
        """Begins trials and learns from one that has come to an end; False where there is none, or no time is left."""
        if self._over or self._trying.unavailable:
            return False
        self._trying.fill()
        if not self._trying.judge.pending:
            return False
        if not self._trying.take(self._until.left() if wait else 0.0):
            return False
        best = quantity(self._trying.best, "s") if math.isfinite(self._trying.best) else "none that fits"
        self._tell(
            f"autotuning, round {self.round} of at most {MOST_ROUNDS}: {len(self._trying.tried)} tried, best {best}"
        )
        return True

    def _look_around(self) -> int:
        """Seeks prospects on all meshes, while trials run; how many are new."""
        first, corrections, new = self.round == 1, self._trying.corrections, 0
        expected: dict[int, float] = {}
        if first:
            # One at a time: the first shall be under way before the others are worked out.
            for candidate in self._candidates:
                new += self._trying.add(self._prospects.of(candidate, "the best found"), self.round)
                self._trying.fill()
            best = min(candidate.value for candidate in self._candidates)
        else:
            best = self._trying.best
        for i, shape in enumerate(self._meshes):
            if self._over:
                return new
            prospect = self._prospects.best(
                shape, corrections, below=best * (FIRST_REACH if first else 1.0), deadline=self._soft
            )
            if prospect is not None:
                expected[i] = corrections.expected(prospect.promise)
                new += self._trying.add(prospect, self.round)
            while self._step(wait=False):
                pass
        for i in sorted(expected, key=lambda i: (expected[i], i))[:LEANING_MESHES] if self._prospects.leans else ():
            for lean in LEANINGS:
                if self._over:
                    return new
                prospect = self._prospects.best(
                    self._meshes[i], corrections, below=math.inf, deadline=self._soft, lean=lean
                )
                if prospect is not None:
                    new += self._trying.add(prospect, self.round)
                while self._step(wait=False):
                    pass
        return new
