"""Probes of what the compilers do that the planner writes programs for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from cost_models import parse_topology
from planner.compiler.emission.options import SLICE_SCATTERS, plan_options
from tests.compiler.probes.collectives import SLICE_SUM
from tests.compiler.probes.layout import AT, BATCH, CACHE, HEADS, LAYERS, STACK_BYTES, WIDTH, convolved
from tests.compiler.probes.probe import Array, Compiled, Probe, Program, laid

THRESHOLD = "xla_jf_spmd_threshold_for_windowed_einsum_mib"
STEPS, ROWS = 16, 8192
STEPS_BYTES = 2 * STEPS * ROWS * 1024
KEYS = 4096
SCORES_BYTES = 4 * BATCH * KEYS * KEYS


def _tensor_parallel(x: Any, up: Any, down: Any) -> Any:
    return laid(jax.nn.gelu(x @ up) @ down, 16, "x")


def _scanned(stack: Any, x: Any) -> Any:
    def body(x: Any, own: Any) -> Any:
        new = own + x
        return new.mean(0).astype(x.dtype)[None] * x, new

    return lax.scan(body, x, stack)


def _two_loops(x: Any, weights: Any, *, apart: bool) -> Any:
    def loop(x: Any, ones: int) -> Any:
        def layer(x: Any, w: Any) -> Any:
            made = jnp.tanh(x @ w)
            return made, made[(None,) * ones]

        return lax.scan(layer, x, weights)

    x, first = loop(x, 0)
    x, second = loop(x, int(apart))
    return x, first, second


def _zeros_written(found: Compiled) -> int:
    """How many kernels write the zeros of a stack."""
    shapes = (f"bf16[{STEPS},{ROWS},1024]", f"bf16[{STEPS},1,{ROWS},1024]")
    return sum(one.opcode == "broadcast" and one.shape.startswith(shapes) for one in found.kernels())


def _carried(stack: Any, x: Any) -> Any:
    def body(n: Any, carry: Any) -> Any:
        stack, x = carry
        new = stack[n] + x
        return lax.dynamic_update_index_in_dim(stack, new, n, 0), new.mean(0).astype(x.dtype)[None] * x

    return lax.fori_loop(0, STEPS, body, (stack, x))


def _decoded(caches: Any, query: Any, at: Any) -> Any:
    def body(n: Any, carry: Any) -> Any:
        caches, query = carry
        caches = lax.dynamic_update_slice(caches, query[None, :, None], (n, 0, at, 0, 0))
        scores = jnp.einsum("bhd,bthd->bht", query, caches[n]).astype(jnp.float32)
        return caches, jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores, -1).astype(query.dtype), caches[n])

    return lax.fori_loop(0, LAYERS, body, (caches, query))


def _masked_attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=jnp.float32) / 8.0
    seen = jnp.arange(KEYS)[:, None] >= jnp.arange(KEYS)
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1).astype(v.dtype)
    return jnp.einsum("bqk,bkd->bqd", weights, v)


PROBES = (
    *(
        Probe(
            of="distinct-stacks",
            topology=topology,
            programs=tuple(
                Program(
                    fn=partial(_two_loops, apart=apart),
                    args=(Array(shape=(ROWS, 1024)), Array(shape=(STEPS, 1024, 1024))),
                )
                for apart in (False, True)
            ),
            shows="zeros are written for the stacks of two loops that have one shape, and not where they have two",
            seen=lambda alike, apart: _zeros_written(alike) > _zeros_written(apart) == 0,
        )
        for topology in ("v5e:1x1", "v6e:1x1")
    ),
    Probe(
        of="slices-of-donated-stacks",
        topology="v5e:1x1",
        programs=(
            Program(fn=_decoded, args=(Array(shape=CACHE), Array(shape=(BATCH, HEADS, WIDTH)), AT), donated=(0,)),
        ),
        shows="a position of a donated cache is updated in place",
        seen=lambda found: found.memory.temp_bytes < 0.1 * STACK_BYTES,
    ),
    Probe(
        of="no-windowed-einsum",
        topology="v5e:4x4",
        programs=tuple(
            Program(
                fn=_tensor_parallel,
                args=(
                    Array(shape=(16384, 4096), spec=P("x")),
                    Array(shape=(4096, 16384), spec=P(None, "x")),
                    Array(shape=(16384, 4096), spec=P("x")),
                ),
                devices=16,
                options={THRESHOLD: threshold},
            )
            for threshold in ("0", "1000000")
        ),
        shows="a gather beside a matmul becomes a loop of permutes below the threshold of the option alone",
        seen=lambda low, high: (
            any(one.windowed for one in low.report.collectives)
            and not any(one.windowed for one in high.report.collectives)
        ),
    ),
    Probe(
        of="no-space-to-batch",
        topology="v5e:1x1",
        programs=tuple(
            Program(
                fn=convolved,
                args=(Array(shape=(4, 64, 64, 256)), *(Array(shape=(3, 3, 256, 256)),) * 2),
                options=plan_options(parse_topology("v5e:1x1"), convolves=convolves),
            )
            for convolves in (False, True)
        ),
        shows="convolutions of 4 images are of 32 parts of images without the option alone",
        seen=lambda cut, whole: (
            [
                any(found.holds(one, "convolution") and one.shape.startswith("bf16[4,64,64") for one in found.kernels())
                for found in (cut, whole)
            ]
            == [False, True]
        ),
    ),
    *(
        Probe(
            of="slice-scatters",
            topology=topology,
            programs=(SLICE_SUM, replace(SLICE_SUM, options=SLICE_SCATTERS)),
            shows="a scatter over all of a slice stays one with the option alone",
            seen=lambda summed, kept: (
                (summed.count("all-reduce"), summed.count("reduce-scatter")) == (1, 0)
                and (kept.count("all-reduce"), kept.count("reduce-scatter")) == (0, 1)
            ),
        )
        for topology in ("v5e:4x4", "v6e:4x4")
    ),
    Probe(
        of="fused-broadcasts",
        topology="v6e:1x1",
        programs=tuple(
            Program(fn=_masked_attention, args=(Array(shape=(BATCH, KEYS, 64)),) * 3, options=options)
            for options in ({}, plan_options(parse_topology("v6e:1x1")))
        ),
        shows="scale and mask of scores are stored in the size of the scores without the option alone",
        seen=lambda stored, fused: (
            stored.memory.temp_bytes > 3 * SCORES_BYTES and fused.memory.temp_bytes < 1.1 * SCORES_BYTES
        ),
    ),
    *(
        Probe(
            of="stacks-in-carry",
            topology=topology,
            programs=tuple(
                Program(fn=fn, args=(Array(shape=(STEPS, ROWS, 1024)), Array(shape=(ROWS, 1024))), donated=(0,))
                for fn in (_scanned, _carried)
            ),
            shows="a new stack is a second one in memory, unless the donated one is in the carry",
            seen=lambda scanned, carried: (
                scanned.memory.temp_bytes >= STEPS_BYTES and carried.memory.temp_bytes < 0.5 * STEPS_BYTES
            ),
        )
        for topology in ("v5e:1x1", "h100:1")
    ),
)
