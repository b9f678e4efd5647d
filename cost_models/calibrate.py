"""Calibration: microbenchmarks of the devices at hand, or of a compiler's schedules, fitted to a `Profile`.

Every benchmark runs on all devices at once, since virtual devices share their host's cores: matmuls and elementwise
passes on one shard per device, a collective over all groups of its size. The work is repeated in a loop inside one
jitted program, so that the cost of starting a program is left out. A `Clock` says how long a run takes: that of `calibrate`
runs it; whoever asks a compiler instead has a clock of his own.
"""

from __future__ import annotations

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from cost_models.errors import CostModelError
from cost_models.fitting import fit_line
from cost_models.network.collectives import COLLECTIVE_KINDS
from cost_models.profile import CollectiveFit, Fit, MatmulFit, Profile

Body = Callable[[Any, jax.Array], jax.Array]

MATMUL_DTYPES = ("float32", "bfloat16")
VECTOR_STEPS = 32
MAX_TIMINGS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the benchmarks: extents of square matmuls, and bytes per device of passes, vector work and collectives.

    `per_call` is about how much work one call repeats: floating-point operations of matmuls, bytes of passes, of
    collectives.
    """

    matmuls: tuple[int, ...]
    passes: tuple[int, ...]
    vector: tuple[int, ...]
    collectives: tuple[int, ...]
    per_call: tuple[float, float, float]


AT_HAND = Sizes(
    matmuls=(64, 256, 512),
    passes=(1 << 16, 1 << 20, 1 << 22),
    vector=(1 << 14, 1 << 16),
    collectives=(1 << 14, 1 << 18, 1 << 21),
    per_call=(5e7, 1 << 24, 1 << 22),
)
"""What devices that share a host can run in a minute."""
ON_ACCELERATORS = Sizes(
    matmuls=(512, 2048, 8192),
    passes=(1 << 22, 1 << 26, 1 << 28),
    vector=(1 << 18, 1 << 20),
    collectives=(1 << 16, 1 << 22, 1 << 26),
    per_call=(1e9, 1 << 28, 1 << 26),
)
"""What fills an accelerator; too large for its on-chip memory where memory is what is measured."""


class Clock(Protocol):
    """What says how long a microbenchmark takes."""

    @property
    def count(self) -> int:
        """The number of devices."""
        ...

    def seconds(self, body: Body, shape: tuple[int, ...], dtype: str, *, group: int, repeats: int) -> float:
        """The seconds of one run of `body(index, shard)`, a map from a device's shard to a shard like it.

        `shape`: of one device's shard; `group`: the size of the mesh axis "group" that the body may communicate over.
        """
        ...


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
    points = benchmarks(AT_HAND, len(devices))
    timer = _Timer(devices=devices, slice_seconds=budget_seconds / points, seed=seed)
    return fitted(
        timer,
        AT_HAND,
        machine=f"{platform.system()} {platform.machine()}, {platform.processor() or 'unnamed processor'}",
        platform=devices[0].platform,
        device_kind=devices[0].device_kind,
        progress=progress,
    )


def benchmarks(sizes: Sizes, devices: int) -> int:
    """How many benchmarks there are of these sizes on so many devices."""
    collectives = len(COLLECTIVE_KINDS) * len(_groups(devices)) * len(sizes.collectives)
    return len(MATMUL_DTYPES) * len(sizes.matmuls) + len(sizes.passes) + len(sizes.vector) + collectives


def fitted(
    clock: Clock,
    sizes: Sizes,
    *,
    machine: str,
    platform: str,
    device_kind: str,
    topology: str = "",
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """The profile that a clock's microbenchmarks of these sizes are fitted to, stamped with what was measured."""
    say = progress or (lambda line: None)
    matmuls: list[MatmulFit] = []
    for dtype in MATMUL_DTYPES:
        matmuls.append(MatmulFit(dtype=dtype, fit=_matmul(clock, sizes, dtype)))
        say(f"matmul {dtype}: {1 / matmuls[-1].fit.seconds_per_unit:.3g} FLOP/s per device")
    elementwise = _elementwise(clock, sizes)
    say(f"elementwise: {1 / elementwise.seconds_per_unit:.3g} bytes/s per device")
    vector = _vector(clock, sizes)
    say(f"vector: {1 / vector.seconds_per_unit:.3g} FLOP/s per device")
    collectives: list[CollectiveFit] = []
    for kind in COLLECTIVE_KINDS:
        for size in _groups(clock.count):
            fit = _collective(clock, sizes, kind, size)
            collectives.append(CollectiveFit(kind=kind, group_size=size, fit=fit))
            say(f"{kind} over {size}: {fit.latency_s:.3g} s + {fit.seconds_per_unit:.3g} s/byte")
    return Profile(
        machine=machine,
        platform=platform,
        device_kind=device_kind,
        num_devices=clock.count,
        jax_version=jax.__version__,
        date=datetime.date.today().isoformat(),
        matmuls=tuple(matmuls),
        elementwise=elementwise,
        vector=vector,
        collectives=tuple(collectives),
        topology=topology,
    )


def looped(body: Body, repeats: int, mesh: Any, spec: PartitionSpec) -> Any:
    """The jitted program that runs a body so often on every shard of its argument, split by `spec` over a mesh."""

    def loop(shard: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, repeats, body, shard)

    return jax.jit(jax.shard_map(loop, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


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
        run = looped(body, repeats, mesh, spec)
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


def _groups(devices: int) -> list[int]:
    """The sizes of groups that so many devices divide into."""
    return [size for size in range(2, devices + 1) if devices % size == 0]


def _repeats(units: float, per_call: float) -> int:
    """The loop length that makes a program of about `per_call` units, between 4 and 64."""
    return int(min(max(per_call / units, 4), 64))


def _matmul(clock: Clock, sizes: Sizes, dtype: str) -> Fit:
    units: list[float] = []
    seconds: list[float] = []
    for size in sizes.matmuls:

        def body(index: Any, x: jax.Array, size: int = size) -> jax.Array:
            return x @ x * (1 / size)

        work = 2.0 * size**3
        units.append(work)
        seconds.append(clock.seconds(body, (size, size), dtype, group=1, repeats=_repeats(work, sizes.per_call[0])))
    return _line(units, seconds)


def _elementwise(clock: Clock, sizes: Sizes) -> Fit:
    """Per byte, each element being read once and written once."""

    def body(index: Any, x: jax.Array) -> jax.Array:
        return x * 0.5 + 1.0

    per_call = sizes.per_call[1]
    seconds = [
        clock.seconds(body, (size // 4,), "float32", group=1, repeats=_repeats(size, per_call)) for size in sizes.passes
    ]
    return _line([2.0 * size for size in sizes.passes], seconds)


def _vector(clock: Clock, sizes: Sizes) -> Fit:
    """Per operation of a polynomial evaluated on data that stays in the cache."""

    def body(index: Any, x: jax.Array) -> jax.Array:
        y = x
        for _ in range(VECTOR_STEPS):
            y = y * x + 0.5
        return y * 1e-3

    seconds = [clock.seconds(body, (size // 4,), "float32", group=1, repeats=64) for size in sizes.vector]
    return _line([2.0 * VECTOR_STEPS * size / 4 for size in sizes.vector], seconds)


def _collective(clock: Clock, sizes: Sizes, kind: str, group: int) -> Fit:
    """Per byte of the larger of the local operand and result."""
    seconds: list[float] = []
    for size in sizes.collectives:
        elements = size // 4
        elements -= elements % group
        shard = elements // group if kind == "all-gather" else elements
        body = _BODIES[kind](group)
        seconds.append(clock.seconds(body, (shard,), "float32", group=group, repeats=_repeats(size, sizes.per_call[2])))
    return _line([float(size) for size in sizes.collectives], seconds)


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
