"""Probes of layout assignment."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from planner.verify.hlo.text import Instruction
from tests.compiler.probes.probe import Array, Compiled, Probe, Program, dims_text, laid

WINDOWS, TOKENS = 256, 49
LAYERS, BATCH, LENGTH, HEADS, QUERIES, WIDTH = 4, 8, 2048, 8, 4, 128
CACHE = (LAYERS, BATCH, LENGTH, HEADS, WIDTH)
STACK_BYTES = 2 * LAYERS * BATCH * LENGTH * HEADS * WIDTH
QUERY = Array(shape=(BATCH, HEADS, QUERIES, WIDTH))
AT = Array(shape=(), dtype=jnp.int32)


def mixed(query: Any, cache: Any) -> Any:
    """Attention of several queries per head over a cache whose heads lie within the positions."""
    scores = jnp.einsum("bkgd,btkd->bkgt", query, cache).astype(jnp.float32)
    return jnp.einsum("bkgt,btkd->bkgd", jax.nn.softmax(scores, -1).astype(query.dtype), cache)


def _scanned(caches: Any, query: Any, at: Any) -> Any:
    def body(query: Any, cache: Any) -> Any:
        cache = lax.dynamic_update_slice(cache, query[:, None, :, 0], (0, at, 0, 0))
        return mixed(query, cache), cache

    return lax.scan(body, query, caches)


def _carried(caches: Any, query: Any, at: Any) -> Any:
    def body(n: Any, carry: Any) -> Any:
        caches, query = carry
        caches = lax.dynamic_update_slice(caches, query[None, :, None, :, 0], (n, 0, at, 0, 0))
        return caches, mixed(query, caches[n])

    return lax.fori_loop(0, LAYERS, body, (caches, query))


def _copied_in_its_loop(found: Compiled) -> bool:
    """As it is, or as a slice of one layer."""
    words = (f"bf16{dims_text(*CACHE[1:])}{{3,1,2,0:", f"bf16{dims_text(1, *CACHE[1:])}{{4,2,3,1,0:")
    return any(one.shape.startswith(words) and found.holds(one, "copy") for one in found.kernels(found.bodies[0]))


def _transposed(found: Compiled) -> bool:
    words = f"bf16{dims_text(LAYERS, BATCH, HEADS, WIDTH, LENGTH)}"
    return any(one.shape.startswith(words) and found.holds(one, "transpose") for one in found.kernels())


def _gradients_of_scores(queries: Any, keys: Any, *scores: Any) -> Any:
    """What the gradients of scores in (groups, queries, keys), a product of arrays, give for queries and keys."""
    of = jax.vjp(lambda q, k: jnp.einsum("qgd,kd->gqk", q, k, preferred_element_type=jnp.float32), queries, keys)[1]
    return of(math.prod(scores))


def _swapped_by_triton(found: Compiled, kernel: Instruction) -> bool:
    return found.holds(kernel, "transpose") and '"kind":"__triton"' in kernel.attributes


def _gathered(x: Any, stack: Any) -> Any:
    """Matmuls by weights that a loop gathers."""

    def body(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ laid(w, 4)) @ jnp.ones((2048, 512), x.dtype), None

    return lax.scan(body, x, stack)[0]


def _relaid(found: Compiled) -> bool:
    """Whether a kernel before the loop transposes the stack."""
    return any(found.holds(one, "transpose") for one in found.kernels())


def _by_chunks(x: Any, w: Any) -> Any:
    """A recurrence over chunks of what a matmul makes, its heads outside of the positions of a chunk."""
    chunks = jnp.transpose((x @ w).reshape(BATCH, LENGTH // 64, 64, HEADS, WIDTH), (1, 0, 3, 2, 4))
    return lax.scan(lambda total, chunk: (0.9 * total + chunk, total.sum()), jnp.zeros_like(chunks[0]), chunks)


def _windowed(q: Any, k: Any) -> Any:
    """The products of queries and keys, and an activation of them."""
    return jnp.tanh(jnp.einsum("nhqd,nhkd->nhqk", q, k))


def convolved(x: Any, *windows: Any) -> Any:
    """Layers of convolutions over images, with an activation between them."""
    for window in windows:
        x = jax.nn.relu(lax.conv_general_dilated(x, window, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return x


CARRIED = Program(fn=_carried, args=(Array(shape=CACHE), QUERY, AT), donated=(0,))
OF_GROUPS, OF_KEYS = Array(shape=(512, 4, 128)), Array(shape=(2048, 128))
SCORES = Array(shape=(4, 512, 2048), dtype=jnp.float32)
LOOKUP = Program(
    fn=lambda table, rows: table[rows],
    args=(Array(shape=(65536, 64), dtype=jnp.float32), Array(shape=(4096,), dtype=jnp.int32)),
)
GRADIENT = Program(
    fn=lambda table, rows: table - jax.grad(lambda table: jnp.sum(jnp.sin(table[rows])))(table),
    args=(Array(shape=(1 << 20, 64), dtype=jnp.float32), Array(shape=(4096,), dtype=jnp.int32)),
    donated=(0,),
)
MESSAGES = Program(
    fn=lambda nodes, senders, receivers: jnp.zeros_like(nodes).at[receivers].add(jnp.tanh(nodes[senders])),
    args=(Array(shape=(16384, 8), dtype=jnp.float32), *(Array(shape=(65536,), dtype=jnp.int32),) * 2),
)

PROBES = (
    Probe(
        of="tiling",
        topology="v5e:1x1",
        programs=(Program(fn=lambda x: x + 1, args=(Array(shape=(100, 100), dtype=jnp.float32),)),),
        shows="an array of 100 x 100 words takes 104 x 128",
        seen=lambda found: found.memory.argument_bytes == 104 * 128 * 4,
    ),
    Probe(
        of="dot-operand-layout",
        topology="v5e:1x1",
        programs=(Program(fn=_scanned, args=(Array(shape=CACHE), QUERY, AT), donated=(0,)),),
        shows="the loop copies its slice of a cache, heads outermost",
        seen=_copied_in_its_loop,
    ),
    Probe(
        of="transposed-operands",
        topology="h100:1",
        programs=(
            Program(
                fn=lambda q, k: jnp.einsum("bthd,bshd->bhts", q, k),
                args=(Array(shape=(BATCH, LENGTH, HEADS, WIDTH)),) * 2,
            ),
        ),
        shows="queries and keys are transposed for their product, heads outermost",
        seen=lambda found: [found.holds(one, "transpose") for one in found.kernels()] == [True, True, False],
    ),
    Probe(
        of="layout-assignment",
        topology="v5e:1x1",
        programs=(
            Program(fn=_by_chunks, args=(Array(shape=(BATCH, LENGTH, 1024)), Array(shape=(1024, HEADS * WIDTH)))),
        ),
        shows="what a matmul makes is copied before a loop over chunks of it",
        seen=lambda found: any(
            found.holds(one, "copy")
            and one.shape.startswith(
                (
                    f"bf16{dims_text(LENGTH // 64, BATCH, HEADS, 64, WIDTH)}",
                    f"bf16{dims_text(BATCH, LENGTH // 64, 64, HEADS, WIDTH)}{{4,2,3,0,1:",
                )
            )
            for one in found.kernels()
        ),
    ),
    Probe(
        of="gather-table-layout",
        topology="v5e:1x1",
        programs=(LOOKUP,),
        shows="the table is copied, with rows of whole tiles, before rows are looked up",
        seen=lambda found: any(
            one.opcode == "copy" and one.shape.startswith("f32[65536,64]{1,0:T(8,128)") for one in found.kernels()
        ),
    ),
    Probe(
        of="large-rows",
        topology="v5e:1x1",
        programs=tuple(
            Program(
                fn=lambda table, rows: jnp.take(table, rows, axis=0, mode="clip"),
                args=(Array(shape=(32, rows, 1024), dtype=jnp.float32), Array(shape=(16,), dtype=jnp.int32)),
            )
            for rows in (256, 512)
        ),
        shows="rows of 262,144 elements are looked up in one kernel, of twice as many in a table cut in two",
        seen=lambda small, large: (
            [len(found.kernels()) for found in (small, large)] == [2, 5]
            and any(one.shape.count(dims_text(32, 512, 512)) == 2 for one in large.kernels())
        ),
    ),
    Probe(
        of="scattered-rows",
        topology="v5e:1x1",
        programs=(GRADIENT,),
        shows="a gradient of a million rows of 64 elements is made by rows, and copied back",
        seen=lambda found: any(
            one.opcode == "copy" and one.shape.startswith("f32[1048576,64]{0,1") for one in found.kernels()
        ),
    ),
    Probe(
        of="row-major-lanes",
        topology="v5e:1x1",
        programs=(MESSAGES,),
        shows="rows of 8 elements are gathered and scattered with their last dim innermost",
        seen=lambda found: any(
            one.opcode == "fusion" and one.shape.startswith("f32[16384,8]{1,0:T(8,128)") for one in found.kernels()
        ),
    ),
    Probe(
        of="convolution-layout",
        topology="v5e:1x1",
        programs=(
            Program(fn=convolved, args=(Array(shape=(16, 64, 64, 32)), *(Array(shape=(3, 3, 32, 32)),) * 2)),
            Program(fn=convolved, args=(Array(shape=(64, 64, 64, 32)), *(Array(shape=(3, 3, 32, 32)),) * 2)),
        ),
        shows="images of 32 features lie in tiles of batch and features, features innermost unless the batch is longer",
        seen=lambda few, many: all(
            any(found.holds(one, "convolution") and one.shape.startswith(lies) for one in found.kernels())
            for found, lies in ((few, "bf16[16,64,64,32]{3,0,2,1:"), (many, "bf16[64,64,64,32]{0,3,2,1:"))
        ),
    ),
    Probe(
        of="dot-layout",
        topology="v5e:1x1",
        programs=(Program(fn=_windowed, args=(Array(shape=(WINDOWS, HEADS, TOKENS, 32)),) * 2),),
        shows="scores of 49 queries and keys lie in tiles of these, however many windows there are",
        seen=lambda found: any(
            one.shape.startswith(f"bf16{dims_text(WINDOWS, HEADS, TOKENS, TOKENS)}{{{order},1,0:")
            for one in found.kernels()
            for order in ("3,2", "2,3")
        ),
    ),
    Probe(
        of="gpu-layout-assignment",
        topology="h100:1",
        programs=(CARRIED,),
        shows="the cache is transposed before the loop, heads outside of positions",
        seen=_transposed,
    ),
    Probe(
        of="collective-layout",
        topology="h100:4",
        programs=tuple(
            Program(fn=_gathered, args=(Array(shape=(64, 512)), Array(shape=(8, 512, 2048), spec=spec)), devices=4)
            for spec in (PartitionSpec(None, None, "x"), PartitionSpec(None, "x"))
        ),
        shows="a stack of weights is transposed before a loop that gathers them along their columns, not along their rows",
        seen=lambda columns, rows: (
            columns.count("all-gather") == rows.count("all-gather") == 1 and _relaid(columns) and not _relaid(rows)
        ),
    ),
    Probe(
        of="transposed-buffers",
        topology="h100:1",
        programs=(CARRIED,),
        shows="temporaries hold a second cache while the loop runs",
        seen=lambda found: found.memory.temp_bytes >= STACK_BYTES,
    ),
    Probe(
        of="uncoalesced-transposes",
        topology="h100:1",
        programs=(
            Program(
                fn=lambda x, y: (jnp.transpose(x, (0, 2, 1)) * y).sum(0),
                args=(
                    Array(shape=(4096, 4, 256), dtype=jnp.float32),
                    Array(shape=(4096, 256, 4), dtype=jnp.float32),
                ),
            ),
        ),
        shows="a transpose of dims of 4 and 256 is a kernel of its own, that stores its result",
        seen=lambda found: any(
            found.holds(one, "transpose") and one.shape.startswith("f32[4096,256,4]") for one in found.kernels()
        ),
    ),
    Probe(
        of="uncoalesced-transposes",
        topology="h100:1",
        programs=(
            Program(fn=_gradients_of_scores, args=(OF_GROUPS, OF_KEYS, SCORES, SCORES)),
            Program(fn=lambda q, k, of: _gradients_of_scores(q, k, jnp.tanh(of)), args=(OF_GROUPS, OF_KEYS, SCORES)),
        ),
        shows="Triton makes a kernel that only swaps dims of 4 and 2048 across another one, not one that goes on",
        seen=lambda alone, going_on: (
            any(_swapped_by_triton(alone, one) for one in alone.kernels())
            and not any(_swapped_by_triton(going_on, one) for one in going_on.kernels())
        ),
    ),
)
