"""Jitted: a function as `jax.jit` gives it, with what a plan adds: arguments given once, and options of the compiler.

JAX refuses compiler options of a jitted function that is called inside another, or differentiated (JAX 0.10). So they
hold where it is called, traced or lowered by itself; inside other transformations the same function without them is
called, and what is compiled in the end has the options of the outermost `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
from jax.core import eval_context
from jax.extend.core import get_opaque_trace_state


def jitted(fn: Callable[..., Any], *, compiler_options: Mapping[str, str], **settings: Any) -> Any:
    """`jax.jit(fn, **settings)` with options for the compiler, which may also be called under transformations."""
    if not compiler_options:
        return jax.jit(fn, **settings)
    return Jitted(jax.jit(fn, compiler_options=dict(compiler_options), **settings), inside=jax.jit(fn, **settings))


def _is_traced() -> bool:
    """Whether a transformation of JAX is at work around the caller."""
    here = get_opaque_trace_state()
    with eval_context():
        return here != get_opaque_trace_state()


@final
class Jitted:
    """A jitted function whose last arguments are given once, and whose results are settled after a call.

    It is called, traced and lowered with the other arguments alone. `inside` is the same function as transformations
    may call it; default `outside`, which is called, traced and lowered otherwise.
    """

    def __init__(
        self,
        outside: Any,
        *,
        inside: Any = None,
        constants: Callable[[], tuple[Any, ...]] = tuple,
        settled: Callable[[Sequence[Any], Sequence[Any]], Any] | None = None,
    ) -> None:
        self._outside, self._inside = outside, inside
        self._constants, self._settled = constants, settled
        self.__name__: str = outside.__name__

    def __call__(self, *args: Any) -> Any:
        """As of a jitted function."""
        called = self._outside if self._inside is None or not _is_traced() else self._inside
        results = called(*args, *self._constants())
        if self._settled is None:
            return results
        own, updated = results
        return self._settled(args, [*jax.tree.leaves(own), *updated])

    def trace(self, *args: Any) -> Any:
        """As of a jitted function."""
        return self._outside.trace(*args, *self._constants())

    def lower(self, *args: Any) -> Any:
        """As of a jitted function."""
        return self._outside.lower(*args, *self._constants())

    def eval_shape(self, *args: Any) -> Any:
        """As of a jitted function."""
        shapes = self._outside.eval_shape(*args, *self._constants())
        return shapes if self._settled is None else shapes[0]
