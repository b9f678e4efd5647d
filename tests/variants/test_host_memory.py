"""Values that are saved for the backward pass wait in the memory of hosts, where that is asked for or gains."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

import planner
from pbqp.deadline import Deadline
from planner.errors import ArgumentError, InfeasibleError, PinError
from planner.options import Options
from planner.transforms.remat_choice import Front
from planner.variants import variant_search
from planner.variants.microbatch_search import Counts
from planner.variants.variant_result import VariantSearch

LAYERS = 4


def _train_step(policy: Any = None) -> Any:
    """A train step of scanned layers whose hidden values are named; with a policy they are checkpointed."""

    def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        hidden = checkpoint_name(jax.nn.gelu(x @ w["up"]), "hidden")
        return x + hidden @ w["down"], None

    def loss(params: Any, x: jax.Array) -> jax.Array:
        body = layer if policy is None else jax.checkpoint(layer, policy=policy)
        return jnp.mean(jax.lax.scan(body, x, params)[0] ** 2)

    def step(params: Any, x: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


def _arguments(width: int = 32, batch: int = 64, dtype: Any = jnp.float32, *, concrete: bool = True) -> tuple[Any, Any]:
    def make(key: jax.Array) -> tuple[Any, Any]:
        up, down, x = jax.random.split(key, 3)
        params = {
            "up": 0.1 * jax.random.normal(up, (LAYERS, width, 4 * width), dtype),
            "down": 0.1 * jax.random.normal(down, (LAYERS, 4 * width, width), dtype),
        }
        return params, jax.random.normal(x, (batch, width), dtype)

    return make(jax.random.key(0)) if concrete else jax.eval_shape(make, jax.random.key(0))


@pytest.mark.parametrize("microbatches", [1, 2])
def test_what_waits_on_hosts_computes_the_same(microbatches: int, tmp_path: Path) -> None:
    step, args = _train_step(), _arguments()
    options = Options(offload={"*": "host"}, microbatches=microbatches, check="always")
    plan = planner.plan(step, args, donate_argnums=0, options=options)
    assert all(check.ok for check in plan.checked)
    assert any(plan.decision.form.offloaded)
    assert plan.predicted.offloaded_bytes > 0
    assert "host memory" in str(plan)
    assert any("wait in the memory of its host" in note for note in plan.notes)
    plan.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json").bind(step, args)
    assert again.decision.form == plan.decision.form
    assert again.verify(*args).numerics.ok


def test_policies_of_programs_that_offload_are_understood() -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    step, args = _train_step(policy), _arguments()
    plan = planner.plan(step, args, options=Options(remat="as written", check="always", microbatches=1))
    assert all(check.ok for check in plan.checked)
    hidden = LAYERS * 64 * 4 * 32 * 4
    assert plan.predicted.offloaded_bytes in [hidden / parts for parts in (1, 2, 4, 8)]


def test_memory_of_devices_does_not_hold_what_waits_on_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LAYERS", 16)
    step, args = _train_step(), _arguments(1024, 8192, jnp.bfloat16, concrete=False)
    never, host = (
        planner.plan(
            step,
            args,
            topology="v5e:2x2",
            mesh={"x": 4},
            pins={"x": PartitionSpec("x")},
            options=Options(offload=offload, remat="none", check="never", microbatches=1),
        )
        for offload in ("never", {"hidden": "host"})
    )
    one = 8192 / 4 * 4 * 1024 * 2
    assert host.predicted.offloaded_bytes == 16 * one
    # Some slices are on their way.
    assert 12 * one <= never.predicted.peak_bytes - host.predicted.peak_bytes <= 16 * one


def test_hosts_are_used_where_nothing_fits_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LAYERS", 8)
    step, args = _train_step(), _arguments(8192, 32768, jnp.bfloat16, concrete=False)
    asked: dict[str, Any] = {"topology": "v5e:2x2", "donate_argnums": 0, "memory_limit": "7.6GB"}
    with pytest.raises(InfeasibleError):
        planner.plan(step, args, **asked, options=Options(offload="never", check="never", microbatches=1))
    auto = planner.plan(step, args, **asked, options=Options(offload="auto", check="never", microbatches=1))
    assert any(auto.decision.form.offloaded)
    assert auto.decision.compiler_options["xla_tpu_pcie_bandwidth_multiplier"] == "0.1"
    assert 0 < auto.predicted.offloaded_bytes <= 0.8 * 48e9


def test_hosts_are_used_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LAYERS", 8)
    step, args = _train_step(), _arguments(8192, 32768, jnp.bfloat16, concrete=False)
    never, auto = (
        planner.plan(
            step,
            args,
            topology="v5e:2x2",
            donate_argnums=0,
            memory_limit="11.2GB",
            options=Options(offload=offload, check="never", microbatches=1),
        )
        for offload in ("never", "auto")
    )
    assert not never.decision.form.offloaded
    assert any(auto.decision.form.offloaded)
    assert auto.predicted.seconds < 0.95 * never.predicted.seconds
    assert auto.decision.compiler_options["xla_tpu_pcie_bandwidth_multiplier"] == "0.1"
    assert 0 < auto.predicted.offloaded_bytes <= 0.8 * 48e9


@pytest.mark.parametrize("offload", ["auto", "never"])
@pytest.mark.parametrize("gone", [0.0, 900.0])
def test_time_is_left_for_hosts(offload: Any, gone: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried before them ends sooner, but not at once where much time is gone; without them it has all of it."""
    ends: list[float] = []
    started = time.monotonic()

    def after(seconds: float) -> Deadline:
        return Deadline(started + 100.0, started - gone)

    class Leaps(Counts):
        def __init__(self, search: VariantSearch, front: Front | None) -> None:
            super().__init__(search, front)
            self.asked_of = search

        def of_a_leap(self) -> None:
            ends.append(self.asked_of.deadline.end)

    def then(search: VariantSearch, best: Any, counts: Counts) -> Any:
        ends.append(search.deadline.end)
        return best

    monkeypatch.setattr(Deadline, "after", after)
    monkeypatch.setattr(variant_search, "Counts", Leaps)
    monkeypatch.setattr(variant_search, "with_host_memory", then)
    options = Options(offload=offload, check="never")
    planner.plan(_train_step(), _arguments(), topology="v5e:2x2", options=options)
    assert len(ends) == 2
    assert (ends[0] < ends[1]) == (offload == "auto")
    assert ends[0] > started


def test_what_no_host_helps_is_refused() -> None:
    step, args = _train_step(), _arguments(8192, 32768, jnp.bfloat16, concrete=False)
    with pytest.raises(InfeasibleError):
        planner.plan(step, args, topology="v5e:2x2", memory_limit="2GB", options=Options(check="never"))


def test_more_than_hosts_have_is_refused() -> None:
    step, args = _train_step(), _arguments()
    options = Options(offload={"hidden": "host"}, remat="none", host_memory_limit="1kB", microbatches=1)
    with pytest.raises(InfeasibleError, match="of hosts for each device, and the limit is 1 kB; name fewer"):
        planner.plan(step, args, options=options)


def test_what_options_say_is_checked() -> None:
    with pytest.raises(PinError, match="offload"):
        planner.plan(_train_step(), _arguments(), options=Options(offload={"nothing": "host"}))
    for wrong in ("always", {"hidden": "device"}, {}):
        with pytest.raises(ArgumentError, match="'auto', 'never', or a mapping"):
            Options(offload=wrong)  # pyright: ignore
    with pytest.raises(ArgumentError, match="40GB"):
        Options(host_memory_limit="much")
