"""Whole inputs: large arrays that hosts bring whole to many devices, and what splitting their examples would take."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pbqp.marginals import Effort, marginals
from planner.decisions.host_inputs import Input
from planner.prediction import Predicted
from planner.pricing.assignment import Chosen
from planner.units import quantity

LARGE = 0.01
"""An input is large from this part of the seconds of a step, or of the bytes at its peak, on."""
LOOK_S = 2.0
"""Seconds for what splitting one input would take, where the problem is too large for an exact figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeInput:
    """An input that lies whole on each of `devices`: its bytes are brought to all of them, and loaded by every host.

    `more_seconds` is what the step takes longer if its examples are split; None where their `examples` cannot be.
    """

    name: str
    bytes: float
    devices: int
    examples: int
    more_seconds: float | None
    seconds: float

    def __str__(self) -> str:
        lies = (
            f"the input {self.name} lies whole on each of {self.devices} devices: {quantity(self.bytes, 'B')} go to each, "
            "and every host loads as much, at every call"
        )
        if self.more_seconds is None:
            return f"{lies}; its {self.examples} examples do not divide over the axes of this mesh"
        more = max(self.more_seconds, 0.0)
        share = 100 * more / self.seconds if self.seconds else math.inf
        return f"{lies}; split by examples the step takes {quantity(more, 's')} ({share:.2g} %) longer"


def whole_inputs(chosen: Chosen, predicted: Predicted) -> tuple[WholeInput, ...]:
    """The large inputs of a plan of several devices that lie whole on all of them."""
    feeding = chosen.instance.feeding
    if feeding is None or chosen.instance.mesh.num_devices == 1:
        return ()
    found: list[WholeInput] = []
    for tensor, one in feeding.inputs.items():
        aval, fed = chosen.instance.model.graph.tensors[tensor].aval, chosen.fed(tensor)
        large = fed.seconds > LARGE * predicted.seconds or aval.bytes > LARGE * predicted.peak_bytes
        if large and one.examples is not None and fed.device_bytes == aval.bytes:
            found.append(_priced(chosen, one, one.examples, predicted))
    return tuple(found)


def _priced(chosen: Chosen, one: Input, dim: int, predicted: Predicted) -> WholeInput:
    """An input with what splitting its examples would take, everything else at its best."""
    instance = chosen.instance
    tensor, home = instance.model.graph.tensors[one.tensor], instance.model.flow.home[one.tensor]
    more: float | None = None
    if home is not None:
        node, dims = home
        split = (instance.strategies[node].locations(dims) == dim).any(axis=1)
        if split.any():
            effort = Effort(most=2, seconds=LOOK_S)
            other = marginals(instance.problem, node, classes=split.astype(np.intp), start=chosen.choice, effort=effort)
            if math.isfinite(other.values[1]):
                more = sum(Chosen(instance=instance, choice=other.choice(1)).seconds) - predicted.seconds
    return WholeInput(
        name=tensor.name,
        bytes=tensor.aval.bytes,
        devices=instance.mesh.num_devices,
        examples=tensor.aval.shape[dim],
        more_seconds=more,
        seconds=predicted.seconds,
    )
