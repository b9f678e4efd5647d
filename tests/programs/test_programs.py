"""Random programs, planned so that everything is split; see `programs` for what they are, `programs_check` for the check.

`make fuzz` runs many more of them, in processes that may die.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import jax
import jax.numpy as jnp
import pytest

from planner.program.dataflow import lifted, outermost
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from tests.programs.builder import Do
from tests.programs.check import failure, failure_of
from tests.programs.drawn import cases
from tests.programs.programs import OPS, Case, Description

F32 = "float32"
ROWS = ((16, 8), F32)
COLUMNS = ((8, 16), F32)
IMAGE = ((8, 4, 4, 8), F32)
CUBE = {"x": 2, "y": 2, "z": 2}

KNOWN: Mapping[str, Case] = {
    # A device's part of a whole operand and the element that it updates became one slice: see `pricing.candidates.hazards`.
    "a scatter of one update into a part of a whole array": (
        Description((((1,), "int32"), ((8,), "key")), (Do("one_hot", b=1), Do("rows", c=5))),
        CUBE,
    ),
    # An all-to-all onto the reduced dim is a concatenation, of which XLA loses or repeats the initial value.
    "a reduction with an initial value of its own": (
        Description(
            (((8,), "key"), ((8, 16), "float32")),
            (Do("reduce_any", c=5), Do("split", a=1, c=7), Do("attend", a=2, c=3)),
        ),
        {"x": 4, "y": 2},
    ),
    # The dot's result was constrained to the form after its reshard, not to that in which it is made.
    "gradient of a dot": (
        Description((IMAGE, COLUMNS, ROWS), (Do("dot", 4, 5, 5, 2), Do("unary", 0, 1)), "grad"),
        CUBE,
    ),
    "gradient of a strided conv": (
        Description((ROWS, COLUMNS, ((4, 8, 8), F32)), (Do("conv", 2, 0, 4, 3), Do("unary", 0, 1)), "grad"),
        CUBE,
    ),
    # The two branches wanted their one operand in two forms.
    "gradient of a branch": (
        Description(
            (((2, 4, 8, 4), F32), ((2, 8, 16), F32)),
            (Do("cond", 5, 5, 5, 1, (Do("broadcast", 4, 1, 3, 3),)), Do("broadcast", 4, 1, 3, 3)),
            "grad",
        ),
        {"x": 4, "y": 2},
    ),
    # The extents of two dims without elements were divided by one another.
    "a branch on nothing": (Description((((8, 0), F32),), (Do("cond"),)), {"y": 4}),
    "a loop over nothing": (Description((((0,), F32),), (Do("while"),)), {"y": 2}),
    # Two dims of one tensor were made one factor, and what moves between them was not seen.
    "a carry turned round": (
        Description(
            (((8, 8), F32), ((8, 16), F32), ((4, 8, 8), F32)),
            (Do("scan", 3, 7, 5, 1, (Do("transpose", b=2, c=1),)),),
        ),
        {"x": 8},
    ),
    # A gather was priced by its operand.
    "a sum of two gradients": (
        Description((((8, 8, 4), F32), ((8, 16), "int8")), (Do("dot", d=1), Do("dot")), "grad"),
        {"x": 2, "y": 4},
    ),
    # A loop takes in, and moves, the initial value of a carry that no pass reads.
    "a carry that no pass reads": (
        Description(
            (((6,), "bool"), ((6, 6, 3), "uint8"), ((3, 6, 6), F32)),
            (
                Do("logical", a=3, b=3, c=6, d=4),
                Do("transpose", a=7, b=6, c=5),
                Do("binary", a=3, b=5, c=6, d=1),
                Do(
                    "scan",
                    4,
                    4,
                    6,
                    4,
                    (Do("transpose", 2, 5, 4, 5), Do("outer_add", 2, 5, 0, 3), Do("outer_add", 5, 4, 1, 7)),
                ),
            ),
        ),
        {"x": 3, "y": 2},
    ),
    "carries that no pass of a mapped loop reads": (
        Description(
            (((4, 8, 8), "bool"), ((2, 4, 8, 4), F32), ((2, 4, 8, 4), F32), ((2, 4, 8, 4), "int32")),
            (Do("scan", 1, 2, 2, 1, (Do("map", a=2, body=(Do("unary", a=4, b=6, c=2),)),)), Do("unary", 5, 3, 7, 4)),
            "hvp",
        ),
        {"x": 4, "y": 2},
    ),
    "a donated carry that no pass reads": (
        Description(
            (((8,), "uint32"), ((8, 8, 4), F32)),
            (
                Do("scan", a=7, b=2, c=0, d=3, body=(Do("reduce", a=0, b=7),)),
                Do("scan", a=0, b=7, c=2, d=3, body=(Do("cumulative", a=7, b=2, d=3), Do("binary", 3, 1, 1, 7))),
            ),
            donated=(1,),
        ),
        {"x": 2, "y": 4},
    ),
    # Out of a loop that is unrolled XLA takes what no pass changes once for each copy of the body.
    "a constant of an unrolled loop": (
        Description(
            (((7,), "complex64"), ((10, 5), F32)),
            (Do("dot", c=5, d=4), Do("complex", b=5, c=3, d=4), Do("scan", a=2, b=5, c=4, d=7, body=(Do("dot"),))),
            "vmap",
        ),
        {"x": 5},
    ),
    # A remat outside of a gradient has no barrier: a second constraint in it made a second gather of the same tensor.
    "a remat beside another reader": (
        Description(
            (((9, 8), F32), ((8, 8), "bfloat16")),
            (Do("unary", a=3), Do("call", a=6, c=4, d=5, body=(Do("rev", c=1, d=1),)), Do("slice", a=5, b=5, d=7)),
        ),
        {"x": 4, "y": 2},
    ),
    # Partial results were to be combined bit by bit, which no collective does.
    "a reduction of bits": (Description((((8, 8, 4), "int8"),), (Do("reduce_any", c=4, d=1),)), {"y": 2}),
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_once_failed(name: str) -> None:
    assert failure_of(KNOWN[name]) is None


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def rematerialised(ws: jax.Array, x: jax.Array) -> jax.Array:
    """Its body reads the carry and the weights in several forms, and so does what is computed again."""
    layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w) @ w.T)
    return jax.lax.scan(lambda c, w: (layer(w, c), None), x, ws)[0].sum()


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2
    weights = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9))
    return (jnp.einsum("bhqk,bkhd->bqhd", weights, v) ** 2).sum()


def mirrored(x: jax.Array) -> jax.Array:
    """A value and its transpose, which no one spec splits alike."""
    wave = jnp.sin(x)
    return wave + wave.T


WRITTEN: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (jax.grad(attention, argnums=(0, 1, 2)), (normal(4, 8, 2, 4), normal(4, 8, 2, 4), normal(4, 8, 2, 4))),
    "a value and its transpose": (mirrored, (normal(16, 16),)),
    "remat in scan": (jax.grad(rematerialised), (normal(4, 8, 8), normal(16, 8))),
}


@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 2, "y": 2, "z": 2}], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_programs_written_by_hand(name: str, mesh: Mapping[str, int]) -> None:
    assert failure(*WRITTEN[name], mesh) is None


@pytest.mark.parametrize("method", ["nearest", "linear", "lanczos3"])
def test_gradient_of_resizing(method: str) -> None:
    """Its weights, one matrix per dim, are gathered in two steps, once where it runs forward and once backward."""

    def energy(x: jax.Array) -> jax.Array:
        return (jax.image.resize(x, (8, 4, 4, 4), method) ** 2).sum()

    assert failure(jax.grad(energy), (normal(8, 8, 8, 4),), {"x": 4, "y": 2}) is None


def test_what_a_branch_returns_moves_in_every_pass() -> None:
    """Branches hold what is in them, even where no pass of the loop around them changes it."""

    def body(c: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return c + x, jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, weights)

    weights = normal(4)
    graph = build_graph(trace(lambda xs: jax.lax.scan(body, jnp.zeros(4), xs), (normal(8, 4),)))
    (op,) = (op for op in graph.ops if op.kind == "branch_out")
    reach = outermost(graph)
    assert [lifted(graph, tensor, op.region, reach) for tensor in op.operands] == [(op.region, 1)] * 2


@pytest.mark.sample
@pytest.mark.parametrize("turn", range(10))
def test_random_programs(turn: int) -> None:
    @hypothesis.seed(turn)
    @hypothesis.settings(max_examples=15)
    @hypothesis.given(cases(most=4))
    def check(case: Case) -> None:
        if repr(case) not in passed:  # Hypothesis draws some a second time
            assert failure_of(case) is None
            passed.add(repr(case))

    passed: set[str] = set()
    check()
    jax.clear_caches()


@hypothesis.settings(max_examples=30)
@hypothesis.given(cases())
def test_a_case_is_the_python_that_it_is_printed_as(case: Case) -> None:
    assert eval(repr(case)) == case


@pytest.mark.slow
def test_every_op_is_made() -> None:
    """Drawn from several seeds: what Hypothesis draws from one is much alike."""
    made: set[str] = set()

    @hypothesis.settings(max_examples=125)
    @hypothesis.given(cases(most=4))
    def collect(case: Case) -> None:
        jax.make_jaxpr(case[0].function(made))(*case[0].example())

    for turn in range(12):
        hypothesis.seed(turn)(collect)()
    assert made == set(OPS)


@pytest.mark.sample
@pytest.mark.parametrize(
    ("fails", "simplest"),
    [
        (lambda case: "transpose" in case[0].kinds, (Do("transpose"),)),
        (lambda case: "scan" in case[0].kinds, (Do("scan", body=(Do("unary"),)),)),
        (lambda case: len(case[0].ops) > 2, (Do("unary"),) * 3),
    ],
    ids=["an op", "control flow", "a length"],
)
def test_what_fails_shrinks(fails: Callable[[Case], bool], simplest: tuple[Do, ...]) -> None:
    found = hypothesis.find(cases(), fails, settings=hypothesis.settings(max_examples=2000))
    assert found == (Description((((8, 16), F32),), simplest), {"x": 2})
