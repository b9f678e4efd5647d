"""What the layers of programs save for the backward pass: as they are written, or by another policy that people use.

Programs put their layers through `checkpoint` or `remat`, those of JAX and of Flax; in a model made by `with_policy` they
follow the caller's policy. Checkpoints within layers, such as that of attention in blocks, do not go through them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
from flax import nnx
from jax import lax

from benchmarks.models.base import Model

Policy = Literal[
    "as written",
    "none",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "names",
    "all but names",
    "twice",
    "groups",
    "kernels",
    "dots and kernels",
]
"""Computed again is all of a layer ("as written"), nothing ("none"), what one of JAX's policies does not save, what is no
result of a kernel, or neither that nor of a matmul with a weight (MaxText's "minimal_flash").

"names" saves what has a name (`NAMES`), "all but names" everything else. "twice" has a checkpoint around a checkpoint, and
"groups" one around a loop over several layers, each with one.
"""
POLICIES: tuple[Policy, ...] = ("as written", "none", "dots_saveable", "dots_with_no_batch_dims_saveable")
WITH_KERNELS: tuple[Policy, ...] = ("as written", "none", "kernels", "dots and kernels")
"""Those for programs whose attention is a kernel: without its result the others compute it again."""
ALL_POLICIES: tuple[Policy, ...] = get_args(Policy)
KERNELS = frozenset({"pallas_call", "dot_product_attention_fwd_wrapper"})
"""Primitives that call a kernel of attention."""
NAMES = ("attention", "residual", "hidden")
"""What programs call their activations (`benchmarks.models.places`)."""

_policy: Any = jax.make_user_context("as written")
"""A context that JAX's caches of traced functions know of."""


def checkpoint(layer: Callable[..., Any], *, prevent_cse: bool = True) -> Callable[..., Any]:
    """`jax.checkpoint` of a layer."""
    policy: Policy = _policy.value
    if policy == "none":
        return layer
    inner = jax.checkpoint(layer, prevent_cse=prevent_cse) if policy == "twice" else layer
    return jax.checkpoint(inner, prevent_cse=prevent_cse, **_given(policy))


def scanned(block: Callable[[Any, Any], tuple[Any, None]], x: Any, layers: Any) -> Any:
    """What a loop over layers makes of x: each is a checkpoint, and so are groups of them where that is the policy."""
    layer = checkpoint(block, prevent_cse=False)
    if _policy.value != "groups":
        return lax.scan(layer, x, layers)[0]
    depth = jax.tree.leaves(layers)[0].shape[0]
    groups = max(count for count in range(1, math.isqrt(depth) + 1) if depth % count == 0)
    group = jax.checkpoint(lambda x, own: lax.scan(layer, x, own), prevent_cse=False)
    grouped = jax.tree.map(lambda leaf: leaf.reshape(groups, depth // groups, *leaf.shape[1:]), layers)
    return lax.scan(lambda x, own: (group(x, own)[0], None), x, grouped)[0]


def remat(layer: type[nn.Module], *, prevent_cse: bool = True) -> Any:
    """`flax.linen.remat` of a layer."""
    policy: Policy = _policy.value
    if policy == "none":
        return layer
    inner: Any = nn.remat(layer, prevent_cse=prevent_cse) if policy == "twice" else layer
    return nn.remat(inner, prevent_cse=prevent_cse, **_given(policy))


def remat_call(layer: Callable[..., Any], *, remat: bool) -> Callable[..., Any]:
    """`flax.nnx.remat` of the call of a layer, a function of its module; the call itself where `remat` is not wanted."""
    policy: Policy = _policy.value
    if not remat or policy == "none":
        return layer
    return nnx.remat(nnx.remat(layer) if policy == "twice" else layer, **_given(policy))


def _kernels(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name in KERNELS


def _given(policy: Policy) -> Mapping[str, Any]:
    policies = jax.checkpoint_policies
    match policy:
        case "as written" | "none" | "twice" | "groups":
            return {}
        case "names":
            return {"policy": policies.save_only_these_names(*NAMES)}
        case "all but names":
            return {"policy": policies.save_anything_except_these_names(*NAMES)}
        case "kernels":
            return {"policy": _kernels}
        case "dots and kernels":
            return {"policy": policies.save_from_both_policies(policies.dots_with_no_batch_dims_saveable, _kernels)}
        case _:
            return {"policy": getattr(policies, policy)}


def with_policy(model: Model, policy: Policy) -> Model:
    """A model whose layers save what a policy says, wherever it is traced."""
    if policy == "as written":
        return model

    @wraps(model.fn)
    def fn(*args: Any) -> Any:
        with _policy(policy):
            return model.fn(*args)

    return replace(model, fn=fn)
