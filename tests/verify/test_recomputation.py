"""What a plan computes again is in the compiled program, or it is told at which lines the compiler has undone it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.options import Options, Remat
from planner.prediction import Products
from planner.verify.aot import unavailable_reason
from planner.verify.compared_recomputation import compare_recomputation
from planner.verify.hlo.products import read_products
from tests.transforms.loops import PROGRAMS, arguments

MESH = {"x": 2, "y": 2}
WIDE = jax.ShapeDtypeStruct((256, 512), jnp.float32)
ROWS = jax.ShapeDtypeStruct((512, 256), jnp.float32)


def _layers(*, prevent_cse: bool) -> Any:
    """The gradient of three layers written out, each with a checkpoint."""

    def block(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) @ w.T

    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in ws:
            x = jax.checkpoint(block, prevent_cse=prevent_cse)(x, w)
        return (x**2).mean()

    return jax.grad(loss)


def _planned(fn: Any, args: Any, how: Remat, **more: Any) -> planner.Plan:
    return planner.plan(fn, args, mesh=MESH, options=Options(check="never", remat=how), **more)


@pytest.mark.parametrize("how", ["as written", "full"])
def test_what_is_compiled_is_what_is_computed_again(how: Remat) -> None:
    plan = _planned(PROGRAMS["checkpointed"](), arguments(), how, devices=jax.devices()[:4])
    found = plan.verify()
    assert found.recomputation is not None
    assert found.recomputation.ok
    assert found.recomputation.compiled == pytest.approx(found.recomputation.predicted)
    assert 0 < found.recomputation.again < 0.5 * found.recomputation.predicted
    assert "recomputation: as planned. products of matrices" in str(found)


def test_nothing_is_told_where_nothing_is_computed_again() -> None:
    plan = _planned(PROGRAMS["checkpointed"](), arguments(), "none", devices=jax.devices()[:4])
    assert plan.verify().recomputation is None
    matmul = _planned(lambda x: x @ x.T, (jnp.ones((8, 8)),), "auto", devices=jax.devices()[:4])
    assert "recomputation" not in str(matmul.verify())


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason="needs libtpu")
@pytest.mark.parametrize("prevent_cse", [True, False])
def test_what_the_compiler_merges_is_named(prevent_cse: bool) -> None:
    plan = _planned(_layers(prevent_cse=prevent_cse), ([WIDE] * 3, ROWS), "as written", topology="v5e:2x2")
    found = plan.verify().recomputation
    assert found is not None
    assert found.ok is prevent_cse
    assert all("test_recomputation.py:" in line for line in found.undone)
    assert bool(found.undone) is not prevent_cse


def test_lines_are_held_against_what_is_promised_there() -> None:
    promised = [
        Products(line="", flops=100.0, again=0.0),
        Products(line="a.py:1", flops=40.0, again=10.0),
        Products(line="a.py:2", flops=40.0, again=10.0),
        Products(line="a.py:3", flops=1.0, again=0.5),
    ]
    compiled = {"b.py:9": 100.0, "a.py:1": 40.0, "a.py:2": 30.0}
    found = compare_recomputation(promised, compiled, "tpu")
    assert found is not None
    assert (found.ok, found.undone) == (False, ("a.py:2",))
    assert (found.predicted, found.again, found.compiled) == (181.0, 20.5, 170.0)
    assert "at a.py:2" in found.reason
    assert compare_recomputation(promised[:1], compiled, "tpu") is None
    for told in (compare_recomputation(promised, None, "tpu"), compare_recomputation(promised, compiled, "gpu")):
        assert told is not None
        assert told.ok is None


def test_products_are_read_by_line_with_the_passes_of_their_loops() -> None:
    def looped(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.tanh(x @ w), x) @ w

    square = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    found = read_products(jax.jit(looped).lower(square, square).compile().as_text())
    assert found is not None
    assert sum(found.values()) == 6 * 2 * 64**3
    assert all("test_recomputation.py:" in line for line in found)
