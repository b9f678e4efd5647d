"""Fewer devices: the mesh of a plan without the axes that gain it nothing, and why a plan uses no more devices.

The search tries meshes of most devices first, and of those that come later only seeks what is better: a plan on all
devices wins over an equal one on fewer. So the best plan is looked at again. An axis gains nothing where no op takes longer
without it and the plan is as good; then it is taken over to the mesh that lacks the axis, if that is among those searched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.decision import OPTIMAL_GAP
from planner.errors import InfeasibleError, PinError
from planner.pricing.candidates.strategies import Strategies
from planner.pricing.instance import Instance
from planner.pricing.memory.memory_model import MemoryModel
from planner.pricing.mesh import Shape
from planner.search.best_on_mesh import Candidate

TIED = 1e-9
"""What sums that are equal may differ by, relative."""

BETTER_TEXT: Mapping[str, str] = {
    "time": "is faster",
    "energy": "takes less energy: a further device costs as many joules as it saves, or more",
    "memory": "has a lower peak of memory",
}
"""What no mesh of more devices does, by objective."""


def on_fewer_devices(
    best: Candidate,
    meshes: Sequence[Shape],
    make_instance: Callable[[Shape], Instance],
    *,
    limit_bytes: float,
    objective: str,
    bound: float,
) -> tuple[Candidate, tuple[str, ...]]:
    """The plan, or an equal one on one of these meshes of fewer devices; and why it uses no more, or an axis nothing.

    `bound` is that of the search.
    """
    if len(meshes) > 1:
        fewer = _FewerDevices(
            meshes=meshes,
            make_instance=make_instance,
            limit_bytes=limit_bytes,
            minimise_memory=objective == "memory",
        )
        best = fewer.of(best)
    used = best.instance.mesh.num_devices
    finest = max(meshes, key=lambda shape: (math.prod(shape.values()), len(shape)))
    offered = used > 1 or any(len(strategies) > 1 for strategies in make_instance(finest).strategies)
    proven = bound >= best.value * (1 - OPTIMAL_GAP)
    why = _why_no_more(used, meshes, objective, offered=offered, proven=proven)
    return best, (*((why,) if why else ()), *_unused_axes(best))


@dataclass(frozen=True, kw_only=True)
class _FewerDevices:
    """Takes plans over to fewer devices: to one of `meshes`, within `limit_bytes` per device.

    With `minimise_memory` the value of a plan is its peak of memory; then no more time is allowed either.
    """

    meshes: Sequence[Shape]
    make_instance: Callable[[Shape], Instance]
    limit_bytes: float
    minimise_memory: bool

    def of(self, best: Candidate) -> Candidate:
        """The plan itself, or an equal one on the smallest mesh that it can be taken over to."""
        sizes, dropped = best.instance.mesh.sizes, list[int]()
        for axis in sorted(range(len(sizes)), key=lambda a: (-sizes[a], a)):
            if self._without([*dropped, axis], best, best.instance) is not None:
                dropped.append(axis)
        for count in range(len(dropped), 0, -1):
            removed = dropped[:count]
            left = [size for a, size in enumerate(sizes) if a not in removed]
            shape = next((mesh for mesh in self.meshes if [s for s in mesh.values() if s > 1] == left), None)
            found = None if shape is None else self._without(removed, best, self._instance(shape))
            if found is not None:
                return found
        return best

    def _instance(self, shape: Shape) -> Instance | None:
        """The problem on a mesh; None where the pins do not fit it."""
        try:
            return self.make_instance(shape)
        except (InfeasibleError, PinError):
            return None

    def _without(self, dropped: Sequence[int], best: Candidate, instance: Instance | None) -> Candidate | None:
        """The plan without some axes, on its own mesh or on the one that lacks them; None where it is worse, or none."""
        choice = None if instance is None else _choice_without(dropped, best, instance)
        if (
            instance is None
            or choice is None
            or (instance is best.instance and _takes_longer(instance, choice, best.choice))
        ):
            return None
        old, new = best.instance.problem.evaluate(best.choice), instance.problem.evaluate(choice)
        if new > old + TIED * abs(old):
            return None
        limit = best.peak_bytes if self.minimise_memory else max(self.limit_bytes, best.peak_bytes)
        peak = float(MemoryModel(instance=instance, apart_above=limit).profile(choice).max())
        if peak > (1 + TIED) * limit:
            return None
        value = peak if self.minimise_memory else new
        return replace(best, state=lambda: instance, choice=choice, value=value, peak_bytes=peak)


def _choice_without(dropped: Sequence[int], best: Candidate, instance: Instance) -> tuple[int, ...] | None:
    """The strategies that split as the plan's do, but for the dropped axes; None where one is not offered."""
    same = instance is best.instance
    positions = [_rows_by_assignment(strategies) for strategies in instance.tables]
    choice: list[int] = []
    for before, kind, pick in zip(best.instance.strategies, instance.kind_of, best.choice, strict=True):
        split = list(enumerate(before.assignment[pick].tolist()))
        if same:
            wanted = tuple([-1 if axis in dropped else factor for axis, factor in split])
        else:
            wanted = tuple([factor for axis, factor in split if axis not in dropped])
        found = positions[kind].get(wanted)
        if found is None:
            return None
        choice.append(found)
    return tuple(choice)


def _takes_longer(instance: Instance, choice: Sequence[int], than: Sequence[int]) -> bool:
    """Whether some group takes longer under one choice than under another: known long before their values are."""
    return any(
        work is not None and float(work.seconds[new]) > float(work.seconds[old]) * (1 + TIED)
        for work, new, old in zip(instance.works, choice, than, strict=True)
    )


def _rows_by_assignment(strategies: Strategies) -> dict[tuple[int, ...], int]:
    return {tuple(row): i for i, row in enumerate(strategies.assignment.tolist())}


# ---------------------------------------------------------------- words


def _why_no_more(used: int, meshes: Sequence[Shape], objective: str, *, offered: bool, proven: bool) -> str:
    """Why a plan uses so many devices and no more; "" where none of the meshes has more.

    `offered` says whether any of them splits anything, `proven` whether the search was finished.
    """
    counts = sorted({math.prod(shape.values()) for shape in meshes})
    more, most = [count for count in counts if count > used], counts[-1]
    if not more:
        return ""
    if not offered:
        why = f"none of its arrays has a dim that an op may split and that is divisible over {most} devices"
    else:
        sizes_text = " or ".join([*([", ".join(map(str, more[:-1]))] if len(more) > 1 else []), str(most)])
        why = (
            f"no mesh of {sizes_text} devices {BETTER_TEXT[objective]}{'' if proven else ', as far as the search got'}"
        )
    return f"{'no split helps, so the' if used == 1 else 'the'} plan uses {used} of {most} devices: {why}"


def _unused_axes(candidate: Candidate) -> list[str]:
    """What is told of every axis of a mesh that splits nothing."""
    instance, names = candidate.instance, candidate.instance.mesh.names
    chosen = [s.assignment[pick] for s, pick in zip(instance.strategies, candidate.choice, strict=True)]
    found: list[str] = []
    for axis, (name, size) in enumerate(zip(names, instance.mesh.sizes, strict=True)):
        if any(row[axis] >= 0 for row in chosen):
            continue
        offered = any(bool((s.assignment[:, axis] >= 0).any()) for s in instance.strategies)
        why = "no split by it helps" if offered else f"nothing that an op may split is divisible by {size}"
        found.append(f"the axis {name!r} of {size} devices splits nothing, so they all do the same: {why}")
    return found
