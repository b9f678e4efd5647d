"""Arguments: what a user passes to be planned for, checked, named and made abstract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from planner.errors import ArgumentError, TraceError
from planner.program.graph import Aval
from planner.program.mesh_axes import explicit_axes
from planner.program.tracing.traced import Leaf


def positions(what: str, positions: Sequence[int] | int, count: int) -> frozenset[int]:
    values = (positions,) if isinstance(positions, int) else tuple(positions)
    for value in values:
        if not isinstance(value, int) or not -count <= value < count:
            raise ArgumentError(f"{what} holds {value!r}, but there are {count} arguments; use 0 to {count - 1}")
    return frozenset(value % count for value in values)


def name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, "__name__", type(fn).__name__)


def parameter_names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names.extend(f"{parameter.name}/{i}" for i in range(count - len(names)))
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD and parameter.kind is not parameter.KEYWORD_ONLY:
            names.append(parameter.name)
    names.extend(f"arg{i}" for i in range(len(names), count))
    return tuple(names[:count])


def joined(root: str, path: Any) -> str:
    tail = jax.tree_util.keystr(path, simple=True, separator="/")
    return f"{root}/{tail}" if tail else root


def argument_leaf(name: str, value: Any) -> Leaf:
    if isinstance(value, (bool, int, float, complex)):
        return Leaf(name=name, aval=aval_of(jax.typeof(value)), weak=True)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        if callable(value):
            what = getattr(value, "__name__", type(value).__name__)
            raise ArgumentError(
                f"argument {name} is the function {what}, not an array; Equinox modules hold such leaves: split them with "
                "arrays, rest = eqx.partition(module, eqx.is_array), plan for the arrays, and put both together in the "
                "planned function with eqx.combine(arrays, rest)"
            )
        raise ArgumentError(
            f"argument {name} is {value!r} of type {type(value).__name__}, not an array; "
            "pass arrays or jax.ShapeDtypeStruct, and mark other values with static_argnums"
        )
    if not any(jax.dtypes.issubdtype(value.dtype, kind) for kind in _ELEMENTS):
        raise ArgumentError(
            f"argument {name} has elements of type {value.dtype}, which JAX does not compute with; convert it, or mark "
            "it with static_argnums"
        )
    return Leaf(name=name, aval=aval_of(abstracted(value)), weak=bool(getattr(value, "weak_type", False)))


_ELEMENTS = (np.number, np.bool_, jax.dtypes.float0, jax.dtypes.extended)


def abstracted(value: Any) -> Any:
    if isinstance(value, (bool, int, float, complex)):
        return value
    return jax.ShapeDtypeStruct(value.shape, canonical_dtype(value), weak_type=bool(getattr(value, "weak_type", False)))


def typed_as_placed(value: Any) -> Any:
    """The same with the placement in its type, where the value lies, or shall lie, on a mesh with Explicit axes."""
    struct, sharding = abstracted(value), getattr(value, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not explicit_axes(sharding.mesh):
        return struct
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, weak_type=struct.weak_type, sharding=sharding)


def canonical_dtype(value: Any) -> Any:
    """The element type that JAX gives an array: 64-bit types of numpy become 32-bit ones unless x64 is enabled."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return value.dtype
    return jax.dtypes.canonicalize_dtype(value.dtype)


def aval_of(value: Any) -> Aval:
    """The aval of an array, or of what stands for one; equal ones are the same object. Raises: TraceError."""
    value = getattr(value, "inner_aval", value)  # what a collective that has begun will give
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        _whole(tuple(getattr(value, "shape", ())))
        return Aval(shape=(), dtype=str(value), itemsize=0)
    return _aval(
        tuple(getattr(value, "shape", ())), dtype, getattr(value, "memory_space", None) == jax.memory.Space.Host
    )


@lru_cache(maxsize=2**14)
def _aval(shape: tuple[Any, ...], dtype: Any, on_host: bool) -> Aval:
    extents, name = _whole(shape), str(dtype)
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        # A key of the default generator is two 32-bit words; the layout of other extended types is close enough.
        return Aval(shape=extents, dtype=name, itemsize=8)
    narrow = {"int4": 0.5, "uint4": 0.5, "int2": 0.25, "uint2": 0.25, "float4_e2m1fn": 0.5, "float0": 0}
    itemsize = narrow.get(name, np.dtype(dtype).itemsize)
    if on_host:
        return Aval(shape=extents, dtype=name, itemsize=0, host_itemsize=itemsize)
    return Aval(shape=extents, dtype=name, itemsize=itemsize)


def _whole(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape of whole numbers. Raises: TraceError."""
    if not all(isinstance(extent, (int, np.integer)) for extent in shape):
        raise TraceError(f"the program has the symbolic shape {shape}; plan it for concrete shapes")
    return tuple(map(int, shape))
