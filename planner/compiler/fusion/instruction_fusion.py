"""Instruction fusion: the ops that become part of the kernel of a matmul, on TPUs and on GPUs.

XLA's TPU compiler computes the operands of a matmul or convolution inside its kernel, and applies further ops to the
result there. In XLA's GPU compiler a matmul reads its operands from memory, through ops that only rename, widen, narrow or
transpose them for this matmul alone, and through ops that compute them element by element, no narrower, of one array and
of scalars that are given (a rectified array), whoever else reads it (`IsInputWorthFusing` in openxla/xla). It applies
further ops to its result only where nothing else reads that. A slice of a stack it copies first. A convolution is a call
of a library, which reads its operands as they are stored. Seen in schedules of libtpu 0.0.42 and of jaxlib 0.10.2 for H100.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise

from planner.decisions.groups import Grouping
from planner.program.dataflow import reached, source_through
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import kinds_where, traits


def operands_of_gemms(graph: Graph, fused: Sequence[bool], uncoalesced: Iterable[int]) -> frozenset[int]:
    """The tensors that matmuls and convolutions read from memory, and uncoalesced transposes with their operands."""
    found = set[int]()
    for op in map(graph.ops.__getitem__, uncoalesced):
        found |= {op.results[0], source(graph, op.operands[0], computes=False)}
    for op in graph.of_kinds(kinds_where(lambda row: row.matmul)):
        if not fused[op.id]:
            of = _stored_as_read if traits(op.kind).slides else source
            found.update(of(graph, tensor) for tensor in op.operands)
    return frozenset(found)


def _stored_as_read(graph: Graph, tensor: int) -> int:
    """The tensor that a library's convolution reads for an operand: it computes nothing."""
    return source_through(graph, tensor, lambda op: traits(op.kind).reshapes or traits(op.kind).renames)


def source(graph: Graph, tensor: int, *, computes: bool = True) -> int:
    """The tensor that a matmul reads for an operand, through what is seen through; or one that `computes` nothing."""
    while (op := graph.maker(tensor)) is not None and op.kind not in BOUNDARY:
        row = traits(op.kind)
        alone = op.kind == "transpose" or (op.kind == "convert_element_type" and _converts(graph, op))
        alone &= len(graph.consumers[tensor]) == 1
        single = _of_one(graph, op) if computes else None
        if row.reshapes or row.renames or alone:
            tensor = op.operands[0]
        elif single is not None:
            tensor = single
        else:
            break
    return tensor


def _converts(graph: Graph, op: Op) -> bool:
    """Whether a matmul converts an operand itself: to more bytes, or an argument that nothing else reads."""
    (before,), (after,) = op.operands, op.results
    argument = graph.tensors[before].producer is None and len(graph.consumers[before]) == 1
    return argument or graph.tensors[before].aval.itemsize <= graph.tensors[after].aval.itemsize


def _of_one(graph: Graph, op: Op) -> int | None:
    """What an op makes something of element by element, no narrower, with nothing else but given scalars."""
    arrays = [t for t in op.operands if graph.tensors[t].aval.size > 1 or graph.tensors[t].producer is not None]
    row = traits(op.kind)
    if len(arrays) != 1 or len(op.results) != 1 or not row.fused or row.turns or row.squares:
        return None
    before, after = graph.tensors[arrays[0]].aval, graph.tensors[op.results[0]].aval
    return arrays[0] if before.shape == after.shape and before.itemsize <= after.itemsize else None


def partial_broadcasts(
    graph: Graph, op: Op, varying: Sequence[frozenset[int]]
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """What is broadcast in memory, to the shape of a matmul's result, for the matmul to go on with.

    XLA's GPU compiler computes a product of three dims: of a batch and of what is kept of either operand. A broadcast along
    all dims of one of these is part of the kernel; one along some of them is not, such as that of a bias of each head along
    a batch. Each is an itemsize and dims of the result of which a device must hold several elements, each of them, for it.
    `varying`: see `varying_dims`.
    """
    (tensor,), (contracted, (batch, _)) = op.results, op.params["dimension_numbers"]
    shape = graph.tensors[tensor].aval.shape
    ends = len(batch), len(graph.tensors[op.operands[0]].aval.shape) - len(contracted[0]), len(shape)
    groups = [{dim for dim in range(*pair) if shape[dim] > 1} for pair in pairwise((0, *ends))]
    dims = list(range(len(shape)))
    while len(graph.consumers[tensor]) == 1:
        (reader,) = graph.readers(tensor)
        by_element = _by_element(reader) and graph.tensors[reader.results[0]].aval.size == math.prod(shape)
        if not by_element and reader.kind != "transpose":
            break
        for other in reader.operands:
            along = {dims[dim] for dim in varying[other]} if other != tensor else set[int]()
            for group in groups if along else ():
                given, missing = group & along, group - along
                if given and missing:
                    several = tuple(dim for part in (given, missing) if len(part) == 1 for dim in part)
                    yield graph.tensors[other].aval.itemsize, several
                    break
        if reader.kind == "transpose":
            dims = [dims[dim] for dim in reader.params["permutation"]]
        (tensor,) = reader.results


def varying_dims(graph: Graph) -> list[frozenset[int]]:
    """By tensor the dims along which it is no broadcast of something smaller in memory."""
    found = [frozenset(dim for dim, extent in enumerate(tensor.aval.shape) if extent > 1) for tensor in graph.tensors]
    for op in graph.ops:
        if op.kind == "broadcast_in_dim":
            places = op.params["broadcast_dimensions"]
            found[op.results[0]] = frozenset(places[dim] for dim in found[op.operands[0]])
        elif op.kind == "transpose":
            found[op.results[0]] = frozenset(
                dim for dim, of in enumerate(op.params["permutation"]) if of in found[op.operands[0]]
            )
        elif _by_element(op):
            found[op.results[0]] = frozenset[int]().union(*[found[tensor] for tensor in op.operands])
    return found


def _by_element(op: Op) -> bool:
    """Whether an op computes each element of its result of those in the same place."""
    row, moves = traits(op.kind), op.kind in BOUNDARY or "axes" in op.params
    return len(op.results) == 1 and row.fused and not row.reshapes and not row.turns and not row.picks and not moves


def read_alone(graph: Graph, materialized: Sequence[bool], op: Op, made: Collection[int]) -> bool:
    """Whether an op alone reads what a matmul made, through results that do not stand and nothing else reads."""

    def computed_of(tensor: int) -> Sequence[int]:
        maker = None if tensor in made or materialized[tensor] else graph.maker(tensor)
        return () if maker is None else maker.operands

    return all(
        len(graph.consumers[tensor]) < 2 or (tensor not in made and materialized[tensor])
        for tensor in reached(op.operands, computed_of)
    )


def reduced_at_once(
    graph: Graph, grouping: Grouping, fused: Sequence[bool], materialized: Sequence[bool]
) -> frozenset[int]:
    """The results of matmuls that are never in memory: their kernels reduce them, and nothing else reads them.

    The reductions may be of what is computed of the result in passing, but not of what one of them has made: a softmax
    goes over its rows again.
    """

    def is_reduced(op: Op, tensor: int) -> bool:
        passing = set(
            reached([tensor], lambda one: [t for op in graph.readers(one) for t in op.results if not materialized[t]])
        )
        readers = {reader.id: reader for one in passing for reader in graph.readers(one)}
        if not readers or not passing.isdisjoint(graph.returned):
            return False
        reductions = [reader for reader in readers.values() if grouping.placements[reader.id].reduced]
        last = max(readers)
        later = reached(
            [made for reduction in reductions for made in reduction.results],
            lambda one: [made for op in graph.readers(one) if op.id < last for made in op.results],
        )
        return all(
            fused[reader.id]
            and reader.region == op.region
            and all(materialized[made] == (reader in reductions) for made in reader.results)
            for reader in readers.values()
        ) and all(reader.id not in readers for one in later for reader in graph.readers(one))

    matmuls = graph.of_kinds(kinds_where(lambda row: row.matmul))
    return frozenset(
        t for op in matmuls if not fused[op.id] for t in op.results if materialized[t] and is_reduced(op, t)
    )


def is_slow(graph: Graph, slow: AbstractSet[int], op: Op, tensor: int) -> bool:
    """Whether each element of a tensor takes many steps of an op, or of one before it in its pass, known as `slow`."""
    avals, size = graph.tensors, graph.tensors[tensor].aval.size
    if traits(op.kind).slow and (op.kind != "div" or avals[op.operands[1]].aval.size > 1):
        return True
    return any(t in slow and avals[t].aval.size == size for t in op.operands)


def sunk_share(graph: Graph, tensor: int) -> float:
    """The bytes that are read for each byte of a tensor: fewer for what was broadcast before the loop that reads it.

    Compilers broadcast it again in every trip.
    """
    maker, source = graph.maker(tensor), tensor
    if maker is not None and maker.kind == "loop_const":
        source = source_through(graph, tensor, lambda op: op.kind in ("loop_const", "broadcast_in_dim"))
    return min(1.0, graph.tensors[source].aval.bytes / max(graph.tensors[tensor].aval.bytes, 1.0))
