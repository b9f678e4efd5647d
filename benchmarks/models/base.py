"""What every benchmark program is: one function for one device, its arguments, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import optax

Size = Literal["small", "real"]
Tree = Any
"""A pytree of arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A program to be planned.

    `args` are the positional arguments of `fn`: arrays at size "small", `jax.ShapeDtypeStruct`s at size "real". A train
    step returns its new state in the order of its arguments and the loss last; a decode step the logits and the cache.
    `batch` counts the sequences or images of a call and `tokens` the tokens, images or steps of recurrence in them.
    """

    name: str
    kind: Literal["train", "inference"]
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...]
    batch: int
    tokens: int
    notes: str = ""


def arguments(make: Callable[..., Any], size: Size, *given: Tree) -> Any:
    """What `make(*given)` builds: arrays at size "small", their shapes (nothing allocated) at size "real".

    Raises:
        ValueError: `size` is neither.
    """
    if size == "small":
        return jax.jit(make)(*given)
    if size == "real":
        return jax.eval_shape(make, *given)
    raise ValueError(f"size must be 'small' or 'real', got {size!r}")


def seed() -> jax.Array:
    """The key that every program's arguments are drawn from; of the generator whose use compiles fastest."""
    return jax.random.key(0, impl="unsafe_rbg")


def train_step(
    loss: Callable[[Tree, Tree], jax.Array], optimizer: optax.GradientTransformation
) -> Callable[[Tree, Tree, Tree], tuple[Tree, Tree, jax.Array]]:
    """A step (params, opt_state, batch) -> (params, opt_state, loss) that lowers `loss(params, batch)`."""

    def step(params: Tree, opt_state: Tree, batch: Tree) -> tuple[Tree, Tree, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    return step


def trained(
    name: str,
    loss: Callable[[Tree, Tree], jax.Array],
    optimizer: optax.GradientTransformation,
    args: tuple[Any, ...],
    *,
    batch: int,
    tokens: int,
    notes: str = "",
) -> Model:
    """The model of a train step over (params, opt_state, batch), which takes over the buffers of the first two."""
    return Model(
        name=name,
        kind="train",
        fn=train_step(loss, optimizer),
        args=args,
        donate_argnums=(0, 1),
        batch=batch,
        tokens=tokens,
        notes=notes,
    )


def matrices_only(params: Tree) -> Tree:
    """True for the leaves that weight decay is for: those whose name is not of a bias, a scale or a norm."""

    def decays(path: tuple[Any, ...], _: Any) -> bool:
        last = jax.tree_util.keystr(path[-1:], simple=True)
        return not any(word in last for word in ("bias", "scale", "norm"))

    return jax.tree_util.tree_map_with_path(decays, params)
