"""Numerics: the sharded results of a plan against those of a single device.

How far they may differ follows from the program itself: the single-device run is repeated with its floating-point
arguments moved by one rounding of the narrowest float type in the program, and a leaf may differ by a few times what that
changes, and by a few roundings of its own type besides. A leaf that is off is given more such runs before it counts as
wrong. Where that is not enough, the single-device run is repeated with its sums taken in a wider type: a leaf may be as far
from that as the single device's is. Integers, booleans and random bits must be equal (unless rounding alone changes them
too). Whoever knows better may say how far, with `rtol`.

Where the devices are of several processes, each runs the single-device program on a device of its own, and compares with
it what it holds of the sharded results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec

from planner.decision import Decision
from planner.machine.global_arrays import host, is_key, parts, placed, whole
from planner.machine.target import Target
from planner.program.form import ON_HOST
from planner.program.jaxpr.canonicalize.widen import in_wider_type, narrowest_float
from planner.program.jaxpr.placements.parallelism import named_devices
from planner.program.jaxpr.rewrite import plain
from planner.program.tracing.traced import Program
from planner.rules.primitives import kinds_where

NOISE_FACTOR = 8.0
ROUNDINGS = 64.0
RUNS = 2
MORE_RUNS = 16
MOST_RELATIVE = 0.03
"""Most that the roundings of a narrow type may add up to, as a share of a leaf's largest value (but one rounding)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """`ok` is None where it was not checked, for `reason`; `leaves`: (name, largest difference, allowed), worst first."""

    ok: bool | None
    reason: str
    leaves: tuple[tuple[str, float, float], ...] = ()


def compare_numerics(
    decision: Decision,
    program: Program,
    target: Target,
    executable: Any,
    args: tuple[Any, ...],
    *,
    seed: int,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
) -> Numerics:
    """The sharded results against the single device's; `args` are the flat arguments, concrete.

    `reference` is the single-device function of the flat arguments; default the traced program, jitted. With `rtol`, a
    float may differ by that share of its leaf's largest value, and nothing else may differ, whatever rounding does.
    """
    own = reference is None
    device = _reference_device(decision, program, target, own=own)
    if not isinstance(device, jax.Device) and not target.processes.alone:
        return Numerics(ok=None, reason="the program names a mesh of several processes itself: no device runs it alone")
    reference = reference or jax.jit(plain(program))
    mesh = target.jax_mesh(decision.mesh_shape)
    try:
        held = whole(args, mesh)
        names = [leaf.name for leaf in decision.arguments]
        # Keys made anew: what is donated must not be what the single device runs on.
        shardings = [
            NamedSharding(mesh, spec, memory_kind=ON_HOST if i in decision.form.hosted else None)
            for i, spec in enumerate(decision.in_specs)
        ]
        on_mesh = placed(names, list(map(host, held)), shardings)
        found = [parts(v) for v in executable(*on_mesh)]
        with _on(device):
            expected = [host(v) for v in reference(*map(_single(device), held))]
            epsilon = _epsilon(narrowest_float(program))

            def perturbed(run: int) -> list[Any]:
                moved = _perturbed(held, epsilon, seed + run)
                return [host(v) for v in reference(*map(_single(device), moved))]

            noisy = [perturbed(run) for run in range(RUNS)] if rtol is None else []
        if rtol is None and not all(map(_within_noise, found, expected, zip(*noisy, strict=True))):
            # What hangs on the sign of a vanishing number (a first step of Adam) shows in few of the runs.
            with _on(device):
                noisy += [perturbed(run) for run in range(RUNS, MORE_RUNS)]
    except Exception as error:
        return Numerics(ok=False, reason=f"running failed: {type(error).__name__}: {str(error)[:300]}")
    rows: list[tuple[str, float, float]] = []
    exact: list[Any] | None = None
    for i, leaf in enumerate(decision.results):
        allowed = _allowed(expected[i], [other[i] for other in noisy]) if rtol is None else rtol * _scale(expected[i])
        difference = _off(found[i], expected[i])
        if difference > allowed and rtol is None and own:
            # Long sums stagnate on one device, and equal terms are rounded alike: the sharded result is the better one.
            exact = exact or _summed_wide(program, tuple(map(_single(device), held)), expected)
            difference = min(difference, _off(found[i], exact[i]))
            allowed = max(allowed, _difference(expected[i], exact[i]))
        rows.append((leaf.name, difference, allowed))
    rows.sort(key=lambda row: -(row[1] / row[2] if row[2] else np.inf if row[1] else 0.0))
    wrong = [row for row in rows if not row[1] <= row[2]]
    if wrong:
        name, difference, allowed = wrong[0]
        reason = (
            f"{len(wrong)} of {len(rows)} results differ; {name} by {difference:.3g} where {allowed:.3g} is allowed"
        )
    elif rows:
        reason = (
            f"{len(rows)} results equal the single device's; largest difference {rows[0][1]:.3g}, allowed "
            f"{rows[0][2]:.3g}, in {rows[0][0]}"
        )
    else:
        reason = "the function returns nothing"
    return Numerics(ok=not wrong, reason=reason, leaves=tuple(rows))


def _summed_wide(program: Program, args: tuple[Any, ...], expected: list[Any]) -> list[Any]:
    """The single device's results with sums in a wider type: float32 where the program has 16-bit floats, else float64.

    Those that are `expected` where the program cannot be run so: then they are what the sharded ones are compared with.
    """
    wide = "float32" if _epsilon(narrowest_float(program)) > _epsilon("float32") else "float64"
    try:
        with jax.enable_x64(wide == "float64" or jax.config.read("jax_enable_x64")):
            twin = jax.jit(in_wider_type(program, kinds_where(lambda row: row.rounds), wide))
            return [host(v) for v in twin(*args)]
    except Exception:
        return expected


def _reference_device(decision: Decision, program: Program, target: Target, *, own: bool) -> Any:
    """Where the reference runs: one device; whole on each of a mesh that it names itself, or that is set.

    The program's `own` may be free of the mesh that the user's function names.
    """
    named = None if own else named_devices(program.traced)
    if named is not None:
        return NamedSharding(named, PartitionSpec())
    if program.parallelism is not None or not jax.sharding.get_abstract_mesh().empty:
        return NamedSharding(target.jax_mesh(decision.mesh_shape), PartitionSpec())
    return next(d for d in target.devices or jax.local_devices() if d.process_index == jax.process_index())


def _on(device: Any) -> AbstractContextManager[object]:
    """Makes a device the default one; all of a mesh are, where arguments are placed on it."""
    return jax.default_device(device) if isinstance(device, jax.Device) else nullcontext()


def _single(device: Any) -> Callable[[Any], Any]:
    return lambda value: jax.device_put(value, device) if hasattr(value, "dtype") else value


def _float(value: Any) -> bool:
    return hasattr(value, "dtype") and not is_key(value) and jax.dtypes.issubdtype(value.dtype, np.inexact)


def _epsilon(dtype: str | None) -> float:
    return float(jax.numpy.finfo(dtype or "float32").eps)


def _perturbed(args: Sequence[Any], epsilon: float, seed: int) -> list[Any]:
    """The arguments with every float moved by up to half a rounding."""
    rng = np.random.default_rng(seed)

    def move(value: Any) -> Any:
        if not _float(value):
            return value
        wide = np.asarray(value, np.complex128 if np.iscomplexobj(value) else np.float64)
        return (wide * (1 + epsilon * rng.uniform(-0.5, 0.5, wide.shape))).astype(value.dtype)

    return [move(value) for value in args]


def _wide(value: Any) -> npt.NDArray[Any]:
    if is_key(value):
        return np.asarray(jax.random.key_data(value))
    array = np.asarray(value)
    if jax.dtypes.issubdtype(array.dtype, np.complexfloating):
        return array.astype(np.complex128)
    return array.astype(np.float64) if _float(array) else array


def _difference(found: Any, expected: Any) -> float:
    """The largest absolute difference; infinite where one is finite and the other is not, 1 where integers differ."""
    a, b = _wide(found), _wide(expected)
    if a.shape != b.shape:
        return float("inf")
    if a.dtype.kind not in "fc":
        return 0.0 if np.array_equal(a, b) else 1.0
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
    largest = float(gap.max(initial=0.0))
    if np.isfinite(largest):
        return largest
    gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, gap)
    return float(np.nan_to_num(gap, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _off(found: Sequence[tuple[Any, Any]], expected: Any) -> float:
    """The largest difference of the parts of a leaf."""
    return max((_difference(content, expected[where]) for where, content in found), default=0.0)


def _within_noise(found: Sequence[tuple[Any, Any]], expected: Any, noisy: Sequence[Any]) -> bool:
    return _off(found, expected) <= _allowed(expected, noisy)


def _allowed(expected: Any, noisy: Sequence[Any]) -> float:
    """How far a leaf may be from the single device's, given what rounding alone made of it."""
    noise = max(_difference(expected, other) for other in noisy)
    if not _float(expected):
        return noise
    epsilon = _epsilon(str(expected.dtype))
    return NOISE_FACTOR * noise + max(epsilon, min(ROUNDINGS * epsilon, MOST_RELATIVE)) * _scale(expected)


def _scale(value: Any) -> float:
    """The largest finite number of a leaf of floats, without its sign; 0 for other types, in which all is exact."""
    if not _float(value):
        return 0.0
    size = np.abs(_wide(value))
    return float(np.where(np.isfinite(size), size, 0.0).max(initial=0.0))
