"""Random JAX programs for property tests: descriptions by number, the functions they stand for, and smaller ones.

A case is a `Description` and a mesh, and `case(seed)` is the same one everywhere. What fails is printed as its `repr`,
which is Python to be copied into a test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.programs_builder import Array, Builder, Do, Op, is_complex, is_float
from tests.programs_control import BODIES, CONTROL
from tests.programs_index import INDEX
from tests.programs_linalg import LINALG
from tests.programs_math import MATH
from tests.programs_shape import SHAPE
from tests.programs_window import WINDOW

OPS: Mapping[str, Op] = {**MATH, **SHAPE, **INDEX, **WINDOW, **LINALG, **CONTROL}
LEAVES = tuple(sorted(set(OPS) - set(BODIES)))
FREQUENT = ("dot", "unary", "binary", "reduce", "transpose", "outer_add", "convert")
"""Ops drawn in every program, as they are in real ones."""

Mesh = Mapping[str, int]
MESHES: tuple[tuple[Mesh, int], ...] = (
    ({"x": 8}, 8),
    ({"x": 4, "y": 2}, 8),
    ({"x": 2, "y": 4}, 8),
    ({"x": 2, "y": 2, "z": 2}, 8),
    ({"x": 2, "y": 2}, 8),
    ({"x": 3, "y": 2}, 6),
    ({"x": 5}, 5),
)
"""Meshes, and the number that takes the place of 8 in the shapes of their programs."""
SHAPES: tuple[tuple[int, ...], ...] = (
    (8, 16),
    (16, 8),
    (16,),
    (8,),
    (8, 8),
    (4, 8, 8),
    (8, 8, 4),
    (2, 8, 16),
    (8, 4, 4, 8),
    (2, 4, 8, 4),
    (4, 2, 8, 2, 4),
)
ODD: tuple[tuple[int, ...], ...] = ((), (1, 8), (7,), (3, 5), (8, 0), (0,), (9, 8), (1,))
"""Shapes drawn now and then: scalars, empty arrays, extents that nothing divides."""
DTYPES = (
    ("float32",) * 10
    + ("bfloat16",) * 2
    + ("int32",) * 3
    + (
        "float16",
        "uint32",
        "uint8",
        "bool",
        "complex64",
        "float8_e4m3fn",
        "int8",
        "key",
    )
)
NEEDED: Mapping[str, str] = {
    "bitcast": "uint32",
    "by_key": "key",
    "choose": "bool",
    "complex": "complex64",
    "draw": "int32",
    "integer": "int32",
    "logical": "bool",
    "one_hot": "int32",
    "search": "int32",
    "whole_dot": "bfloat16",
}
"""What an argument is made of so that an op finds something to work on."""
MODES = ("forward",) * 8 + ("grad",) * 6 + ("vmap", "vmap_grad", "jvp", "hvp")
"""What is done with a program: nothing, its gradient, a tangent, a Hessian-vector product; over a new dim, or not."""
BATCH = 4
COUNTS = (1, 2, 2, 2, 3, 3, 3, 4, 5, 6)
"""How many ops a program has: few, since most of what goes wrong does so between two or three."""


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


# ---------------------------------------------------------------- descriptions by number


def case(seed: int, *, most: int = 6) -> Case:
    """The case of that number: a program of up to `most` ops drawn from a few kinds, and a mesh.

    Each program draws from a few kinds of ops only, so that every pair of kinds meets often.
    """
    dice = random.Random(seed)
    mesh, eight = dice.choice(MESHES)
    kinds = (*dice.sample(LEAVES, dice.randint(2, 6)), *dice.sample(FREQUENT, 2))
    needed = [NEEDED[kind] for kind in kinds if kind in NEEDED]
    drawn = [dice.choice(DTYPES) for _ in range(dice.randint(1, 3))]
    arguments = tuple(_argument(dice, dtype, eight) for dtype in (*needed[:2], *drawn))
    ops = tuple(_do(dice, kinds, 2) for _ in range(min(most, dice.choice(COUNTS))))
    mode = dice.choice(MODES)
    donated = (dice.randrange(len(arguments)),) if dice.random() < 0.1 and mode == "forward" else ()
    return Description(arguments, ops, mode, donated), mesh


def _argument(dice: random.Random, dtype: str, eight: int) -> tuple[tuple[int, ...], str]:
    shape = dice.choice(ODD if dice.random() < 0.07 else SHAPES)
    scaled = {8: eight, 16: 2 * eight, 4: eight // 2 if eight % 2 == 0 else eight}
    return ((eight,) if dtype == "key" else tuple(scaled.get(extent, extent) for extent in shape)), dtype


def _do(dice: random.Random, kinds: Sequence[str], depth: int) -> Do:
    """An op of these kinds, or, while `depth` lasts, control flow with a body of up to three."""
    a, b, c, d = (dice.randrange(8) for _ in range(4))
    if depth and dice.random() < (0.12, 0.15)[depth - 1]:
        body = tuple(_do(dice, kinds, depth - 1) for _ in range(dice.randint(1, 3)))
        return Do(dice.choice(BODIES), a, b, c, d, body)
    return Do(dice.choice(kinds), a, b, c, d)


# ---------------------------------------------------------------- smaller descriptions


def smaller(found: Case) -> Iterator[Case]:
    """Cases a little simpler than one: without an op, an argument or a transformation, with lower numbers."""
    description, mesh = found
    for ops in _smaller_ops(description.ops):
        yield replace(description, ops=ops), mesh
    for mode in {"hvp": ("grad",), "vmap_grad": ("grad", "vmap")}.get(description.mode, ("forward",)):
        if mode != description.mode:
            yield replace(description, mode=mode), mesh
    if description.donated:
        yield replace(description, donated=()), mesh
    if len(description.arguments) > 1 and not description.donated:
        for i in range(len(description.arguments)):
            yield replace(description, arguments=description.arguments[:i] + description.arguments[i + 1 :]), mesh
    if len(mesh) > 1:
        for axis in mesh:
            yield description, {name: size for name, size in mesh.items() if name != axis}


def _smaller_ops(ops: tuple[Do, ...]) -> Iterator[tuple[Do, ...]]:
    for i in range(len(ops)):
        yield ops[:i] + ops[i + 1 :]
    for i, do in enumerate(ops):
        if do.body:
            yield ops[:i] + do.body + ops[i + 1 :]
        for body in _smaller_ops(do.body):
            yield (*ops[:i], replace(do, body=body), *ops[i + 1 :])
    for i, do in enumerate(ops):
        for name in "abcd":
            value = getattr(do, name)
            for lower in sorted({0, value // 2} - {value}):
                yield (*ops[:i], replace(do, **{name: lower}), *ops[i + 1 :])


def shrunk(found: Case, fails: Callable[[Case], bool], *, tries: int = 120) -> Case:
    """The simplest case reached by steps of `smaller` that still fails, within a number of tries."""
    progress = True
    while progress:
        progress = False
        for candidate in smaller(found):
            if tries <= 0:
                return found
            tries -= 1
            if fails(candidate):
                found, progress = candidate, True
                break
    return found
