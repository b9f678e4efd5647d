"""Microbenchmarks by the compiler's schedule instead of a stopwatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from cost_models import Measured, Profile, load_profile, parse_topology, save_profile
from cost_models.calibrate import Body, Sizes, benchmarks, fitted
from planner.errors import ArgumentError, CompileError
from planner.verify.aot import unavailable_reason
from planner.verify.compiler_clock import CompilerClock, compiler_profile

needs_libtpu = pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "it is there")
SMALL = Sizes(
    matmuls=(64, 128),
    passes=(1 << 12, 1 << 14),
    vector=(1 << 12, 1 << 13),
    collectives=(1 << 12, 1 << 14),
    per_call=(1, 1, 1),
)


@needs_libtpu
def test_a_large_matmul_takes_about_its_share_of_the_peak() -> None:
    clock = CompilerClock(topology=parse_topology("v5e:2x2"))
    seconds = clock.seconds(lambda _, x: x @ x * (1 / 2048), (2048, 2048), "bfloat16", group=1, repeats=8)
    assert 0.3 < 2 * 2048**3 / seconds / clock.topology.chip.peak("bfloat16") <= 1.0


@needs_libtpu
def test_a_collective_takes_what_the_wires_allow() -> None:
    clock = CompilerClock(topology=parse_topology("v5e:2x2"))

    def body(_: Any, x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "group") * 0.5

    seconds = clock.seconds(body, (1 << 22,), "float32", group=2, repeats=4)
    assert seconds > 0.5 * (1 << 24) / clock.topology.chip.link_bytes_per_s


@needs_libtpu
def test_what_does_not_compile_is_said() -> None:
    clock = CompilerClock(topology=parse_topology("v5e:2x2"))
    with pytest.raises(CompileError, match=r"microbenchmark for v5e:2x2 did not compile \((oom|error)"):
        clock.seconds(lambda _, x: jnp.sort(x), (1 << 33,), "float32", group=1, repeats=1)


@pytest.mark.parametrize("name", ["h100:8", "cpu:8", "v5e:2x2*2"])
def test_other_topologies_have_no_cycles(name: str) -> None:
    with pytest.raises(ArgumentError, match="only schedules of TPU slices tell cycles"):
        compiler_profile(parse_topology(name))


@dataclass(frozen=True)
class _Stopped:
    """A clock that says what a machine of 1 TFLOP/s, 1 GB/s of memory and slow wires would."""

    count: int = 4

    def seconds(self, body: Body, shape: tuple[int, ...], dtype: str, *, group: int, repeats: int) -> float:
        assert repeats >= 1
        size = 4.0 * shape[0]
        if len(shape) == 2:
            return 2.0 * shape[0] ** 3 / 1e12
        return 1e-6 + size * group / 1e9


def test_any_clock_is_fitted_to_a_profile(tmp_path: Any) -> None:
    profile: Profile = fitted(_Stopped(), SMALL, machine="none", platform="tpu", device_kind="v5e")
    assert [row.dtype for row in profile.matmuls] == ["float32", "bfloat16"]
    assert profile.matmuls[0].fit.seconds_per_unit == pytest.approx(1e-12)
    assert profile.elementwise.seconds_per_unit == pytest.approx(0.5e-9)
    assert len(profile.collectives) * len(SMALL.collectives) + 8 == benchmarks(SMALL, 4)
    save_profile(profile, tmp_path / "profile.json")
    assert load_profile(tmp_path / "profile.json") == profile
    model = Measured(profile=profile, topology=parse_topology("v5e:2x2"))
    assert model.compute_seconds(
        kind="dot_general", engine="matrix", dtype="bfloat16", flops=jnp.asarray([1e12]), bytes=jnp.asarray([0.0])
    )[0] == pytest.approx(1.0, rel=1e-3)
