"""Plans before the real GPU compiler: what it makes of them is what they promised. Skips where it is not installed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from cost_models import parse_topology
from planner.compiler.emission.options import plan_options
from planner.verify.aot import unavailable_reason
from tests.small import NEVER

NEEDS_CUDA = pytest.mark.skipif(
    bool(unavailable_reason("cuda")), reason=unavailable_reason("cuda") or "the CUDA plugin is there"
)


def dense(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.nn.relu(x @ w).sum(axis=0)


ARGS = (jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16), jax.ShapeDtypeStruct((4096, 8192), jnp.bfloat16))


@NEEDS_CUDA
@pytest.mark.parametrize(("topology", "mesh"), [("h100:2x8", {"data": 4, "model": 4}), ("a100:4", {"x": 2, "y": 2})])
def test_a_plan_for_gpus_is_compiled_without_one(topology: str, mesh: dict[str, int]) -> None:
    names = list(mesh)
    plan = planner.plan(
        dense, ARGS, topology=topology, mesh=mesh, pins={"x": P(names[0]), "w": P(None, names[1])}, options=NEVER
    )
    found = plan.verify()
    assert found.numerics.ok is None
    assert found.collectives.ok
    assert not found.collectives.differs
    assert found.collectives.by_kind is not None
    assert all(promised == made for promised, made in found.collectives.by_kind.values())
    for part in (found.memory.arguments, found.memory.outputs):
        assert part[0] == pytest.approx(part[1], rel=0.01, abs=1024)


@NEEDS_CUDA
def test_a_plan_that_does_not_fit_into_a_gpu_is_told() -> None:
    wide = (jax.ShapeDtypeStruct((200_000, 100_000), jnp.float32), jax.ShapeDtypeStruct((100_000, 8), jnp.float32))
    plan = planner.plan(
        lambda x, w: x @ w, wide, topology="h100:8", mesh={"x": 8}, pins={"x": P()}, memory_limit=1e12, options=NEVER
    )
    found = plan.verify()
    assert found.memory.ok is False
    assert "it does not fit: peak" in found.memory.reason
    assert found.memory.peak[1] > 8e10


@NEEDS_CUDA
def test_what_the_compiler_ends_in_an_error_of_is_compiled_as_is_known_to_help() -> None:
    """Attention over an odd number of positions, in a loop."""

    def layer(x: jax.Array, w: dict[str, jax.Array]) -> tuple[jax.Array, None]:
        q, k, v = (jnp.einsum("bsd,dhe->bshe", x, w[n].astype(x.dtype)) for n in "qkv")
        scores = jnp.einsum("bqhe,bshe->bhqs", q, k).astype(jnp.float32)
        a = jax.nn.softmax(scores, -1).astype(x.dtype)
        return x + jnp.einsum("bhqs,bshe,hed->bqd", a, v, w["o"].astype(x.dtype)), None

    def step(params: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        def loss(p: dict[str, jax.Array]) -> jax.Array:
            return (jax.lax.scan(jax.checkpoint(layer), x, p)[0].astype(jnp.float32) ** 2).mean()

        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params))

    weights = {n: jax.ShapeDtypeStruct((4, 64, 4, 16), jnp.float32) for n in "qkv"}
    weights["o"] = jax.ShapeDtypeStruct((4, 4, 16, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((64, 127, 64), jnp.bfloat16)
    plan = planner.plan(step, (weights, x), topology="h100:8", mesh={"x": 4}, options=planner.Options(check="always"))
    assert plan.checked[0].ok
    assert [c for c in plan.checked if c.ok is False] == []
    others = plan.decision.compiler_options.items() - plan_options(parse_topology("h100:8")).items()
    assert others in (set(), {("xla_gpu_enable_triton_gemm", "False")})


def test_a_chip_without_a_compiler_is_not_checked_and_that_is_said() -> None:
    found = planner.plan(dense, ARGS, topology="mi300x:8", mesh={"x": 8}, options=NEVER).verify()
    assert (found.collectives.ok, found.memory.ok, found.ok) == (None, None, False)
    assert "no compiler for mi300x" in found.collectives.reason
