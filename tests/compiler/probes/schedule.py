"""Probes of scheduling."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tests.compiler.probes.collectives import GRADIENTS, kernels_beside
from tests.compiler.probes.fusion import is_matmul
from tests.compiler.probes.probe import Array, Probe, Program

ROWS, WIDTH = 65536, 1024
BYTES = 2 * ROWS * WIDTH


def chain(x: Any, w: Any, length: int = 4) -> Any:
    """So many matmuls, each of the result of the last."""
    for _ in range(length):
        x = jnp.tanh(x @ w)
    return x


def _chain_and_others(x: Any, w: Any) -> Any:
    first = jnp.tanh(x @ w)
    second = jnp.tanh(first @ w)
    third = jnp.tanh(second @ w)
    return chain(third, w) * first * second * third


ARGS = (Array(shape=(ROWS, WIDTH)), Array(shape=(WIDTH, WIDTH)))

PROBES = (
    *(
        Probe(
            of="live-ranges",
            topology=topology,
            programs=(Program(fn=chain, args=ARGS), Program(fn=_chain_and_others, args=ARGS)),
            shows="three values that are read again behind a chain of matmuls take as much more memory",
            seen=lambda alone, kept: kept.memory.temp_bytes - alone.memory.temp_bytes > 1.9 * BYTES,
        )
        for topology in ("v5e:1x1", "h100:1", "cpu:1")
    ),
    Probe(
        of="latency-hiding-scheduler",
        topology="h100:4",
        programs=(GRADIENTS,),
        shows="a gradient of weights that nothing waits for is computed while a sum is on its way",
        seen=lambda found: any(is_matmul(found, one) for one in kernels_beside(found, "all-reduce")),
    ),
)
