"""The work of an op: as `cost_models` knows it, its body has it or the user of a kernel says it; and what is guessed."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

import cost_models
from cost_models.hardware import Engine
from planner.program.graph import Body, Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.kernels.kernel_parts import kernel_of
from planner.rules.primitives import traits


def body_of(op: Op) -> Body | None:
    """The body that says what an op works; None where it has none, or its user says it."""
    return op.body if kernel_of(op) is None else None


def op_flops(graph: Graph, op: Op) -> float:
    """The floating-point operations of one run of an op on whole arrays: of a `shard_map` those of all its devices."""
    body, kernel = body_of(op), kernel_of(op)
    if body is not None:
        return body.devices * flops_of(body.graph)
    if traits(op.kind).collective is not None:
        return 0.0
    operands = [graph.tensors[t].aval.shape for t in op.operands]
    if kernel is not None and kernel.work.flops is not None:
        declared = kernel.work.flops
        return declared(operands) if callable(declared) else declared
    return cost_models.flops(op.kind, operands, [graph.tensors[t].aval.shape for t in op.results], op.params)


def flops_of(graph: Graph) -> float:
    """The floating-point operations of one run of a graph on arrays of the shapes that it has."""
    return sum(flops for _, flops in _flops(graph))


def _flops(graph: Graph) -> Iterator[tuple[Op, float]]:
    """The ops of a graph but those that cross the border of a loop, which compute nothing, with their operations."""
    for op in graph.ops:
        if op.kind not in BOUNDARY:
            yield op, graph.regions[op.region].trips * op_flops(graph, op)


def op_passes(graph: Graph, op: Op) -> float:
    """How often a TPU goes over the memory of what an op reads and makes."""
    operands, results = ([graph.tensors[t].aval.shape for t in of] for of in (op.operands, op.results))
    return 1.0 if op.primitive is None else cost_models.tpu_passes(op.kind, operands, results, op.params)


def declared_bytes(graph: Graph, op: Op) -> float | None:
    """The memory traffic of one run of a kernel on whole arrays, as its user says it; None where nobody does."""
    kernel = kernel_of(op)
    declared = None if kernel is None else kernel.work.bytes
    return declared([graph.tensors[t].aval.shape for t in op.operands]) if callable(declared) else declared


def op_engine(op: Op) -> Engine:
    """The unit that runs an op; of one with a body the unit that does most of its work."""
    kernel, body = kernel_of(op), body_of(op)
    if body is not None:
        return engine_of(body.graph)
    return cost_models.engine(op.kind) if kernel is None else kernel.work.engine


def op_dtype(graph: Graph, op: Op) -> str:
    """The type of the elements that an op computes with: of its first operand, unless its kernel says another.

    What is multiplied of two types is converted to one: floating-point numbers before others, then the wider.
    """
    kernel = kernel_of(op)
    if kernel is not None and kernel.work.dtype is not None:
        return kernel.work.dtype
    if traits(op.kind).matmul:
        factors = [graph.tensors[t].aval for t in op.operands[:2]]
        return max(factors, key=lambda aval: (jnp.issubdtype(aval.dtype, jnp.inexact), aval.itemsize)).dtype
    first = next(iter((*op.operands, *op.results)), None)
    # An op of neither, such as a print of a word, moves nothing.
    return "float32" if first is None else graph.tensors[first].aval.dtype


def engine_of(graph: Graph) -> Engine:
    """The unit that does most of the work of a graph."""
    done: dict[Engine, float] = {"vector": 0.0, "matrix": 0.0}
    for op, flops in _flops(graph):
        done[op_engine(op)] += flops
    return "matrix" if done["matrix"] > done["vector"] else "vector"


def op_name(op: Op) -> str:
    """What a person calls an op: the name of a kernel's function, else the primitive's."""
    kernel = kernel_of(op)
    return op.kind if kernel is None else kernel.work.name


def is_guessed(op: Op) -> bool:
    """Whether the flops of an op are only guessed: one per result element."""
    kernel = kernel_of(op)
    if kernel is not None:
        return kernel.work.guessed
    # Ops that cross the border of a body have no primitive, and compute nothing.
    computes = op.primitive is not None and op.body is None and traits(op.kind).collective is None
    return computes and not cost_models.is_known(op.kind)


def guessed_in(graph: Graph) -> Iterator[tuple[Op, float]]:
    """The ops whose flops are only guessed, with how often they run: those in bodies of ops that stay one op included."""
    for op in graph.ops:
        trips, body = graph.regions[op.region].trips, body_of(op)
        if is_guessed(op):
            yield op, trips
        for inner, runs in guessed_in(body.graph) if body is not None else ():
            yield inner, trips * runs


def has_work_of_shapes(graph: Graph) -> bool:
    """Whether some kernel's work is a function of shapes, so that its parts may have less in all than the whole."""
    kernels = map(kernel_of, graph.ops)
    return any(kernel is not None and kernel.work.depends_on_shapes for kernel in kernels)
