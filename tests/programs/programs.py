"""Random JAX programs for property tests: their descriptions, and the functions they stand for.

A case is a `Description` and a mesh; `programs_drawn` draws them. What fails is printed as its `repr`, which is Python to
be copied into a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.programs.arithmetic import MATH
from tests.programs.builder import Array, Builder, Do, Op, is_complex, is_float
from tests.programs.control import CONTROL
from tests.programs.index import INDEX
from tests.programs.linalg import LINALG
from tests.programs.shape import SHAPE
from tests.programs.window import WINDOW

OPS: Mapping[str, Op] = {**MATH, **SHAPE, **INDEX, **WINDOW, **LINALG, **CONTROL}
Mesh = Mapping[str, int]
BATCH = 4


@dataclass(frozen=True, slots=True)
class Description:
    """A program: the (shape, dtype) of its arguments, its ops, what is done with it, and the arguments it may consume."""

    arguments: tuple[tuple[tuple[int, ...], str], ...]
    ops: tuple[Do, ...]
    mode: str = "forward"
    donated: tuple[int, ...] = ()

    @property
    def kinds(self) -> frozenset[str]:
        """The names of its ops, those of bodies included."""
        return frozenset(do.op for do in walk(self.ops))

    @property
    def batched(self) -> bool:
        return self.mode in ("vmap", "vmap_grad")

    def function(self, made: set[str] | None = None) -> Callable[..., Any]:
        """The program as a function of its arguments (a key, then arrays); `example` makes such.

        When it is traced, the names of the ops that found something to work on are added to `made`.
        """
        floats = [i for i, (_, dtype) in enumerate(self.arguments) if dtype in ("float32", "bfloat16", "float16")]

        def forward(key: Array, *args: Array) -> tuple[Array, ...]:
            builder = Builder(ops=OPS, key=key, mode=self.mode)
            values = builder.run(self.ops, list(args))
            if made is not None:
                made.update(builder.made)
            used = {id(value) for value in builder.used}
            return tuple(value for value in values if id(value) not in used) or (args[-1],)

        def loss(chosen: Sequence[Array], key: Array, *args: Array) -> Array:
            filled = list(args)
            for i, value in zip(floats, chosen, strict=True):
                filled[i] = value
            total = jnp.float32(0)
            for result in forward(key, *filled):
                real = jax.lax.real(result) if is_complex(result) else result
                if is_float(real) and real.size:
                    total += jnp.mean(real.astype(jnp.float32))
            return total

        def gradient(key: Array, *args: Array) -> Any:
            return jax.grad(loss)([args[i] for i in floats], key, *args)

        def tangent(of: Callable[..., Any]) -> Callable[..., Any]:
            def call(key: Array, *args: Array) -> Any:
                chosen = [args[i] for i in floats]

                def alone(values: Sequence[Array]) -> Any:
                    filled = list(args)
                    for i, value in zip(floats, values, strict=True):
                        filled[i] = value
                    return of(key, *filled)

                results = jax.jvp(alone, (chosen,), ([jnp.cos(value) for value in chosen],))[1]
                return [r for r in jax.tree.leaves(results) if r.dtype != jax.dtypes.float0]

            return call

        if self.mode == "grad":
            return gradient
        if self.mode == "jvp":
            return tangent(forward)
        if self.mode == "hvp":
            return tangent(gradient)
        if self.batched:
            inner = gradient if self.mode == "vmap_grad" else forward
            return jax.vmap(inner, in_axes=(None, *(0 for _ in self.arguments)))
        return forward

    def example(self, seed: int = 0) -> tuple[Array, ...]:
        """Arguments with random numbers of about 1 (integers: 0 to 7)."""
        rng = np.random.default_rng(seed)
        made: list[Array] = [jax.random.key(seed)]
        for extents, dtype in self.arguments:
            shape = (BATCH, *extents) if self.batched else extents
            if dtype == "key":
                made.append(jax.random.split(jax.random.key(seed + len(made)), shape))
            elif dtype == "bool" or "int" in dtype:
                made.append(rng.integers(0, 2 if dtype == "bool" else 8, shape).astype(dtype))
            elif dtype == "complex64":
                made.append((rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype))
            else:
                made.append(np.asarray(rng.normal(size=shape)).astype(jnp.dtype(dtype)))
        return tuple(made)


Case = tuple[Description, Mesh]


def walk(ops: Sequence[Do]) -> Iterator[Do]:
    """All ops, those of bodies included."""
    for do in ops:
        yield do
        yield from walk(do.body)
