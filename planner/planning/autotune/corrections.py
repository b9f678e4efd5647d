"""Corrections: the prices of one program as the lessons of its trials have them, mesh by mesh.

Each factor is a ratio of sums over the lessons of a mesh, so that what was tried there is priced as it was found. A mesh
without lessons takes the ratios over all meshes: of computing, of memory (arguments included), and of collectives by kind,
those over all devices apart from those over some, for compilers lower them otherwise. What was tried nowhere is taken for
no dearer than predicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.autotune_log import Correction
from planner.planning.autotune.lessons import Key, Lesson, Promise
from planner.pricing.calibrated import Prices
from planner.pricing.mesh import COLLECTIVES, Mesh, ShapeKey, shape_key

MOST = 16.0
"""No price is corrected by more than this factor, up or down: beyond it something else is the matter."""
TELLING = 0.02
"""Corrections of less are not told."""

Memory = tuple[float, float, float]
"""Bytes of arguments, of temporaries found, and of temporaries predicted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corrections:
    """What is known of one program's prices, `lessons` by mesh, and of its memory.

    `memory` is that of the last plan tried on each mesh.
    """

    lessons: Mapping[ShapeKey, Sequence[Lesson]] = field(default_factory=dict[ShapeKey, Sequence[Lesson]])
    memory: Mapping[ShapeKey, Memory] = field(default_factory=dict[ShapeKey, Memory])

    def prices(self, mesh: Mesh) -> Prices:
        """The prices of a mesh."""
        mine = self.lessons.get(shape_key(mesh.shape), ())
        everything = [lesson for lessons in self.lessons.values() for lesson in lessons]
        own, whole = _by_key(mine), (1 << len(mesh.sizes)) - 1
        by_reach = _pooled(everything)
        collectives: dict[Key, float] = {}
        for kind in COLLECTIVES:
            for mask in range(1, whole + 1):
                known = own.get((kind, mask)) or by_reach.get((kind, mask == whole))
                if known is None:
                    collectives[kind, mask] = min(_ratio([by_reach.get((kind, None), (1.0, 1.0))]), 1.0)
                else:
                    collectives[kind, mask] = _ratio([known])
        extra: dict[tuple[int, tuple[int, ...]], float] = {}
        for lesson in mine:
            for split, seconds in lesson.extra.items():
                extra[split] = max(extra.get(split, 0.0), seconds)
        return Prices(
            computing=_ratio(lesson.computing for lesson in mine or everything), collectives=collectives, extra=extra
        )

    def expected(self, promise: Promise) -> float:
        """The seconds of a plan at the corrected prices."""
        prices = self.prices(promise.mesh)
        counts: dict[object, int] = {}
        for at in promise.splits.values():
            for split, count in at.items():
                counts[split] = max(counts.get(split, 0), count)
        return (
            prices.computing * promise.computing
            + sum(prices.collectives[key] * seconds for key, seconds in promise.collectives.items())
            + sum(seconds * counts.get(split, 0) for split, seconds in prices.extra.items())
        )

    def limit(self, mesh: Mesh, limit_bytes: float) -> float:
        """The limit for predicted bytes under which a plan on a mesh is found to stay within `limit_bytes`."""
        known = self.memory.get(shape_key(mesh.shape))
        if known is None:
            return limit_bytes / _ratio(
                (given + found, given + promised) for given, found, promised in self.memory.values()
            )
        arguments, found, predicted = known
        in_parts = min(arguments, limit_bytes) + max(limit_bytes - arguments, 0.0) / _ratio([(found, predicted)])
        # What a compiler keeps besides may grow with the temporaries, or be one buffer that nobody thought of.
        return min(in_parts, limit_bytes - (found - predicted))

    def notable(self) -> tuple[Correction, ...]:
        """The corrections of the meshes tried, those worth telling."""
        rows: list[Correction] = []
        for lessons in self.lessons.values():
            mesh = lessons[0].mesh
            rows.append(_row(mesh, "computing", (), [lesson.computing for lesson in lessons]))
            rows += [
                _row(mesh, kind, mesh.axes(mask), [pair]) for (kind, mask), pair in sorted(_by_key(lessons).items())
            ]
            known = self.memory.get(shape_key(mesh.shape))
            if known is not None:
                rows.append(_row(mesh, "memory", (), [known[1:]]))
        return tuple(row for row in rows if abs(row.factor - 1) > TELLING)


Pair = tuple[float, float]
"""Found and predicted."""


def _row(mesh: Mesh, what: str, axes: tuple[str, ...], pairs: Sequence[Pair]) -> Correction:
    return Correction(mesh=mesh.shape, what=what, axes=axes, factor=_ratio(pairs))


def _ratio(pairs: Iterable[Pair]) -> float:
    """Found over predicted, of sums."""
    found = predicted = 0.0
    for one, other in pairs:
        found, predicted = found + one, predicted + other
    return min(max(found / predicted, 1 / MOST), MOST) if predicted > 0 else 1.0


def _sum(one: Pair, other: Pair) -> Pair:
    return one[0] + other[0], one[1] + other[1]


def _by_key(lessons: Sequence[Lesson]) -> dict[Key, Pair]:
    found: dict[Key, Pair] = defaultdict(lambda: (0.0, 0.0))
    for lesson in lessons:
        for key, pair in lesson.collectives.items():
            found[key] = _sum(found[key], pair)
    return dict(found)


def _pooled(lessons: Sequence[Lesson]) -> dict[tuple[str, bool | None], Pair]:
    """By kind and whether over all devices, and by kind alone (None)."""
    found: dict[tuple[str, bool | None], Pair] = defaultdict(lambda: (0.0, 0.0))
    for lesson in lessons:
        whole = (1 << len(lesson.mesh.sizes)) - 1
        for (kind, mask), pair in lesson.collectives.items():
            for reach in (mask == whole, None):
                found[kind, reach] = _sum(found[kind, reach], pair)
    return dict(found)
