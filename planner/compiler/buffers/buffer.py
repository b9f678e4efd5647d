"""Buffers: what is allocated besides arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from planner.program.graph import Aval

TransposedStacks = Mapping[int, int | None]
"""The dim of a transposed stack of which a device must hold several elements, if there is one, by the op by which it enters
its loop."""


class Buffer(NamedTuple):
    """One tensor in memory over the half-open interval [start, stop) of op ids, `fraction` of its bytes.

    With `several`, dims, only on devices that hold several elements along each. With `beside`, not the tensor is in memory
    but an array of that type, whole on every device.
    """

    tensor: int
    start: int
    stop: int
    fraction: float = 1.0
    several: tuple[int, ...] = ()
    beside: Aval | None = None
