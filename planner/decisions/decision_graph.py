"""Flow: the decisions of a program (nodes) and the tensors that travel between them (transfers), for any mesh.

    group       a group of ops: chooses which of its factors the axes split
    argument    an argument or constant with readers that disagree: chooses how it is stored
    sum         a result that holds partial sums and has several readers: chooses how it is stored once summed
    copy        a tensor read by several groups of one body: chooses the form in which it is fetched, once for all
    output      a result of the function that the user pinned

A transfer reshards one tensor between two nodes (or within one, where a group reads its own result in another form, or
a partial sum at once). Everything downstream, costs, prediction and emission, follows this list.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from planner.decisions.groups import Grouping
from planner.decisions.loop_accumulators import Accumulator, accumulators
from planner.program.graph import Graph, Op, Path, Region
from planner.program.slots import ENTERING, read_in
from planner.rules.rule import Dims

NodeKind = Literal["group", "argument", "sum", "copy", "output"]


class Node(NamedTuple):
    """One decision: that of a group, or the spec of one tensor."""

    id: int
    kind: NodeKind
    group: int | None
    tensor: int | None
    name: str


class Transfer(NamedTuple):
    """A tensor on its way from one node to another, `trips` times per call.

    `source_dims` are in the factors of the source node, `target_dims` in those of the target; `reduced` are the factors
    of the source whose splitting leaves partial sums. `reads` are the (op, operand position) pairs it serves.
    """

    id: int
    tensor: int
    source: int
    source_dims: Dims
    reduced: frozenset[int]
    target: int
    target_dims: Dims
    trips: float
    source_line: str
    """The user's own line of code that it serves, and that by which compilers know it."""
    compiled_line: str
    region: int
    """The region in which it moves."""
    reads: tuple[Read, ...] = ()
    output: int | None = None
    """The position of the result it serves, for what is returned in another form than it is stored in."""
    region_after_loop: int | None = None
    """The region around the loop behind which it moves instead where it is a sum alone, of what the loop accumulates."""
    trips_after_loop: float = 0.0
    widened: float = 1.0
    """Bytes of what the loop accumulates over those of the tensor, which may be narrower, or a slice of it."""
    scatters: bool = False
    """Whether compilers scatter the sum behind the loop to those who read it there, where these are split by its axes.

    Not where other terms are accumulated with it: all wait for the loop only if all are partial over the same axes, which
    prices of pairs cannot state."""


class LoopSum(NamedTuple):
    """A transfer that may sum behind a loop, and one of those (a `share` of 1) that take there what was accumulated."""

    term: Transfer
    read: Transfer
    share: float


@dataclass(frozen=True, kw_only=True)
class Flow:
    """All nodes and transfers; `home[tensor]` is the node and dims that say how a tensor is stored."""

    nodes: tuple[Node, ...]
    transfers: tuple[Transfer, ...]
    home: tuple[tuple[int, Dims] | None, ...]
    fetched: tuple[tuple[tuple[int, int], int], ...]
    """((op, operand position), copy node) of every read that goes through a copy."""
    accumulators: tuple[Accumulator, ...]
    loop_sums: tuple[LoopSum, ...]
    """Where all that reads what was accumulated does so by transfers."""

    @property
    def scattered(self) -> list[LoopSum]:
        """The sums behind loops of transfers that scatter (`Transfer.scatters`)."""
        return [loop_sum for loop_sum in self.loop_sums if loop_sum.term.scatters]

    @cached_property
    def _through(self) -> dict[int, list[Read]]:
        """By copy node the reads that go through it."""
        found: dict[int, list[Read]] = {}
        for read, node in self.fetched:
            found.setdefault(node, []).append(read)
        return found

    def reads_of(self, transfer: Transfer) -> tuple[Read, ...]:
        """The reads that a transfer serves: its own, or those through the copy that it makes."""
        return (*transfer.reads, *self._through.get(transfer.target, ()))

    def stored(self, tensors: Iterable[int]) -> Iterator[tuple[int, int, Dims]]:
        """Of these tensors, as far as it is decided how they are stored: (tensor, node, dims)."""
        for tensor in tensors:
            home = self.home[tensor]
            if home is not None:
                yield tensor, *home

    def returned(self, positions: Container[int]) -> Iterator[tuple[int, int, Dims]]:
        """Of the results at these positions that are returned in a form of their own: (position, node, dims)."""
        for transfer in self.transfers:
            if transfer.output is not None and transfer.output in positions:
                yield transfer.output, transfer.target, transfer.target_dims


def read_as_stored(graph: Graph, flow: Flow) -> set[Read]:
    """The reads by which arguments are made anew: a compiler may read them as they are stored, where others read a copy."""
    made = ((graph.inputs[position], flow.home[graph.outputs[out]]) for out, position in graph.feeds.items())
    updates = {(argument, home[0]) for argument, home in made if home is not None}
    return {read for t in flow.transfers if (t.tensor, t.target) in updates for read in t.reads}


def own_dims(shape: tuple[int, ...]) -> Dims:
    """The dims of a tensor that is placed on its own: one factor per dim, none for dims of size 1."""
    return tuple((i,) if extent > 1 else () for i, extent in enumerate(shape))


Reader = tuple[int, Dims]
"""A group that reads a tensor, and the dims under which it does."""
Read = tuple[int, int]
"""An op and the position of one of its operands."""


@dataclass
class _Flow:
    graph: Graph
    grouping: Grouping
    pinned_outputs: Collection[int]
    kept: Collection[int]
    nodes: list[Node] = field(default_factory=list[Node])
    transfers: list[Transfer] = field(default_factory=list[Transfer])
    home: list[tuple[int, Dims] | None] = field(default_factory=list[tuple[int, Dims] | None])
    fetched: list[tuple[tuple[int, int], int]] = field(default_factory=list[tuple[tuple[int, int], int]])
    added: dict[int, tuple[Region, float]] = field(default_factory=dict[int, tuple[Region, float]])
    """For what is added to an accumulator the region around its loop, and the bytes that are accumulated for an element."""

    def node(self, kind: NodeKind, group: int | None, tensor: int | None, name: str) -> int:
        self.nodes.append(Node(id=len(self.nodes), kind=kind, group=group, tensor=tensor, name=name))
        return len(self.nodes) - 1

    def transfer(
        self,
        tensor: int,
        source: tuple[int, Dims],
        target: tuple[int, Dims],
        region: Region,
        lines: tuple[str, str],
        *,
        reduced: frozenset[int] = frozenset(),
        reads: tuple[Read, ...] = (),
        output: int | None = None,
    ) -> None:
        if source == target and not reduced:
            return
        outer, itemsize = self.added.get(tensor, (None, 0.0)) if reduced else (None, 0.0)
        self.transfers.append(
            Transfer(
                id=len(self.transfers),
                tensor=tensor,
                source=source[0],
                source_dims=source[1],
                reduced=reduced,
                target=target[0],
                target_dims=target[1],
                trips=region.trips,
                source_line=lines[0],
                compiled_line=lines[1],
                region=region.id,
                reads=reads,
                output=output,
                region_after_loop=None if outer is None else outer.id,
                trips_after_loop=0.0 if outer is None else outer.trips,
                widened=1.0 if outer is None else itemsize / self.graph.tensors[tensor].aval.itemsize,
            )
        )

    def moved_in(self, op: Op) -> Region:
        """The region in which what an op reads is moved: boundary ops read once, outside."""
        region = self.graph.regions[op.region]
        if op.kind in ENTERING and region.parent is not None:
            region = self.graph.regions[region.parent]
        return region

    def readers(self, tensor: int) -> list[Reader]:
        """Who reads a tensor, one by one."""
        group_of, placements = self.grouping.group_of, self.grouping.placements
        return [(group_of[op], placements[op].operands[position]) for op, position in self.graph.consumers[tensor]]

    def reads(self, tensor: int) -> Iterable[dict[Reader, list[Read]]]:
        """For each body in which a tensor is read, who reads it there."""
        found: dict[Path, dict[Reader, list[Read]]] = {}
        for read, reader in zip(self.graph.consumers[tensor], self.readers(tensor), strict=True):
            body = read_in(self.graph.ops[read[0]], read[1])
            found.setdefault(body, {}).setdefault(reader, []).append(read)
        return found.values()


def build_flow(
    graph: Graph, grouping: Grouping, *, pinned_outputs: Collection[int] = (), kept: Collection[int] = ()
) -> Flow:
    """The decisions and transfers of a graph.

    `pinned_outputs` are output positions that get a node of their own; `kept` are tensors that must not be absorbed
    into their reader's decision (pinned arguments).
    """
    sums = accumulators(graph)
    flow = _Flow(graph=graph, grouping=grouping, pinned_outputs=pinned_outputs, kept=kept)
    for accumulator in sums:
        around = graph.regions[graph.regions[accumulator.enters.region].parent or 0]
        itemsize = graph.tensors[accumulator.enters.results[0]].aval.itemsize
        for term in accumulator.terms:
            slices = graph.regions[accumulator.enters.region].per_run(graph.regions[term.op.region].trips)
            flow.added[term.op.results[0]] = around, itemsize * slices
    for group in grouping.groups:
        op = graph.ops[group.ops[0]]
        label = op.name + (f" +{len(group.ops) - 1}" if len(group.ops) > 1 else "")
        flow.node("group", group.id, None, label)
    flow.home = [None] * len(graph.tensors)
    produced_for: dict[int, int] = {}
    for out, argument in graph.feeds.items():
        produced_for.setdefault(graph.inputs[argument], graph.outputs[out])
    for tensor in graph.tensors:
        if tensor.producer is None:
            _place_argument(flow, tensor.id, produced_for.get(tensor.id))
    for op in graph.ops:
        group, placement = grouping.group_of[op.id], grouping.placements[op.id]
        for tensor, dims in zip(op.results, placement.results, strict=True):
            flow.home[tensor] = made = (group, dims)
            reduced = placement.reduced.difference(*dims)
            if reduced:
                _place_sum(flow, op, tensor, made, reduced)
    for tensor in graph.tensors:
        _serve_readers(flow, tensor.id)
    _close_loop(flow)
    scattered = _scattered(flow, sums)
    alone = {accumulator.terms[0].op.results[0] for accumulator in sums if len(accumulator.terms) == 1}
    transfers = [t._replace(scatters=t.id in scattered and t.tensor in alone) for t in flow.transfers]
    return Flow(
        nodes=tuple(flow.nodes),
        transfers=tuple(transfers),
        home=tuple(flow.home),
        fetched=tuple(flow.fetched),
        accumulators=sums,
        loop_sums=tuple(
            LoopSum(transfers[term], transfers[read], 1 / len(reads))
            for term, reads in scattered.items()
            for read in reads
        ),
    )


def _scattered(flow: _Flow, sums: Sequence[Accumulator]) -> dict[int, list[int]]:
    """By transfer of an accumulator's term those that take what was accumulated, where all read it by them."""
    graph, found = flow.graph, dict[int, list[int]]()
    of = {accumulator.leaves.results[0]: accumulator for accumulator in sums}
    reads: dict[int, list[Transfer]] = {}
    terms: dict[int, int] = {}
    for transfer in flow.transfers:
        if transfer.tensor in of:
            reads.setdefault(transfer.tensor, []).append(transfer)
        elif transfer.region_after_loop is not None:
            terms[transfer.tensor] = transfer.id
    for tensor, taken in reads.items():
        home = flow.home[tensor]
        moved_by_all = sum(len(transfer.reads) for transfer in taken) == len(graph.consumers[tensor])
        if home is not None and moved_by_all and tensor not in graph.returned and graph.tensors[tensor].aval.size > 1:
            first = [transfer.id for transfer in taken if transfer.source == home[0]]
            made = (term.op.results[0] for term in of[tensor].terms)
            found |= {terms[one]: first for one in made if one in terms}
    return found


def _place_argument(flow: _Flow, tensor: int, fed_by: int | None) -> None:
    """An argument read by one fused group (and, if fed back, made by it) is stored as that group wants it."""
    readers = set(flow.readers(tensor))
    graph, grouping = flow.graph, flow.grouping
    if len(readers) == 1 and tensor not in flow.kept:
        (group, dims), *_ = readers
        whole_loop = fed_by is None or fed_by == tensor
        if fed_by is not None and (made := graph.tensors[fed_by].producer) is not None:
            position = graph.ops[made].results.index(fed_by)
            whole_loop = (group, dims) == (grouping.group_of[made], grouping.placements[made].results[position])
        if grouping.groups[group].fused and whole_loop:
            flow.home[tensor] = (group, dims)
            return
    aval = graph.tensors[tensor]
    if readers or tensor in graph.taken:
        node = flow.node("argument", None, tensor, aval.name)
        flow.home[tensor] = (node, own_dims(aval.aval.shape))


def _place_sum(flow: _Flow, op: Op, tensor: int, made: tuple[int, Dims], reduced: frozenset[int]) -> None:
    """Where a result is stored that may hold partial sums: as its readers decide."""
    graph = flow.graph
    region, readers = graph.regions[op.region], set(flow.readers(tensor))
    outside = {reader for reader in readers if reader[0] != made[0]}
    inside = len(outside) < len(readers)
    is_output = tensor in graph.returned
    if inside or flow.grouping.placements[op.id].combiner != "add":
        flow.transfer(tensor, made, made, region, op.lines, reduced=reduced)
    elif len(outside) == 1 and not is_output:
        (reader, wanted), *_ = outside
        flow.home[tensor] = (reader, wanted)
        flow.transfer(tensor, made, (reader, wanted), region, op.lines, reduced=reduced)
    else:
        node = flow.node("sum", None, tensor, graph.tensors[tensor].name)
        flow.home[tensor] = (node, own_dims(graph.tensors[tensor].aval.shape))
        flow.transfer(
            tensor, made, (node, own_dims(graph.tensors[tensor].aval.shape)), region, op.lines, reduced=reduced
        )


def _serve_readers(flow: _Flow, tensor: int) -> None:
    """Transfers from where a tensor is stored to all who read it; several groups in one body share a copy."""
    home, readers = flow.home[tensor], flow.readers(tensor)
    if home is None or readers.count(home) == len(readers):
        return
    aval = flow.graph.tensors[tensor].aval
    for by_reader in flow.reads(tensor):
        others = {reader: reads for reader, reads in by_reader.items() if reader[0] != home[0]}
        origin = home
        if len(others) > 1 and aval.size > 1:
            first = flow.graph.ops[next(iter(others.values()))[0][0]]
            node = flow.node("copy", None, tensor, f"{flow.graph.tensors[tensor].name} fetched")
            origin = (node, own_dims(aval.shape))
            flow.transfer(tensor, home, origin, flow.moved_in(first), first.lines)
            flow.fetched.extend((read, node) for reads in others.values() for read in reads)
        for reader, reads in by_reader.items():
            op = flow.graph.ops[reads[0][0]]
            start = origin if reader in others else home
            flow.transfer(tensor, start, reader, flow.moved_in(op), op.lines, reads=tuple(reads))


def _close_loop(flow: _Flow) -> None:
    """What is fed back at the next call is returned in the form in which it is taken; pinned results as pinned."""
    graph = flow.graph
    for position, tensor in enumerate(graph.outputs):
        home = flow.home[tensor]
        if home is None:
            continue
        line = graph.output_names[position]
        target = flow.home[graph.inputs[graph.feeds[position]]] if position in graph.feeds else None
        if position in flow.pinned_outputs:
            target = (flow.node("output", None, tensor, line), own_dims(graph.tensors[tensor].aval.shape))
        if target is not None and target != home:
            flow.transfer(tensor, home, target, graph.regions[0], (line, line), output=position)
