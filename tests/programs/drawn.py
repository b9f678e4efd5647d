"""A Hypothesis strategy of random programs; what fails shrinks to few and simple ops, arguments, transformations and axes.

Each program draws from a few kinds of ops only, so that every pair of kinds meets often. An op's draws stand together,
come last and are three: what Hypothesis leaves out at once is no more than five, among them that there is an op at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from planner.testing import meshes
from tests.programs.builder import Do
from tests.programs.control import BODIES
from tests.programs.programs import OPS, Case, Description

FREQUENT = ("unary", "binary", "transpose", "reduce", "dot", "outer_add", "convert")
"""Ops of which two are drawn in every program, as they are in real ones; the simpler first."""
LEAVES = (*FREQUENT, *sorted(set(OPS) - set(BODIES) - set(FREQUENT)))

UNEVEN: tuple[Mapping[str, int], ...] = ({"x": 3, "y": 2}, {"x": 5})
EIGHT: Mapping[int, int] = {6: 6, 5: 5}
"""For the devices of these meshes: what takes the place of 8 in the shapes of their programs."""
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
DEPTH = 2
"""How deep control flow is nested."""
LEAST = (1, 2, 2, 3, 3, 4)
"""How many ops a program has at least: few, since most of what goes wrong does so between two or three."""
RARELY = 8
"""How often a kind without a body is drawn for each one with a body."""
PAIRS = st.integers(0, 63)
"""Two numbers of 0 to 7."""


@st.composite
def cases(draw: st.DrawFn, most: int = 6) -> Case:
    """A program of up to `most` ops drawn from a few kinds, and a mesh."""
    mesh = draw(st.sampled_from(UNEVEN)) if _one_in(draw, 4) else draw(meshes())
    eight = EIGHT.get(math.prod(mesh.values()), 8)
    mode = draw(st.sampled_from(MODES))
    kinds = [
        *draw(st.lists(st.sampled_from(FREQUENT), min_size=2, max_size=2, unique=True)),
        *draw(st.lists(st.sampled_from(LEAVES), min_size=2, max_size=6, unique=True)),
    ]
    needed = [NEEDED[kind] for kind in kinds if kind in NEEDED][:2]
    wanted = [dtype for dtype in needed if draw(st.integers(0, 7))]
    arguments = (
        *draw(st.lists(_arguments(DTYPES, eight), min_size=1, max_size=4)),
        *(draw(_arguments((dtype,), eight)) for dtype in wanted),
    )
    donates = _one_in(draw, 10)  # whatever the mode: with more draws than another, it would not count as the simpler
    donated = (draw(st.integers(0, len(arguments) - 1)),) if donates and mode == "forward" else ()
    least = min(most, draw(st.sampled_from(LEAST)))
    ops = tuple(draw(st.lists(_ops(kinds, DEPTH), min_size=least, max_size=most)))
    return Description(arguments, ops, mode, donated), mesh


def _one_in(draw: st.DrawFn, count: int) -> bool:
    """True once in so many draws; shrinks to False."""
    return draw(st.integers(0, count - 1)) == count - 1


@st.composite
def _arguments(draw: st.DrawFn, dtypes: Sequence[str], eight: int) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of an argument."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.sampled_from(ODD if _one_in(draw, 14) else SHAPES))
    scaled = {8: eight, 16: 2 * eight, 4: eight // 2 if eight % 2 == 0 else eight}
    return ((eight,) if dtype == "key" else tuple(scaled.get(extent, extent) for extent in shape)), dtype


@st.composite
def _ops(draw: st.DrawFn, kinds: Sequence[str], depth: int) -> Do:
    """An op of these kinds, or, while `depth` lasts, control flow with a body of up to three."""
    kind = draw(st.sampled_from((*(*kinds,) * RARELY, *BODIES) if depth else kinds))
    (b, a), (d, c) = divmod(draw(PAIRS), 8), divmod(draw(PAIRS), 8)
    body: tuple[Any, ...] = ()
    if kind in BODIES:
        body = tuple(draw(st.lists(_ops(kinds, depth - 1), min_size=1, max_size=3)))
    return Do(kind, a, b, c, d, body)
