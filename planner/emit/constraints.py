"""Emission: the decisions of a plan as constraints on places of the program, loop bodies included.

Every result is pinned to what its op makes (after the sum of partial results, where there is one), every operand to what
its op wants, and a reshard in between is laid as its own steps, so that the partitioner never has to find a way itself.
Operands and results of one op always belong to one strategy of its rule. Passes that only follow their operands may be left
to the partitioner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from jax.sharding import PartitionSpec

from planner.compiler.model import CompilerModel
from planner.emit.by_hand import by_hand, chosen_split, may_be_by_hand, read_from_operands
from planner.pricing.assignment import Chosen
from planner.pricing.candidates.specs import to_spec
from planner.pricing.reshards.reshard import Step
from planner.program.dataflow import reached
from planner.program.graph import Graph, Op
from planner.program.slots import Refetch, Slot, operand_slot, result_slot
from planner.rules.primitives import kinds_where, traits
from planner.rules.sliding import is_grouped


@dataclass(frozen=True, kw_only=True)
class Emission:
    """A plan in the program's own terms: specs of arguments and results, and those to lay on places in between.

    `refetched` as in `Decision`.
    """

    mesh_shape: Mapping[str, int]
    in_specs: tuple[PartitionSpec, ...]
    out_specs: tuple[PartitionSpec, ...]
    constraints: Mapping[Slot, tuple[PartitionSpec, ...]]
    refetched: Mapping[Slot, Refetch]


def place(chosen: Chosen, compiler: CompilerModel) -> Emission:
    """The placement that a choice of strategies stands for, for the compiler that builds the program.

    With "sum-before-slice" a sum that is wanted scattered is laid down whole first. XLA then always adds up partial
    results, which its GPU compiler merges with the slice into a reduce-scatter; left to itself it may gather the
    operands instead. Its TPU compiler does as much, and overlaps the direct form better where windowed einsum is on (as
    a loop of small dots and permutes); so there that is laid, but for sums scattered onto a dim that several operands
    have (`_onto_batch`).

    With "read-as-stored" a tensor that is wanted as it is stored is read from there, where others read it gathered:
    XLA's GPU compiler (jaxlib 0.10.2) reads zeros where what was gathered is sliced to what it was. The others slice,
    as prices have it.

    With "constrain-anchors-only" nothing is laid on results that follow their operands (`_free_followers`).
    """
    instance = chosen.instance
    graph, flow, names = instance.model.graph, instance.model.flow, instance.mesh.names
    steps_of = {transfer.id: steps for transfer, steps in chosen.moves}
    layouts = {transfer: tuple(to_spec(step.layout, names) for step in steps) for transfer, steps in steps_of.items()}
    constraints: dict[Slot, tuple[PartitionSpec, ...]] = {}
    summed = {t.tensor: t for t in flow.transfers if t.reduced}
    for op in graph.ops:
        for position, tensor in enumerate(op.results):
            aval = graph.tensors[tensor].aval
            if not aval.shape or not aval.itemsize:
                continue
            made = chosen.made(op, position)
            chain = (made,)
            if tensor in summed and summed[tensor].id in steps_of:
                first, laid = steps_of[summed[tensor].id][0], layouts[summed[tensor].id]
                apart = compiler.runs("sum-before-slice") or _onto_batch(chosen, op, position, first)
                at_once = first.kind == "all-reduce" or (first.kind == "reduce-scatter" and not apart)
                chain = laid if at_once else (made, *laid)
            constraints[result_slot(op, position)] = chain
    refetched: dict[Slot, Refetch] = {}
    through = dict(flow.fetched)
    into = {t.target: t for t in flow.transfers if not t.reads and t.output is None and not t.reduced}
    for transfer in flow.transfers:
        if transfer.output is not None:
            constraints["outvar", (), transfer.output] = layouts.get(transfer.id, ())
        for op_id, position in transfer.reads:
            if not graph.tensors[transfer.tensor].aval.shape:
                continue
            chain = layouts.get(transfer.id, ())
            fetched, at_home = into.get(through.get((op_id, position), -1)), False
            if fetched is not None:
                at_home = compiler.runs("read-as-stored") and chosen.at(
                    transfer.target, transfer.target_dims
                ) == chosen.home(transfer.tensor)
                wanted = (chosen.wanted(graph.ops[op_id], position),)
                chain = wanted if at_home else (*layouts.get(fetched.id, ()), *chain)
            if chain:
                constraints[operand_slot(graph.ops[op_id], position)] = chain
            behind = chosen.refetched.get(transfer.id)
            if behind is not None and not at_home:
                shared = len(chain) - len(layouts.get(transfer.id, ()))
                refetched[operand_slot(graph.ops[op_id], position)] = Refetch(shared, _slot_of(graph, behind))
    _hold_readers(chosen, {t.tensor for t in flow.transfers if t.reads and t.id in layouts}, constraints)
    _hold_windows(chosen, constraints)
    _hold_terms(chosen, constraints)
    if compiler.runs("constrain-anchors-only"):
        _free_followers(chosen, constraints)
    # What a transpose takes over from a matmul must not be taken away again.
    _constrain_after_transposes(chosen, constraints)
    in_specs = tuple(map(chosen.stored, graph.inputs))
    for position, tensor in enumerate(graph.inputs):
        if graph.tensors[tensor].aval.shape and graph.tensors[tensor].aval.itemsize:
            constraints["invar", (), position] = (in_specs[position],)
    return Emission(
        mesh_shape=instance.mesh.shape,
        in_specs=in_specs,
        out_specs=tuple(map(chosen.returned, range(len(graph.outputs)))),
        constraints=constraints,
        refetched=refetched,
    )


def _slot_of(graph: Graph, tensor: int) -> Slot:
    """The place of what an op makes."""
    maker = graph.ops[graph.tensors[tensor].producer or 0]
    return result_slot(maker, maker.results.index(tensor))


def _onto_batch(chosen: Chosen, op: Op, position: int, scatter: Step) -> bool:
    """Whether a sum is scattered onto a dim that several operands of its op have, as the batch of a matmul.

    XLA's partitioner then gathers the operands over all other axes, to split them as the result is.
    """
    placement = chosen.instance.model.grouping.placements[op.id]
    axes = {axis for axis in range(len(chosen.instance.mesh.names)) if scatter.mask >> axis & 1}
    onto = {
        factor
        for dim, held in zip(placement.results[position], scatter.layout, strict=True)
        for factor in dim
        if axes & set(held)
    }
    return sum(any(onto & set(dim) for dim in dims) for dims in placement.operands) > 1


def _hold_readers(chosen: Chosen, tensors: Iterable[int], constraints: dict[Slot, tuple[PartitionSpec, ...]]) -> None:
    """Gives every reader of these tensors a constraint of its own.

    Shardy moves the later readers of a tensor onto a form that is laid on it for another reader, unless they have one.
    """
    graph = chosen.instance.model.graph
    for tensor in tensors:
        for reader, position in graph.consumers[tensor] if graph.tensors[tensor].aval.shape else ():
            op = graph.ops[reader]
            constraints.setdefault(operand_slot(op, position), (chosen.wanted(op, position),))


def _hold_windows(chosen: Chosen, constraints: dict[Slot, tuple[PartitionSpec, ...]]) -> None:
    """Gives every operand of an op that is emitted by hand a constraint: it is read from them how the op is split."""
    graph = chosen.instance.model.graph
    for op in read_from_operands(graph):
        # A convolution in groups is held where it is whole, too: the partitioner must not come to split it.
        if by_hand(graph, op, chosen_split(chosen, op)) is None and not is_grouped(op):
            continue
        for position in range(len(op.operands)):
            constraints.setdefault(operand_slot(op, position), (chosen.wanted(op, position),))


def _hold_terms(chosen: Chosen, constraints: dict[Slot, tuple[PartitionSpec, ...]]) -> None:
    """Gives every operand of what is added to an accumulator a constraint: it is read from them what is left partial."""
    for accumulator in chosen.instance.model.flow.accumulators:
        for op in (term.op for term in accumulator.terms):
            for position in range(len(op.operands)):
                constraints.setdefault(operand_slot(op, position), (chosen.wanted(op, position),))


def _constrain_after_transposes(chosen: Chosen, constraints: dict[Slot, tuple[PartitionSpec, ...]]) -> None:
    """Lays what holds for the result of a matmul on the transpose that alone reads it, as of the gradient of a weight.

    XLA then makes the one in the order of the other. A constraint in between keeps it from that, and its TPU compiler would
    copy the weight and the moments of its optimizer into the gradient's order and back. Not for sums that a TPU's compiler
    can scatter in the order of the matmul alone: behind the transpose it makes all-reduces of them. Nor on other platforms
    for any sum that is scattered.
    """
    graph, flow = chosen.instance.model.graph, chosen.instance.model.flow
    in_tiles = chosen.instance.mesh.compiler.runs("tiling")
    scattered = {
        t.tensor
        for t, steps in chosen.moves
        if steps[0].kind == "reduce-scatter" and not (in_tiles and chosen.has_steps_transposed(t, steps))
    }
    terms = {term.op.id for accumulator in flow.accumulators for term in accumulator.terms}
    for op in graph.of_kinds(kinds_where(lambda row: row.matmul)):
        readers = graph.consumers[op.results[0]]
        if len(readers) != 1 or graph.ops[readers[0][0]].kind != "transpose" or op.id in terms:
            continue
        if op.results[0] in scattered or by_hand(graph, op, chosen_split(chosen, op)) is not None:
            continue
        transpose = graph.ops[readers[0][0]]
        chain = (*constraints.pop(result_slot(op, 0), ()), *constraints.pop(operand_slot(transpose, 0), ()))
        order = transpose.params["permutation"]
        laid = [*(_in_order(spec, order) for spec in chain), *constraints.get(result_slot(transpose, 0), ())]
        if laid:
            constraints[result_slot(transpose, 0)] = tuple(spec for spec, _ in groupby(laid))


def _free_followers(chosen: Chosen, constraints: dict[Slot, tuple[PartitionSpec, ...]]) -> None:
    """Takes away what is laid on the results of passes that are split as their operands are, and read so.

    Shardy splits them likewise. XLA simplifies the whole program before it partitions it, and a constraint is in the way:
    the sums of a norm over groups of channels stay sums over a reshaped array, which its TPU compiler copies into another
    order, in float32. What moves, or is split along other axes than its operands, is held. So are results of matmuls,
    unless both operands are split along the axes of the result, as scores of attention are.

    A broadcast, as of a mask and its fill, is free beside what was reshaped: XLA moves a reshape behind the passes that
    follow where all that they read can be reshaped too, and with heads in groups a matmul then computes the softmax of its
    scores. Elsewhere it is held, as XLA may move a reshape in between a matmul and its softmax (libtpu 0.0.42).
    """
    graph = chosen.instance.model.graph
    reshaped = _reshaped(graph)
    for op in graph.of_kinds(kinds_where(lambda row: row.matmul or (row.fused and not may_be_by_hand(row)))):
        slot = result_slot(op, 0)
        if len(op.results) != 1 or op.results[0] in graph.returned or len(constraints.get(slot, ())) != 1:
            continue
        over = _axes(chosen.result(op, 0))
        sides = [_axes(chosen.operand(op, n)) for n in range(len(op.operands))]
        under = frozenset[int]().union(*sides)
        readers = [(graph.ops[reader], position) for reader, position in graph.consumers[op.results[0]]]
        follows = all(side == over for side in sides) if traits(op.kind).matmul else under == over
        if op.kind == "broadcast_in_dim" and under < over:
            follows = any(not reshaped.isdisjoint(reader.operands) for reader, _ in readers)
        if over and follows and all(_reads_as_made(op, reader, n, constraints) for reader, n in readers):
            del constraints[slot]


def _axes(dims: Sequence[int]) -> frozenset[int]:
    """The axes of the mesh that split an array whose dim along each of them is given, -1 where it is whole."""
    return frozenset(axis for axis, dim in enumerate(dims) if dim >= 0)


def _reshaped(graph: Graph) -> frozenset[int]:
    """Results of reshapes, and of passes over these that leave their shape as it is."""
    shapes = [tensor.aval.shape for tensor in graph.tensors]

    def passed_on(tensor: int) -> Iterable[int]:
        made = (result for op in graph.readers(tensor) if traits(op.kind).fused for result in op.results)
        return (result for result in made if shapes[result] == shapes[tensor])

    reshapes = (op.results[0] for op in graph.of_kinds(("reshape",)))
    return frozenset(reached((tensor for tensor in reshapes if shapes[tensor]), passed_on))


def _reads_as_made(op: Op, reader: Op, position: int, constraints: Collection[Slot]) -> bool:
    """Whether the partitioner alone has what an op reads of another, in the same body and as it was made."""
    held = operand_slot(reader, position) in constraints or may_be_by_hand(traits(reader.kind))
    return reader.region == op.region and not held


def _in_order(spec: PartitionSpec, order: Sequence[int]) -> PartitionSpec:
    """The spec of an array whose dims are put in another order, without trailing Nones."""
    entries = [spec[dim] if dim < len(spec) else None for dim in order]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)
