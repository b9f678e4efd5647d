"""Probes of rematerialization."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tests.compiler.probes.probe import Array, Probe, Program


def _gradient(x: Any, w: Any) -> Any:
    def loss(w: Any) -> Any:
        h = x
        for _ in range(7):
            h = jnp.tanh(h) * jnp.exp(h @ w)
        return (h.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss)(w)


PROBES = (
    Probe(
        of="rematerialization",
        topology="h100:1",
        programs=(Program(fn=_gradient, args=(Array(shape=(1 << 20, 2048)), Array(shape=(2048, 2048)))),),
        shows="values are computed again where those of the forward pass take more than 80 % of the memory",
        seen=lambda found: any(".remat" in one.name for one in found.kernels()),
    ),
)
