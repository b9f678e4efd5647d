"""Working sets: how much stands in memory at once in a body, of arrays no larger than one.

A TPU's compiler gives the memory on the chip to what gains most by the byte, which are the small arrays of loops: where all
arrays of a body up to some size fit there at once, they stay there for as long as they live, whoever reads them and when
(memory space assignment of XLA's TPU compiler, read off schedules of libtpu 0.0.42). Slices of a stack stay if the stack
does, updated or not. Arguments and results of the program lie in main memory, arguments that are updated in place, such as
a cache, after that too; what a loop takes in of them is brought to the chip once. Of arrays that are there before a body
and after it, those count that it reads, or that are made or last read no farther from it than it is long: the gradients of
all layers before are no part of what a loop in a layer works on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pbqp.vectors import Floats
from planner.compiler.buffers.buffer import Buffer
from planner.program.dataflow import source_through
from planner.program.graph import Graph, Op
from planner.program.slots import ENTERING, LEAVING, TAKEN_IN
from planner.rules.primitives import traits, updates_in_place


class WorkingSets:
    """How many bytes of whole arrays stand at once for each byte of a tensor, itself included, of those no larger.

    On a mesh the others are taken to be split as often as the tensor is. inf of what stays on the chip in no case.
    """

    def __init__(self, graph: Graph, buffers: Iterable[Buffer], spans: Sequence[tuple[int, int]]) -> None:
        self._graph, self._spans = graph, spans
        held = {(b.tensor, b.start, b.stop): b.fraction * graph.tensors[b.tensor].aval.bytes for b in buffers}
        for op in graph.ops:
            taken = op.operands[0] if op.kind in TAKEN_IN else None
            if taken is not None and graph.tensors[taken].producer is None:
                held[taken, *spans[op.region]] = graph.tensors[taken].aval.bytes
        self._starts = np.asarray([start for _, start, _ in held], np.intp)
        self._stops = np.asarray([stop for _, _, stop in held], np.intp)
        self._sizes = np.asarray(list(held.values()), np.float64)
        self._tensors = np.asarray([tensor for tensor, _, _ in held], np.intp)
        self._curves: dict[int, Floats] = {}
        self._at_once: dict[tuple[int, int], float] = {}
        self._giving_way: dict[int, npt.NDArray[np.bool_]] = {}

    def per_byte(self, tensor: int) -> float:
        """The bytes that stand at once for each byte of a tensor in the body that it is of."""
        graph = self._graph
        updated, size = source_through(graph, tensor, updates_in_place), graph.tensors[tensor].aval.bytes
        op = graph.maker(updated)
        if updated in graph.taken or tensor in graph.returned or op is None or not size:
            return math.inf
        if op.kind == "loop_slice":
            return self.per_byte(op.operands[0]) * graph.tensors[op.operands[0]].aval.bytes / size
        region = graph.regions[op.region].parent if op.kind in LEAVING else op.region
        return self._standing(region or 0, size) / size

    def per_byte_inside(self, tensor: int) -> float:
        """The same of what the trips of a loop put on a stack, or of what is written into an array, where it is."""
        graph, size = self._graph, self._graph.tensors[tensor].aval.bytes
        if not size:
            return math.inf
        wholes = [op.results[0] for op in graph.readers(tensor) if _puts(op, tensor)]
        sizes = [self.per_byte(whole) * graph.tensors[whole].aval.bytes / size for whole in wholes]
        return max(sizes, default=math.inf)

    def _standing(self, region: int, size: float) -> float:
        """The most bytes that stand at once while a body runs, of arrays up to the next power of 2."""
        power = math.ceil(math.log2(size))
        if (region, power) not in self._at_once:
            small = self._sizes <= 2.0**power
            if power not in self._curves:
                change = np.zeros(len(self._graph.ops) + 2)
                np.add.at(change, self._starts[small], self._sizes[small])
                np.subtract.at(change, np.minimum(self._stops[small], len(change) - 1), self._sizes[small])
                self._curves[power] = np.cumsum(change)
            most = float(self._curves[power][slice(*self._spans[region])].max(initial=0.0))
            self._at_once[region, power] = most - float(self._sizes[small & self._gives_way(region)].sum())
        return max(size, self._at_once[region, power])

    def _gives_way(self, region: int) -> npt.NDArray[np.bool_]:
        """What of all that is held gives way to what a body works on.

        What stands around it and it does not read, under any of its names, and what it cuts slices from or stacks up.
        """
        if region in self._giving_way:
            return self._giving_way[region]
        graph, (start, stop) = self._graph, self._spans[region]
        taken, stacks = set[int](), set[int]()
        for op in graph.ops[start:stop]:
            if op.region == region and op.kind in ("loop_slice", "loop_stack"):
                stacks.add(op.operands[0] if op.kind == "loop_slice" else op.results[0])
            tensor = op.operands[0] if op.kind in ENTERING and op.kind != "loop_slice" else None
            while tensor is not None and tensor not in taken:
                taken.add(tensor)
                maker = graph.maker(tensor)
                renames = maker is not None and (traits(maker.kind).renames or traits(maker.kind).reshapes)
                tensor = maker.operands[0] if maker is not None and renames else None
        around = (self._starts < start) & (self._stops > stop)
        found = (around & ~np.isin(self._tensors, list(taken))) | np.isin(self._tensors, list(stacks))
        self._giving_way[region] = found
        return found


def _puts(op: Op, tensor: int) -> bool:
    """Whether an op puts a tensor into another."""
    position = traits(op.kind).updates
    return op.kind == "loop_stack" or (position is not None and op.operands[position] == tensor)
