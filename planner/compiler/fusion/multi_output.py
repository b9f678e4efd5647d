"""Often read: what a compiler stores because so many kernels would compute it anew from much.

A result of passes that stands nowhere is computed by every kernel that reads it from what it is computed from. Where that
reads more than storing it would, XLA makes it once, as a further result of the matmul or convolution at hand, and stores
it: the gradient behind a residual block and its activation, for the reductions and gradients of the norms and convolutions
before it. So it does where a matmul goes on to it, its own result being read for nothing else, and other arrays take part:
of a sum of two convolutions that several kernels read only the sum is in memory. What no matmul makes a part of is computed
anew all the same.

What takes an exponential or a quotient of every element is stored where that moves the same, too: the gradient of scores in
bfloat16, of a row and a gradient in three times its bytes, and not in float32; and where a matmul that reads all that it is
computed from can make it besides, if that moves less: narrow weights of attention that the backward pass computes again and
reads twice. So it is in schedules of libtpu 0.0.42 of 60 attentions that differ in types, masks, lengths and loops.

Operands in 16 bits of several matmuls are stored on v5p, where several cores share each matmul, if they are computed from
more bytes than they have, and have three times the elements of what the first of the matmuls makes: the hidden layer of a
SwiGLU that is three times as wide, or narrow weights of attention; not where it is twice as wide, nor the gradient of
scores in float32: then each matmul computes them.

Expensive producers are results that XLA's GPU compiler stores as the backward pass would take longer to compute them again.
What fused ops compute is computed anew by every kernel that reads it. Of a function that takes many instructions (the error
function, a sine; in 16 bits, which are half as long to move, a hyperbolic tangent too) the result is stored beside what is
made of it, where another kernel reads it as well. Not where nothing but gradients read what is made of it, as of what is
computed once more in the backward pass: one kernel then makes both. Seen in schedules of jaxlib 0.10.2 for H100, of
`y = h * f(h)` between two matmuls for each function f.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from planner.compiler.fusion.instruction_fusion import is_slow
from planner.compiler.fusion.materialization import readers_by_any_name
from planner.program.dataflow import reached
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import kinds_where, traits

MANY = 64
"""Kernels beyond which nobody counts."""
FLOAT32 = 4
MANY_TIMES_RESULT = 3
"""Elements of an operand of several matmuls for each that the first of them makes, for it to be stored (on v5p by libtpu
0.0.42: a SwiGLU 3, 4 and 8 times as wide as its result, not 2 times; weights of attention over 3 times as many keys as a
head has elements, not 2 times)."""


def stored_for_many(graph: Graph, fused: Sequence[bool], materialized: Sequence[bool], *, goes_on: bool) -> list[bool]:
    """Which tensors stand in memory, with those that are read often; in the order in which they are made.

    n kernels that compute it anew read n times what it is computed from; stored, that is read once, and it is written
    once and read n times. What a single pass of its size reads is not stored, but what that pass makes of it. What takes
    many steps is stored where both move the same, and where a matmul reads all that it is computed from anyway, and makes
    it on the way, if that moves less. `goes_on`: matmuls go on to what is made of their results, whoever reads it.
    """
    stored, slow = list(materialized), set[int]()
    readers = reading_kernels(graph, fused, stored)
    sources: list[frozenset[int]] = [frozenset((t.id,) if stored[t.id] else ()) for t in graph.tensors]
    by_others: list[int] = []

    def of_matmul(tensor: int) -> bool:
        makers = (graph.maker(t) for t in sources[tensor])
        return any(op is not None and _is_matmul(op, fused) for op in makers)

    for op in graph.ops:
        if op.kind in BOUNDARY or not fused[op.id]:
            continue
        for tensor in op.results:
            if stored[tensor]:
                continue
            aval = graph.tensors[tensor].aval
            own = sources[tensor] = _sources_of(graph, sources, op, tensor)
            if is_slow(graph, slow, op, tensor):
                slow.add(tensor)
            if traits(op.kind).renames or not own or not _forks(graph, tensor):
                continue
            count, read = len(readers[tensor]), sum(graph.tensors[t].aval.bytes for t in own)
            saved = (count - 1) * read - (count + 1) * aval.bytes
            often = saved > 0 or (saved == 0 and tensor in slow)
            often |= goes_on and len(own) > 1 and any(_ends_in(graph, t, tensor) for t in own)
            if often and of_matmul(tensor):
                stored[tensor] = True
                sources[tensor] = frozenset((tensor,))
            elif goes_on and tensor in slow and saved + read > 0:
                by_others.append(tensor)
    for tensor in by_others:
        both = frozenset[int].intersection(*(readers[t] for t in sources[tensor])) - readers[tensor]
        at_hand = (graph.ops[kernel] for kernel in both if any(of_matmul(t) for t in graph.ops[kernel].operands))
        makes = [op for op in at_hand if op.region == graph.ops[min(readers[tensor])].region]
        stored[tensor] = any(_may_make(graph, op, tensor, readers[tensor]) for op in makes)
    return stored


def stored_for_matmuls(
    graph: Graph, fused: Sequence[bool], stored: Sequence[bool], narrow_of: Mapping[int, int]
) -> list[bool]:
    """Which tensors stand in memory, with the large operands of several matmuls that are computed from still more.

    `narrow_of`: what passes read in the place of a tensor.
    """
    found = list(stored)
    sources = [frozenset((narrow_of.get(t.id, t.id),) if stored[t.id] else ()) for t in graph.tensors]
    for op in graph.ops:
        if op.kind in BOUNDARY or not fused[op.id]:
            continue
        for tensor in op.results:
            if found[tensor]:
                continue
            aval = graph.tensors[tensor].aval
            sources[tensor] = _sources_of(graph, sources, op, tensor)
            readers = () if traits(op.kind).renames else sorted(readers_by_any_name(graph, tensor))
            matmuls = [graph.ops[reader] for reader in readers if _is_matmul(graph.ops[reader], fused)]
            of_more = sum(graph.tensors[t].aval.bytes for t in sources[tensor]) > aval.bytes
            if len(matmuls) > 1 and of_more and aval.itemsize < FLOAT32:
                first = graph.tensors[matmuls[0].results[0]].aval
                found[tensor] = aval.size >= MANY_TIMES_RESULT * first.size
    return found


def _sources_of(graph: Graph, sources: Sequence[frozenset[int]], op: Op, tensor: int) -> frozenset[int]:
    """What stands of all that a result of a fused op is computed from, of its own size."""
    size = graph.tensors[tensor].aval.size
    alike = [sources[t] for t in op.operands if sources[t] and graph.tensors[t].aval.size == size]
    return alike[0] if len(alike) == 1 else frozenset[int]().union(*alike)


def _is_matmul(op: Op, fused: Sequence[bool]) -> bool:
    return not fused[op.id] and traits(op.kind).matmul


def _may_make(graph: Graph, op: Op, tensor: int, readers: frozenset[int]) -> bool:
    """Whether the kernel of an op can make a tensor besides, which does not wait for it, nor it for what reads that."""
    return not _waits(graph, [tensor], {op.id}) and not _waits(graph, op.operands, readers)


def _waits(graph: Graph, tensors: Iterable[int], ops: AbstractSet[int]) -> bool:
    """Whether tensors are computed from what any of some ops make."""
    first = min(ops)

    def computed_of(tensor: int) -> Sequence[int]:
        maker = graph.maker(tensor)
        return () if maker is None or maker.id <= first else maker.operands

    makers = map(graph.maker, reached(tensors, computed_of))
    return any(maker is not None and maker.id in ops for maker in makers)


def _forks(graph: Graph, tensor: int) -> bool:
    """Whether several ops read a tensor, under whatever name."""
    while len(graph.consumers[tensor]) == 1:
        (reader,) = graph.readers(tensor)
        if not traits(reader.kind).renames:
            return False
        (tensor,) = reader.results
    return len(graph.consumers[tensor]) > 1


def _ends_in(graph: Graph, made: int, tensor: int) -> bool:
    """Whether what a matmul makes is read on the way to a tensor alone."""
    op = graph.maker(made)
    if op is None or not traits(op.kind).matmul:
        return False
    while made != tensor and len(graph.consumers[made]) == 1 and made not in graph.returned:
        (reader,) = graph.readers(made)
        if len(reader.results) != 1:
            return False
        (made,) = reader.results
    return made == tensor


def reading_kernels(graph: Graph, fused: Sequence[bool], stored: Sequence[bool]) -> list[frozenset[int]]:
    """For every tensor the ops whose kernels read it, or compute it anew: by their ids."""
    found: list[frozenset[int]] = [frozenset()] * len(graph.tensors)
    for op in reversed(graph.ops):
        own = _kernels_of(graph, op, fused, stored, found)
        for tensor in op.operands:
            if len(found[tensor]) < MANY:
                found[tensor] |= own
    return found


def _kernels_of(
    graph: Graph, op: Op, fused: Sequence[bool], stored: Sequence[bool], found: Sequence[frozenset[int]]
) -> frozenset[int]:
    """The kernels for which an op reads its operands: its own, or those that compute its results anew."""
    if op.kind in BOUNDARY or not fused[op.id] or any(stored[tensor] for tensor in op.results):
        return frozenset((op.id,))
    return frozenset[int]().union(*[found[tensor] for tensor in op.results])


def stored_for_backward(graph: Graph, fused: Sequence[bool], stored: Sequence[bool]) -> list[bool]:
    """Which tensors are in memory, with the results of expensive functions, given those that are without."""
    found = list(stored)
    kinds = kinds_where(lambda row: row.stored_up_to_bytes > 0)
    readers = reading_kernels(graph, fused, stored) if any(graph.of_kinds(kinds)) else []
    for op in graph.of_kinds(kinds):
        (tensor,) = op.results
        aval = graph.tensors[tensor].aval
        if stored[tensor] or not fused[op.id] or aval.itemsize > traits(op.kind).stored_up_to_bytes:
            continue
        kernels = sorted(readers[tensor])
        if len(kernels) > 1 and fused[kernels[0]]:
            made = [t for t in graph.ops[kernels[0]].results if graph.tensors[t].aval.size == aval.size]
            found[tensor] = any(_matmuls(graph, fused, readers[t]) > 1 for t in made)
    return found


def _matmuls(graph: Graph, fused: Sequence[bool], kernels: frozenset[int]) -> int:
    """How many matmuls or convolutions there are among kernels."""
    return sum(_is_matmul(graph.ops[op], fused) for op in kernels)
