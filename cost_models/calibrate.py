"""Calibration: microbenchmarks of the devices at hand, fitted to a `Profile`.

Every benchmark runs on all devices at once, since virtual devices share their host's cores: matmuls and elementwise
passes on one shard per device, a collective over all groups of its size. The work is repeated in a loop inside one
jitted program, so that the cost of starting a program is left out.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cost_models.collectives import COLLECTIVE_KINDS
from cost_models.errors import CostModelError
from cost_models.fitting import fit_line
from cost_models.profile import CollectiveFit, Fit, MatmulFit, Profile

Body = Callable[[Any, jax.Array], jax.Array]

MATMUL_SIZES = (64, 256, 512)
MATMUL_DTYPES = ("float32", "bfloat16")
PASS_BYTES = (1 << 16, 1 << 20, 1 << 22)
COLLECTIVE_BYTES = (1 << 14, 1 << 18, 1 << 21)
VECTOR_BYTES = (1 << 14, 1 << 16)
VECTOR_STEPS = 32
MAX_TIMINGS = 15


class Device(Protocol):
    """What calibration reads of a `jax.Device`."""

    @property
    def platform(self) -> str:
        """The platform: "cpu", "gpu" or "tpu"."""
        ...

    @property
    def device_kind(self) -> str:
        """The vendor's name of the device."""
        ...


def calibrate(
    devices: Sequence[Device],
    *,
    budget_seconds: float = 60.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """The profile of some devices of one kind, measured within about `budget_seconds`.

    Every point is compiled and timed at least once, however small the budget. `seed` makes the data; `progress` is
    called with a line per benchmark.
    Raises: CostModelError when there are no devices or they are of several kinds.
    """
    kinds = {device.device_kind for device in devices}
    if len(kinds) != 1:
        raise CostModelError(f"calibration needs devices of one kind, got {sorted(kinds) or 'none'}; give those alone")
    say = progress or (lambda line: None)
    groups = [size for size in _divisors(len(devices)) if size > 1]
    points = (
        len(MATMUL_DTYPES) * len(MATMUL_SIZES)
        + len(PASS_BYTES)
        + len(VECTOR_BYTES)
        + len(COLLECTIVE_KINDS) * len(groups) * len(COLLECTIVE_BYTES)
    )
    timer = _Timer(devices=devices, slice_seconds=budget_seconds / points, seed=seed)
    matmuls: list[MatmulFit] = []
    for dtype in MATMUL_DTYPES:
        matmuls.append(MatmulFit(dtype=dtype, fit=_matmul(timer, dtype)))
        say(f"matmul {dtype}: {1 / matmuls[-1].fit.seconds_per_unit:.3g} FLOP/s per device")
    elementwise = _elementwise(timer)
    say(f"elementwise: {1 / elementwise.seconds_per_unit:.3g} bytes/s per device")
    vector = _vector(timer)
    say(f"vector: {1 / vector.seconds_per_unit:.3g} FLOP/s per device")
    collectives: list[CollectiveFit] = []
    for kind in COLLECTIVE_KINDS:
        for size in groups:
            fit = _collective(timer, kind, size)
            collectives.append(CollectiveFit(kind=kind, group_size=size, fit=fit))
            say(f"{kind} over {size}: {fit.latency_s:.3g} s + {fit.seconds_per_unit:.3g} s/byte")
    return Profile(
        machine=f"{platform.system()} {platform.machine()}, {platform.processor() or 'unnamed processor'}",
        platform=devices[0].platform,
        device_kind=devices[0].device_kind,
        num_devices=len(devices),
        jax_version=jax.__version__,
        date=datetime.date.today().isoformat(),
        matmuls=tuple(matmuls),
        elementwise=elementwise,
        vector=vector,
        collectives=tuple(collectives),
    )


class _Timer:
    """Times loop bodies on all devices, one shard of the data on each."""

    def __init__(self, *, devices: Sequence[Device], slice_seconds: float, seed: int) -> None:
        self._devices = devices
        self._slice_seconds = slice_seconds
        self._random = np.random.default_rng(seed)
        self.count = len(devices)

    def seconds(self, body: Body, shape: tuple[int, ...], dtype: str, *, group: int, repeats: int) -> float:
        """The median seconds of one run of `body(index, shard)`, a map from a device's shard to a shard like it.

        `shape`: of one device's shard; `group`: the size of the mesh axis "group" that the body may communicate over.
        """
        mesh = Mesh(
            np.asarray(self._devices).reshape(self.count // group, group),
            ("outer", "group"),
            axis_types=(AxisType.Auto, AxisType.Auto),
        )
        spec = PartitionSpec(("outer", "group"))

        def loop(shard: jax.Array) -> jax.Array:
            return jax.lax.fori_loop(0, repeats, body, shard)

        run = jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
        data = self._random.standard_normal((self.count * shape[0], *shape[1:]), dtype=np.float32)
        values = jax.device_put(jnp.asarray(data, dtype), NamedSharding(mesh, spec))
        started = time.perf_counter()
        run(values).block_until_ready()
        timings: list[float] = []
        while not timings or (len(timings) < MAX_TIMINGS and time.perf_counter() - started < self._slice_seconds):
            before = time.perf_counter()
            run(values).block_until_ready()
            timings.append(time.perf_counter() - before)
        return statistics.median(timings) / repeats


def _line(units: Sequence[float], seconds: Sequence[float]) -> Fit:
    """The fitted line; where noise hides the slope, that from the origin to the largest point: no work is free."""
    fit = fit_line(units, seconds)
    if fit.seconds_per_unit > 0:
        return fit
    return Fit(latency_s=0.0, seconds_per_unit=seconds[-1] / units[-1], residual=fit.residual)


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _repeats(units: float, per_call: float) -> int:
    """The loop length that makes a program of about `per_call` units, between 4 and 64."""
    return int(min(max(per_call / units, 4), 64))


def _matmul(timer: _Timer, dtype: str) -> Fit:
    units: list[float] = []
    seconds: list[float] = []
    for size in MATMUL_SIZES:

        def body(index: Any, x: jax.Array, size: int = size) -> jax.Array:
            return x @ x * (1 / size)

        work = 2.0 * size**3
        units.append(work)
        seconds.append(timer.seconds(body, (size, size), dtype, group=1, repeats=_repeats(work, 5e7)))
    return _line(units, seconds)


def _elementwise(timer: _Timer) -> Fit:
    """Per byte, each element being read once and written once."""

    def body(index: Any, x: jax.Array) -> jax.Array:
        return x * 0.5 + 1.0

    seconds = [
        timer.seconds(body, (size // 4,), "float32", group=1, repeats=_repeats(size, 1 << 24)) for size in PASS_BYTES
    ]
    return _line([2.0 * size for size in PASS_BYTES], seconds)


def _vector(timer: _Timer) -> Fit:
    """Per operation of a polynomial evaluated on data that stays in the cache."""

    def body(index: Any, x: jax.Array) -> jax.Array:
        y = x
        for _ in range(VECTOR_STEPS):
            y = y * x + 0.5
        return y * 1e-3

    seconds = [timer.seconds(body, (size // 4,), "float32", group=1, repeats=64) for size in VECTOR_BYTES]
    return _line([2.0 * VECTOR_STEPS * size / 4 for size in VECTOR_BYTES], seconds)


def _collective(timer: _Timer, kind: str, group: int) -> Fit:
    """Per byte of the larger of the local operand and result."""
    seconds: list[float] = []
    for size in COLLECTIVE_BYTES:
        elements = size // 4
        elements -= elements % group
        shard = elements // group if kind == "all-gather" else elements
        body = _BODIES[kind](group)
        seconds.append(timer.seconds(body, (shard,), "float32", group=group, repeats=_repeats(size, 1 << 22)))
    return _line([float(size) for size in COLLECTIVE_BYTES], seconds)


def _all_reduce(group: int) -> Body:
    def body(index: Any, x: jax.Array) -> jax.Array:
        return jax.lax.psum(x, "group") * (1 / group)

    return body


def _all_gather(group: int) -> Body:
    def body(index: Any, x: jax.Array) -> jax.Array:
        whole = jax.lax.all_gather(x, "group", tiled=True)
        return jax.lax.dynamic_slice_in_dim(whole, index % group * x.shape[0], x.shape[0])

    return body


def _reduce_scatter(group: int) -> Body:
    def body(index: Any, x: jax.Array) -> jax.Array:
        part = jax.lax.psum_scatter(x, "group", tiled=True) * (1 / group)
        return jax.lax.dynamic_update_slice_in_dim(x, part, index % group * part.shape[0], 0)

    return body


def _all_to_all(group: int) -> Body:
    def body(index: Any, x: jax.Array) -> jax.Array:
        return jax.lax.all_to_all(x, "group", 0, 0, tiled=True)

    return body


def _collective_permute(group: int) -> Body:
    shift = [(i, (i + 1) % group) for i in range(group)]

    def body(index: Any, x: jax.Array) -> jax.Array:
        return jax.lax.ppermute(x, "group", shift)

    return body


_BODIES: dict[str, Callable[[int], Body]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "all-to-all": _all_to_all,
    "collective-permute": _collective_permute,
}
