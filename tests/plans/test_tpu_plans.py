"""Plans before the real TPU compiler: what it makes of them is what they promised. Skips where libtpu is missing."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from benchmarks.models.base import Model
from benchmarks.models.gpt import GPTConfig, gpt
from benchmarks.models.llama import LlamaConfig, llama
from benchmarks.models.vit import ViTConfig, vit
from planner.verify.aot import unavailable_reason

pytestmark = pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")

NEVER = planner.Options(check="never")
PEAK_TOLERANCE = 0.25
COLLECTIVE_TOLERANCE = 0.10
ON_CHIP_BYTES = 128 * 2**20
"""Vector memory of a v5e (https://jax-ml.github.io/scaling-book/tpus): what lies there is not in the compiler's peak."""

MODELS: dict[str, Callable[[], Model]] = {
    "gpt": lambda: gpt(GPTConfig(width=512, layers=4, heads=8, vocabulary=16000, sequence=512), batch=64, size="real"),
    "llama": lambda: llama(
        LlamaConfig(width=512, layers=4, heads=8, kv_heads=8, ffn=2048, vocabulary=16000, sequence=512),
        batch=64,
        size="real",
    ),
    "vit": lambda: vit(
        ViTConfig(width=768, layers=2, heads=12, ffn=3072, patch=16, image=224, classes=1000, dtype="bfloat16"),
        batch=128,
        size="real",
    ),
}


@pytest.mark.parametrize("name", ["gpt", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "vit"))])
def test_the_tpu_compiler_finds_what_was_predicted(name: str) -> None:
    model = MODELS[name]()
    plan = planner.plan(model.fn, model.args, topology="v5e:2x2", donate_argnums=model.donate_argnums, options=NEVER)
    found = plan.verify()
    for part in (found.memory.arguments, found.memory.outputs, found.memory.aliased):
        assert part[0] == pytest.approx(part[1], rel=0.01, abs=1024)
    peak = found.memory.peak
    assert peak[1] <= (1 + PEAK_TOLERANCE) * peak[0]
    assert peak[0] <= (1 + PEAK_TOLERANCE) * peak[1] + ON_CHIP_BYTES
    assert found.collectives.predicted_bytes == pytest.approx(
        found.collectives.compiled_bytes, rel=COLLECTIVE_TOLERANCE
    )
    assert found.numerics.ok is None


def test_a_plan_whose_weights_are_split_over_all_devices_passes_its_check() -> None:
    """Their gradients are scattered over a whole slice, which the compiler does as it is told to: so it is promised."""

    def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        up, down = w.astype(h.dtype)
        return jnp.tanh(h @ up) @ down + h, None

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        def loss(weights: jax.Array) -> jax.Array:
            return (jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2).mean()

        return weights - 0.1 * jax.grad(loss)(weights)

    plan = planner.plan(
        step,
        (jax.ShapeDtypeStruct((4, 2, 2048, 2048), jnp.float32), jax.ShapeDtypeStruct((65536, 2048), jnp.bfloat16)),
        topology="v5e:4x4",
        mesh={"x": 16},
        pins={"weights": P(None, None, None, "x"), "x": P("x")},
        donate_argnums=0,
        options=planner.Options(check="always"),
    )
    sums = [c for c in plan.predicted.collectives if (c.kind, c.axes) == ("reduce-scatter", ("x",))]
    assert sum(c.bytes * c.count for c in sums) > 1e7
    assert {check.verdict for check in plan.checked if check.what != "numerics"} == {"ok"}
    assert not any("suspicious" in note for note in plan.notes)


@pytest.mark.slow
def test_the_peak_of_a_small_program_is_bounded_from_above() -> None:
    """Much of it lies on the chip, which the prediction does not model: it is too high there, never too low."""
    config = ViTConfig(width=512, layers=2, heads=8, ffn=2048, patch=16, image=128, classes=1024, dtype="bfloat16")
    model = vit(config, batch=256, size="real")
    plan = planner.plan(model.fn, model.args, topology="v5e:2x2", donate_argnums=model.donate_argnums, options=NEVER)
    predicted, compiled = plan.verify().memory.peak
    assert compiled <= (1 + PEAK_TOLERANCE) * predicted
    assert predicted <= (1 + PEAK_TOLERANCE) * compiled + ON_CHIP_BYTES


def test_a_plan_that_cannot_fit_is_told_by_the_compiler() -> None:
    """Pinned whole, 2 x 10.7 GB do not fit into 15.75 GiB; the planner was told that they may."""
    weights = jax.ShapeDtypeStruct((52000, 51200), jnp.float32)
    plan = planner.plan(
        lambda w, v: w @ v,
        (weights, jax.ShapeDtypeStruct((51200, 52000), jnp.float32)),
        topology="v5e:2x4",
        mesh={"data": 8},
        memory_limit=1e12,
        pins={"w": P(), "v": P()},
        options=NEVER,
    )
    found = plan.verify()
    assert found.memory.ok is False
    assert found.memory.peak[1] > 20e9
    assert not found.ok


@pytest.mark.slow
def test_a_memory_limit_holds_in_the_compiled_program() -> None:
    """With less than the unlimited plan takes, another plan is found, and it keeps the limit when compiled."""
    model = MODELS["gpt"]()
    free = planner.plan(model.fn, model.args, topology="v5e:2x2", donate_argnums=model.donate_argnums, options=NEVER)
    limit = 0.95 * free.predicted.peak_bytes
    tight = planner.plan(
        model.fn,
        model.args,
        topology="v5e:2x2",
        memory_limit=limit,
        donate_argnums=model.donate_argnums,
        options=NEVER,
    )
    assert tight.predicted.peak_bytes <= limit
    assert tight.predicted.seconds >= 0.98 * free.predicted.seconds, "what gains less than 2 % is not looked for"
    found = tight.verify()
    assert found.memory.peak[1] <= (1 + PEAK_TOLERANCE) * limit


def test_complex_numbers_are_summed_over_devices_by_all_reduce() -> None:
    """The compiler gathers the terms of complex sums, and adds those of all devices up on each of them."""

    def step(phases: jax.Array, x: jax.Array) -> jax.Array:
        return jax.grad(lambda phases: jnp.abs(jnp.exp(1j * phases) * x).sum())(phases)

    plan = planner.plan(
        step,
        (jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((64, 512, 512), jnp.complex64)),
        topology="v5e:2x2",
        mesh={"x": 4},
        pins={"phases": P(), "x": P("x"), "out": P()},
        options=NEVER,
    )
    found = plan.verify().collectives
    assert found.predicted_bytes == pytest.approx(found.compiled_bytes, rel=COLLECTIVE_TOLERANCE)
