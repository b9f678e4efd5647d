"""Buffers: what is allocated besides arguments."""

from __future__ import annotations

from typing import NamedTuple

from planner.compiler.buffers.share import Share


class Buffer(NamedTuple):
    """One tensor in memory over the half-open interval [start, stop) of op ids.

    With `several`, a dim, only on devices that hold several elements along it.
    """

    tensor: int
    start: int
    stop: int
    share: Share
    several: int | None = None
