"""Random bits of Threefry are computed by the kernels that read them on a TPU, and stored by no one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.fusion.kernels import kernels_of
from planner.compiler.model import CompilerModel
from planner.compiler.program import compiled
from planner.compiler.targets.table import CPU, GPU, TPU
from planner.decisions.groups import group_ops
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

X = jax.ShapeDtypeStruct((1024, 512), jnp.float32)
W = jax.ShapeDtypeStruct((512, 512), jnp.float32)


def _dropped(x: Any, w: Any, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x @ w, 0.0)


@pytest.mark.parametrize(
    ("compiler", "keys", "stored"),
    [
        (TPU, "threefry2x32", False),
        # Keys of other kinds have bits that an op of XLA's draws.
        (TPU, "rbg", True),
        (GPU, "threefry2x32", True),
        (CPU, "threefry2x32", True),
    ],
)
def test_only_a_tpu_computes_bits_of_threefry_where_they_are_read(
    compiler: CompilerModel, keys: str, stored: bool
) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0, impl=keys))
    graph = build_graph(trace(_dropped, (X, W, key)), while_trips=1.0)
    program = compiled(graph, group_ops(graph), compiler)
    (bits,) = (op.results[0] for op in graph.of_kinds(("random_bits",)))
    assert program.materialized[bits] == stored


def test_random_bits_read_after_a_matmul_are_drawn_in_its_kernel() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    graph = build_graph(trace(lambda x, w, key: _dropped(x, w, key) @ w, (X, W, key)), while_trips=1.0)
    kernels = kernels_of(compiled(graph, group_ops(graph), TPU))
    (drawn,) = (op.id for op in graph.of_kinds(("random_bits",)))
    assert drawn in kernels.of_matmuls
    assert [graph.ops[kernel.op].kind for of in kernels.of_group.values() for kernel in of] == ["dot_general"] * 2
