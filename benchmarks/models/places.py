"""Where programs say what may be placed by hand: activations by name, and the weights of a layer where they are used.

As it stands a program names its activations (`jax.ad_checkpoint.checkpoint_name`) and does nothing with its weights.
Within `placed`, both go through functions of the caller's, which may constrain them; so one program serves the planner,
which wants none of that, and the placements that people write.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    activation: Place
    weight: Place | None


_NAMED = _Places(activation=checkpoint_name, weight=None)
_places: Any = jax.make_user_context(_NAMED)
"""A context that JAX's caches of traced functions know of."""


def activation(x: jax.Array, name: str) -> jax.Array:
    """x under its name."""
    return _places.value.activation(x, name)


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
def placed(activation: Place, weight: Place | None = None) -> Generator[None]:
    """Within it, activations and, where a function is given, weights at their use go through these."""
    original: Callable[..., Any] = nn.Module.param

    def param(module: nn.Module, name: str, *given: Any, **more: Any) -> Any:
        assert weight is not None
        value = original(module, name, *given, **more)
        return weight(_cast(value, getattr(module, "dtype", None)), "/".join((*module.path, name)))

    linen = nullcontext() if weight is None else mock.patch.object(nn.Module, "param", param)
    with _places(_Places(activation=activation, weight=weight)), linen:
        yield
