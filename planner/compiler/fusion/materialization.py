"""Materialization: which ops are fused, and which tensors are written to memory.

A compiler writes what its fused ops read and write: arguments, results of ops that are not fused, results of reductions,
tensors that cross a loop's border, the results of the program, operands of ops that cannot compute them, and running sums.
A matmul computes an activation of what is in memory anyway, such as a tanh or a logistic, but no error function.
The rest lives in registers, and extends the life of the tensors that it is computed from. The rules are those seen in the
buffer assignments of XLA's TPU compiler.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from planner.compiler.fusion.instruction_fusion import is_slow
from planner.compiler.model import CompilerModel
from planner.decisions.groups import Grouping, is_fused
from planner.program.dataflow import source_through
from planner.program.graph import Graph, Op
from planner.program.slots import ENTERING, LEAVING, TAKEN_IN
from planner.rules.primitives import traits

BORDER = ENTERING | LEAVING
THREEFRY_KEY = "key<fry>"
Need = Literal["never", "where costly", "always"]


def is_fused_op(graph: Graph, grouping: Grouping, op: Op, compiler: CompilerModel) -> bool:
    """Whether a compiler fuses an op.

    Besides what is fused by kind: a product without contraction, and the scatter of single elements into a constant
    (the gradient of picking one element per row), which becomes a comparison with an iota. So are random bits, where every
    kernel that reads them computes them anew. Not what a TPU's compiler does in a kernel of its own: to pick elements in
    steps, or to put them apart.
    """
    if compiler.runs("dot-operand-fusion") and _steps(op):
        return False
    if compiler.runs("random-bits-fusion") and traits(op.kind).counts:
        return graph.tensors[op.operands[0]].aval.dtype == THREEFRY_KEY
    if is_fused(op) or traits(op.kind).joins or (op.kind == "gather" and compiler.runs("gather-fusion")):
        return True
    if op.kind == "dot_general":
        return not grouping.placements[op.id].reduced
    if op.kind == "scatter-add" and not op.params["dimension_numbers"].update_window_dims:
        zeros = graph.maker(op.operands[0])
        return zeros is not None and zeros.kind == "broadcast_in_dim"
    return False


def _steps(op: Op) -> bool:
    """Whether an op picks elements in steps of more than one along the dims of a tile, or puts others between any."""
    if op.kind == "slice":
        return any(stride > 1 for stride in (op.params["strides"] or ())[-2:])
    return op.kind == "pad" and any(between > 0 for _, _, between in op.params["padding_config"])


def materialized_by_fusion(
    graph: Graph, grouping: Grouping, fused: Sequence[bool], stored: Collection[int], compiler: CompilerModel
) -> list[bool]:
    """Which tensors are in memory, among them those `stored` for matmuls that do not compute their operands."""
    computes_operands, goes_on = compiler.runs("dot-operand-fusion"), compiler.runs("dot-output-fusion")
    kept = [tensor.producer is None for tensor in graph.tensors]
    sizes = [tensor.aval.size for tensor in graph.tensors]
    needs: list[Need] = [_need(op, of) for op, of in zip(graph.ops, fused, strict=True)]
    stored = {*stored, *_taken_in(graph)}
    costly: set[int] = set()
    after_extreme: set[int] = set()
    slow: set[int] = set()
    of_matmul = set[int]()
    terms = [frozenset((tensor.id,) if kept[tensor.id] else ()) for tensor in graph.tensors]

    def store(tensor: int) -> None:
        kept[tensor] = True
        costly.discard(tensor)
        slow.discard(tensor)
        terms[tensor] = frozenset((tensor,))

    for op in graph.ops:
        row = traits(op.kind)
        for tensor in op.operands if row.adds else ():
            sum_so_far = _stream(graph, tensor)
            if _is_running_sum(graph, op, sum_so_far, kept, terms):
                store(sum_so_far)
                if not kept[tensor]:
                    terms[tensor] = terms[sum_so_far]
        if computes_operands and op.kind == "broadcast_in_dim" and op.operands[0] in slow:
            # What every element of a broadcast would compute anew.
            store(op.operands[0])
        reduced = grouping.placements[op.id].reduced and op.kind != "gather"  # of a table that is split
        passing = fused[op.id] and op.kind not in BORDER and not reduced
        alone = any(t in of_matmul and len(graph.consumers[t]) == 1 and t not in graph.returned for t in op.operands)
        if alone or (row.matmul and not fused[op.id]):
            of_matmul.update(op.results)
        # A matmul goes on to what its result is read for alone, and stores that instead; not to what waits for the extreme
        # of a row of it, such as the weights of a softmax.
        waits = not after_extreme.isdisjoint(op.operands) or (row.extreme and not costly.isdisjoint(op.operands))
        hard = (row.costly and (alone or not goes_on)) or (not waits and not costly.isdisjoint(op.operands))
        hard = computes_operands and (hard or row.stored_for_matmuls)
        if waits and (passing or row.extreme):
            after_extreme.update(op.results)
        for tensor in op.results:
            if (
                not passing
                or tensor in graph.returned
                or tensor in stored
                or _must_be_stored(graph, tensor, needs, hard)
            ):
                store(tensor)
                continue
            if hard:
                costly.add(tensor)
            if row.costly or is_slow(graph, slow, op, tensor):
                slow.add(tensor)
            terms[tensor] = frozenset().union(*[terms[t] for t in op.operands if sizes[t] == sizes[tensor]])
    return kept


def _stream(graph: Graph, tensor: int) -> int:
    """The tensor that a tensor is another name or another form of."""

    def passes(op: Op) -> bool:
        alone = op.kind == "convert_element_type" and len(readers_by_any_name(graph, op.results[0])) < 2
        return alone or traits(op.kind).renames

    return source_through(graph, tensor, passes)


def readers_by_any_name(graph: Graph, tensor: int) -> set[int]:
    """The ops that read a tensor, under whatever name."""
    found: set[int] = set()
    for op in graph.readers(tensor):
        found |= readers_by_any_name(graph, op.results[0]) if traits(op.kind).renames else {op.id}
    return found


def _is_running_sum(graph: Graph, op: Op, tensor: int, kept: list[bool], terms: list[frozenset[int]]) -> bool:
    """Whether what a sum adds to is itself computed from several stored tensors of its size, and is read elsewhere too.

    `terms` are the stored tensors of its size that a tensor is computed from in passing: itself where it is stored.
    So is what a layer adds to a residual stream, or to the gradient of one: computed anew by every reader, it would keep
    the terms of all layers before it in memory, and read them again in every layer.
    """
    if kept[tensor] or len(terms[tensor]) < 2 or len(readers_by_any_name(graph, tensor)) < 2:
        return False
    return any(not terms[other] <= terms[tensor] for other in op.operands)


def _need(op: Op, fused: bool) -> Need:
    """When an op needs what it reads in memory; a matmul or convolution computes its operand itself.

    Nothing is fused across a barrier, which is removed after all fusion.
    """
    row = traits(op.kind)
    if op.kind in LEAVING or row.bars:
        return "always"
    if (fused and op.kind != "gather") or row.streams:
        return "never"
    return "where costly" if row.matmul else "always"


def narrow_of_widened(graph: Graph, fused: Sequence[bool], stored: Sequence[bool]) -> dict[int, int]:
    """By tensor that what is not fused needs widened, as a gather of logits in float32, the result of a matmul that it is.

    Passes, and matmuls that compute their operands, read the narrow one, which stands as well.
    """
    found: dict[int, int] = {}
    for op in graph.of_kinds(("convert_element_type",)):
        (narrow,), (wide,) = op.operands, op.results
        maker = graph.maker(narrow)
        widens = graph.tensors[narrow].aval.itemsize < graph.tensors[wide].aval.itemsize
        made = maker is not None and not fused[maker.id] and traits(maker.kind).matmul
        if widens and made and stored[narrow] and stored[wide] and is_needed(graph, fused, wide):
            found[wide] = narrow
    return found


def _taken_in(graph: Graph) -> set[int]:
    """What loops take in, under whatever name and however turned: of what only moves elements, which a loop moves itself,
    that which it moves.
    """
    found, moved = set[int](), set[int]()
    for op in reversed(graph.ops):
        if op.kind in TAKEN_IN or not moved.isdisjoint(op.results):
            moves = [tensor for tensor in op.operands if _moves(graph.maker(tensor))]
            moved.update(moves)
            found.update(tensor for tensor in op.operands if tensor not in moved)
    return found


def _moves(op: Op | None) -> bool:
    return op is not None and (traits(op.kind).reshapes or traits(op.kind).turns)


def _must_be_stored(graph: Graph, tensor: int, needs: Sequence[Need], hard: bool) -> bool:
    """Whether the readers of what a pass computes need it in memory; `hard`: it is costly."""
    needed = ("always", "where costly") if hard else ("always",)
    return any(needs[op.id] in needed for op in graph.readers(tensor))


def is_needed(graph: Graph, fused: Sequence[bool], tensor: int) -> bool:
    """Whether some reader of a tensor, under whatever name, needs it in memory."""
    readers = [graph.ops[reader] for reader in readers_by_any_name(graph, tensor)]
    return any(op.kind in ENTERING or _need(op, fused[op.id]) == "always" for op in readers)
