"""Which matmuls run beside a collective in the middle of a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from cost_models import CHIPS
from planner.compiler.analysis import Model, model_of
from planner.compiler.targets.table import compiler_of
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

WIDTH, ROWS = 1024, 8192
FLOPS = 2.0 * ROWS * WIDTH**2
"""Of one product of the rows and a matrix."""

Body = Callable[[Any, Any, Any, Any], Any]


def shape(*extents: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(extents, jnp.bfloat16)


def model(fn: Body, chip: str = "h100") -> Model:
    graph = build_graph(trace(fn, (shape(ROWS, WIDTH), *(shape(WIDTH, WIDTH),) * 3)))
    return model_of(graph, pinned_outputs=set(), kept=set(), compiler=compiler_of(CHIPS[chip]))


def looped(body: Body, chip: str = "h100") -> Model:
    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        return lax.scan(lambda x, _: (body(x, u, v, w), None), x, None, length=4)[0]

    return model(fn, chip)


def hidden_of_products(model: Model) -> list[float]:
    """By product of the loop the most flops beside which its result moves to those that read it."""
    graph = model.graph
    flops = [
        [model.savings.overlap_flops.get(t.id, 0.0) for t in model.flow.transfers if t.tensor == op.results[0]]
        for op in graph.of_kinds(("dot_general",))
    ]
    return [max(of, default=0.0) for of in flops]


def _two_ways(x: Any, u: Any, v: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ u) @ w) @ w + x @ v


def test_what_a_product_makes_moves_beside_one_that_needs_none_of_it() -> None:
    found = hidden_of_products(looped(_two_ways))
    # The first moves beside the last, which waits for nothing; the second feeds a product behind which there is none.
    assert found[0] == pytest.approx(FLOPS)
    assert found[1:] == [0.0, 0.0, 0.0]


def test_what_only_gradients_of_weights_read_is_waited_for() -> None:
    """They run last, and what they read moves before them."""

    def body(x: Any, u: Any, v: Any, w: Any) -> Any:
        made = jnp.tanh(x @ u)
        return jnp.tanh(x @ v) @ w, made.T @ x

    def fn(x: Any, u: Any, v: Any, w: Any) -> Any:
        return lax.scan(lambda x, _: body(x, u, v, w), x, None, length=4)

    assert hidden_of_products(model(fn))[0] == 0.0


def test_in_a_chain_nothing_runs_beside_anything() -> None:
    assert hidden_of_products(looped(lambda x, u, v, w: jnp.tanh(jnp.tanh(x @ u) @ v) @ w)) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("chip", ["v5e", "v5p", "v6e"])
def test_tpus_run_no_activations_beside_matmuls(chip: str) -> None:
    assert not hidden_of_products(looped(_two_ways, chip))[0]


def test_values_that_could_move_at_once_share_what_runs_beside_them() -> None:
    """The more of them there are, the less of a product hides each."""

    def hidden(count: int) -> float:
        def body(x: Any, u: Any, v: Any, w: Any) -> Any:
            chain = x
            for _ in range(count):
                chain = jnp.tanh(chain @ u)
            return chain + x @ v

        return hidden_of_products(looped(body))[0]

    assert hidden(3) == pytest.approx(FLOPS)
    assert 0 < hidden(12) < FLOPS / 4


def test_outside_of_loops_nothing_is_promised() -> None:
    assert not any(hidden_of_products(model(_two_ways)))
