"""Logits in bfloat16 of which a gather reads some in float32: passes and matmuls read them as they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from planner.compiler.fusion.kernels import kernels_of
from planner.compiler.model import CompilerModel
from planner.compiler.program import CompiledProgram, compiled
from planner.compiler.targets.table import CPU, TPU
from planner.decisions.groups import group_ops
from planner.program.graph import Op
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

TOKENS, WIDTH, WORDS = 4096, 256, 32768


def _loss(out: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
    logits = (x @ out).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, labels[:, None], -1)
    return jnp.mean(jax.nn.logsumexp(logits, -1) - picked[:, 0])


def _compiled(compiler: CompilerModel) -> tuple[CompiledProgram, Op, int]:
    """The gradients of a loss as compiled, the gather of the labels' logits, and the logits as the matmul makes them."""
    shapes = ((WIDTH, WORDS), jnp.bfloat16), ((TOKENS, WIDTH), jnp.bfloat16), ((TOKENS,), jnp.int32)
    args = tuple(jax.ShapeDtypeStruct(*one) for one in shapes)
    graph = build_graph(trace(jax.value_and_grad(_loss), args), while_trips=1.0)
    program = compiled(graph, group_ops(graph), compiler)
    gather = next(op for op in graph.of_kinds({"gather"}) if graph.tensors[op.operands[0]].aval.shape[-1] == WORDS)
    widened = graph.maker(gather.operands[0])
    assert widened is not None
    return program, gather, widened.operands[0]


def test_widened_logits_stand_until_the_gather_has_read_them() -> None:
    program, gather, narrow = _compiled(TPU)
    wide = gather.operands[0]
    assert program.narrow_of == {wide: narrow}
    assert program.last_use[wide] == gather.id + 1 < program.last_use[narrow]


@pytest.mark.parametrize(("compiler", "by_others"), [(TPU, False), (CPU, True)])
def test_other_kernels_read_the_narrow_logits(compiler: CompilerModel, by_others: bool) -> None:
    program, gather, narrow = _compiled(compiler)
    wide, matmul = gather.operands[0], program.graph.maker(narrow)
    assert matmul is not None
    moving = {
        kernel.op
        for kernels in kernels_of(program).of_group.values()
        for kernel in kernels
        for access in (*(one for of in (*kernel.operands, *kernel.results) for one in of), *kernel.others)
        if access.tensor == wide
    }
    # The matmul writes them, and the gather reads them; on the CPU a pass writes them.
    assert bool(moving - {matmul.id, gather.id}) == by_others
