"""Trying: prospects in a queue, the most promising first, their trials, and what is learnt of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from planner.autotune_log import Trial
from planner.decision import Decision
from planner.emit.alternatives import remedied
from planner.planning.autotune.corrections import Corrections
from planner.planning.autotune.judges import TrialVerdict
from planner.planning.autotune.lessons import Lesson, lesson
from planner.planning.autotune.measuring import Judge
from planner.planning.autotune.prospects import Prospect
from planner.pricing.mesh import ShapeKey, shape_key

FIRST_HOPE = 0.85
"""What a trial may come to of what is expected of it, before any has shown how far that is off."""
LEAST_HOPE, MOST_HOPE = 0.7, 0.98
"""Bounds of that share once some have."""
REMEMBERED = 6
"""The last so many trials say what may be hoped for."""
CLOSE = 1.3
"""A plan that takes up to so many times as long as the best is emitted otherwise, too."""
NEEDS_AT_LEAST = 1.05
"""What a program that does not fit is taken to need of its predicted peak, or of the limit, where no compiler says."""

FAILURES = ("error", "crash")
"""What may be a matter of how a plan is written down, not of the plan."""

Variants = Callable[[Decision], Sequence[Decision]]
"""Other ways to emit what was decided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Emitted:
    """A prospect as it is emitted: way 0 is the first, others are variants; `like` is the trial of the first, if known.

    `otherwise` is the decision as a variant, or after a remedy, has it.
    """

    prospect: Prospect
    round: int
    way: int = 0
    like: float | None = None
    otherwise: Decision | None = None

    @property
    def decision(self) -> Decision:
        """What is emitted."""
        return self.otherwise or self.prospect.decision


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EndedTrial:
    """A trial that came to an end: what was emitted, its record, and the most seconds that it may take on a machine."""

    emitted: Emitted
    trial: Trial
    seconds_most: float

    @property
    def seconds(self) -> float:
        """Those found; inf where there are none."""
        return math.inf if self.trial.found_seconds is None else self.trial.found_seconds


@final
class Trying:
    """What waits, what is being tried, what was, and the corrections that follow from it."""

    def __init__(self, judge: Judge, variants: Variants, *, limit_bytes: float) -> None:
        self.judge, self._variants, self._limit_bytes = judge, variants, limit_bytes
        self.tried: list[EndedTrial] = []
        self.corrections = Corrections()
        self._waiting: list[Emitted] = []
        self._running: deque[tuple[Emitted, float]] = deque()
        self._seen: set[tuple[object, ...]] = set()
        self._failed: set[tuple[ShapeKey, tuple[object, ...]]] = set()
        self._hopes: deque[float] = deque(maxlen=REMEMBERED)
        self._ways: defaultdict[int, list[float]] = defaultdict(list)
        self._lessons: dict[int, tuple[float, Lesson]] = {}

    @property
    def best(self) -> float:
        """The least seconds found of a plan that fits."""
        return min((tried.seconds for tried in self.tried), default=math.inf)

    @property
    def unavailable(self) -> str:
        """Why there is no judge, if it turned out that there is none."""
        found = (tried.trial.message for tried in self.tried if tried.trial.status == "unavailable")
        return next(found, "")

    def add(self, prospect: Prospect, turn: int) -> bool:
        """Takes a prospect into the queue; whether it is a new one."""
        if (
            prospect.signature in self._seen
            or (shape_key(prospect.promise.mesh.shape), prospect.signature) in self._failed
        ):
            return False
        self._seen.add(prospect.signature)
        self._waiting.append(Emitted(prospect=prospect, round=turn))
        return True

    def expected(self, emitted: Emitted) -> float:
        """The seconds expected of it by all that is known."""
        if emitted.like is not None:
            ratios = self._ways[emitted.way]
            return emitted.like * (statistics.median(ratios) if ratios else 1.0)
        return self.corrections.expected(emitted.prospect.promise)

    def fill(self) -> None:
        """Begins the most promising trials for which there is room, of those that may come out as the best."""
        while self.judge.room > 0:
            chances = [(self._at_best(emitted), i) for i, emitted in enumerate(self._waiting)]
            least, place = min(chances, default=(math.inf, -1))
            if place < 0 or least >= self.best:
                return
            emitted = self._waiting.pop(place)
            self._running.append((emitted, self.expected(emitted)))
            self.judge.submit(emitted.decision)

    def _at_best(self, emitted: Emitted) -> float:
        """The seconds that it may come to, judging by how far others were off; of a variant, by what its like gained."""
        ratios = self._ways[emitted.way]
        if emitted.like is not None and ratios:
            return MOST_HOPE * min(ratios) * emitted.like
        return self._hope * self.expected(emitted)

    @property
    def _hope(self) -> float:
        """The share of what is expected that a trial may come to."""
        return min(max(min(self._hopes), LEAST_HOPE), MOST_HOPE) if self._hopes else FIRST_HOPE

    def take(self, seconds: float) -> bool:
        """Learns from the next verdict; False where none comes within `seconds`."""
        verdict = self.judge.take(seconds)
        if verdict is None:
            return False
        emitted, expected = self._running.popleft()
        if verdict.remedy:
            emitted = replace(emitted, otherwise=remedied(emitted.decision, verdict.remedy))
        tried = EndedTrial(
            emitted=emitted,
            trial=_record(emitted, expected, verdict),
            seconds_most=math.inf if verdict.outcome is None else verdict.outcome.seconds_most,
        )
        self._remember(tried, expected)
        before = self.best
        self.tried.append(tried)
        self._learn(tried, verdict)
        if verdict.status in FAILURES and emitted.way == 0:
            # The compiler may do with an equal plan on another mesh.
            self._seen.discard(emitted.prospect.signature)
            self._failed.add((shape_key(emitted.prospect.promise.mesh.shape), emitted.prospect.signature))
        if emitted.way == 0 and tried.seconds <= CLOSE * before:
            ways = enumerate(self._variants(emitted.decision), 1)
            self._waiting += [replace(emitted, otherwise=d, way=way, like=tried.seconds) for way, d in ways]
        return True

    def _remember(self, tried: EndedTrial, expected: float) -> None:
        """How far the trial was off what was expected of it."""
        if not math.isfinite(tried.seconds) or expected <= 0:
            return
        if tried.emitted.like:
            self._ways[tried.emitted.way].append(tried.seconds / tried.emitted.like)
        if self.corrections.lessons:
            self._hopes.append(tried.seconds / expected)

    def _learn(self, tried: EndedTrial, verdict: TrialVerdict) -> None:
        """Corrects the prices by a trial. Of several ways to emit one plan, the fastest teaches."""
        promise, memory = tried.emitted.prospect.promise, dict(self.corrections.memory)
        needed = verdict.peak_bytes
        if verdict.status == "oom" and needed is None:
            needed = NEEDS_AT_LEAST * max(promise.peak_bytes, self._limit_bytes)
        if needed is not None and promise.peak_bytes > promise.argument_bytes:
            arguments = promise.argument_bytes
            memory[shape_key(promise.mesh.shape)] = (
                arguments,
                max(needed - arguments, 0.0),
                promise.peak_bytes - arguments,
            )
        known = self._lessons.get(id(tried.emitted.prospect))
        if verdict.outcome is not None and (known is None or verdict.outcome.seconds < known[0]):
            self._lessons[id(tried.emitted.prospect)] = (verdict.outcome.seconds, lesson(promise, verdict.outcome))
        lessons: dict[ShapeKey, list[Lesson]] = {}
        for _, learnt in self._lessons.values():
            lessons.setdefault(shape_key(learnt.mesh.shape), []).append(learnt)
        self.corrections = Corrections(lessons=lessons, memory=memory)


def _record(emitted: Emitted, expected: float, verdict: TrialVerdict) -> Trial:
    decision, prospect = emitted.decision, emitted.prospect
    return Trial(
        round=emitted.round,
        mesh=decision.mesh_shape,
        why=prospect.why,
        emission="as planned" if emitted.way == 0 else f"variant {emitted.way}",
        compiler_options=decision.compiler_options,
        status=verdict.status,
        message=verdict.message,
        predicted_seconds=decision.predicted.seconds,
        expected_seconds=expected,
        found_seconds=None if verdict.outcome is None else verdict.outcome.seconds,
        predicted_peak_bytes=decision.predicted.peak_bytes,
        found_peak_bytes=verdict.peak_bytes,
        collectives=verdict.collectives,
    )
