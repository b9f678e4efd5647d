"""The plan of a program does not depend on the checkpoints that it is written with."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import planner
from tests.transforms.checkpoints import CHECKPOINTS, step_of

LAYERS, WIDTH, BATCH = 3, 1024, 16384
LIMITS = {"all fits": 1e9, "little fits": 250e6}
"""Bytes of a device of four: with the first everything can be saved, with the second hardly more than what layers carry."""
ALIKE = 1.01
WRITTEN = [name for name in CHECKPOINTS if name != "none"]


def _layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
    h = x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
    h = checkpoint_name(jax.nn.gelu(h @ w["up"]), "mixed")
    return x + jnp.tanh(h @ w["down"]), None


def _arguments() -> Any:
    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    return {"up": array(LAYERS, WIDTH, 2 * WIDTH), "down": array(LAYERS, 2 * WIDTH, WIDTH)}, array(BATCH, WIDTH)


@cache
def _planned(checkpoint: str, *, scanned: bool, limit: str) -> planner.Plan:
    return planner.plan(
        step_of(CHECKPOINTS[checkpoint](_layer), LAYERS, scanned=scanned),
        _arguments(),
        topology="v5e:2x2",
        mesh={"x": 4},
        memory_limit=LIMITS[limit],
        options=planner.Options(check="never"),
    )


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(checkpoint=st.sampled_from(WRITTEN), scanned=st.booleans(), limit=st.sampled_from(list(LIMITS)))
def test_plans_do_not_depend_on_checkpoints(checkpoint: str, scanned: bool, limit: str) -> None:
    seconds = [_planned(name, scanned=scanned, limit=limit).predicted.seconds for name in ("none", checkpoint)]
    assert max(seconds) <= ALIKE * min(seconds)


def test_the_limits_make_a_difference() -> None:
    plans = [_planned("full", scanned=True, limit=limit) for limit in LIMITS]
    assert plans[0].predicted.flops < 0.9 * plans[1].predicted.flops
