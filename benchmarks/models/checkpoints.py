"""What the layers of programs save for the backward pass: as they are written, or by another policy that people use.

Programs put their layers through `checkpoint` or `remat`, those of JAX and of Flax; in a model made by `with_policy` they
follow the caller's policy. Checkpoints within layers, such as that of attention in blocks, do not go through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Literal

import flax.linen as nn
import jax
from flax import nnx

from benchmarks.models.base import Model

Policy = Literal[
    "as written", "none", "dots_saveable", "dots_with_no_batch_dims_saveable", "kernels", "dots and kernels"
]
"""Computed again is all of a layer ("as written"), nothing ("none"), what one of JAX's policies does not save, what is no
result of a kernel, or neither that nor of a matmul with a weight (MaxText's "minimal_flash")."""
POLICIES: tuple[Policy, ...] = ("as written", "none", "dots_saveable", "dots_with_no_batch_dims_saveable")
WITH_KERNELS: tuple[Policy, ...] = ("as written", "none", "kernels", "dots and kernels")
"""Those for programs whose attention is a kernel: without its result the others compute it again."""
KERNELS = frozenset({"pallas_call", "dot_product_attention_fwd_wrapper"})
"""Primitives that call a kernel of attention."""

_policy: Any = jax.make_user_context("as written")
"""A context that JAX's caches of traced functions know of."""


def checkpoint(layer: Callable[..., Any], *, prevent_cse: bool = True) -> Callable[..., Any]:
    """`jax.checkpoint` of a layer."""
    policy: Policy = _policy.value
    return layer if policy == "none" else jax.checkpoint(layer, prevent_cse=prevent_cse, **_given(policy))


def remat(layer: type[nn.Module], *, prevent_cse: bool = True) -> Any:
    """`flax.linen.remat` of a layer."""
    policy: Policy = _policy.value
    return layer if policy == "none" else nn.remat(layer, prevent_cse=prevent_cse, **_given(policy))


def remat_call(layer: Callable[..., Any], *, remat: bool) -> Callable[..., Any]:
    """`flax.nnx.remat` of the call of a layer, a function of its module; the call itself where `remat` is not wanted."""
    policy: Policy = _policy.value
    return nnx.remat(layer, **_given(policy)) if remat and policy != "none" else layer


def _kernels(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name in KERNELS


def _given(policy: Policy) -> Mapping[str, Any]:
    if policy == "as written":
        return {}
    jax_policies = jax.checkpoint_policies
    if policy == "kernels":
        return {"policy": _kernels}
    if policy == "dots and kernels":
        dots = jax_policies.dots_with_no_batch_dims_saveable
        return {"policy": jax_policies.save_from_both_policies(dots, _kernels)}
    return {"policy": getattr(jax_policies, policy)}


def with_policy(model: Model, policy: Policy) -> Model:
    """A model whose layers save what a policy says, wherever it is traced."""
    if policy == "as written":
        return model

    @wraps(model.fn)
    def fn(*args: Any) -> Any:
        with _policy(policy):
            return model.fn(*args)

    return replace(model, fn=fn)
