"""Serving: the programs of an inference server planned together for several batch sizes, latency against throughput.

A batch of requests runs every program but `decode` once (such as `prefill`), then `decode` once for each token:

    latency per token        t_decode
    time to first token      sum of t over the other programs
    tokens per second        batch * tokens / (time to first token + tokens * t_decode)

A larger batch shares the reading of the weights among more tokens until computing takes longer than reading. The knee is
the point of the front farthest above the chord between its ends, both axes logarithmic and scaled to one length [1].

[1] V. Satopaa et al., Finding a "kneedle" in a haystack, 2011. https://doi.org/10.1109/ICDCSW.2011.20
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from planner.errors import ArgumentError, InfeasibleError
from planner.printing.parts import Part, table_of
from planner.printing.printed import Printed
from planner.studies.joint import Programs
from planner.units import quantity

DECODE = "decode"
"""The program that makes one token of every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """What one batch size takes: its plans, or `why_none`; seconds per token and to the first one, tokens per second.

    `dominated`: whether another batch size has no more latency and no less throughput.
    """

    batch: int
    plans: Programs | None = None
    latency_seconds: float = math.inf
    first_seconds: float = 0.0
    tokens_per_s: float = 0.0
    dominated: bool = False
    why_none: str = ""


@final
class Serving(Printed, tuple[ServingPoint, ...]):
    """Batch sizes in increasing order; `tokens` are those of a request, `knee` is the batch size of best balance."""

    tokens: int

    def __new__(cls, points: Sequence[ServingPoint], *, tokens: int) -> Serving:
        """The points of these batch sizes."""
        made = tuple.__new__(cls, points)
        made.tokens = tokens
        return made

    @property
    def front(self) -> tuple[ServingPoint, ...]:
        """The points that no other dominates, the least latency first."""
        kept = [point for point in self if point.plans is not None and not point.dominated]
        return tuple(sorted(kept, key=lambda point: point.latency_seconds))

    @property
    def knee(self) -> ServingPoint:
        """The point after which throughput costs more latency than before; of one or two points the last."""
        front = self.front
        first, last = front[0], front[-1]
        width = math.log(last.latency_seconds / first.latency_seconds)
        height = math.log(last.tokens_per_s / first.tokens_per_s)

        def above(point: ServingPoint) -> float:
            along = math.log(point.latency_seconds / first.latency_seconds) / width
            return math.log(point.tokens_per_s / first.tokens_per_s) / height - along

        return max(front[1:-1], key=above, default=last)

    def within(self, latency_seconds: float) -> ServingPoint:
        """The point of most tokens per second with at most so many seconds per token. Raises: ArgumentError."""
        fitting = [point for point in self.front if point.latency_seconds <= latency_seconds]
        if not fitting:
            raise ArgumentError(
                f"no batch size takes at most {quantity(latency_seconds, 's')} per token; the least is "
                f"{quantity(self.front[0].latency_seconds, 's')}, of batch {self.front[0].batch}"
            )
        return fitting[-1]

    @property
    def summary(self) -> dict[str, Any]:
        """What the table says, as plain data: seconds, bytes per device."""
        return {"tokens": self.tokens, "knee": self.knee.batch, "rows": [_data(point) for point in self]}

    def _parts(self) -> list[Part]:
        plans = self.front[0].plans or {}
        of = next(iter(plans.values())).decision
        heading = f"Serving by {', '.join(plans)} on {of.topology}: {self.tokens} tokens per request"
        columns = ">batch|>latency per token|>first token|>tokens/s|>peak|mesh|certificate|"
        return [heading, table_of(columns, map(self._cells, self))]

    def _cells(self, point: ServingPoint) -> tuple[str, ...]:
        if point.plans is None:
            return str(point.batch), "", "", "", "", point.why_none
        of = point.plans[DECODE].decision
        mark = "knee" if point is self.knee else "dominated" if point.dominated else ""
        return (
            str(point.batch),
            quantity(point.latency_seconds, "s"),
            quantity(point.first_seconds, "s") if point.first_seconds else "",
            f"{point.tokens_per_s:.3g}",
            quantity(_peak(point.plans), "B"),
            " x ".join(f"{name}={size}" for name, size in of.mesh_shape.items()),
            point.plans.certificate.status,
            mark,
        )

    def __repr__(self) -> str:
        return f"<Serving: {len(self)} batch sizes, knee at {self.knee.batch}>"


def served(planned: Callable[[int], Programs], batch_sizes: Sequence[int], tokens: int) -> Serving:
    """The points of these batch sizes; `planned` gives the plans for one.

    Raises: what it raises, but InfeasibleError only where no batch size fits.
    """
    points: list[ServingPoint] = []
    errors: list[InfeasibleError] = []
    for batch in sorted(batch_sizes):
        try:
            points.append(_point(batch, planned(batch), tokens))
        except InfeasibleError as error:
            errors.append(error)
            points.append(ServingPoint(batch=batch, why_none=str(error).partition(";")[0]))
    if len(errors) == len(points):
        raise errors[0]
    return Serving([_marked(point, points) for point in points], tokens=tokens)


def calls_of(names: Mapping[str, object], tokens: int) -> dict[str, float]:
    """How often each program is called for a batch of requests. Raises: ArgumentError where none decodes."""
    if DECODE not in names:
        raise ArgumentError(
            f"the programs are {', '.join(map(repr, names)) or 'none'}; one must be named {DECODE!r}: a step that makes a "
            "token of every request"
        )
    return {name: float(tokens) if name == DECODE else 1.0 for name in names}


def check_batches(batch_sizes: Any, tokens: Any) -> None:
    """Nothing. Raises: ArgumentError."""
    good = isinstance(batch_sizes, Sequence) and bool(batch_sizes) and all(map(_is_count, batch_sizes))
    if not good or len(set(batch_sizes)) < len(batch_sizes):
        raise ArgumentError(f"batch_sizes is {batch_sizes!r:.80}; give different positive numbers, such as [1, 8, 64]")
    if not _is_count(tokens):
        raise ArgumentError(f"tokens is {tokens!r}; give how many tokens a request makes, 1 or more")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _point(batch: int, plans: Programs, tokens: int) -> ServingPoint:
    latency = plans[DECODE].predicted.seconds
    first = sum(plan.predicted.seconds for name, plan in plans.items() if name != DECODE)
    return ServingPoint(
        batch=batch,
        plans=plans,
        latency_seconds=latency,
        first_seconds=first,
        tokens_per_s=batch * tokens / (first + tokens * latency),
    )


def _marked(point: ServingPoint, points: Sequence[ServingPoint]) -> ServingPoint:
    """A point that says whether another is better in one of both, and worse in none; of equal ones the first stays."""
    mine = (point.latency_seconds, -point.tokens_per_s)
    better = any(
        other.latency_seconds <= mine[0]
        and -other.tokens_per_s <= mine[1]
        and ((other.latency_seconds, -other.tokens_per_s) != mine or other.batch < point.batch)
        for other in points
    )
    return replace(point, dominated=better)


def _peak(plans: Programs) -> float:
    return max(plan.predicted.peak_bytes for plan in plans.values())


def _data(point: ServingPoint) -> dict[str, Any]:
    if point.plans is None:
        return {"batch": point.batch, "why_none": point.why_none}
    return {
        "batch": point.batch,
        "latency_seconds": point.latency_seconds,
        "first_seconds": point.first_seconds,
        "tokens_per_s": point.tokens_per_s,
        "peak_bytes": _peak(point.plans),
        "mesh": dict(point.plans[DECODE].decision.mesh_shape),
        "dominated": point.dominated,
    }
