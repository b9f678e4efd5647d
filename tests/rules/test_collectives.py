"""What runs at the same time as a permute of a `shard_map`: one the other way, and products that do not wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from planner.program.graph import Body
from planner.program.jaxpr.flatten import build_graph
from planner.program.trace import trace
from planner.rules.collectives import beside_permutes, collectives_of

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
FORTH = [(n, (n + 1) % 4) for n in range(4)]
BACK = [(n, (n - 1) % 4) for n in range(4)]
SWAP = [(0, 1), (1, 0), (2, 3), (3, 2)]


def sent(x: Any, way: Sequence[tuple[int, int]], axis: str = "i") -> Any:
    return jax.lax.ppermute(x, axis, way)


def body_of(fn: Any) -> Body:
    mesh = AbstractMesh((4, 4), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    (op,) = (op for op in build_graph(trace(mapped, (X,))).ops if op.body is not None)
    assert op.body is not None
    return op.body


def two_way(fn: Any) -> list[bool]:
    return [own.two_way for own in collectives_of(body_of(fn))]


def test_permutes_either_way_run_at_the_same_time() -> None:
    assert two_way(lambda x: sent(x, FORTH) + sent(x, BACK)) == [True, True]
    assert two_way(lambda x: sent(sent(x, BACK), BACK) + sent(x, FORTH)) == [True, False, True]


def test_permutes_of_which_one_needs_the_other_do_not() -> None:
    assert two_way(lambda x: sent(jnp.tanh(sent(x, FORTH)), BACK)) == [False, False]


def test_permutes_over_the_same_wires_the_same_way_do_not() -> None:
    assert two_way(lambda x: sent(x, FORTH) + sent(jnp.tanh(x), FORTH)) == [False, False]
    assert two_way(lambda x: sent(x, SWAP) + sent(jnp.tanh(x), SWAP)) == [False, False]
    assert two_way(lambda x: sent(x, FORTH) + sent(x, BACK, "j")) == [False, False]
    assert two_way(lambda x: sent(x, FORTH)[:4] + sent(x[:4], BACK)) == [False, False]


def test_products_that_neither_wait_for_a_permute_nor_are_sent_run_beside_it() -> None:
    def matmul(x: Any) -> Any:
        return x.T @ x

    def beside(fn: Any) -> int:
        return len(beside_permutes(body_of(fn).graph))

    assert beside(lambda x: matmul(x)[:16] + sent(x, FORTH)) == 1
    assert beside(lambda x: matmul(sent(x, FORTH))) == 0
    assert beside(lambda x: sent(matmul(x), FORTH)) == 0
    assert beside(matmul) == 0
