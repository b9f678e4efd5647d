"""Liveness: which tensors occupy memory, and from when to when, in program order.

A compiler keeps in memory what its fused passes read and write: arguments, results of ops that are not fused, what
reductions return, what crosses a loop's border, the results of the program, what an op reads that cannot compute it
itself, and running sums. The rest lives in registers, and extends the life of what it is computed from. The rules are those
seen in the buffer assignments of XLA's TPU compiler.

Times are op ids; a buffer is alive in [start, stop). A loop body stands in program order once; what a loop reads from
outside lives until the loop ends, a carry as long as the loop, and a stack from the loop's start to its last reader.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

from planner.any_mesh.buffer import Buffer
from planner.any_mesh.fusion import UNKNOWN, Fusion, is_slow, stored_on_gpus
from planner.any_mesh.grouped_products import masked_buffers
from planner.any_mesh.groups import Grouping
from planner.any_mesh.hoisted import Hoisted, hoisted_casts
from planner.any_mesh.in_place import InPlace, in_place
from planner.any_mesh.narrow import BFLOAT16_BYTES, NarrowReads
from planner.any_mesh.neighbours import matmul_ranks, side_by_side
from planner.any_mesh.often_read import stored_for_many
from planner.any_mesh.op_forms import is_fused
from planner.any_mesh.postponed import postponed
from planner.any_mesh.read_through import ReadThrough, read_through
from planner.any_mesh.recalled import recalled
from planner.any_mesh.row_order import InRows, in_row_order
from planner.any_mesh.share import ELSEWHERE, ON_TPU, WHOLE
from planner.any_mesh.softmaxes import stored_of_softmaxes
from planner.any_mesh.stand_ins import stand_ins, stood_in
from planner.any_mesh.turned_stacks import turned_stacks, turning_passes, with_turned
from planner.any_mesh.working_sets import WorkingSets
from planner.program.graph import Graph, Op
from planner.program.slots import ENTERING, LEAVING, TAKEN_IN
from planner.rules.primitives import traits


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """`materialised[tensor]`: it is read from and written to memory; `buffers`: what is allocated besides arguments.

    `passes[op]`: it is part of a fused pass, as the compiler's `fusion` has it. `hoisted`: the narrow copies that are made
    before loops. `turning[op]`: how often its operand is gone over on devices that hold several elements along a dim of it.
    `when[op]`: before which op it runs, of those that run later than their place. `in_rows`: the tensors that lie in rows
    on a TPU, and how. `working_sets`: what stands beside a tensor.
    `needed_until[tensor]`: the time until which something reads it, or what is computed from it in passing.
    """

    passes: tuple[bool, ...]
    materialised: tuple[bool, ...]
    buffers: tuple[Buffer, ...]
    steps: int
    in_place: InPlace
    turning: Mapping[int, tuple[float, int]]
    when: Mapping[int, int]
    fusion: Fusion
    read_through: ReadThrough
    narrow: NarrowReads
    hoisted: tuple[Hoisted, ...]
    in_rows: Mapping[int, InRows]
    working_sets: WorkingSets
    needed_until: tuple[int, ...]

    @cached_property
    def narrowed(self) -> dict[int, float]:
        """For every tensor that is narrowed before a loop the bytes that this reads and writes for each of its own."""
        return {tensor: 1.0 + share.tpu for tensor, share, _, _ in self.hoisted}


BORDER = ENTERING | LEAVING
Need = Literal["never", "where costly", "always"]


def is_pass(graph: Graph, grouping: Grouping, op: Op, fusion: Fusion = UNKNOWN) -> bool:
    """Whether a compiler makes an op part of a fused pass.

    Besides what is fused by kind: a product without contraction, and the scatter of single elements into a constant
    (the gradient of picking one element per row), which becomes a comparison with an iota. Not what a TPU's compiler does
    in a kernel of its own: to pick elements in steps, or to put them apart.
    """
    if fusion.computes_operands and _steps(op):
        return False
    if is_fused(op) or traits(op.kind).joins or (op.kind == "gather" and fusion.fuses_gathers):
        return True
    if op.kind == "dot_general":
        return not grouping.placements[op.id].reduced
    if op.kind == "scatter-add" and not op.params["dimension_numbers"].update_window_dims:
        producer = graph.tensors[op.operands[0]].producer
        return producer is not None and graph.ops[producer].kind == "broadcast_in_dim"
    return False


def _steps(op: Op) -> bool:
    """Whether an op picks elements in steps of more than one, or puts others between them."""
    if op.kind == "slice":
        return any(stride > 1 for stride in op.params["strides"] or ())
    return op.kind == "pad" and any(between > 0 for _, _, between in op.params["padding_config"])


def analyse(graph: Graph, grouping: Grouping, fusion: Fusion = UNKNOWN) -> Liveness:
    """The materialised tensors and buffers of a graph, where matmuls are fused so."""
    passes = [is_pass(graph, grouping, op, fusion) for op in graph.ops]
    turned = {} if fusion.computes_operands else turned_stacks(graph)
    stored = frozenset[int]() if fusion.computes_operands else stored_on_gpus(graph, passes)
    materialised = stored_for_many(graph, passes, _materialised(graph, grouping, passes, stored, fusion))
    materialised = materialised if fusion.computes_operands else recalled(graph, passes, materialised)
    rows = stored_of_softmaxes(graph, passes, materialised) if fusion.stores_softmaxes else materialised
    apart = {t for t, stands in enumerate(rows) if stands and not (materialised[t] and fusion.computes_operands)}
    materialised = rows
    spans = region_spans(graph)
    when = {} if fusion.computes_operands else postponed(graph, passes, spans)
    narrow = NarrowReads(graph)
    shares = [narrow.share(tensor.id) for tensor in graph.tensors]
    parts = [share.tpu if fusion.computes_operands else share.elsewhere for share in shares]
    last = _last_uses(graph, passes, materialised, spans, apart, when, parts)
    found = in_place(graph, passes, materialised, last, spans)
    buffers: list[Buffer] = []
    for op in graph.ops:
        for tensor in op.results:
            if not materialised[tensor] or _is_view(graph, op) or tensor in found.taken:
                continue
            start = spans[op.region][0] if op.kind == "loop_stack" else when.get(op.id, op.id)
            stop = max(last[tensor], found.kept.get(tensor, 0), start + 1)
            buffers.append(Buffer(tensor=tensor, start=start, stop=stop, share=shares[tensor]))
    buffers = stood_in(buffers, stand_ins(graph, passes, materialised, partial(_is_needed, graph, passes)))
    buffers += _shared_operands(graph, passes, materialised)
    buffers += _also_narrow(graph, materialised, last)
    buffers = with_turned(graph, turned, spans, buffers)
    buffers += masked_buffers(graph)
    turning = turning_passes(graph, turned)
    hoisted = hoisted_casts(graph, narrow, spans, materialised)
    buffers += [Buffer(tensor=t, share=share, start=a, stop=b) for t, share, a, b in hoisted]
    return Liveness(
        passes=tuple(passes),
        materialised=tuple(materialised),
        buffers=tuple(buffers),
        steps=len(graph.ops),
        in_place=found.going_over({op: passes for op, (passes, several) in turning.items() if several is None}),
        when=when,
        turning={op: (passes, several) for op, (passes, several) in turning.items() if several is not None},
        fusion=fusion,
        read_through=read_through(graph, materialised, passes),
        narrow=narrow,
        hoisted=tuple(hoisted),
        in_rows=in_row_order(graph, passes) if fusion.computes_operands else {},
        working_sets=WorkingSets(graph, buffers, spans),
        needed_until=tuple(last),
    )


def _is_view(graph: Graph, op: Op) -> bool:
    """Whether a result is a name for memory that is accounted elsewhere."""
    if traits(op.kind).renames or op.kind in ("loop_const", "branch_in"):
        return True
    # A slice that only fused ops read is read where it stands in the stack.
    return op.kind == "loop_slice" and all(is_fused(graph.ops[reader]) for reader, _ in graph.consumers[op.results[0]])


def _materialised(
    graph: Graph, grouping: Grouping, passes: Sequence[bool], stored: Collection[int], fusion: Fusion
) -> list[bool]:
    """Which tensors stand in memory: those `stored` for matmuls that do not compute their operands among them."""
    kept = [tensor.producer is None for tensor in graph.tensors]
    sizes = [tensor.aval.size for tensor in graph.tensors]
    needs: list[Need] = [_need(op, is_pass) for op, is_pass in zip(graph.ops, passes, strict=True)]
    costly: set[int] = set()
    slow: set[int] = set()
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
        if fusion.computes_operands and op.kind == "broadcast_in_dim" and op.operands[0] in slow:
            # What every element of a broadcast would compute anew.
            store(op.operands[0])
        reduced = grouping.placements[op.id].reduced and op.kind != "gather"  # of a table that is split
        passing = passes[op.id] and op.kind not in BORDER and not reduced
        hard = fusion.computes_operands and (row.costly or not costly.isdisjoint(op.operands))
        for tensor in op.results:
            if not passing or tensor in graph.returned or tensor in stored or _must_stand(graph, tensor, needs, hard):
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
    producer = graph.tensors[tensor].producer
    while producer is not None:
        op = graph.ops[producer]
        if not traits(op.kind).renames and (op.kind != "convert_element_type" or len(_readers(graph, tensor)) > 1):
            break
        tensor = op.operands[0]
        producer = graph.tensors[tensor].producer
    return tensor


def _readers(graph: Graph, tensor: int) -> set[int]:
    """The ops that read a tensor, under whatever name."""
    found: set[int] = set()
    for reader, _ in graph.consumers[tensor]:
        op = graph.ops[reader]
        found |= _readers(graph, op.results[0]) if traits(op.kind).renames else {reader}
    return found


def _is_running_sum(graph: Graph, op: Op, tensor: int, kept: list[bool], terms: list[frozenset[int]]) -> bool:
    """Whether what a sum adds to is itself computed from several stored tensors of its size, and is read elsewhere too.

    `terms` are the stored tensors of its size that a tensor is computed from in passing: itself where it is stored.
    So is what a layer adds to a residual stream, or to the gradient of one: computed anew by every reader, it would keep
    the terms of all layers before it in memory, and read them again in every layer.
    """
    if kept[tensor] or len(terms[tensor]) < 2 or len(_readers(graph, tensor)) < 2:
        return False
    return any(not terms[other] <= terms[tensor] for other in op.operands)


def _need(op: Op, is_pass: bool) -> Need:
    """When an op needs what it reads in memory; a matmul or convolution computes its operand itself.

    Nothing is fused across a barrier, which is removed after all fusion.
    """
    row = traits(op.kind)
    if op.kind in LEAVING or row.bars:
        return "always"
    if (is_pass and op.kind != "gather") or row.streams:
        return "never"
    return "where costly" if row.matmul else "always"


def _must_stand(graph: Graph, tensor: int, needs: Sequence[Need], hard: bool) -> bool:
    """Whether the readers of what a pass computes need it in memory; `hard`: it is costly.

    A loop reads what it takes in from memory, but what only moves elements: that it moves itself.
    """
    producer = graph.tensors[tensor].producer
    row = None if producer is None else traits(graph.ops[producer].kind)
    moved = row is not None and (row.reshapes or row.turns)
    for reader, _ in graph.consumers[tensor]:
        need = needs[reader]
        if need == "always" or (hard and need == "where costly"):
            return True
        if graph.ops[reader].kind in TAKEN_IN and not moved:
            return True
    return False


def _is_needed(graph: Graph, passes: Sequence[bool], tensor: int) -> bool:
    """Whether some reader of a tensor, under whatever name, needs it in memory."""
    readers = [graph.ops[reader] for reader in _readers(graph, tensor)]
    return any(op.kind in ENTERING or _need(op, passes[op.id]) == "always" for op in readers)


def _also_narrow(graph: Graph, materialised: Sequence[bool], last: Sequence[int]) -> list[Buffer]:
    """What a matmul makes that stands widened beside itself on a TPU: passes go on reading the narrow one."""
    found: list[Buffer] = []
    for op in graph.of_kinds(("convert_element_type",)):
        (narrow,), (wide,) = op.operands, op.results
        producer = graph.tensors[narrow].producer
        widens = graph.tensors[narrow].aval.itemsize < graph.tensors[wide].aval.itemsize
        if widens and materialised[wide] and producer is not None and traits(graph.ops[producer].kind).matmul:
            start = max(last[narrow], producer + 1)
            if last[wide] > start:
                found.append(Buffer(tensor=narrow, start=start, stop=last[wide], share=ON_TPU))
    return found


def _shared_operands(graph: Graph, passes: Sequence[bool], materialised: Sequence[bool]) -> list[Buffer]:
    """What a pass computes for several matmuls side by side (as for the two gradients of one): stored while they run.

    Matmuls far apart (a forward and its backward one) compute it each for themselves. On a TPU so do all of them, unless it
    is computed in 16 bits, which its vector unit widens and rounds at every step.
    """
    matmuls = matmul_ranks(graph, passes)
    found: list[Buffer] = []
    for tensor in graph.tensors:
        if materialised[tensor.id] or len(graph.consumers[tensor.id]) < 2:
            continue
        cast = tensor.producer is not None and graph.ops[tensor.producer].kind == "convert_element_type"
        share = WHOLE if tensor.aval.itemsize <= BFLOAT16_BYTES and not cast else ELSEWHERE
        for first, second in side_by_side(graph, matmuls, tensor.id):
            found.append(Buffer(tensor=tensor.id, start=first, stop=second + 1, share=share))
    return found


def region_spans(graph: Graph) -> list[tuple[int, int]]:
    """For every region the ids of its first op and after its last, inner regions included; indexed by region."""
    first, stop = [len(graph.ops)] * len(graph.regions), [0] * len(graph.regions)
    for op in graph.ops:
        first[op.region] = min(first[op.region], op.id)
        stop[op.region] = op.id + 1
    for region in reversed(graph.regions):  # what is inside stands behind what is around it
        if region.parent is not None:
            first[region.parent] = min(first[region.parent], first[region.id])
            stop[region.parent] = max(stop[region.parent], stop[region.id])
    return list(zip(first, stop, strict=True))


def _last_uses(
    graph: Graph,
    passes: Sequence[bool],
    stored: Sequence[bool],
    spans: Sequence[tuple[int, int]],
    apart: AbstractSet[int],
    when: Mapping[int, int],
    parts: Sequence[float],
) -> list[int]:
    """The time until which every tensor is needed, through whatever is computed from it in passing.

    `when` says so of the ops that run later than their place, `parts` what part of its bytes a tensor stands in.

    A fused pass writes over what it was the last to read, if that stands as narrow as what it writes; one that writes a
    tensor of `apart` only over what has its type.
    """
    last = [0] * len(graph.tensors)
    over: dict[int, int] = {}  # for what does not stand, the tensor that the last pass to read it writes
    for tensor in graph.outputs:
        last[tensor] = len(graph.ops)
    for op in reversed(graph.ops):
        row = traits(op.kind)
        if op.kind in TAKEN_IN or op.kind == "branch_in":
            need = spans[op.region][1]
        else:
            need = when.get(op.id, op.id) + (not passes[op.id])
        if op.kind == "loop_stack":  # what a trip leaves behind is put on the stack as soon as it is made
            need = (graph.tensors[op.operands[0]].producer or 0) + 1
        written = next((tensor for tensor in op.results if stored[tensor]), None) if passes[op.id] else None
        for tensor in op.results:
            if last[tensor] > need and (not stored[tensor] or row.renames):
                need, written = last[tensor], over.get(tensor)
        for position, tensor in enumerate(op.operands):
            # An update is computed before it is written over what it may be computed from.
            before = row.updates is not None and (position == 0 or not stored[tensor])
            until = op.id if before else need
            if written is not None and stored[tensor]:
                other = written in apart and graph.aval_numbers[tensor] != graph.aval_numbers[written]
                until += other or parts[written] != parts[tensor]
            if until > last[tensor]:
                last[tensor] = until
                if written is not None:
                    over[tensor] = written
                else:
                    over.pop(tensor, None)
    return last
