"""Kernels: what a compiler that fuses everything it can makes of a program, for any mesh, and what each reads and writes.

A matmul computes its operands on the way and goes on with its result; the rest is passes over memory:

    an op that is not fused     reads what its operands are computed from, writes its results
    what is computed of a matmul's result, elementwise or by a reduction, of operands that stand before it
                                is written by the matmul, which reads those operands as well
    what else must stand in memory
                                is written by a pass, one for all that read the same

A result that nobody but its own kernel reads is not written. What is computed anew by every reader has no kernel: its
readers read what it is computed from. The rules are those seen in the schedules of XLA's TPU compiler (libtpu 0.0.42),
whose seconds of computing they give within a tenth for most train steps; `kernel_traffic` says what they move.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from planner.compiler.buffers.copy_insertion import READ_AND_WRITTEN
from planner.compiler.buffers.memory_space import Candidate, shares_on_chip
from planner.compiler.fusion.instruction_fusion import (
    partial_broadcasts,
    read_alone,
    source,
    sunk_share,
    varying_dims,
)
from planner.compiler.fusion.softmax_gpu import rows_kept
from planner.compiler.layout.dot_operands_tpu import copied_slices
from planner.compiler.layout.gather_tables import (
    LOOKUPS,
    MOST_WASTED,
    MOST_WASTED_SCATTERED,
    LargeRows,
    Rows,
    batch_of_tables,
    gathered_rows,
    large_rows,
    scattered_rows,
)
from planner.compiler.layout.multiplied import Order
from planner.compiler.model import CompilerModel
from planner.compiler.program import CompiledProgram
from planner.compiler.simplify.convert_mover import is_by_vector
from planner.decisions.factor_unification import covers, names_between, renamed
from planner.decisions.groups import Grouping
from planner.program.dataflow import reached, source_through
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY, ENTERING, LEAVING
from planner.rules.primitives import kinds_where, traits, updates_in_place
from planner.rules.rule import Dims

Home = Literal["chip", "product", "late product", "passes", "slice", "loop", "border", "border product", "memory"]
"""Where a tensor may stand: on the chip, if there is room, where it is read soon after it was made, which not every chip
does of a matmul's `product`, or of what an op alone in its kernel makes, which is one there (a late product is read later,
and stays with all that stands beside it), or while an op goes over it several times, if there is room for what is in
flight, or as a slice that is copied for it, if there is room for several; for as long as a loop runs, if it is small; where
the program around a body has it that takes or returns it (its border); or in memory. All but what reaches main memory
anyway may stay on the chip with all that stands beside it (see `working_sets`)."""

LEAST_BYTES = 4096
"""What is smaller is not counted."""
SCATTERS = kinds_where(lambda row: row.by_hand == "barrier")
SOON = 16
"""Kernels from the one that makes a tensor to the last that reads it, for it to stay on the chip."""

SLICES_ON_CHIP = 0.6
"""The share of the memory on the chip that slices of caches take there which are copied for matmuls, all of a body.

By libtpu 0.0.42 one of 1/2 of it stays there on v5e and v5p, one of 3/4 on v5e alone; of keys and values of 1/2 each, one.
"""

OFTEN = 16
"""Kernels of a trip that read what a loop takes in, for it to be brought to the chip and stay there while the loop runs.

XLA's memory space assignment serves first what gains most by the byte. In a loop of a model of the weather (libtpu 0.0.42,
v5e) a matrix of 8 MB that 78 products read in each trip stays on the chip.
"""


class Access(NamedTuple):
    """A tensor that a kernel reads or writes: `times` the bytes of an array of this shape, whose dims are in the factors
    of the kernel's group. `copied_slice` (dim, itemsize of what is copied): of a copy that is made as `copied_slices` says;
    `several`: only where a device holds several elements along each of these dims; `rows`: of a copy that `gathered_rows`
    tells of. `in_rows`: how it lies in rows. `at_once`: the bytes that stand at once for each of its own (see
    `working_sets`). `share`: the largest of the memory on the chip that it gets there, read soon (see `memory_space`)."""

    tensor: int
    shape: tuple[int, ...]
    itemsize: float
    dims: Dims
    home: Home
    times: float
    copied_slice: tuple[int, float] | None = None
    several: tuple[int, ...] = ()
    rows: Rows | LargeRows | None = None
    in_rows: Order | None = None
    at_once: float = math.inf
    share: float = 1.0


class Kernel(NamedTuple):
    """One pass over memory of the group of `op`: an op that is not fused with what is fused to it, or a pass.

    `operands` and `results` are what is read for each operand and written for each result of an op that is not fused;
    `others` is what else is read or written.
    """

    op: int
    operands: tuple[tuple[Access, ...], ...]
    results: tuple[tuple[Access, ...], ...]
    others: tuple[Access, ...]


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The kernels of every group, in program order.

    `of_matmuls` are the ops of passes that are computed in kernels of matmuls alone: on the way to what these multiply, or
    going on with what they make. Their vector unit works beside the matrix unit.
    """

    of_group: Mapping[int, tuple[Kernel, ...]]
    of_matmuls: frozenset[int] = frozenset()


class StoredPart(NamedTuple):
    """A part of a tensor that stands in memory: `share` of it, with dims in the factors of some group.

    Where these do not tell how it is split, it is taken to be split as the tensor `like` is. `picked`: at an index.
    """

    dims: Dims
    share: float = 1.0
    like: int | None = None
    picked: bool = False


Leaves = dict[int, StoredPart]
"""What something is computed from, by tensor."""


@dataclass
class _Kernel:
    op: int
    group: int
    region: int
    anchor: bool
    operands: list[Leaves] = field(default_factory=list[Leaves])
    results: list[int] = field(default_factory=list[int])
    reads: Leaves = field(default_factory=Leaves)
    writes: dict[int, Dims] = field(default_factory=dict[int, Dims])
    reduced: set[int] = field(default_factory=set[int])
    rows_kept: bool = True
    seen_from: dict[int, tuple[int, Dims, Dims]] = field(default_factory=dict[int, tuple[int, Dims, Dims]])
    """For each other group whose ops are fused to it: a tensor, and its dims in that group and in this one."""


class _Awaited(NamedTuple):
    """The kernels that make small tensors, and those of them all of which a scalar waits for: none goes on with it."""

    whole: Collection[int]
    makers: Collection[int]


@dataclass
class _Walk:
    graph: Graph
    grouping: Grouping
    materialized: Sequence[bool]
    fused: Sequence[bool]
    compiler: CompilerModel
    alone: Collection[int]
    """Fused ops that are kernels of their own all the same."""
    rows_kept: Collection[int]
    """The reductions of rows after which a kernel goes on."""
    narrow_of: Mapping[int, int]
    """What fused ops read in the place of a tensor."""
    leaves: dict[int, Leaves] = field(default_factory=dict[int, Leaves])
    kernels: list[_Kernel] = field(default_factory=list[_Kernel])
    made_by: dict[int, int] = field(default_factory=dict[int, int])
    barred: dict[int, int] = field(default_factory=dict[int, int])
    """For what a barrier returns, the number of kernels before it."""
    scalars: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])
    """Scalars that are computed from small tensors of several kernels, each with these kernels."""
    updates: set[int] = field(default_factory=set[int])
    """What matmuls write over slices of other arrays."""
    latest: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """The passes of a group in a region."""

    def operand(self, op: Op, position: int) -> Leaves:
        """What an op reads for an operand, in the factors of its group."""
        tensor, dims = op.operands[position], self.grouping.placements[op.id].operands[position]
        if self.fused[op.id]:
            tensor = self.narrow_of.get(tensor, tensor)
        producer, aval = self.graph.tensors[tensor].producer, self.graph.tensors[tensor].aval
        if not aval.bytes:
            return {}
        if self.materialized[tensor] or producer is None or tensor in self.barred:
            share = sunk_share(self.graph, tensor)
            found = {tensor: StoredPart(dims, share)}
            # What is small is waited for, where a kernel makes it.
            return found if tensor in self.made_by else counted(self.graph, found)
        leaves = self.leaves.get(tensor, {})
        if self.grouping.group_of[producer] == self.grouping.group_of[op.id]:
            return leaves
        made = self.graph.ops[producer]
        seen = self.grouping.placements[producer].results[made.results.index(tensor)]
        return self.renamed(leaves, tensor, seen, dims)

    def renamed(self, leaves: Leaves, tensor: int, seen: Dims, own: Dims) -> Leaves:
        """Leaves in the factors of another group: `seen` and `own` are the dims of a tensor in both."""
        names, avals = names_between(seen, own), self.graph.tensors
        found: Leaves = {}
        for leaf, part in leaves.items():
            if part.like is None and not covers(names, part.dims, avals[leaf].aval.shape):
                share = part.share * avals[leaf].aval.bytes / avals[tensor].aval.bytes
                found[leaf] = part._replace(dims=own, share=share, like=tensor)
            else:
                found[leaf] = part._replace(dims=renamed(names, part.dims))
        return found

    def add(self, op: Op) -> None:
        """Adds an op, whose operands are known."""
        if op.kind in BOUNDARY or not (op.operands or op.results):
            return
        if traits(op.kind).bars:
            self.barred[op.results[0]] = len(self.kernels)
            return
        operands = [self.operand(op, position) for position in range(len(op.operands))]
        if not self.fused[op.id]:
            if not self.updated(op, operands):
                self.anchor(op, operands)
            return
        placement = self.grouping.placements[op.id]
        if traits(op.kind).picks and op.results:
            avals = self.graph.tensors
            share = avals[op.results[0]].aval.bytes / max(avals[op.operands[0]].aval.bytes, 1.0)
            picked = len(op.operands) > 1
            operands[0] = {
                tensor: leaf._replace(share=share * leaf.share, picked=picked or leaf.picked)
                for tensor, leaf in operands[0].items()
            }
        some = [of for of in operands if of]
        leaves: Leaves = some[0] if len(some) == 1 else {}
        for of in some if len(some) > 1 else ():
            for tensor, leaf in of.items():
                before = leaves.get(tensor)
                if before is not None and leaf.like == before.like is None:
                    leaf = leaf._replace(share=_joined(leaf.share, before.share))
                leaves[tensor] = leaf
        for tensor, dims in zip(op.results, placement.results, strict=True):
            if self.materialized[tensor]:
                self.written(op, tensor, dims, leaves, reduced=bool(placement.reduced))
            else:
                # What a row is reduced to does not stand only where the row is at hand (see `softmaxes`).
                self.leaves[tensor] = {} if traits(op.kind).extreme else self.joined(tensor, dims, leaves)

    def joined(self, tensor: int, dims: Dims, leaves: Leaves) -> Leaves:
        """What a tensor is computed from: itself where that is many small tensors, as a norm of gradients is."""
        if self.graph.tensors[tensor].aval.size > 1 or len(leaves) < 2 or counted(self.graph, leaves):
            return leaves
        makers = frozenset(self.makers_of(leaves))
        if len(makers) < 2:
            return leaves
        self.scalars[tensor] = makers
        return {tensor: StoredPart(dims)}

    def makers_of(self, leaves: Iterable[int]) -> Iterator[int]:
        """The kernels that make these."""
        for leaf in leaves:
            if leaf in self.made_by:
                yield self.made_by[leaf]
            elif leaf in self.scalars:
                yield from self.scalars[leaf]

    def anchor(self, op: Op, operands: list[Leaves]) -> None:
        """A kernel for an op that is not fused."""
        for tensor in op.results:
            self.made_by[tensor] = len(self.kernels)
        self.kernels.append(
            _Kernel(
                op=op.id,
                group=self.grouping.group_of[op.id],
                region=op.region,
                anchor=True,
                operands=operands,
                results=list(op.results),
            )
        )

    def updated(self, op: Op, operands: Sequence[Leaves]) -> bool:
        """Whether a matmul goes on with its result to write slices of an array over, as an op does; it then writes them."""
        position = traits(op.kind).updates
        if position is None or not self.compiler.runs("dot-output-fusion") or not _slices_leading(self.graph, op):
            return False
        tensor, leaves = op.operands[position], operands[position]
        dims, after = self.grouping.placements[op.id].operands[position], self.latest_of(leaves)
        number = self.continued(op, tensor, dims, leaves, after, reduced=False)
        if number is None:
            return False
        self.write(op, number, tensor, dims, leaves)
        self.updates.add(tensor)
        self.made_by[op.results[0]] = number
        return True

    def latest_of(self, leaves: Iterable[int]) -> int:
        """The last kernel that makes any of these."""
        return max((self.made_by[leaf] for leaf in leaves if leaf in self.made_by), default=-1)

    def written(self, op: Op, tensor: int, dims: Dims, leaves: Leaves, *, reduced: bool) -> None:
        """Has what a fused op makes written by a kernel: that which makes what it reads, a pass at hand, or a new one."""
        large = counted(self.graph, leaves)
        small = self.awaited(leaves.keys() - large)
        after = self.latest_of(large)
        number = self.continued(op, tensor, dims, leaves, self.matmul_of(leaves, after), reduced=reduced)
        if number is None or self.waited_for(number, small):
            barred = max((self.barred[leaf] for leaf in leaves if leaf in self.barred), default=0)
            number = self.at_hand(op, leaves, max(after, barred), small)
        self.write(op, number, tensor, dims, leaves)
        if reduced:
            kernel = self.kernels[number]
            kernel.rows_kept &= op.id in self.rows_kept
            kernel.reduced.add(tensor)

    def awaited(self, small: Iterable[int]) -> _Awaited:
        """What must have run where these small tensors are read."""
        whole = {maker for leaf in small for maker in self.scalars.get(leaf, ())}
        return _Awaited(whole, set(self.makers_of(small)))

    def waited_for(self, number: int, small: _Awaited) -> bool:
        """Whether a kernel must have run before what reads small tensors begins."""
        return number in small.whole or self.leads_to(number, small.makers)

    def matmul_of(self, leaves: Collection[int], after: int) -> int:
        """The matmul that makes the largest of these, where what makes the others can run before it; else `after`."""
        made = set(self.makers_of(leaves))
        sizes = {leaf: self.graph.tensors[leaf].aval.size for leaf in leaves}
        products = [leaf for leaf in leaves if leaf in self.made_by and self.kernels[self.made_by[leaf]].anchor]
        product = max((sizes[leaf] for leaf in products), default=0)
        first = max((self.made_by[leaf] for leaf in products if sizes[leaf] == product), default=after)
        if not first < after <= first + SOON:
            return after
        if any(size >= product for leaf, size in sizes.items() if self.made_by.get(leaf) != first):
            return after
        return after if self.leads_to(first, made) else first

    def leads_to(self, first: int, numbers: Collection[int]) -> bool:
        """Whether any of these later kernels reads what a kernel makes, or what is made of that."""

        def makers(number: int) -> list[int]:
            kernel = self.kernels[number]
            read = self.makers_of(leaf for of in (*kernel.operands, kernel.reads) for leaf in of)
            return [maker for maker in read if maker >= first]

        return first in reached([number for number in numbers if number > first], makers)

    def write(self, op: Op, number: int, tensor: int, dims: Dims, leaves: Leaves) -> None:
        """Has a kernel write a tensor that an op makes, or takes, and read what that is computed from."""
        kernel, group = self.kernels[number], self.grouping.group_of[op.id]
        if kernel.group != group:
            through, seen, own = kernel.seen_from[group]
            dims = renamed(names_between(seen, own), dims)
            leaves = self.renamed(leaves, through, seen, own)
        for leaf, of in leaves.items():
            if self.made_by.get(leaf) != number:
                before = kernel.reads.get(leaf)
                if before is not None and of.like == before.like is None:
                    of = of._replace(share=_joined(of.share, before.share))
                kernel.reads[leaf] = of
        kernel.writes[tensor] = dims
        self.made_by[tensor] = number

    def continued(self, op: Op, tensor: int, dims: Dims, leaves: Leaves, after: int, *, reduced: bool) -> int | None:
        """The matmul that goes on with its result to make a tensor; None where there is none that can.

        Not what is kept of a parameter: the gradient has been summed over devices, as a rule.
        """
        if after < 0 or not self.kernels[after].anchor or op.id in self.alone:
            return None
        kernel, graph = self.kernels[after], self.graph
        kernel_kind = graph.ops[kernel.op].kind
        if kernel.region != op.region or not traits(kernel_kind).matmul:
            return None
        own = [leaf for leaf in leaves if self.made_by.get(leaf) == after]
        if any(leaf in kernel.reduced for leaf in own):
            return None
        # A library's convolution goes on with nothing.
        ends = reduced or kernel_kind == "conv_general_dilated" or not read_alone(graph, self.materialized, op, own)
        if ends and not self.compiler.runs("dot-output-fusion"):
            return None
        size = max(graph.tensors[leaf].aval.size for leaf in own)
        kept = [leaf for leaf in leaves if graph.tensors[leaf].producer is None]
        if not reduced and (tensor in graph.returned or any(graph.tensors[leaf].aval.size >= size for leaf in kept)):
            return None
        group = self.grouping.group_of[op.id]
        if group != kernel.group and group not in kernel.seen_from:
            first = next((leaf for leaf in own if leaves[leaf].like is None), None)
            if first is None:
                return None
            anchor = graph.ops[kernel.op]
            if first in anchor.results:
                made = self.grouping.placements[anchor.id].results[anchor.results.index(first)]
            else:
                made = kernel.writes[first]
            kernel.seen_from[group] = (first, leaves[first].dims, made)
        if group != kernel.group:
            _, seen, made = kernel.seen_from[group]
            if not covers(names_between(seen, made), dims, graph.tensors[tensor].aval.shape):
                return None
        return after

    def at_hand(self, op: Op, leaves: Leaves, after: int, small: _Awaited) -> int:
        """A pass of the op's group that reads the same and does not run too early, or a new one.

        Too early is what runs before `after`, or before kernels that make what is small and read, too.
        """
        tensors, key = self.graph.tensors, (self.grouping.group_of[op.id], op.region)
        most = max((tensors[leaf].aval.bytes for leaf in leaves), default=0.0)
        large = [leaf for leaf in leaves if 2 * tensors[leaf].aval.bytes >= most]
        for number in reversed(self.latest.setdefault(key, [])):
            kernel = self.kernels[number]
            if number < after or op.id in self.alone:
                break
            own = [leaf for leaf in leaves if self.made_by.get(leaf) == number]
            goes_on = bool(kernel.reduced) and kernel.rows_kept
            if any((leaf in kernel.reduced) != goes_on for leaf in own) or self.waited_for(number, small):
                continue
            if any(leaf in kernel.reads or self.made_by.get(leaf) == number for leaf in large):
                return number
        self.latest[key].append(len(self.kernels))
        self.kernels.append(_Kernel(op=op.id, group=key[0], region=op.region, anchor=False))
        return len(self.kernels) - 1


def counted(graph: Graph, leaves: Leaves) -> Leaves:
    """Those that are not too small to count."""
    return {t: leaf for t, leaf in leaves.items() if leaf.share * graph.tensors[t].aval.bytes >= LEAST_BYTES}


def _slices_leading(graph: Graph, op: Op) -> bool:
    """Whether an op writes slices of an array over, one along each of its first dims, that are whole in all others."""
    if op.kind != "dynamic_update_slice":
        return False
    whole, update = graph.avals(op.operands[:2])
    rank = next((dim for dim, extent in enumerate(update.shape) if extent > 1), len(update.shape))
    return whole.shape[rank:] == update.shape[rank:]


def _joined(share: float, other: float) -> float:
    """The share of a tensor that is read for two that are read."""
    return max(share, other, min(1.0, share + other))


def kernels_of(program: CompiledProgram, *, inlined: bool = False) -> Kernels:
    """The kernels of a compiled program.

    `inlined`: it is part of a larger program, as the body of a `shard_map` is for the compiler; where its operands and
    results are is then decided outside.
    """
    graph, compiler, fused, materialized = program.graph, program.compiler, program.fused, program.materialized
    triton = compiler.runs("softmax-rewriter-triton")
    walk = _Walk(
        graph=graph,
        grouping=program.grouping,
        materialized=materialized,
        fused=fused,
        compiler=compiler,
        alone=program.relayouts | program.uncoalesced.keys(),
        rows_kept=rows_kept(graph, fused, materialized) if triton else (),
        narrow_of=program.narrow_of,
    )
    for op in graph.ops:
        walk.add(op)
    homes = _Homes(walk, program, inlined=inlined)
    found: dict[int, list[Kernel]] = {}
    for number, kernel in enumerate(walk.kernels):
        found.setdefault(kernel.group, []).append(homes.kernel(number, kernel))
    return Kernels(of_group={group: tuple(of) for group, of in found.items()}, of_matmuls=_of_matmuls(walk, homes))


def _of_matmuls(walk: _Walk, homes: _Homes) -> frozenset[int]:
    """The ops of passes all of whose results kernels of matmuls compute, and no others."""
    graph, found = walk.graph, set[int]()

    def computed(tensor: int) -> bool:
        made = walk.made_by.get(tensor)
        if walk.materialized[tensor]:
            return made is not None and walk.kernels[made].anchor and homes.is_matmul(graph.ops[walk.kernels[made].op])
        readers = [graph.ops[reader] for reader, _ in graph.consumers[tensor]]
        return bool(readers) and all(
            reader.id in found if walk.fused[reader.id] else homes.is_matmul(reader) for reader in readers
        )

    for op in reversed(graph.ops):
        if walk.fused[op.id] and op.results and all(map(computed, op.results)):
            found.add(op.id)
    return frozenset(found)


class _Homes:
    """Where tensors stand, from who reads them and when."""

    def __init__(self, walk: _Walk, program: CompiledProgram, *, inlined: bool) -> None:
        self.graph, self.walk, self.compiler, self.inlined = program.graph, walk, program.compiler, inlined
        self.row_major, self.working_sets = program.row_major, program.working_sets
        graph, compiler = self.graph, self.compiler
        self.readers: dict[int, list[int]] = {}
        for number, kernel in enumerate(walk.kernels):
            for leaf in {leaf for of in (*kernel.operands, kernel.reads) for leaf in of}:
                if walk.made_by.get(leaf) != number:
                    self.readers.setdefault(leaf, []).append(number)
        self.copied = copied_slices(graph) if compiler.runs("dot-operand-layout") else {}
        self.transposed_operands, self.uncoalesced = program.transposed_operands, program.uncoalesced
        self.windows = program.windows
        self.varying = varying_dims(graph) if compiler.runs("gemm-operands") else ()
        self.copied_in: Counter[int] = Counter()
        self.rows = gathered_rows(graph, program.narrow) if compiler.runs("gather-table-layout") else {}
        self.sliced = set[int]()
        self.bound: dict[int, str] = {}
        for op in graph.ops:
            if op.kind in LEAVING or traits(op.kind).bars:
                for tensor in op.operands:
                    self.bound[tensor] = op.kind
            elif op.kind in ENTERING:
                # What is read inside of a body stands outside of it.
                for tensor in op.operands:
                    self.bound.setdefault(tensor, op.kind)
        self.bound |= dict.fromkeys(walk.updates, "dynamic_update_slice")
        placed = compiler.runs("memory-space-assignment")
        self.shares = shares_on_chip(self.candidates(), compiler.usable_vmem) if placed else {}

    def candidates(self) -> Iterator[Candidate]:
        """What may stand on the chip from the kernel that makes it to the last that reads it."""
        graph, walk = self.graph, self.walk
        homes = ("chip", "product") if self.compiler.products_in_vmem else ("chip",)
        for tensor, readers in self.readers.items():
            made, size = walk.made_by.get(tensor), graph.tensors[tensor].aval.bytes
            if made is not None and readers and self.home(tensor, made) in homes:
                trips = graph.regions[walk.kernels[made].region].trips
                yield Candidate(tensor, made, readers[-1], size, trips * (1 + len(readers)))

    def kernel(self, number: int, kernel: _Kernel) -> Kernel:
        graph, walk = self.graph, self.walk
        results: list[tuple[Access, ...]] = []
        if kernel.anchor:
            placement = walk.grouping.placements[kernel.op]
            for tensor, dims in zip(kernel.results, placement.results, strict=True):
                results.append((self.access(tensor, dims, number),) if self.is_written(tensor) else ())
        anchor = graph.ops[kernel.op]
        matmul = kernel.anchor and self.is_matmul(anchor)
        return Kernel(
            op=kernel.op,
            operands=tuple(
                tuple(self.read(t, leaf, number, direct=matmul and len(of) == 1) for t, leaf in of.items())
                for of in (counted(graph, of) for of in kernel.operands)
            ),
            results=tuple(results),
            others=(
                *(self.read(t, leaf, number) for t, leaf in counted(graph, kernel.reads).items()),
                *(self.access(t, d, number) for t, d in kernel.writes.items()),
                *self.slices_copied(kernel),
                *self.slices_cut_out(kernel),
                *self.copies_transposed(kernel),
                *self.read_apart(kernel),
                *self.windows_moved(kernel, number),
                *self.broadcasts(kernel),
                *self.looked_up(kernel),
                *self.cut_and_joined(kernel, number),
                *self.begun(kernel, number),
            ),
        )

    def looked_up(self, kernel: _Kernel) -> Iterator[Access]:
        """The copy of a table in which rows are looked up that do not lie so."""
        rows = self.rows.get(kernel.op) if kernel.anchor else None
        if rows is not None:
            op = self.graph.ops[kernel.op]
            tensor, dims = op.operands[0], self.walk.grouping.placements[op.id].operands[0]
            yield Access(tensor, self.graph.tensors[tensor].aval.shape, rows.stored, dims, "chip", 1.0, rows=rows)

    def cut_and_joined(self, kernel: _Kernel, number: int) -> Iterator[Access]:
        """The parts of a table whose rows are looked up part by part, and those of the result.

        What passes or other lookups make, such as images that are resized, they make in parts, and leave so.
        """
        graph, op = self.graph, self.graph.ops[kernel.op]
        if not kernel.anchor or op.kind not in LOOKUPS or not self.compiler.runs("large-rows"):
            return
        maker, rows = graph.maker(op.operands[0]), large_rows(graph, op)
        passes = maker is not None and maker.kind not in BOUNDARY and self.walk.fused[maker.id]
        if rows is not None and not passes and (maker is None or maker.kind not in LOOKUPS):
            placement = self.walk.grouping.placements[op.id]
            table = self.access(op.operands[0], placement.operands[0], number)
            found = self.access(op.results[0], placement.results[0], number)
            yield table._replace(rows=rows[0])
            yield table._replace(rows=rows[0], home="chip")
            yield found._replace(rows=rows[1], home="chip", times=READ_AND_WRITTEN)

    def begun(self, kernel: _Kernel, number: int) -> Iterator[Access]:
        """What is written and read of the result of a scatter beyond what is scattered.

        Constants that it begins with are written. On TPUs one with batch dims is computed as one over all of them, on an
        array of other dims: passes that read what began with constants do not fuse with it, and of other arrays it is a
        copy where the rows do not lie innermost.
        """
        op = self.graph.ops[kernel.op]
        if not kernel.anchor or op.kind not in SCATTERS or not self.compiler.runs("scatter-initialization"):
            return
        (dims,) = self.walk.grouping.placements[op.id].results
        whole = self.access(op.results[0], dims, number)
        held = self.walk.materialized[op.operands[0]]
        if not self.compiler.runs("tiling"):
            yield from () if held else (whole,)
            return
        if not held:
            wasted = MOST_WASTED_SCATTERED if self.compiler.runs("scattered-rows") else MOST_WASTED
            yield whole._replace(rows=scattered_rows(self.graph, op, wasted))
        if op.params["dimension_numbers"].operand_batching_dims:
            yield (
                whole._replace(rows=batch_of_tables(self.graph, op)) if held else whole._replace(times=READ_AND_WRITTEN)
            )

    def slices_cut_out(self, kernel: _Kernel) -> Iterator[Access]:
        """The slices of a loop's stacks that a matmul reads but does not compute: copied, by the first to do so."""
        graph, op = self.graph, self.graph.ops[kernel.op]
        if not self.compiler.runs("dynamic-slice-copies") or not kernel.anchor or not traits(op.kind).matmul:
            return
        for tensor, dims in zip(op.operands, self.walk.grouping.placements[op.id].operands, strict=True):
            taken = source(graph, tensor)
            maker = graph.maker(taken)
            if maker is not None and maker.kind == "loop_slice" and taken not in self.sliced:
                self.sliced.add(taken)
                itemsize = graph.tensors[taken].aval.itemsize
                yield Access(tensor, graph.tensors[tensor].aval.shape, itemsize, dims, "memory", READ_AND_WRITTEN)

    def copies_transposed(self, kernel: _Kernel) -> Iterator[Access]:
        """The copies of operands that a matmul wants in another order."""
        op = self.graph.ops[kernel.op]
        for position, tensor in enumerate(op.operands if kernel.anchor else ()):
            several = self.transposed_operands.get((op.id, position))
            if several is not None:
                dims, aval = self.walk.grouping.placements[op.id].operands[position], self.graph.tensors[tensor].aval
                yield Access(tensor, aval.shape, aval.itemsize, dims, "memory", READ_AND_WRITTEN, several=several)

    def read_apart(self, kernel: _Kernel) -> Iterator[Access]:
        """What a transpose reads beyond its operand, as elements side by side for its threads lie apart."""
        found = None if kernel.anchor else self.uncoalesced.get(kernel.op)
        if found is not None and found.times > 1:
            op = self.graph.ops[kernel.op]
            (tensor,), (dims,) = op.operands, self.walk.grouping.placements[op.id].operands
            aval = self.graph.tensors[tensor].aval
            yield Access(tensor, aval.shape, aval.itemsize, dims, "memory", found.times - 1, several=found.several)

    def windows_moved(self, kernel: _Kernel, number: int) -> Iterator[Access]:
        """What a pass writes that sums the exponentials of rows and centres them, or does not read as a matmul did both."""
        window = next((self.windows[tensor] for tensor in kernel.writes if tensor in self.windows), None)
        if window is not None and kernel.reads:
            row = max(
                kernel.reads, key=lambda tensor: kernel.reads[tensor].share * self.graph.tensors[tensor].aval.bytes
            )
            read = self.read(row, kernel.reads[row], number)
            if len(read.shape) == len(window.several):
                yield read._replace(times=window.times * read.times, several=window.several)

    def broadcasts(self, kernel: _Kernel) -> Iterator[Access]:
        """What is broadcast in memory for a matmul to go on with."""
        op = self.graph.ops[kernel.op]
        if kernel.anchor and op.kind == "dot_general" and self.compiler.runs("gemm-operands"):
            (dims,), aval = self.walk.grouping.placements[op.id].results, self.graph.tensors[op.results[0]].aval
            for itemsize, several in partial_broadcasts(self.graph, op, self.varying):
                yield Access(op.results[0], aval.shape, itemsize, dims, "memory", READ_AND_WRITTEN, several=several)

    def slices_copied(self, kernel: _Kernel) -> Iterator[Access]:
        """The copies of slices that a matmul does not read where they lie: written, and read from the stack.

        Those of a body stand at once, so that each of them has room on the chip for itself and those before it.
        """
        op = self.graph.ops[kernel.op]
        for position, itemsize, dim in self.copied.get(op.id, ()) if kernel.anchor else ():
            tensor, dims = op.operands[position], self.walk.grouping.placements[op.id].operands[position]
            aval = self.graph.tensors[tensor].aval
            self.copied_in[op.region] += 1
            share = SLICES_ON_CHIP / self.copied_in[op.region]
            passes, copied = READ_AND_WRITTEN, (dim, itemsize)
            yield Access(tensor, aval.shape, aval.itemsize, dims, "slice", passes, copied, share=share)

    def read(self, tensor: int, leaf: StoredPart, number: int, *, direct: bool = False) -> Access:
        """What a kernel reads. What a matmul reads directly of a parameter in float32 was made bfloat16 before."""
        shown = tensor if leaf.like is None else leaf.like
        found = self.access(shown, leaf.dims, number)
        times = leaf.share * found.times
        aval = self.graph.tensors[tensor].aval
        if direct and aval.dtype == "float32" and self.compiler.runs("convert-mover"):
            times *= 0.5
        # A part of a tensor stays on the chip where the whole does; of what enters a loop each part is brought there, but
        # not those that are picked, as each trip picks another.
        whole = self.graph.tensors[shown].aval.bytes
        at_once = self.working_sets.per_byte(tensor) * aval.bytes / whole
        home, share = self.home(tensor, number), self.shares.get(tensor, 1.0)
        if leaf.share * whole < aval.bytes and self.enters(tensor):
            at_once, home = math.inf, "memory" if leaf.picked and leaf.like is not None else home
        return found._replace(tensor=tensor, times=times, home=home, at_once=at_once, share=share)

    def enters(self, tensor: int) -> bool:
        """Whether a tensor is what enters a loop, updated or not."""
        op = self.graph.maker(source_through(self.graph, tensor, updates_in_place))
        return op is not None and op.kind in ENTERING

    def is_written(self, tensor: int) -> bool:
        """Whether anybody but the kernel that makes a tensor reads it."""
        return tensor in self.readers or tensor in self.bound or tensor in self.graph.returned

    def access(self, tensor: int, dims: Dims, number: int) -> Access:
        aval = self.graph.tensors[tensor].aval
        rows, sets = self.row_major.get(tensor), self.working_sets
        inside = self.bound.get(tensor) == "loop_stack" or tensor in self.walk.updates
        at_once = sets.per_byte_inside(tensor) if inside else sets.per_byte(tensor)
        home = self.home(tensor, number)
        return Access(
            *(tensor, aval.shape, aval.itemsize, dims, home, 1.0),
            in_rows=rows,
            at_once=at_once,
            share=self.shares.get(tensor, 1.0),
        )

    def home(self, tensor: int, number: int) -> Home:
        graph = self.graph
        maker = graph.maker(tensor)
        if maker is None or tensor in graph.returned:
            return self.border(tensor) if self.inlined else "memory"
        kind = maker.kind
        readers = self.readers.get(tensor, [])
        if kind == "loop_const" and len(readers) >= OFTEN:
            return "chip"
        if kind in ("loop_const", "loop_carry_in", "branch_in"):
            return "loop"
        if kind == "loop_slice":
            # The first to read a slice of a stack brings it to the chip.
            first = not readers or number == readers[0]
            return "memory" if first or number - readers[0] > SOON else "chip"
        if kind in BOUNDARY:
            return "memory"
        if tensor in self.bound:
            return "loop" if self.bound[tensor] in ("loop_carry_out", "branch_out") else "memory"
        made = self.walk.made_by.get(tensor)
        if made is None:
            return "memory"
        kernel, late = self.walk.kernels[made], bool(readers) and readers[-1] - made > SOON
        if kernel.anchor and self.is_matmul(graph.ops[kernel.op]):
            return "late product" if late else "product"
        if not self.compiler.products_in_vmem and self.is_single(kernel):
            return "product"
        return "memory" if late else "chip"

    def is_single(self, kernel: _Kernel) -> bool:
        """Whether a kernel is a single op, with nothing computed on the way to it or from it."""
        if len(kernel.writes) != (0 if kernel.anchor else 1):
            return False
        op = self.graph.ops[kernel.op]
        arrays = [tensor for tensor in op.operands if self.graph.tensors[tensor].aval.shape]
        scalars = len(arrays) < len(op.operands) and self.walk.fused[op.id]
        return not scalars and all(self.walk.materialized[tensor] for tensor in arrays)

    def border(self, tensor: int) -> Home:
        made = self.walk.made_by.get(tensor)
        kernel = None if made is None else self.walk.kernels[made]
        of_matmul = kernel is not None and kernel.anchor and self.is_matmul(self.graph.ops[kernel.op])
        return "border product" if of_matmul else "border"

    def is_matmul(self, op: Op) -> bool:
        """Whether the matrix unit computes an op."""
        return traits(op.kind).matmul and not is_by_vector(self.graph, op)
