"""Probes of scheduling."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from cost_models import parse_topology
from planner.compiler.emission.options import plan_options
from tests.compiler.probes.collectives import GRADIENTS, kernels_beside
from tests.compiler.probes.fusion import is_matmul
from tests.compiler.probes.probe import Array, Compiled, Probe, Program, dims_text, laid

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


def _scattered_gradients(x: Any, *weights: Any) -> Any:
    def loss(weights: Any) -> Any:
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return (y.astype(jnp.float32) ** 2).sum()

    return [laid(one, 4, "x") for one in jax.grad(loss)(weights)]


def _gradients_last(found: Compiled) -> bool:
    whole = dims_text(LAYER, LAYER)
    made = [one.shape.startswith(f"bf16{whole}") for one in found.kernels() if is_matmul(found, one)]
    return made[-3:] == [True] * 3 and made.count(True) == 4


LAYER = 4096
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
    Probe(
        of="gradients-last",
        topology="v6e:2x2",
        programs=(
            Program(
                fn=_scattered_gradients,
                args=(Array(shape=(ROWS, LAYER), spec=P("x")), *[Array(shape=(LAYER, LAYER))] * 4),
                devices=4,
                options=plan_options(parse_topology("v6e:2x2")),
            ),
        ),
        shows="of four gradients of weights three are made behind all other products",
        seen=_gradients_last,
    ),
)
