"""Where programs say what may be placed by hand: activations by name, the weights of a layer where they are used, kernels.

As it stands a program names its activations (`jax.ad_checkpoint.checkpoint_name`), does nothing with its weights, and calls
its kernels. Within `placed`, all go through functions of the caller's, which may constrain them; so one program serves the
planner, which wants none of that, and the placements that people write.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

Place = Callable[[jax.Array, str], jax.Array]
"""(an array, its name) -> the array, constrained or not."""
Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(queries, keys, values) -> what they are mixed to."""
OnParts = Callable[..., jax.Array]
"""(a kernel of attention, queries, keys, values) -> its result, computed by every device on its part or by all on all."""


def _whole(kernel: Attention, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    return kernel(query, key, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    activation: Place
    weight: Place | None
    on_parts: OnParts


_NAMED = _Places(activation=checkpoint_name, weight=None, on_parts=_whole)
_places: Any = jax.make_user_context(_NAMED)
"""A context that JAX's caches of traced functions know of."""


def activation(x: jax.Array, name: str) -> jax.Array:
    """x under its name."""
    return _places.value.activation(x, name)


def on_parts(kernel: Attention, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """The result of a kernel, which no compiler partitions; arrays are of shape (batch, sequence, heads, head_dim)."""
    return _places.value.on_parts(kernel, query, key, value)


def at_use(weights: Any, dtype: Any = None) -> Any:
    """The weights of a layer as it uses them; `dtype` is what the layer computes in, where it casts them itself.

    Modules of Flax linen need no call: their parameters go the same way.
    """
    place = _places.value.weight
    if place is None:
        return weights
    return jax.tree_util.tree_map_with_path(lambda path, leaf: place(_cast(leaf, dtype), path_name(path)), weights)


def _cast(leaf: jax.Array, dtype: Any) -> jax.Array:
    return leaf if dtype is None or leaf.ndim < 2 else leaf.astype(dtype)


def path_name(path: tuple[Any, ...]) -> str:
    """A leaf's path, its keys joined by "/", without the `value` or `.value` that variables of Flax end with."""
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return name.removesuffix("/value").removesuffix("/.value")


@contextmanager
def placed(activation: Place, weight: Place | None = None, on_parts: OnParts = _whole) -> Generator[None]:
    """Within it, activations, kernels and, where a function is given, weights at their use go through these."""
    original: Callable[..., Any] = nn.Module.param

    def param(module: nn.Module, name: str, *given: Any, **more: Any) -> Any:
        assert weight is not None
        value = original(module, name, *given, **more)
        return weight(_cast(value, getattr(module, "dtype", None)), "/".join((*module.path, name)))

    linen = nullcontext() if weight is None else mock.patch.object(nn.Module, "param", param)
    with _places(_Places(activation=activation, weight=weight, on_parts=on_parts)), linen:
        yield
