"""Objectives: what a plan is scored in, made from the seconds, flops and bytes of a cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, final

from cost_models.energy import EnergyObjective
from cost_models.errors import CostModelError
from cost_models.hardware import Chip
from cost_models.network.links import Link
from cost_models.protocol import Floats


class Objective(Protocol):
    """A value per op and per collective, in one unit, that adds up over a program."""

    @property
    def name(self) -> str:
        """The name by which a plan asks for it."""
        ...

    @property
    def unit(self) -> str:
        """The unit of its values."""
        ...

    def compute(self, *, seconds: Floats, flops: Floats, bytes: Floats) -> Floats:
        """The value of one op on one device, for each of several strategies."""
        ...

    def collective(self, kind: str, links: tuple[Link, ...], affine: tuple[float, float]) -> tuple[float, float]:
        """The value of a collective that takes `affine` seconds: a constant, and a value per byte."""
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TimeObjective:
    """Seconds, as the cost model says."""

    name: str = "time"
    unit: str = "seconds"

    def compute(self, *, seconds: Floats, flops: Floats, bytes: Floats) -> Floats:
        """The seconds, unchanged."""
        return seconds

    def collective(self, kind: str, links: tuple[Link, ...], affine: tuple[float, float]) -> tuple[float, float]:
        """The latency and the seconds per byte, unchanged."""
        return affine


def _time(chip: Chip) -> Objective:
    return TimeObjective()


def _energy(chip: Chip) -> Objective:
    return EnergyObjective(chip=chip)


OBJECTIVES: Mapping[str, Callable[[Chip], Objective]] = MappingProxyType({"time": _time, "energy": _energy})
"""Every objective that is a sum of costs; peak memory is not one, the planner minimises it by itself."""


def objective(name: str, chip: Chip) -> Objective:
    """The objective of a name, for a chip.

    Raises: CostModelError for an unknown name.
    """
    if name not in OBJECTIVES:
        raise CostModelError(f"unknown objective {name!r}; the ones made of costs are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name](chip)
