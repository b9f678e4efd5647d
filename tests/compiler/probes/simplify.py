"""Probes of simplification."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.compiler.probes.probe import Array, Compiled, Probe, Program, dims_text, laid

X = Array(shape=(1024, 1024))


def _constrained(x: Any) -> Any:
    return laid(laid(x * 2, 4, "x") + 1, 4, "x")


CONSTRAINED = Program(fn=_constrained, args=(Array(shape=(1024, 1024), spec=P("x")),), devices=4)
LAYERS, WIDTH = 8, 512


def _scanned(x: Any, weights: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w.astype(x.dtype)), None), x, weights)[0]


def _messages(x: Any, senders: Any, w: Any) -> Any:
    whole = laid(x, 4)
    ends = jnp.concatenate([whole[senders], jnp.maximum(whole[senders // 2], 0)], axis=1)
    return jnp.where(senders[:, None] > 7, ends, 0) @ w


def _narrowed_before_its_loop(found: Compiled) -> bool:
    return any(
        one.opcode in ("convert", "fusion") and one.shape.startswith(f"bf16{dims_text(LAYERS, WIDTH, WIDTH)}")
        for one in found.kernels()
    )


PROBES = (
    *(
        Probe(
            of="sharding-remover",
            topology=topology,
            programs=(CONSTRAINED,),
            shows="ops before and after a constraint that moves nothing are one kernel",
            seen=lambda found: len(found.kernels()) == 1,
        )
        for topology in ("v5e:2x2", "h100:4", "cpu:4")
    ),
    Probe(
        of="convert-mover",
        topology="v5e:2x2",
        programs=(
            Program(
                fn=lambda x, w: x @ laid(w, 4).astype(x.dtype),
                args=(X, Array(shape=(1024, 1024), dtype=jnp.float32, spec=P("x"))),
                devices=4,
            ),
        ),
        shows="a float32 weight that is narrowed after its gather is gathered narrow",
        seen=lambda found: [one.dtypes for one in found.report.collectives] == [("bf16",)],
    ),
    Probe(
        of="convert-mover",
        topology="v5e:2x2",
        programs=(
            Program(
                fn=_messages,
                args=(
                    Array(shape=(65536, 256), dtype=jnp.float32, spec=P("x")),
                    Array(shape=(32768,), dtype=jnp.int32),
                    Array(shape=(512, 256), dtype=jnp.float32),
                ),
                devices=4,
            ),
        ),
        shows="a float32 table whose rows are joined, masked and multiplied is gathered narrow",
        seen=lambda found: [one.dtypes for one in found.report.collectives] == [("bf16",)],
    ),
    Probe(
        of="multi-pass-lowering",
        topology="v5e:1x1",
        programs=(Program(fn=lambda x: jnp.cumsum(x, 0), args=(Array(shape=(65536, 128), dtype=jnp.float32),)),),
        shows="a cumulative sum along many rows reads and writes all elements several times",
        seen=lambda found: sum("65536" in k.shape or "[128,512,128]" in k.shape for k in found.kernels()) >= 3,
    ),
    Probe(
        of="dot-strength-reduction",
        topology="v5e:1x1",
        programs=(Program(fn=lambda a, v: a @ v, args=(X, Array(shape=(1024,)))),),
        shows="a product with a vector is no matmul",
        seen=lambda found: found.flops == 0 and found.holds(found.entry.root, "multiply", "reduce"),
    ),
    Probe(
        of="cse",
        topology="v5e:1x1",
        programs=(
            Program(
                fn=lambda x, w, v: ((x @ w) @ v, jnp.tanh(x @ w) @ v),
                args=(X, Array(shape=(1024, 1024)), Array(shape=(1024, 1024))),
            ),
        ),
        shows="of two equal matmuls one is left",
        seen=lambda found: found.flops == 3 * 2 * 1024**3,
    ),
    Probe(
        of="loop-invariant-convert-motion",
        topology="v5e:1x1",
        programs=(
            Program(
                fn=_scanned,
                args=(Array(shape=(WIDTH, WIDTH)), Array(shape=(LAYERS, WIDTH, WIDTH), dtype=jnp.float32)),
            ),
        ),
        shows="a float32 stack of weights is converted as a whole before the loop",
        seen=_narrowed_before_its_loop,
    ),
)
