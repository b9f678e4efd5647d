"""Transposed stacks: XLA's GPU compiler transposes them before a loop because matmuls in it read slices of them.

A matmul wants the batch dims of an operand side by side, and so what it contracts and what it keeps; where they are
not, as in a cache of shape (layers, batch, length, heads, width) whose heads are a batch of the product, it has the
operand laid in that order: batch, contracted, kept. The order goes up through slices, updates and what is computed
element by element (a quantized cache made whole) to what the loop takes in, which is transposed before it, and back
behind it where it is carried. A stack that nothing else reads is not there any more then. A dim of which a device holds
one element may lie anywhere, such as heads that are each on a device of their own: what only they put out of order is
transposed where a device holds several. Seen in schedules of jaxlib 0.10.2 (`GpuLayoutAssignment::SetDotOperandLayout`
in openxla/xla).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.compiler.buffers.buffer import Buffer, TransposedStacks
from planner.compiler.buffers.copy_insertion import READ_AND_WRITTEN
from planner.compiler.fusion.instruction_fusion import source
from planner.program.dataflow import reached
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY, ENTERING
from planner.rules.primitives import traits


def transposed_stacks(graph: Graph) -> TransposedStacks:
    """The stacks that are transposed before their loop."""
    found: dict[int, int | None] = {}
    for op in graph.of_kinds(("dot_general",)):
        for position, several in _transposed_operands(op):
            wanted = op.operands[position]
            for entering in _entering(graph, source(graph, wanted)):
                dim = several and _dim_of_stack(graph, entering, wanted, several)
                if several is None or (dim is not None and found.get(entering.id, dim) is not None):
                    found[entering.id] = dim
    return found


def transpose_traffic(graph: Graph, transposed: TransposedStacks) -> Mapping[int, tuple[float, int | None]]:
    """How often per call a transposed stack is read or written for that, by the op by which it enters its loop."""
    found: dict[int, tuple[float, int | None]] = {}
    for op, several in ((graph.ops[number], several) for number, several in transposed.items()):
        region = graph.regions[op.region]
        runs = region.trips if op.kind == "loop_slice" else graph.regions[region.parent or 0].trips
        found[op.id] = READ_AND_WRITTEN * runs * (2.0 if op.kind == "loop_carry_in" else 1.0), several
    return found


def with_transposed(
    graph: Graph, transposed: TransposedStacks, spans: Sequence[tuple[int, int]], buffers: Sequence[Buffer]
) -> list[Buffer]:
    """The buffers with transposed stacks, beside the stack or in its place, from the spans of regions (op ids)."""
    ends: dict[int, int] = {}
    for op in map(graph.ops.__getitem__, transposed):
        (tensor,) = op.operands[:1]
        readers = [reader for reader, _ in graph.consumers[tensor]]
        if op.kind == "loop_slice" and all(transposed.get(reader, -1) is None for reader in readers):
            ends[tensor] = max(ends.get(tensor, 0), spans[op.region][0])
    found = [of._replace(stop=min(of.stop, ends.get(of.tensor, of.stop))) for of in buffers]
    return found + [
        Buffer(
            tensor=op.operands[0],
            start=spans[op.region][0],
            stop=spans[op.region][1],
            several=transposed[op.id],
        )
        for op in map(graph.ops.__getitem__, sorted(transposed))
    ]


def _transposed_operands(op: Op) -> Iterator[tuple[int, int | None]]:
    """The operands that a product of matrices does not take as they lie, and the batch dim that alone is in the way."""
    contracted, batch = op.params["dimension_numbers"]
    for position in range(2):
        apart, summed = sorted(batch[position]), sorted(contracted[position])
        if not apart or apart == list(range(apart[0], apart[-1] + 1)) or not summed:
            continue
        kept = [dim for dim in range(apart[0], summed[-1]) if dim not in apart and dim not in summed]
        if kept and summed[0] > apart[0]:
            yield position, None
        elif len(apart) == 2 and apart[0] < summed[0] < apart[1]:
            yield position, apart[1]


def _dim_of_stack(graph: Graph, entering: Op, wanted: int, dim: int) -> int | None:
    """The dim of a stack that a dim of its slices is; None where the stack's last dims are not theirs."""
    stack, own = (graph.tensors[tensor].aval.shape for tensor in (entering.operands[0], wanted))
    return dim + len(stack) - len(own) if stack[len(stack) - len(own) :] == own else None


def _entering(graph: Graph, tensor: int) -> Sequence[Op]:
    """The ops by which the stacks enter a loop that a tensor is a slice of, or is computed of slices of."""

    def made_of(one: tuple[int, bool]) -> list[tuple[int, bool]]:
        (tensor, picked), op = one, graph.maker(one[0])
        if op is None or op.kind in BOUNDARY:
            return []
        row, size = traits(op.kind), graph.tensors[tensor].aval.size
        if row.picks or row.renames or row.updates is not None:
            return [(op.operands[0], picked or row.picks)]
        return [(operand, picked) for operand in op.operands if row.fused and graph.tensors[operand].aval.size == size]

    makers = ((graph.maker(tensor), picked) for tensor, picked in reached([(tensor, False)], made_of))
    found = (op for op, picked in makers if op is not None and (picked or op.kind == "loop_slice"))
    return list({op.id: op for op in found if op.kind in ENTERING}.values())
