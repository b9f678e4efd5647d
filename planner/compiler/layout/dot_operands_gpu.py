"""Transposed stacks: XLA's GPU compiler transposes them before a loop because matmuls in it read slices of them.

A matmul wants the batch dims of an operand side by side, and so what it contracts and what it keeps; where they are
not, as in a cache of shape (layers, batch, length, heads, width) whose heads are a batch of the product, it has the
operand laid in that order: batch, contracted, kept. The order goes up through slices, updates and what is computed
element by element (a quantized cache made whole) to what the loop takes in, which is transposed before it, and back
behind it where it is carried. A stack that nothing else reads is not there any more then. A dim of which a device holds
one element may lie anywhere, such as heads that are each on a device of their own: what only they put out of order is
transposed where a device holds several. Seen in schedules of jaxlib 0.10.2 (`GpuLayoutAssignment::SetDotOperandLayout`
in openxla/xla).

What is no stack is transposed right before the product: queries of shape (batch, length, heads, width), and scores of
queries in groups. A transpose in the program is one in name only: what is computed element by element of a product lies as
the product made it. A pass whose result one product alone reads writes it in that product's order; else a kernel of its own
copies it, once for all products that want one order.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from planner.compiler.buffers.buffer import Buffer, TransposedStacks
from planner.compiler.buffers.copy_insertion import READ_AND_WRITTEN
from planner.compiler.fusion.instruction_fusion import source
from planner.compiler.fusion.materialization import readers_by_any_name
from planner.program.dataflow import reached, source_through
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY, ENTERING
from planner.rules.primitives import traits

Orders = Mapping[int, tuple[int, ...]]
"""By tensor its dims of more than one element, from the outermost in; none of those that may lie in any order."""


def transposed_stacks(graph: Graph, orders: Orders) -> TransposedStacks:
    """The stacks that are transposed before their loop."""
    found: dict[int, int | None] = {}
    for op in graph.of_kinds(("dot_general",)):
        for position, several in _transposed_operands(op):
            wanted = op.operands[position]
            for entering in _entering(graph, source(graph, wanted)):
                dim = several and _dim_of_stack(graph, entering, wanted, several)
                if several is None or (dim is not None and found.get(entering.id, dim) is not None):
                    found[entering.id] = dim
    return found | _transposed_slices(graph, orders)


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
    """The buffers with transposed stacks, from the spans of regions (op ids).

    Each stands beside its stack, but for one that the program made and that nothing reads as it lies: that one gives way
    to the transposed one, which is as large, once it is made.
    """
    found, made = list(buffers), {of.tensor for of in buffers}
    for op in map(graph.ops.__getitem__, sorted(transposed)):
        (stack, *_), (start, stop) = op.operands, spans[op.region]
        alone = all(reader in transposed for reader, _ in graph.consumers[stack])
        gives_way = op.kind == "loop_slice" and stack in made and alone
        dim = transposed[op.id]
        found.append(Buffer(stack, start, start + 1 if gives_way else stop, several=() if dim is None else (dim,)))
    return found


def transposed_operands(
    graph: Graph, fused: Sequence[bool], materialized: Sequence[bool], orders: Orders
) -> dict[tuple[int, int], tuple[int, tuple[int, ...]]]:
    """The operands of products, by op and position, that kernels of their own transpose, for the first that want one so.

    By each the op before which it is made, the first product that reads the same in whatever order, and the dims of which a
    device must hold several elements, each of them, for it.
    """
    found: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
    read: dict[int, list[tuple[int, int]]] = {}
    for op in graph.of_kinds(("dot_general",)):
        for position, tensor in enumerate(op.operands if not fused[op.id] else ()):
            read.setdefault(source(graph, tensor), []).append((op.id, position))
    for tensor, reads in read.items():
        maker = graph.maker(tensor)
        if maker is not None and maker.kind == "loop_slice":
            continue
        passes = maker is not None and maker.kind not in BOUNDARY and fused[maker.id] and materialized[tensor]
        if passes and len(reads) == len(readers_by_any_name(graph, tensor)) == 1:
            continue
        wanted = set[tuple[int, ...]]()
        for number, position in reads:
            product = graph.ops[number]
            operand = product.operands[position]
            lies = orders.get(operand, _longer(graph.tensors[operand].aval.shape))
            order = _order_wanted(product, position, lies)
            if order is not None and order not in wanted:
                wanted.add(order)
                several = tuple(dim for dim in lies if _order_wanted(product, position, _without(lies, dim)) is None)
                found[number, position] = reads[0][0], several
    return found


def orders_of(graph: Graph, uncoalesced: Container[int]) -> Orders:
    """How the dims of tensors lie, given the transposes that are made.

    What is computed element by element lies as what it is computed of. Where that lies in several orders, and of slices of
    stacks, it lies as its readers want it.
    """
    found = {t.id: _longer(t.aval.shape) for t in graph.tensors if t.producer is None}
    for op in graph.ops:
        row = traits(op.kind)
        for result in op.results:
            shape = graph.tensors[result].aval.shape
            if op.kind == "transpose" and op.id not in uncoalesced:
                (operand,) = op.operands
                if operand in found:
                    found[result] = tuple(op.params["permutation"].index(dim) for dim in found[operand])
            elif op.kind in ("loop_slice", "loop_stack") or (row.fused and (row.turns or row.reshapes)):
                continue
            elif row.fused or row.renames or op.kind in BOUNDARY:
                alike = {found[t] for t in op.operands if t in found and graph.tensors[t].aval.shape == shape}
                if len(alike) == 1:
                    (found[result],) = alike
            else:
                found[result] = _longer(shape)
    return found


def _longer(shape: Sequence[int]) -> tuple[int, ...]:
    """The dims of more than one element."""
    return tuple(dim for dim, extent in enumerate(shape) if extent > 1)


def _transposed_slices(graph: Graph, orders: Orders) -> dict[int, int | None]:
    """The slices of stacks that passes read beside what lies in another order than the loop left them in.

    By each the dim of the stack that alone is out of order, of several the shortest.
    """
    found: dict[int, int | None] = {}
    left = {op.results[0]: orders.get(op.operands[0]) for op in graph.of_kinds(("loop_stack",))}
    for op in graph.of_kinds(("loop_slice",)):
        (stack, *_), (tensor,) = op.operands, op.results
        lies = left.get(source_through(graph, stack, lambda one: traits(one.kind).renames))
        shape = graph.tensors[tensor].aval.shape
        if lies is None:
            continue
        for reader in graph.readers(tensor):
            beside = {orders[t] for t in reader.operands if t in orders and graph.tensors[t].aval.shape == shape}
            if traits(reader.kind).fused and beside and lies not in beside:
                alone = [dim for dim in lies if {_without(order, dim) for order in beside} == {_without(lies, dim)}]
                found[op.id] = min(alone, key=lambda dim: shape[dim]) + 1 if alone else None
                break
    return found


def _without(order: Sequence[int], dim: int) -> tuple[int, ...]:
    return tuple(other for other in order if other != dim)


def _order_wanted(op: Op, position: int, lies: Sequence[int]) -> tuple[int, ...] | None:
    """The order in which a product wants the dims of an operand that lie in another; None where it takes them so."""
    contracted, batch = (dims[position] for dims in op.params["dimension_numbers"])
    kept = [dim for dim in sorted(lies) if dim not in contracted and dim not in batch]
    groups = (kept, contracted) if position == 0 else (contracted, kept)
    first, second, apart = ([dim for dim in dims if dim in lies] for dims in (*groups, batch))
    taken = ((*apart, *first, *second), (*apart, *second, *first))
    return None if tuple(lies) in taken else taken[0]


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
