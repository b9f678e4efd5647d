"""Probes of memory spaces."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from planner.verify.hlo.text import kind_of
from tests.compiler.probes.fusion import matmuls
from tests.compiler.probes.probe import Array, Compiled, Probe, Program, laid

VMEM = "S(1)"


def _matmuls(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(x @ w) @ v


def _summed(x: Any, w: Any, v: Any) -> Any:
    return jnp.tanh(laid(x @ w, 4)) @ v


def _prefetched(found: Compiled) -> bool:
    """Whether the second weight is brought to the chip from before the sum on."""
    for one in found.entry.instructions:
        if one.opcode in ("copy-start", "async-start") and "[4096,1024]" in one.shape and VMEM in one.shape:
            return True
        if kind_of(one) == "all-reduce":
            return False
    return False


PROBES = (
    Probe(
        of="memory-space-assignment",
        topology="v5e:1x1",
        programs=(Program(fn=_matmuls, args=(Array(shape=(1024, 1024)),) * 3),),
        shows="the result of a matmul that the next one reads stays in VMEM",
        seen=lambda found: VMEM in matmuls(found)[0].shape and VMEM not in matmuls(found)[1].shape,
    ),
    Probe(
        of="cross-program-prefetch",
        topology="v5e:2x2",
        programs=(
            Program(
                fn=_summed,
                args=(
                    Array(shape=(64, 4096), spec=P(None, "x")),
                    Array(shape=(4096, 4096), spec=P("x")),
                    Array(shape=(4096, 1024)),
                ),
                devices=4,
            ),
        ),
        shows="weights are on their way to VMEM from before the sum on that the matmul waits for",
        seen=_prefetched,
    ),
)
