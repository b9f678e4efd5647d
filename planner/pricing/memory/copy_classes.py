"""Needed copies: whether what a transfer fetches stands beside its source, for every pair of forms of both.

It does where it is more than what the source holds. Where it is not, it may be a part of the source, which is read in
place but by a loop that takes it in, or another part: then it stands beside the source, unless that gives way to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pbqp.vectors import Floats, Indices, distinct_lines
from planner.compiler.schedule.live_ranges import Beside, TensorForm
from planner.pricing.instance import Instance
from planner.pricing.reshards.reshard import Locations


class Classes(NamedTuple):
    """Strategies of a node that store a tensor alike: `of[strategy]` is the class, with its bytes and locations.

    Sums are alike where they have the same bytes; no locations are told of them.
    """

    of: Indices
    bytes: Floats
    locations: Locations


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Which of many copies are needed: `tables[kind of source, kind of target, beside]` by class of both.

    `classes` are those of the kinds of sources, and of targets.
    """

    classes: tuple[Sequence[Classes], Sequence[Classes]]
    tables: Mapping[tuple[int, int, Beside], npt.NDArray[np.bool_]]
    _flat: npt.NDArray[np.bool_]
    _starts: Indices
    _widths: Indices
    _class_of: tuple[Indices, Indices]
    _offsets: tuple[Indices, Indices]

    @staticmethod
    def of(
        classes: tuple[Sequence[Classes], Sequence[Classes]], kinds: tuple[Indices, Indices], beside: Sequence[Beside]
    ) -> Pairs:
        """The pairs of copies of these kinds (numbers into the classes of sources, and of targets)."""
        tables: dict[tuple[int, int, Beside], npt.NDArray[np.bool_]] = {}
        starts: dict[tuple[int, int, Beside], int] = {}
        size = 0
        keys = list(zip(kinds[0].tolist(), kinds[1].tolist(), beside, strict=True))
        for source, target, where in dict.fromkeys(keys):
            table = needed(classes[0][source], classes[1][target], where)
            tables[source, target, where], starts[source, target, where] = table, size
            size += table.size
        lengths = [np.cumsum([0, *[len(of.of) for of in side]]) for side in classes]
        return Pairs(
            classes=classes,
            tables=tables,
            _flat=np.concatenate([*[table.ravel() for table in tables.values()], np.zeros(0, np.bool_)]),
            _starts=np.asarray([starts[key] for key in keys], np.intp),
            _widths=np.asarray([tables[key].shape[1] for key in keys], np.intp),
            _class_of=(_joined(classes[0]), _joined(classes[1])),
            _offsets=(lengths[0][kinds[0]], lengths[1][kinds[1]]),
        )

    def needed(self, sources: Indices, targets: Indices) -> npt.NDArray[np.bool_]:
        """Whether every copy is needed, where the nodes of its source and target choose these strategies."""
        rows = self._class_of[0][self._offsets[0] + sources]
        columns = self._class_of[1][self._offsets[1] + targets]
        return self._flat[self._starts + rows * self._widths + columns]


def _joined(classes: Sequence[Classes]) -> Indices:
    return np.concatenate([*[of.of for of in classes], np.zeros(0, np.intp)])


def classes_of(instance: Instance, node: int, form: TensorForm, sizes: Floats) -> Classes:
    """The classes of the strategies of a node, under which a tensor of a form takes these bytes."""
    if form.reduced is not None:
        values, of = np.unique(sizes, return_inverse=True)
        return Classes(of.ravel(), values, np.zeros((len(values), 0), np.int8))
    rows, of = distinct_lines(instance.strategies[node].locations(form.dims))
    values = np.zeros(len(rows))
    values[of] = sizes
    return Classes(of, values, rows)


def needed(source: Classes, target: Classes, beside: Beside) -> npt.NDArray[np.bool_]:
    """Whether a copy of a class of the target stands beside a class of the source: shape (sources, targets)."""
    if beside == "behind":
        # A slice has no leading dim.
        becomes, lies = source.locations[:, None, :], target.locations[None, :, :] - 1
        return ((lies > 0) & (lies != becomes)).any(axis=2)
    more = target.bytes[None, :] > source.bytes[:, None]
    if beside == "more" or source.locations.shape[1] != target.locations.shape[1]:
        return more
    held, wanted = source.locations[:, None, :], target.locations[None, :, :]
    split = (wanted >= 0) if beside == "apart" else (held >= 0) & (wanted >= 0)
    return more | ((split & (held != wanted)).any(axis=2) & (target.bytes > 0)[None, :])
