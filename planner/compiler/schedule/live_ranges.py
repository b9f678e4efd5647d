"""Holdings: what a program keeps in memory and when, whatever the mesh; `memory` gives it bytes on one.

An item is a tensor in the form that the choice of a node gives it, over a span of the schedule. Items of one form (a type,
the factors of its dims, the share of its bytes) have the same bytes wherever nodes have the same strategies, so
that bytes are worked out per form and not per item.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pbqp.vectors import Indices
from planner.compiler.buffers.buffer import Buffer
from planner.compiler.collectives.shared_halos import halos_of
from planner.compiler.layout.multiplied import Order
from planner.compiler.program import CompiledProgram
from planner.compiler.schedule.host_copies import host_copies
from planner.decisions.decision_graph import Flow, Read, Transfer, read_as_stored
from planner.program.dataflow import reached, source_through
from planner.program.graph import Aval, Body, Graph, Op
from planner.program.slots import ENTERING, TAKEN_IN
from planner.program.tracing.gc_pause import paused
from planner.rules.op_work import body_of
from planner.rules.primitives import traits
from planner.rules.rule import Dims

Reduced = frozenset[int]
Beside = Literal["more", "elsewhere", "apart", "behind"]
"""When a copy stands beside its source: where it is more than that holds; also where it is another part; also where it is a
part, as of what a loop takes in, which is sliced before the loop, or of what a product reads that is sliced for it. Of
stacks: where parts along a dim of their slices behind the first are exchanged."""


class Inside(NamedTuple):
    """The body of an op that stays one op, as it holds memory at one place of a program.

    `freed` are the positions of operands that nothing reads behind the op, each with the bytes that stand at once for each
    of its own (see `working_sets`): they are held no longer than the body reads them.
    """

    body: Body
    freed: tuple[tuple[int, float], ...] = ()


class Halo(NamedTuple):
    """The elements of its neighbours that an op needs of a tensor along each dim that is split, and the part itself.

    `own`: whether the part stands for it, too, as nothing else keeps it.
    """

    widths: tuple[tuple[int, int], ...]
    own: bool


class TensorForm(NamedTuple):
    """Type of a tensor, the factors of its dims, and in how many of its bytes it stands.

    `reduced` are the factors whose splitting leaves partial sums in it, where a compiler that sums over all devices at once
    keeps the whole; None for what is no such sum. With `several`, dims, it stands only where a device holds several
    elements along each; with `split`, factors, only where one of them is split; with `halo` it is that. `in_rows`: how it
    lies in rows (see `row_order`). With `inside` it is no tensor, but what the body of an op that stays one op holds beside
    its results and the operands held around it. `at_once`: the bytes that stand at once for each of its own, by which it
    may stand on the chip (see `working_sets`). With `over_all`, factors, it stands only where all devices split them.
    """

    aval: Aval
    dims: Dims
    fraction: float
    reduced: Reduced | None = None
    several: tuple[int, ...] = ()
    split: Reduced | None = None
    in_rows: Order | None = None
    inside: Inside | None = None
    at_once: float = math.inf
    halo: Halo | None = None
    over_all: Reduced | None = None


class Item(NamedTuple):
    """A tensor as a node decides, from `start` to `stop`; with `beside`, in its name a whole array of that type."""

    tensor: int
    node: int
    dims: Dims
    start: int
    stop: int
    fraction: float = 1.0
    reduced: Reduced | None = None
    several: tuple[int, ...] = ()
    split: Reduced | None = None
    inside: Inside | None = None
    at_once: float = math.inf
    beside: Aval | None = None
    halo: Halo | None = None
    over_all: Reduced | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holdings:
    """Items by column: item i is `tensors[i]` as `nodes[i]` decides, of `forms[form[i]]`, in [`starts[i]`, `stops[i]`)."""

    tensors: Indices
    nodes: Indices
    form: Indices
    starts: Indices
    stops: Indices
    forms: tuple[TensorForm, ...]

    @staticmethod
    def of(graph: Graph, items: Iterable[Item], in_rows: Mapping[int, Order]) -> Holdings:
        """The columns of these items, given the tensors that lie in rows."""
        avals = graph.aval_numbers
        numbers: dict[tuple[object, ...], int] = {}
        of_type: list[TensorForm] = []
        rows: list[tuple[int, int, int, int, int]] = []
        for item in items:
            tensor, node, dims, start, stop, fraction, reduced, several, split, inside, at_once, beside, *_ = item
            halo, over_all = item.halo, item.over_all
            lies, aval = in_rows.get(tensor) if beside is None else None, beside or graph.tensors[tensor].aval
            form = dims, fraction, reduced, several, split, lies, inside, at_once, halo, over_all
            number = numbers.setdefault((beside or avals[tensor], *form), len(numbers))
            if number == len(of_type):
                of_type.append(TensorForm(aval, *form))
            rows.append((tensor, node, number, start, stop))
        tensors, nodes, form, starts, stops = np.asarray(rows, np.intp).reshape(-1, 5).T
        return Holdings(tensors=tensors, nodes=nodes, form=form, starts=starts, stops=stops, forms=tuple(of_type))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copied:
    """What transfers may keep beside their source: copy i is of `transfers[i]`, item i of both columns.

    Of a transfer that sums, what may be kept is the whole sum, beside the part of it that is stored in the end: its
    "source" is that part, its "target" the sum. Where it moves slices of a stack, that may be the stack in another order:
    its "source" is what the slice becomes, its "target" the stack.
    """

    transfers: tuple[Transfer, ...]
    beside: tuple[Beside, ...]
    sources: Holdings
    targets: Holdings


@paused()
def held(program: CompiledProgram, flow: Flow, freed: Mapping[Read, int]) -> Holdings:
    """Arguments and constants, partial results being summed, buffers, and what bodies of ops hold while these run.

    There is one more point in time than ops.
    """
    items = [*_held(program, flow, freed), *_held_inside(program, freed), *_halos(program)]
    return Holdings.of(program.graph, items, program.row_major)


def freed_inside(program: CompiledProgram) -> dict[Read, int]:
    """The operands that are free once the body of their op has read them, each with the tensor in whose memory it is.

    A compiler inlines the body of a `shard_map` before it allocates memory (XLA's call inliner, on all platforms), so that
    what nothing reads behind the op is free from its last reader inside on. What is an argument of the program stays, and
    what is in the memory of one. Of a body of whole arrays it is not known how its parts lie: its operands stay, too, as
    do those that stand at several positions.
    """
    graph, buffers = program.graph, defaultdict[int, list[Buffer]](list)
    for buffer in program.buffers:
        buffers[buffer.tensor].append(buffer)
    found: dict[Read, int] = {}
    for op in graph.ops:
        body, stop = body_of(op), program.scheduled_at.get(op.id, op.id) + 1
        if body is None or body.axes is None:
            continue
        stored = [source_through(graph, tensor, lambda op: traits(op.kind).renames) for tensor in op.operands]
        counts = Counter(stored)
        for position, tensor in enumerate(stored):
            own = [(buffer.stop, buffer.fraction, buffer.several) for buffer in buffers[tensor]]
            alone = counts[tensor] == 1 and own == [(stop, 1.0, ())]
            if alone and not _is_read_later(program, tensor, stop):
                found[op.id, position] = tensor
    return found


def _is_read_later(program: CompiledProgram, tensor: int, time: int) -> bool:
    """Whether an op that runs at a time or later reads a tensor, or what is computed from it in passing.

    The pass that runs next may do so and write over it, which ends its memory as early.
    """
    graph = program.graph

    def computed_of(tensor: int) -> list[int]:
        made = ((op, t) for op in graph.readers(tensor) for t in op.results)
        return [t for op, t in made if traits(op.kind).renames or not program.materialized[t]]

    return any(
        read in graph.returned or any(program.scheduled_at.get(op, op) >= time for op, _ in graph.consumers[read])
        for read in reached([tensor], computed_of)
    )


def _held_inside(program: CompiledProgram, freed: Mapping[Read, int]) -> Iterator[Item]:
    """What the bodies of ops that stay one op hold; results, else operands, stand for them by name."""
    at_once = program.working_sets.per_byte
    for op in program.graph.ops:
        body, named = body_of(op), next(iter((*op.results, *op.operands)), None)
        if body is not None and named is not None:
            start = program.scheduled_at.get(op.id, op.id)
            own = [(position, freed.get((op.id, position))) for position in range(len(op.operands))]
            inside = Inside(body, tuple((position, at_once(tensor)) for position, tensor in own if tensor is not None))
            yield Item(named, program.grouping.group_of[op.id], (), start, start + 1, inside=inside)


def _halos(program: CompiledProgram) -> Iterator[Item]:
    """The halos of what ops slide a window over, held until the last op of a region has read them.

    A part and its halo are put together in memory, which a convolution and the gradient of its kernel share: so what a
    convolution would compute itself stands, too.
    """
    graph, found = program.graph, dict[tuple[int, int], Item]()
    for op in graph.ops:
        if traits(op.kind).joins:
            continue
        time, dims = program.scheduled_at.get(op.id, op.id), program.grouping.placements[op.id].operands
        for position, margins in halos_of(graph, op).items():
            tensor = op.operands[position]
            widths = tuple((margin.dim, margin.left + margin.right) for margin in margins)
            if any(width for _, width in widths):
                halo = Halo(widths, not program.materialized[tensor])
                fraction, group = program.narrow.fraction(tensor, [(op.id, position)]), program.grouping.group_of[op.id]
                item = Item(tensor, group, dims[position], time, time + 1, fraction, halo=halo)
                found[tensor, op.region] = found.get((tensor, op.region), item)._replace(stop=time + 1)
    yield from found.values()


def _held(program: CompiledProgram, flow: Flow, freed: Mapping[Read, int]) -> Iterable[Item]:
    graph = program.graph
    unread = {tensor for position, tensor in enumerate(graph.inputs) if position not in graph.kept}
    for tensor in graph.tensors:
        home = flow.home[tensor.id]
        if tensor.producer is None and home is not None and tensor.aval.bytes and tensor.id not in unread:
            yield Item(tensor.id, home[0], home[1], 0, program.steps + 1)
    summed, inside = set[int](), set(freed.values())
    for transfer in flow.transfers:
        made = graph.tensors[transfer.tensor]
        if transfer.reduced and made.producer is not None:
            summed.add(made.id)
            start = program.scheduled_at.get(made.producer, made.producer)
            split = transfer.reduced if made.id in program.reduced_at_once else None
            yield Item(made.id, transfer.source, transfer.source_dims, start, start + 1, split=split)
    for buffer in program.buffers:
        home = flow.home[buffer.tensor]
        if home is not None:
            start, at_once = buffer.start + (buffer.tensor in summed), program.working_sets.per_byte(buffer.tensor)
            # While the op runs that frees it, its body holds it.
            stop = buffer.stop - (buffer.tensor in inside)
            held = Item(buffer.tensor, home[0], home[1], start, stop, buffer.fraction, several=buffer.several)
            if buffer.beside is None:
                yield held._replace(at_once=at_once)
                awaiting = program.awaiting.get(buffer.tensor)
                if awaiting is not None and awaiting.until > stop and home[1]:
                    over_all = frozenset(factor for d in awaiting.dims for factor in home[1][d])
                    yield held._replace(start=stop, stop=awaiting.until, at_once=at_once, over_all=over_all)
            else:
                yield held._replace(dims=((),) * len(buffer.beside.shape), beside=buffer.beside)
    for op in map(graph.ops.__getitem__, host_copies(graph)):
        # While one trip of a loop computes, what the one before has left travels, or what the next one reads.
        if graph.regions[op.region].parent is not None:
            dims = program.grouping.placements[op.id].results[0]
            tensor = max(op.operands[0], op.results[0], key=lambda tensor: graph.tensors[tensor].aval.bytes)
            yield Item(tensor, program.grouping.group_of[op.id], dims, *program.spans[op.region])


@paused()
def copied(
    program: CompiledProgram,
    flow: Flow,
    freed: Mapping[Read, int],
    moving: Sequence[Transfer],
    sliced: AbstractSet[int],
) -> Copied:
    """The copies that these transfers make, held while those run that read them, and the whole sums of parts.

    `sliced` are those whose slices are copies.
    """
    graph, rows = program.graph, program.row_major
    found = [*_copies(program, flow, freed, moving, sliced), *_sums(program, flow, moving)]
    if program.compiler.runs("collective-layout"):
        found += _relaid_stacks(program, moving)
    return Copied(
        transfers=tuple(transfer for transfer, _, _, _ in found),
        beside=tuple(beside for _, _, _, beside in found),
        sources=Holdings.of(graph, [source for _, source, _, _ in found], rows),
        targets=Holdings.of(graph, [target for _, _, target, _ in found], rows),
    )


def _copies(
    program: CompiledProgram,
    flow: Flow,
    freed: Mapping[Read, int],
    moving: Sequence[Transfer],
    sliced: AbstractSet[int],
) -> Iterator[tuple[Transfer, Item, Item, Beside]]:
    graph, ops = program.graph, program.graph.ops
    stored = read_as_stored(graph, flow) if program.compiler.runs("read-as-stored") else set[Read]()
    for transfer in moving:
        if transfer.source == transfer.target or transfer.reduced:
            continue
        served = flow.reads_of(transfer)
        served = [read for read in served if read not in stored] or served
        if not served:
            continue
        start = min(program.scheduled_at.get(op, op) for op, _ in served)
        # An op holds itself what it frees.
        stop = max(_read_until(program, ops[op]) - ((op, position) in freed) for op, position in served)
        fraction = program.narrow.fraction(transfer.tensor, served)
        source = Item(transfer.tensor, transfer.source, transfer.source_dims, start, stop, fraction)
        moved = source._replace(node=transfer.target, dims=transfer.target_dims)
        gives_way = _gives_way(program, transfer.tensor, len(served))
        apart = transfer.id in sliced or all(ops[op].kind in TAKEN_IN for op, _ in served)
        yield transfer, source, moved, "apart" if apart else "more" if gives_way else "elsewhere"


def _read_until(program: CompiledProgram, op: Op) -> int:
    """The time until which an op reads its operands: where its result is not stored, those that read that do so."""
    if op.kind in ENTERING:
        return program.spans[op.region][1]
    through = (program.last_use[tensor] for tensor in op.results if not program.materialized[tensor])
    return max([program.scheduled_at.get(op.id, op.id) + 1, *through])


def _gives_way(program: CompiledProgram, tensor: int, served: int) -> bool:
    """Whether a tensor in memory is done with when so many of its readers have their copy, which may take its place."""
    graph = program.graph
    made = graph.tensors[tensor].producer is not None and tensor not in graph.returned
    return made and program.materialized[tensor] and served >= len(graph.consumers[tensor])


def _sums(
    program: CompiledProgram, flow: Flow, moving: Sequence[Transfer]
) -> Iterator[tuple[Transfer, Item, Item, Beside]]:
    summed = {
        transfer.tensor: transfer for transfer in moving if transfer.reduced and transfer.source != transfer.target
    }
    for buffer in program.buffers:
        transfer = summed.get(buffer.tensor)
        home = flow.home[buffer.tensor]
        if transfer is None or home is None or home[0] != transfer.target:
            continue
        part = Item(buffer.tensor, home[0], home[1], buffer.start + 1, buffer.stop, reduced=frozenset())
        yield (
            transfer,
            part,
            part._replace(node=transfer.source, dims=transfer.source_dims, reduced=transfer.reduced),
            "more",
        )


def _relaid_stacks(
    program: CompiledProgram, moving: Sequence[Transfer]
) -> Iterator[tuple[Transfer, Item, Item, Beside]]:
    """The stacks among a program's arguments whose slices a loop exchanges: they may be laid in another order before it."""
    graph, grouping = program.graph, program.grouping
    for transfer in moving:
        taken = source_through(
            graph, transfer.tensor, lambda op: op.kind == "convert_element_type" or traits(op.kind).renames
        )
        op = graph.maker(taken)
        if transfer.reduced or op is None or op.kind != "loop_slice":
            continue
        stack, (start, stop) = op.operands[0], program.spans[op.region]
        if graph.maker(source_through(graph, stack, lambda op: op.kind in ENTERING)) is None:
            moved = Item(transfer.tensor, transfer.target, transfer.target_dims, start, stop)
            dims = grouping.placements[op.id].operands[0]
            yield transfer, moved, Item(stack, grouping.group_of[op.id], dims, start, stop), "behind"
