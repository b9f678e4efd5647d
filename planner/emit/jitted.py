"""Jitted: a function as `jax.jit` gives it, with what a plan adds: arguments given once, and options of the compiler.

JAX refuses compiler options of a jitted function that is called inside another, or differentiated (JAX 0.10). So they
hold where it is called, traced or lowered by itself; inside other transformations the same function without them is
called, and what is compiled in the end has the options of the outermost `jax.jit`.

JAX refuses arguments that lie otherwise than planned with words that name no argument; here they are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
from jax.core import Tracer, eval_context
from jax.extend.core import get_opaque_trace_state
from jax.sharding import Mesh, NamedSharding, Sharding

from planner.errors import ArgumentError
from planner.pricing.candidates.specs import spec_text
from planner.pricing.mesh import mesh_text
from planner.program.tracing.traced import Leaf

Refused = Callable[[Sequence[Any]], None]
"""What is told of arguments that a call was refused for: it raises, where it knows better than JAX."""


def jitted(
    fn: Callable[..., Any], *, compiler_options: Mapping[str, str], refused: Refused | None = None, **settings: Any
) -> Any:
    """`jax.jit(fn, **settings)` with options for the compiler, which may also be called under transformations.

    `refused` is asked where there are options: else the function is JAX's own, with nothing around it.
    """
    if not compiler_options:
        return jax.jit(fn, **settings)
    outside = jax.jit(fn, compiler_options=dict(compiler_options), **settings)
    return Jitted(outside, inside=jax.jit(fn, **settings), refused=refused)


def _is_traced() -> bool:
    """Whether a transformation of JAX is at work around the caller."""
    here = get_opaque_trace_state()
    with eval_context():
        return here != get_opaque_trace_state()


@final
class Jitted:
    """A jitted function whose last arguments are given once, and whose results are settled after a call.

    It is called, traced and lowered with the other arguments alone, which `ordered` puts in order: default, all come by
    position. `inside` is the same function as transformations
    may call it; default `outside`, which is called, traced and lowered otherwise. `refused` is asked about the arguments
    where JAX refuses a call.
    """

    def __init__(
        self,
        outside: Any,
        *,
        inside: Any = None,
        ordered: Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]] | None = None,
        constants: Callable[[], tuple[Any, ...]] = tuple,
        settled: Callable[[Sequence[Any], Sequence[Any]], Any] | None = None,
        refused: Refused | None = None,
    ) -> None:
        self._outside, self._inside = outside, inside
        self._ordered, self._constants, self._settled, self._refused = ordered, constants, settled, refused
        self.__name__: str = outside.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function. Raises: what it raises, or what is told of refused arguments."""
        args = tuple(self._in_order(args, kwargs))
        called = self._outside if self._inside is None or not _is_traced() else self._inside
        try:
            results = called(*args, *self._constants())
        except (TypeError, ValueError):
            if self._refused is not None:
                self._refused(args)
            raise
        if self._settled is None:
            return results
        own, updated = results
        return self._settled(args, [*jax.tree.leaves(own), *updated])

    def _in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        if self._ordered is not None:
            return self._ordered(args, kwargs)
        if kwargs:  # as of JAX's own, beside in_shardings
            raise ValueError(
                f"{self.__name__} takes no keywords, as jax.jit beside in_shardings; got {', '.join(kwargs)}"
            )
        return args

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function."""
        return self._outside.trace(*self._in_order(args, kwargs), *self._constants())

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function."""
        return self._outside.lower(*self._in_order(args, kwargs), *self._constants())

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """As of a jitted function."""
        shapes = self._outside.eval_shape(*self._in_order(args, kwargs), *self._constants())
        return shapes if self._settled is None else shapes[0]


MOST_NAMED = 3
"""Arguments, and devices, that are named."""


def check_layout(arguments: Sequence[Leaf], leaves: Sequence[Any], shardings: Sequence[NamedSharding]) -> None:
    """Nothing. Raises: ArgumentError where arrays are committed to other shardings than these, by name."""
    found = [
        f"{leaf.name} lies as {_sharding_text(value.sharding)}, and the plan takes it as {_sharding_text(sharding)}"
        for leaf, value, sharding in zip(arguments, leaves, shardings, strict=False)
        if _has_other_sharding(value, sharding)
    ]
    if found:
        more = f"; {len(found) - MOST_NAMED} more lie otherwise" if len(found) > MOST_NAMED else ""
        raise ArgumentError(
            f"argument {'; '.join(found[:MOST_NAMED])}{more}; plan.jit moves nothing: place arguments with "
            "plan.place(...), or call the plan itself, which does it at every call"
        )


def _has_other_sharding(value: Any, sharding: NamedSharding) -> bool:
    """Whether a value is an array that JAX would have to move, and may not."""
    if not isinstance(value, jax.Array) or isinstance(value, Tracer) or not value.committed:
        return False
    return not value.sharding.is_equivalent_to(sharding, value.ndim)


def _sharding_text(sharding: Sharding) -> str:
    """A sharding as a person says it: spec, mesh and devices."""
    ids = sorted(device.id for device in sharding.device_set)
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
        ids = [device.id for device in mesh.devices.flat] if isinstance(mesh, Mesh) else ids
        what = f"{spec_text(sharding.spec)} on the mesh {mesh_text(mesh.shape)} of"
    else:
        what = f"{type(sharding).__name__} on"
    if len(ids) == 1:
        return f"{what} the device {ids[0]}"
    return f"{what} the devices {', '.join(map(str, ids[:MOST_NAMED]))}{', ...' if len(ids) > MOST_NAMED else ''}"
