"""Lower bounds of plans in microbatches by what stays on the chips: read off the program, without planning any part.

An array between two kernels is written to memory and read from it where it is larger than what the chip has room for. One
of k parts of the batch has arrays of a k-th: what is moved is told again as if the chips had k times the room. What the
parts cost in turn, as every part reads the weights, only a plan of them tells.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from pbqp.smaller.smaller import floor_of
from planner.errors import InfeasibleError, PinError
from planner.pricing.mesh import Shape
from planner.search.problem import PlanningProblem

MUCH = 0.15
"""The part of what fewer parts take at the least for which more are taken."""
NEARLY = 0.8
"""The part of what can be gained on the chips with which as few parts are taken as gain so much."""


SLACK = 0.002
"""The share by which plans may take less than were all split evenly: what stays on a chip is judged array by array, as if
all others were split as often (see `working_sets`)."""


class Floors:
    """What plans take at the least by the number of microbatches, were all of it split evenly over so many `devices`.

    `axes` are those that pins may name; `spared` are the seconds of one chip that another choice of what is saved may take
    less than the problem's program.
    """

    def __init__(self, problem: PlanningProblem, axes: Shape, devices: int, spared: float) -> None:
        self._problem, self._shape, self._devices = problem, dict.fromkeys(axes, 1), devices
        self._spared = spared if problem.request.objective == "time" else 0.0
        self._share = 1.0 if problem.request.objective == "energy" else 1.0 / devices
        self._known: dict[int, float] = {}

    def of(self, parts: int) -> float:
        """The least value in so many parts of the batch."""
        if parts not in self._known:
            self._known[parts] = 0.0
            with suppress(PinError, InfeasibleError):  # of pins that do not fit these axes
                one = self._problem.mesh(self._shape)
                alone = self._problem.state(replace(one, pooled_devices=self._devices * parts))
                self._known[parts] = ((1 - SLACK) * floor_of(alone.node_values) - self._spared) * self._share
        return self._known[parts]

    def least_parts(self, counts: Sequence[int], first: int, last: int) -> int:
        """The position of the least of these numbers, from `first` to `last`, that gains nearly as much as the last.

        The first one where none gains much.
        """
        before, after = self.of(counts[first]), self.of(counts[last])
        if after > (1 - MUCH) * before:
            return first
        enough = before - NEARLY * (before - after)
        return bisect_left(range(last), True, lo=first, key=lambda at: self.of(counts[at]) <= enough)
