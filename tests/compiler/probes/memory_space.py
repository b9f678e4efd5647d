"""Probes of memory spaces."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
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


def _put_apart(x: Any) -> Any:
    apart = lax.pad(jnp.exp(x) * x, jnp.zeros((), x.dtype), ((0, 1, 1), (0, 0, 0)))
    return jnp.sin(apart) + 1


def _alone_in_memory(found: Compiled) -> bool:
    """Whether the padded array is in main memory, and what is computed before it on the chip."""
    alone = [one for one in found.entry.instructions if one.opcode == "pad"]
    before = [one for one in found.entry.instructions if one.opcode == "fusion" and VMEM in one.shape]
    return bool(alone) and bool(before) and all(VMEM not in one.shape for one in alone)


PROBES = (
    Probe(
        of="memory-space-assignment",
        topology="v5e:1x1",
        programs=(Program(fn=_matmuls, args=(Array(shape=(1024, 1024)),) * 3),),
        shows="the result of a matmul that the next one reads stays in VMEM",
        seen=lambda found: VMEM in matmuls(found)[0].shape and VMEM not in matmuls(found)[1].shape,
    ),
    Probe(
        of="memory-space-assignment",
        topology="v5p:2x2x1",
        programs=(Program(fn=_put_apart, args=(Array(shape=(2048, 1024), spec=P("x")),), devices=4),),
        shows="the result of an op alone in its kernel stays in main memory where two cores share it",
        seen=_alone_in_memory,
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
