"""Probes of fusion."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from cost_models import parse_topology
from planner.verify.step_time import step_time
from tests.compiler.probes.probe import Array, Compiled, Probe, Program, laid

X = Array(shape=(1024, 1024))
ROWS = Array(shape=(1024, 1024), dtype=jnp.float32)
GROUPS, TOKENS, WIDTH = 8, 1024, 256
BATCH, LENGTH, VOCABULARY = 64, 1024, 32768
MATMULS = ("convolution", "dot")


def is_matmul(found: Compiled, kernel: Any) -> bool:
    """Whether a kernel multiplies matrices."""
    return any(one.opcode in MATMULS for one in found.within(kernel))


def matmuls(found: Compiled) -> list[Any]:
    """The kernels of the entry that multiply matrices."""
    return [one for one in found.kernels() if is_matmul(found, one)]


def _attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bqd,bkd->bqk", q, k).astype(jnp.float32) / 8.0
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1).astype(v.dtype), v)


def _gradients_of_attention(q: Any, k: Any, v: Any) -> Any:
    return jax.grad(lambda *arrays: (_attention(*arrays).astype(jnp.float32) ** 2).sum(), (0, 1, 2))(q, k, v)


def _gradients_of_logits(out: Any, x: Any, labels: Any) -> Any:
    def loss(out: Any) -> Any:
        logits = (x @ out).astype(jnp.float32)
        return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]).mean()

    return jax.value_and_grad(loss)(out)


def _only_gathered_in_float32(found: Compiled) -> bool:
    """A gather reads logits in float32, and no other kernel."""
    wide = {one.name for one in found.entry.instructions if one.shape.startswith(f"f32[{LENGTH},{VOCABULARY}]")}
    readers = [one for one in found.kernels() if not wide.isdisjoint(one.operands)]
    return bool(readers) and all(found.holds(one, "gather") for one in readers)


def _residual(x: Any, w: Any, a: Any, b: Any, c: Any, up: Any, down: Any) -> Any:
    r = x @ w + a + b + c
    return jnp.tanh(r) @ up, (r * 2) @ down, r.sum(0)


def _stored_by_its_matmul(found: Compiled) -> bool:
    """The first matmul adds what is added, and the others read what it stored."""
    first, *others = matmuls(found)
    return found.holds(first, "add") and len(others) == 2 and not any(found.holds(one, "add") for one in others)


def _gradient_of_sine(x: Any, w: Any, v: Any) -> Any:
    def loss(x: Any, w: Any, v: Any) -> Any:
        h = x @ w
        return (((h * jnp.sin(h)) @ v) ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(x, w, v)


def _scanned(x: Any, weights: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]


def _dropped(x: Any, w: Any) -> Any:
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, x.shape), x @ w, 0)


def _centred(found: Compiled) -> bool:
    first = next(one for one in found.kernels() if found.holds(one, "subtract"))
    return is_matmul(found, first) and f"f32[{BATCH},{LENGTH},{LENGTH}]" in first.shape


def grouped_attention(q: Any, k: Any, v: Any) -> Any:
    """An attention with groups of heads, whose weights are narrowed."""
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", q, k, preferred_element_type=jnp.float32) / 8.0
    return jnp.einsum("bgrqk,bkgd->bqgrd", jax.nn.softmax(scores).astype(v.dtype), v)


def _centred_by_a_pass(found: Compiled, batch: int) -> bool:
    passes = [one for one in found.kernels() if found.holds(one, "subtract") and not is_matmul(found, one)]
    return any(f"f32[{batch},2,8,512,4096]" in one.shape for one in passes)


def _slow(found: Compiled) -> bool:
    chips = parse_topology("h100:1")
    ideal = found.flops / chips.chip.peak("bfloat16", "matrix")
    return step_time(found.report.hlo, chips, {"x": 1}).seconds > 3 * ideal


RAGGED = Program(
    fn=lax.ragged_dot,
    args=(
        Array(shape=(TOKENS, WIDTH)),
        Array(shape=(GROUPS, WIDTH, WIDTH)),
        Array(shape=(GROUPS,), dtype=jnp.int32),
    ),
)
RAGGED_SUM = Program(
    fn=lambda x, w, sizes, made: jax.vjp(lambda w: lax.ragged_dot(x, w, sizes), w)[1](made)[0],
    args=(*RAGGED.args, Array(shape=(TOKENS, WIDTH))),
)
RAGGED_ROWS = Program(
    fn=lambda x, w, sizes, made: jax.vjp(lambda x: lax.ragged_dot(x, w, sizes), x)[1](made)[0], args=RAGGED_SUM.args
)
ALL_GROUPS_FLOPS = 2 * GROUPS * TOKENS * WIDTH * WIDTH

PROBES = (
    Probe(
        of="instruction-fusion",
        topology="v5e:1x1",
        programs=(Program(fn=lambda x: (jnp.tanh(x * 2) + 1).sum(0), args=(ROWS,)),),
        shows="elementwise ops and the sum of their result are one kernel",
        seen=lambda found: len(found.kernels()) == 1,
    ),
    *(
        Probe(
            of="instruction-fusion",
            topology=topology,
            programs=(Program(fn=lambda x: jnp.tanh(x * 2) + 1, args=(ROWS,)),),
            shows="elementwise ops are one kernel",
            seen=lambda found: len(found.kernels()) == 1,
        )
        for topology in ("h100:1", "cpu:1")
    ),
    Probe(
        of="dot-operand-fusion",
        topology="v5e:1x1",
        programs=(Program(fn=lambda a, b, w: jax.nn.relu(a + b) @ w, args=(X, X, X)),),
        shows="a sum and its activation are computed in the matmul that reads them",
        seen=lambda found: len(found.kernels()) == 1 and found.holds(found.kernels()[0], "add", "convolution"),
    ),
    Probe(
        of="dot-operand-fusion",
        topology="cpu:1",
        programs=(Program(fn=lambda a, b, w: jax.nn.relu(a + b) @ w, args=(ROWS,) * 3),),
        shows="a sum and its activation are computed in the matmul that reads them",
        seen=lambda found: len(found.kernels()) == 1,
    ),
    Probe(
        of="dot-output-fusion",
        topology="v5e:1x1",
        programs=(Program(fn=lambda x, w, b: jnp.tanh(x @ w) + b, args=(X, X, X)),),
        shows="an activation and a sum are computed in the matmul whose result they take",
        seen=lambda found: len(found.kernels()) == 1 and found.holds(found.kernels()[0], "tanh", "convolution"),
    ),
    Probe(
        of="random-bits-fusion",
        topology="v5e:1x1",
        programs=(Program(fn=_dropped, args=(X, X)),),
        shows="a matmul draws the random bits by which its result is dropped",
        seen=lambda found: any(found.holds(one, "convolution", "xor") for one in found.kernels()),
    ),
    *(
        Probe(
            of="scatter-initialization",
            topology=topology,
            programs=(
                Program(
                    fn=lambda rows, at: jnp.zeros((1 << 20, 128)).at[at].add(rows),
                    args=(Array(shape=(4096, 128), dtype=jnp.float32), Array(shape=(4096,), dtype=jnp.int32)),
                ),
            ),
            shows="the zeros that a scatter begins with are written",
            seen=lambda found: any(
                (one.opcode == "broadcast" or found.holds(one, "broadcast")) and "[1048576,128]" in one.shape
                for one in found.kernels()
            ),
        )
        for topology in ("v5e:1x1", "h100:1")
    ),
    *(
        Probe(
            of="materialization",
            topology=topology,
            programs=(Program(fn=lambda x, w, v: (x @ w) @ v, args=(X, X, X)),),
            shows="two matmuls, one after the other, are two kernels",
            seen=lambda found: len(matmuls(found)) == 2,
        )
        for topology in ("v5e:1x1", "h100:1", "cpu:1")
    ),
    *(
        Probe(
            of="multi-output-fusion",
            topology=topology,
            programs=(Program(fn=_residual, args=(X,) * 7),),
            shows="a sum of a matmul and three arrays that three kernels read is stored by the matmul",
            seen=_stored_by_its_matmul,
        )
        for topology in ("v5e:1x1", "h100:1")
    ),
    Probe(
        of="multi-output-fusion",
        topology="cpu:1",
        programs=(Program(fn=_residual, args=(ROWS,) * 7),),
        shows="a sum of a matmul and three arrays that three kernels read is computed once",
        seen=lambda found: sum("a.1" in one.operands for one in found.kernels()) == 1,
    ),
    Probe(
        of="shared-operands",
        topology="v5p:2x2x1",
        programs=(Program(fn=_gradients_of_attention, args=(Array(shape=(BATCH, LENGTH, 64)),) * 3),),
        shows="a pass stores the narrow weights of attention that two matmuls read",
        seen=lambda found: any(
            one.shape.startswith(f"bf16[{BATCH},{LENGTH},{LENGTH}]") and not is_matmul(found, one)
            for one in found.kernels()
        ),
    ),
    *(
        Probe(
            of="narrow-reads",
            topology=topology,
            programs=(
                Program(
                    fn=_gradients_of_logits,
                    args=(
                        Array(shape=(1024, VOCABULARY)),
                        Array(shape=(LENGTH, 1024)),
                        Array(shape=(LENGTH,), dtype=jnp.int32),
                    ),
                ),
            ),
            shows="of logits in bfloat16 only a gather reads those in float32",
            seen=_only_gathered_in_float32,
        )
        for topology in ("v5e:1x1", "v6e:1x1")
    ),
    Probe(
        of="softmax-window",
        topology="v5e:1x1",
        programs=(Program(fn=_attention, args=(Array(shape=(BATCH, LENGTH, 64)),) * 3),),
        shows="the matmul of the scores stores the centred rows",
        seen=_centred,
    ),
    Probe(
        of="softmax-window",
        topology="v5e:1x1",
        programs=tuple(
            Program(
                fn=grouped_attention,
                args=(Array(shape=(batch, 512, 2, 8, 128)), *(Array(shape=(batch, 4096, 2, 128)),) * 2),
            )
            for batch in (2, 1)
        ),
        shows="a pass centres scores with groups of heads, if no dim is one",
        seen=lambda two, one: _centred_by_a_pass(two, 2) and not _centred_by_a_pass(one, 1),
    ),
    Probe(
        of="operand-reads",
        topology="cpu:1",
        programs=(Program(fn=lambda a, b: jnp.tanh(a + b) * a, args=(ROWS, ROWS)),),
        shows="one kernel reads both arrays of which its result is computed, once",
        seen=lambda found: [sorted(one.operands) for one in found.kernels()] == [["a.1", "b.1"]],
    ),
    Probe(
        of="gather-fusion",
        topology="h100:1",
        programs=(
            Program(
                fn=lambda table, rows: (table[rows] * 2).sum(-1),
                args=(Array(shape=(65536, 64), dtype=jnp.float32), Array(shape=(4096,), dtype=jnp.int32)),
            ),
        ),
        shows="rows are gathered in the kernel that sums them",
        seen=lambda found: len(found.kernels()) == 1 and found.holds(found.kernels()[0], "gather", "reduce"),
    ),
    Probe(
        of="gemm-operands",
        topology="h100:1",
        programs=(
            Program(fn=lambda a, w: jnp.tanh(a.astype(w.dtype)) @ w, args=(ROWS, X)),
            Program(fn=lambda h, g, x, w: (lambda z: (x.T @ z, z @ w.T))(jnp.where(h > 0, g, 0)), args=(ROWS,) * 4),
        ),
        shows="a matmul converts and activates an operand, and reads from memory what is selected of two arrays",
        seen=lambda one, two: (
            len(one.kernels()) == 1
            and [two.holds(kernel, "select") for kernel in two.kernels()] == [True, False, False]
        ),
    ),
    Probe(
        of="expensive-producers",
        topology="h100:1",
        programs=(Program(fn=_gradient_of_sine, args=(X, X, X)),),
        shows="the sine of the forward pass is computed once, and stored for the backward pass",
        seen=lambda found: sum(one.opcode == "sine" for one in found.everything) == 1,
    ),
    Probe(
        of="softmax-rewriter-triton",
        topology="h100:1",
        programs=(Program(fn=lambda x: jax.nn.softmax(x, -1), args=(ROWS,)),),
        shows="a softmax is one kernel",
        seen=lambda found: len(found.kernels()) == 1,
    ),
    Probe(
        of="dynamic-slice-copies",
        topology="h100:1",
        programs=(Program(fn=_scanned, args=(Array(shape=(512, 512)), Array(shape=(8, 512, 512)))),),
        shows="a kernel of its own copies the loop's slice of the weights",
        seen=lambda found: any(
            found.holds(one, "dynamic-slice") and not is_matmul(found, one) and "bf16[1,512,512]" in one.shape
            for one in found.kernels(found.bodies[0])
        ),
    ),
    Probe(
        of="sliced-operands",
        topology="h100:4",
        programs=(
            Program(
                fn=lambda x, w: laid(x, 4, None, "x") @ w,
                args=(Array(shape=(1024, 4096)), Array(shape=(4096, 1024), spec=P("x"))),
                devices=4,
            ),
        ),
        shows="a kernel of its own copies the columns that a device multiplies",
        seen=lambda found: any(
            found.holds(one, "dynamic-slice") and not is_matmul(found, one) and "bf16[1024,1024]" in one.shape
            for one in found.kernels()
        ),
    ),
    Probe(
        of="gemm-tiling",
        topology="h100:1",
        programs=(Program(fn=lambda x, w: x @ w, args=(Array(shape=(256, 256)),) * 2),),
        shows="a product of 256 rows and columns takes more than three times what its operations take",
        seen=_slow,
    ),
    *(
        Probe(
            of="ragged-dot-expander",
            topology=topology,
            programs=(RAGGED,),
            shows="a ragged dot multiplies every group over all rows",
            seen=lambda found: found.flops == ALL_GROUPS_FLOPS,
        )
        for topology in ("h100:1", "cpu:1")
    ),
    Probe(
        of="masked-ragged-sums",
        topology="v5e:1x1",
        programs=(RAGGED_SUM,),
        shows="the gradient of the weights of a ragged dot multiplies every group over all rows",
        seen=lambda found: found.flops == ALL_GROUPS_FLOPS,
    ),
)
