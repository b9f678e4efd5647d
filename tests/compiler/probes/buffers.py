"""Probes of buffer assignment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.compiler.probes.collectives import scattered
from tests.compiler.probes.fusion import GROUPS, RAGGED, RAGGED_ROWS, RAGGED_SUM, TOKENS, WIDTH, is_matmul
from tests.compiler.probes.probe import Array, Compiled, Probe, Program, dims_text
from tests.compiler.probes.schedule import ARGS, chain

BUFFER = Array(shape=(65536, 1024))
BYTES = 2 * 65536 * 1024
UPDATE = (BUFFER, Array(shape=(8, 1024)), Array(shape=(), dtype=jnp.int32))
X = Array(shape=(1024, 1024), dtype=jnp.float32)
HIDDEN_BYTES = 4 * 8192 * 1024


def _update(buffer: Any, rows: Any, at: Any) -> Any:
    return lax.dynamic_update_slice(buffer, rows, (at, 0))


def _update_and_old(buffer: Any, rows: Any, at: Any) -> Any:
    new = _update(buffer, rows, at)
    return new, (jnp.tanh(buffer) * new[::-1]).sum(0)


def _gradients(x: Any, w: Any, h: Any, g: Any) -> Any:
    z = jnp.where(h > 0, g, 0) * 2
    return x.T @ z, z @ w.T


def _stacks(starts: Any, w: Any, *, reverse: bool) -> Any:
    """The sum of the stacks that a loop inside another leaves."""

    def trip(total: Any, start: Any) -> Any:
        made = lax.scan(lambda x, _: (jnp.tanh(x @ w), x), start, None, length=8, reverse=reverse)[1]
        return total + made, None

    return lax.scan(trip, jnp.zeros((8, *starts.shape[1:]), starts.dtype), starts)[0]


def _zeros(found: Compiled) -> bool:
    return any(
        one.opcode == "broadcast" and "[8,4096,1024]" in one.shape for body in found.bodies for one in body.instructions
    )


def _saved(x: Any, weights: Any) -> Any:
    def body(x: Any, w: Any) -> tuple[Any, Any]:
        h = x @ w
        return jnp.tanh(h), h

    return lax.scan(body, x, weights)


def _is_stack(kernel: Any) -> bool:
    return f"bf16{dims_text(4, 1024, 1024)}" in kernel.shape


def _in(dtype: Any) -> Callable[..., Any]:
    def fn(x: Any, w: Any, a: Any, b: Any) -> Any:
        h = x @ w
        y = (jnp.sin(h) + h).astype(dtype)
        return y @ a.astype(dtype), y @ b.astype(dtype)

    return fn


def _stored_once(found: Compiled) -> bool:
    made = [one for one in found.kernels() if found.holds(one, "select")]
    return len(made) == 1 and not is_matmul(found, made[0])


def _copies(found: Compiled) -> bool:
    return any(one.opcode == "copy" and "[65536,1024]" in one.shape for one in found.kernels())


TYPES = tuple(
    Program(
        fn=_in(dtype),
        args=(Array(shape=(8192, 1024), dtype=jnp.float32), X, *(Array(shape=(1024, 256), dtype=jnp.float32),) * 2),
    )
    for dtype in (jnp.float32, jnp.bfloat16)
)

SPECTRUM = Array(shape=(65536, 1024), dtype=jnp.complex64)
SIGNAL_BYTES = 4 * 65536 * 1024


def _result_at_the_end(x: Any, w: Any) -> Any:
    """A result that is made of nothing but the last sum of a chain, whose steps need two temporaries."""
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return x.sum(0)[:, None] * jnp.ones((1, 8192), x.dtype)


PROBES = (
    Probe(
        of="separate-results",
        topology="v5e:1x1",
        programs=(Program(fn=_result_at_the_end, args=(Array(shape=(8192, 8192)),) * 2),),
        shows="the steps of a chain take no memory of the result at its end",
        seen=lambda found: found.memory.temp_bytes >= 2 * 2 * 8192 * 8192,
    ),
    Probe(
        of="ragged-operand-layout",
        topology="v5e:1x1",
        programs=(RAGGED_ROWS,),
        shows="weights are copied for the gradient of the rows of a ragged dot",
        seen=lambda found: any(
            found.holds(one, "copy") and one.shape.startswith(f"bf16{dims_text(GROUPS, WIDTH, WIDTH)}")
            for one in found.kernels()
        ),
    ),
    Probe(
        of="group-masks",
        topology="v5p:2x2x1",
        programs=(RAGGED_SUM,),
        shows="the gradient of the weights of a ragged dot writes a mask of a byte for every group and row",
        seen=lambda found: any(
            one.shape.startswith(f"pred{dims_text(GROUPS, TOKENS, 1)}{{2,1,0:") for one in found.kernels()
        ),
    ),
    Probe(
        of="complex-planes",
        topology="v5e:1x1",
        programs=(Program(fn=jnp.fft.fft, args=(SPECTRUM,)),),
        shows="beside a complex argument and its transform stand the real and imaginary parts of both",
        seen=lambda found: 2.9 < found.memory.temp_bytes / SIGNAL_BYTES < 4.1,
    ),
    Probe(
        of="real-transforms",
        topology="v5e:1x1",
        programs=(
            Program(
                fn=lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2), args=(Array(shape=(65536, 1024), dtype=jnp.float32),)
            ),
        ),
        shows="a transform of real numbers and back holds several arrays beside the spectrum",
        seen=lambda found: 3.4 < found.memory.temp_bytes / SIGNAL_BYTES < 4.1,
    ),
    *(
        Probe(
            of="copy-insertion",
            topology=topology,
            programs=tuple(Program(fn=fn, args=UPDATE, donated=(0,)) for fn in (_update, _update_and_old)),
            shows="a donated array is updated in place, and copied first where its old value is read afterwards",
            seen=lambda new, both: not _copies(new) and new.memory.temp_bytes < 0.1 * BYTES and _copies(both),
        )
        for topology in ("v5e:1x1", "h100:1", "cpu:1")
    ),
    Probe(
        of="while-loop-fusible-sinking",
        topology="v5e:1x1",
        programs=tuple(
            Program(
                fn=partial(_stacks, reverse=reverse),
                args=(Array(shape=(4, 4096, 1024), dtype=jnp.float32), Array(shape=(1024, 1024), dtype=jnp.float32)),
            )
            for reverse in (False, True)
        ),
        shows="zeros are written for the stack of a loop inside another where it is reversed",
        seen=lambda straight, reverse: not _zeros(straight) and _zeros(reverse),
    ),
    Probe(
        of="updated-stacks",
        topology="h100:1",
        programs=(Program(fn=_saved, args=(Array(shape=(1024, 1024)), Array(shape=(4, 1024, 1024)))),),
        shows="zeros are written for a stack, and slices that a matmul made are copied into it",
        seen=lambda found: (
            any(found.holds(one, "broadcast") and _is_stack(one) for one in found.kernels())
            and any(found.holds(one, "dynamic-update-slice") for one in found.kernels(found.bodies[0]))
        ),
    ),
    *(
        Probe(
            of="buffer-assignment",
            topology=topology,
            programs=tuple(Program(fn=partial(chain, length=length), args=ARGS) for length in (4, 8)),
            shows="eight matmuls in a chain take no more temporaries than four",
            seen=lambda four, eight: (
                four.memory.temp_bytes > BYTES and eight.memory.temp_bytes < 1.1 * four.memory.temp_bytes
            ),
        )
        for topology in ("v5e:1x1", "h100:1", "cpu:1")
    ),
    Probe(
        of="sibling-operands",
        topology="cpu:1",
        programs=(Program(fn=_gradients, args=(X,) * 4),),
        shows="a value that both gradients of a matmul read is stored by a kernel of its own",
        seen=_stored_once,
    ),
    Probe(
        of="whole-sum-kept",
        topology="v5e:4x4",
        programs=(
            Program(
                fn=lambda p, g: p - 0.1 * jnp.tanh(scattered(g, 16)),
                args=(Array(shape=(8192, 4096), spec=P("x")), Array(shape=(16 * 8192, 4096), spec=P("x"))),
                devices=16,
                donated=(0,),
            ),
        ),
        shows="the kernel that reads a part of the sum takes it from the whole one, which is in memory",
        seen=lambda found: (
            found.memory.temp_bytes >= 2 * 8192 * 4096
            and any(found.holds(one, "dynamic-slice", "tanh") for one in found.kernels())
        ),
    ),
    Probe(
        of="same-type-reuse",
        topology="h100:1",
        programs=TYPES,
        shows="a result of 32 bits takes the place of its operand of 32 bits, one of 16 bits does not",
        seen=lambda wide, narrow: (
            wide.memory.temp_bytes < 2 * HIDDEN_BYTES and narrow.memory.temp_bytes >= 1.5 * HIDDEN_BYTES
        ),
    ),
    *(
        Probe(
            of="masked-groups",
            topology=topology,
            programs=(RAGGED,),
            shows="temporaries hold the masked rows once for every group",
            seen=lambda found: found.memory.temp_bytes >= 2 * GROUPS * TOKENS * WIDTH,
        )
        for topology in ("h100:1", "cpu:1")
    ),
    Probe(
        of="result-table",
        topology="cpu:1",
        programs=(Program(fn=lambda x: (x + 1, x + 2, x + 3), args=(X,)),),
        shows="three results take 24 bytes more than their elements",
        seen=lambda found: found.memory.output_bytes == 3 * (4 * 1024 * 1024 + 8),
    ),
    Probe(
        of="one-memory",
        topology="cpu:1",
        programs=(Program(fn=lambda x: jax.device_put(x, jax.memory.Space.Host), args=(X,)),),
        shows="an array on the host is counted among the results",
        seen=lambda found: found.memory.output_bytes >= 4 * 1024 * 1024,
    ),
)
