"""Kernels of programs that nobody planned, lowered so that the judge of schedules can count them.

A Pallas kernel whose author gives no cost estimate is a call without work in the compiler's text. Plans give their kernels
an estimate, counted in the body; a codebase's own program needs the same, or its attention would be free. Attention by
cuDNN is lowered only where the devices are; within a `shard_map` it needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import jax
import jax.extend.core as jex_core
from jax.interpreters import mlir

from planner.program.jaxpr.pallas.known_scalars import with_estimates
from planner.program.jaxpr.pallas.pallas_calls import pallas_call_of
from planner.rules.kernels.pallas_kernel import call_work


def counted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose kernels that look up constants say what they work with these, as those of plans do."""

    def estimated(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        results = jex_core.jaxpr_as_fun(with_estimates(closed))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return estimated


@contextmanager
def counted_kernels() -> Generator[None]:
    """While this lasts, Pallas kernels that are lowered have a cost estimate, and cuDNN's run on what they are given."""
    rules = import_module("jax._src.interpreters.mlir")._lowerings
    pallas_call = import_module("jax._src.pallas.pallas_call").pallas_call_p

    def counted(ctx: Any, *nodes: Any, **params: Any) -> Any:
        call = pallas_call_of(params)
        work = call_work(call)
        if isinstance(work.flops, float) and isinstance(work.bytes, float):
            estimated = call.estimated(work.flops, work.exponentials, work.bytes)
            params["cost_estimate"] = estimated.params["cost_estimate"]
        return usual[pallas_call].rule(ctx, *nodes, **params)

    cudnn = import_module("jax._src.cudnn.fused_attention_stablehlo")
    attention = [getattr(cudnn, f"_dot_product_attention_{way}_p_wrapper") for way in ("fwd", "bwd")]
    here = import_module("jax._src.dispatch").prim_requires_devices_during_lowering
    usual = {primitive: rules[primitive] for primitive in (pallas_call, *attention)}
    mlir.register_lowering(pallas_call, counted)
    for primitive in attention:
        mlir.register_lowering(primitive, mlir.lower_fun(primitive.impl, multiple_results=True))
        here.discard(primitive)
    try:
        yield
    finally:
        rules.update(usual)
        here.update(attention)
