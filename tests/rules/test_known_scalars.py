"""Kernels that look up constants, such as splash attention its mask: what they work follows from these."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from cost_models import CHIPS
from planner.program.jaxpr.bodies import equations_of, opened
from planner.program.jaxpr.pallas.grid_tables import bodies_of
from planner.program.jaxpr.pallas.known_scalars import with_estimates
from planner.program.jaxpr.pallas.pallas_calls import pallas_call_of
from planner.program.jaxpr.remat.residuals import steps_of
from planner.rules.kernels.pallas_kernel import call_work
from planner.transforms.remat_prices import step_flops, step_seconds

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # from JAX 0.12 on they say that they will move
    splash, masks = (
        importlib.import_module(f"jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_{name}")
        for name in ("kernel", "mask")
    )


def causal_splash(length: int) -> Callable[[jax.Array], Any]:
    """Splash attention of two heads under a causal mask, which the kernel looks up, in blocks of 128."""
    mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * 2)
    kernel: Any = splash.make_splash_mha(mask, head_shards=1, q_seq_shards=1)
    return lambda q: kernel(q, q, q)


def test_an_estimate_says_which_operations_are_exponentials() -> None:
    traced = jax.make_jaxpr(causal_splash(1024))(jax.ShapeDtypeStruct((2, 1024, 128), jnp.float32))
    call = next(pallas_call_of(eqn.params) for eqn in equations_of(traced) if eqn.primitive.name == "pallas_call")
    work = call_work(call)
    assert isinstance(work.flops, float)
    estimate = call.estimated(work.flops, work.exponentials, 1.0).params["cost_estimate"]
    assert estimate.transcendentals == int(work.exponentials) > 0
    assert estimate.flops + estimate.transcendentals == int(work.flops)


def _in_a_loop(attention: Callable[..., Any], q: jax.Array) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, x: attention(x), q)


def _in_a_shard_map(attention: Callable[..., Any], q: jax.Array) -> Any:
    mesh = jax.sharding.AbstractMesh((1,), ("x",))
    return jax.shard_map(attention, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)(q)


@pytest.mark.parametrize("around", [lambda attention, q: attention(q), _in_a_loop, _in_a_shard_map])
def test_a_kernel_is_counted_by_the_constants_that_it_looks_up(around: Callable[..., Any]) -> None:
    q = jax.ShapeDtypeStruct((2, 1024, 128), jnp.float32)
    traced = jax.make_jaxpr(partial(around, causal_splash(1024)))(q)
    (call,) = _calls(with_estimates(traced))
    pairs, block = 2 * 36, 128 * 128  # blocks on and below the diagonal, of 2 * 64
    estimate = call.params["cost_estimate"]
    assert estimate.flops == pytest.approx(4 * pairs * block * 128, rel=0.05)
    assert estimate.transcendentals == 2 * pairs * block  # of scores, and of what scales the blocks before
    # Queries and results once, keys and values for every block that is left but where the next one is the same.
    assert estimate.bytes_accessed < 4 * 128 * (2 * 2 * 1024 + 2 * pairs * 128) * 1.1


def _calls(jaxpr: Any) -> list[Any]:
    found: list[Any] = []
    for eqn in opened(jaxpr).eqns:
        if eqn.primitive.name == "pallas_call":
            found.append(pallas_call_of(eqn.params))
        for body in bodies_of(eqn) if eqn.primitive.name != "pallas_call" else ():
            found += _calls(body)
    return found


def test_a_program_without_such_kernels_stays_the_same() -> None:
    def doubled(x: jax.Array) -> jax.Array:
        def kernel(x: Any, out: Any) -> None:
            out[...] = 2 * x[...]

        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    traced = jax.make_jaxpr(doubled)(jnp.ones((8, 128)))
    assert with_estimates(traced) is traced


def test_kernels_are_priced_where_values_are_saved() -> None:
    traced = jax.make_jaxpr(causal_splash(1024))(jax.ShapeDtypeStruct((2, 1024, 128), jnp.float32))
    steps = [step for eqn in with_estimates(traced).eqns for step in steps_of(eqn, 1.0) if step.kind == "pallas_call"]
    chip = CHIPS["v5e"]
    flops = 4 * 2 * 36 * 128**3
    assert [step_flops(step) for step in steps] == [pytest.approx(flops, rel=0.05)]
    rate = chip.peak("float32", "matrix") * chip.efficiency("float32") * chip.attention_efficiency
    assert step_seconds(steps[0], chip) >= flops / rate
