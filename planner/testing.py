"""For tests of your own programs: meshes and arguments for Hypothesis, and the assertion that a split program is right::

    @hypothesis.given(planner.testing.meshes(), planner.testing.arguments(example_args))
    def test_my_step(mesh, args):
        planner.testing.assert_same_as_single_device(my_step, args, mesh=mesh)

Eight virtual CPU devices will do: set `XLA_FLAGS=--xla_force_host_platform_device_count=8` before jax is imported. Only the
strategies need Hypothesis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cost_models import Topology
from planner.api import plan as plan_of
from planner.errors import ArgumentError
from planner.options import Options
from planner.plans.plan import Plan
from planner.pricing.mesh import AXIS_NAMES, check_mesh
from planner.program.tracing.arguments import name_of
from planner.request.pins import Pins

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["arguments", "assert_same_as_single_device", "free_wires", "meshes"]

SMALL_INTEGERS = (0, 7)
"""The integers that are drawn where an example says nothing of their range."""
MOST_LEAVES = 8
"""Of the results that differ, how many are named."""


def free_wires(devices: int) -> Topology:
    """A topology of so many slow devices with free wires between them: what can be split, the planner splits there."""
    dims = _prime_factors(devices)
    return Topology.custom(
        name="free wires",
        shape=dims,
        link_bytes_per_s=(1e18,) * len(dims),
        flops_per_s=1e3,
        hbm_bytes=1e9,
        hbm_bytes_per_s=1e6,
    )


def assert_same_as_single_device(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    mesh: Mapping[str, int] | None = None,
    pins: Pins | None = None,
    devices: Sequence[jax.Device] | None = None,
    topology: str | Topology | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    rtol: float | None = None,
    options: Options | None = None,
) -> Plan:
    """The plan of `fn`, which was run on many devices and computed what `fn` computes on one.

    The arguments are not consumed. A function with effects has them several times.

    Parameters
    ----------
    fn: a function written for one device; anything `jax.jit` accepts.
    args: the tuple of its positional arguments, with values.
    mesh, pins, donate_argnums, static_argnums: as in `planner.plan`.
    devices: to run on; default `jax.devices()`, or as many of them as the mesh needs where it does not divide them.
    topology: to plan for; default `free_wires`, on which splitting always pays: a plan for one device would show nothing.
    rtol: how far a float may be off, as a share of the largest value in its result; integers must be equal then. Default:
        as far as the rounding of this program, with these arguments, leads (see `planner.verify.numerics`).
    options: as in `planner.plan`, but for its `check`: a plan that the checks would drop is one that must fail here.

    Raises
    ------
    AssertionError: a result differs, or the plan does not compile; names the results and by how much, and has the plan's
    text. ArgumentError: arguments without values. And what `planner.plan` raises.
    """
    args = tuple(args)
    for path, leaf in jax.tree_util.tree_leaves_with_path(args):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise ArgumentError(
                f"args{jax.tree_util.keystr(path)} is {leaf}, a shape without values; give arrays, or draw them with "
                "planner.testing.arguments"
            )
    chosen = _devices(mesh) if devices is None else devices
    plan = plan_of(
        fn,
        args,
        devices=chosen,
        topology=free_wires(len(chosen)) if topology is None else topology,
        mesh=mesh,
        pins=pins,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        options=replace(options or Options(), check="never"),
    )
    found = plan.verify(*args, reference=fn, rtol=rtol)
    if found.numerics.ok is not True:
        reason = found.collectives.reason if found.numerics.ok is None else found.numerics.reason
        rows = [
            f"  {name}: differs by {difference:.3g}, {allowed:.3g} is allowed"
            for name, difference, allowed in found.numerics.leaves
            if not difference <= allowed
        ]
        more = [f"  and {len(rows) - MOST_LEAVES} more"] if len(rows) > MOST_LEAVES else []
        head = f"{name_of(fn)} on the mesh {plan.decision.mesh_shape} is not what it is on a single device: {reason}"
        raise AssertionError("\n".join([head, *rows[:MOST_LEAVES], *more, str(plan)]))
    return plan


def _devices(mesh: Mapping[str, int] | None) -> Sequence[jax.Device]:
    """All devices, which a mesh may leave some of idle; or as many as it needs, where those do not divide all."""
    found = jax.devices()
    count = 1 if mesh is None else math.prod(check_mesh(mesh, len(found)).values())
    return found if len(found) % count == 0 else found[:count]


def _prime_factors(number: int) -> tuple[int, ...]:
    factor = next((f for f in range(2, number) if number % f == 0), number)
    return (factor,) if factor == number else (factor, *_prime_factors(number // factor))


# ---------------------------------------------------------------- strategies


def meshes(devices: int = 8, max_axes: int = 3, names: Sequence[str] = AXIS_NAMES) -> SearchStrategy[Mapping[str, int]]:
    """A Hypothesis strategy of meshes: axis names to sizes of 2 or more, in every order of the sizes.

    The sizes multiply to a number above 1 that divides `devices`, so that any topology of so many can hold the mesh.
    Shrinks to few axes, then to few devices.

    Parameters: `devices`, the most that a mesh uses; `max_axes`, the most axes; `names`, of the first axis, the second
    and so on.
    Raises: ArgumentError for fewer than two devices, or fewer names than axes. ImportError where there is no Hypothesis.
    """
    if devices < 2:
        raise ArgumentError(f"devices is {devices!r}, of which there is no mesh that splits anything; give 2 or more")
    if not 1 <= max_axes <= len(names):
        raise ArgumentError(f"max_axes is {max_axes!r} with names for {len(names)} axes; give a name for every axis")
    sizes = [size for size in range(2, devices + 1) if devices % size == 0]
    found = [
        dict(zip(names, shape, strict=False))
        for axes in range(1, max_axes + 1)
        for shape in sorted(product(sizes, repeat=axes), key=math.prod)
        if devices % math.prod(shape) == 0
    ]
    strategies: Any = _hypothesis("meshes").strategies
    return strategies.sampled_from(found)


def arguments(example_args: Any) -> SearchStrategy[Any]:
    """A Hypothesis strategy of arguments like an example: the same pytree, shapes and types, and other values.

    Where the example has values, so that what is drawn means something to the program: floats are of its size, and not
    negative where it never is; integers lie between its least and its greatest. Where it has shapes only (a
    `jax.ShapeDtypeStruct`): floats of about 1, integers from 0 to 7. All floats are finite. Keys are of the example's
    kind. What is no array or number (a static argument) stays as it is. Shrinks to small whole numbers.

    Parameters: `example_args`, a pytree of arrays, numbers and `jax.ShapeDtypeStruct`s, as for `planner.plan`.
    Raises: ImportError where there is no Hypothesis.
    """
    strategies: Any = _hypothesis("arguments").strategies
    leaves, tree = jax.tree.flatten(example_args)
    seeds = strategies.tuples(strategies.integers(0, 2**32 - 1), strategies.booleans())

    def drawn(chosen: tuple[int, bool]) -> Any:
        seed, smooth = chosen
        rng = np.random.default_rng(seed)
        return jax.tree.unflatten(tree, [_drawn(leaf, rng, smooth=smooth) for leaf in leaves])

    return seeds.map(drawn)


def _hypothesis(what: str) -> Any:
    try:
        import hypothesis
    except ImportError as error:
        raise ImportError(
            f"planner.testing.{what} draws with Hypothesis, which is not installed: pip install hypothesis"
        ) from error
    return hypothesis


def _drawn(example: Any, rng: np.random.Generator, *, smooth: bool) -> Any:
    """Values like one leaf of an example: normal numbers where `smooth`, else few whole ones, of which many are equal."""
    if isinstance(example, (bool, int, float, complex)):
        return type(example)(_drawn(np.asarray(example), rng, smooth=smooth))
    if not (hasattr(example, "shape") and hasattr(example, "dtype")):
        return example
    shape, dtype = tuple(example.shape), example.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        seed, kind = int(rng.integers(2**31)), jax.random.key_impl(jax.numpy.empty(0, dtype))
        return jax.random.split(jax.random.key(seed, impl=kind), shape)
    values = None if isinstance(example, jax.ShapeDtypeStruct) else np.asarray(example)
    drawn = _numbers(values, shape, dtype, rng, smooth=smooth)
    return drawn if isinstance(example, (np.ndarray, np.generic)) else jax.numpy.asarray(drawn)


def _numbers(values: Any, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, *, smooth: bool) -> Any:
    """Numbers or booleans of a shape and type, like `values` where that is not None."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if jax.dtypes.issubdtype(dtype, np.integer):
        least, most = SMALL_INTEGERS if values is None or not values.size else (int(values.min()), int(values.max()))
        wide = np.uint64 if least >= 0 else np.int64
        return rng.integers(least, most, shape, endpoint=True, dtype=wide).astype(dtype)
    if not jax.dtypes.issubdtype(dtype, np.complexfloating):
        return _floats(values, shape, dtype, rng, smooth=smooth)
    parts = [None, None] if values is None else [values.real, values.imag]
    real, imaginary = (_floats(part, shape, np.dtype(np.float64), rng, smooth=smooth) for part in parts)
    return np.asarray(real + 1j * imaginary).astype(dtype)


def _floats(values: Any, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator, *, smooth: bool) -> Any:
    """Finite floats of the size, and the sign, of `values`; of about 1 where that is None."""
    wide = np.zeros(()) if values is None else np.asarray(values, np.float64)
    finite = wide[np.isfinite(wide)]
    size = math.sqrt(float(np.mean(finite**2))) if finite.any() else 1.0
    drawn = np.asarray(rng.normal(size=shape) if smooth else rng.integers(-2, 2, shape, endpoint=True)) * size
    if values is not None and finite.size and (finite >= 0).all():
        drawn = np.abs(drawn)
    most = float(jax.numpy.finfo(dtype).max)
    return np.clip(drawn, -most, most).astype(dtype)
