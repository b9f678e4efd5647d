"""Buffers: what is allocated besides arguments."""

from __future__ import annotations

from typing import NamedTuple

from planner.any_mesh.share import Share


class Buffer(NamedTuple):
    """One tensor in memory over the half-open interval [start, stop) of op ids."""

    tensor: int
    start: int
    stop: int
    share: Share
