"""Modules of Flax nnx at a size: with arrays, or with the shapes of their arrays only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flax import nnx

from benchmarks.models.base import Size, seed

M = TypeVar("M", bound=nnx.Module)


def module(make: Callable[[nnx.Rngs], M], size: Size) -> M:
    """The module that `make` builds: of arrays at size "small", of their shapes (nothing allocated) at size "real"."""

    def seeded() -> M:
        return make(nnx.Rngs(seed()))

    return nnx.jit(seeded)() if size == "small" else nnx.eval_shape(seeded)
