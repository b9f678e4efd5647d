"""A compiled program: what the passes of a compiler make of an op graph, in columns by op and by tensor, for any mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from planner.compiler.buffers.buffer import Buffer, TransposedStacks
from planner.compiler.buffers.copy_insertion import InPlace
from planner.compiler.buffers.working_sets import WorkingSets
from planner.compiler.fusion.operand_fusion import ReadThrough
from planner.compiler.fusion.softmax_tpu import Window
from planner.compiler.layout.multiplied import Order
from planner.compiler.layout.uncoalesced_transposes import Uncoalesced
from planner.compiler.model import CompilerModel, Pass, PassName
from planner.compiler.schedule.gradients_last import Awaiting
from planner.compiler.schedule.last_uses import region_spans
from planner.compiler.simplify.convert_mover import NarrowReads
from planner.decisions.groups import Grouping
from planner.program.graph import Graph


@dataclass(kw_only=True)
class CompiledProgram:
    """The columns that passes read and write; read-only once `compiled` returns it.

    `fused[op]`: the op is part of a fused kernel. `materialized[tensor]`: the tensor is written to and read from memory,
    `materialized_by` the pass that decided so where it was not the first. `stored_operands`: tensors that matmuls read from
    memory, and what relayouts read and write. `relayouts`: the ops that are kernels of their own because they bring the
    dims of stacks into another order. `same_type`: tensors that a fused op writes only over operands of their own type.
    `scheduled_at[op]`: the op before which an op runs that runs later than its place. `last_use[tensor]`: the time until
    which it is needed, and `awaiting[tensor]` until when it is where gradients come last. `buffers`: what is allocated
    besides arguments. `hoisted`: narrow copies that are made before loops.
    `transposed`: the stacks that are transposed before their loop. `transposes[op]`: how often its operand is read or
    written for that, on devices that hold several elements along a dim of it. `transposed_operands`: what products read,
    by op and position, that is transposed right before them by devices that hold several elements along certain dims.
    `uncoalesced`: the transposes that are stored, as they are not done in tiles, and how each reads. `orders`: how the dims
    of tensors lie on GPUs, from the outermost in. `row_major`: the tensors that lie in rows. `narrow_of`: by tensor that
    stands as it was before it was widened, too, that one, which passes read. `windows`: the rows that are centred on
    some devices, by the sum of their exponentials.
    `reduced_at_once`: results of matmuls that are in memory only where they are partial sums.
    """

    graph: Graph
    grouping: Grouping
    compiler: CompilerModel
    fused: list[bool]
    materialized: list[bool]
    narrow: NarrowReads
    spans: Sequence[tuple[int, int]]
    materialized_by: dict[int, PassName] = field(default_factory=dict[int, PassName])
    stored_operands: frozenset[int] = frozenset()
    relayouts: frozenset[int] = frozenset()
    same_type: set[int] = field(default_factory=set[int])
    transposed: TransposedStacks = field(default_factory=dict[int, "int | None"])
    transposes: dict[int, tuple[float, int]] = field(default_factory=dict[int, tuple[float, int]])
    transposed_operands: Mapping[tuple[int, int], tuple[int, ...]] = field(
        default_factory=dict[tuple[int, int], tuple[int, ...]]
    )
    scheduled_at: Mapping[int, int] = field(default_factory=dict[int, int])
    last_use: list[int] = field(default_factory=list[int])
    awaiting: Mapping[int, Awaiting] = field(default_factory=dict[int, Awaiting])
    in_place: InPlace = field(default_factory=lambda: InPlace(taken=frozenset(), extra_traffic={}, kept={}))
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    hoisted: list[Buffer] = field(default_factory=list[Buffer])
    read_through: ReadThrough = field(default_factory=lambda: ReadThrough(shares={}, absorbed=frozenset()))
    uncoalesced: Mapping[int, Uncoalesced] = field(default_factory=dict[int, Uncoalesced])
    orders: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    row_major: Mapping[int, Order] = field(default_factory=dict[int, Order])
    reduced_at_once: frozenset[int] = frozenset()
    narrow_of: Mapping[int, int] = field(default_factory=dict[int, int])
    windows: Mapping[int, Window] = field(default_factory=dict[int, Window])

    def materialize(self, found: Sequence[bool], by: PassName) -> list[int]:
        """Puts in memory what a pass says is there, and takes out the rest; the tensors that this changes."""
        changed = [t for t, (new, old) in enumerate(zip(found, self.materialized, strict=True)) if new != old]
        self.materialized_by |= dict.fromkeys(changed, by)
        self.materialized = list(found)
        return changed

    def materializing_pass(self, tensor: int) -> Pass | None:
        """The pass that decided last whether a tensor is in memory; None where no pass of the compiler does."""
        name = self.materialized_by.get(tensor, "materialization")
        return next((one for one in self.compiler.passes if one.name == name), None)

    @property
    def steps(self) -> int:
        """Points in time: one per op."""
        return len(self.graph.ops)

    @cached_property
    def conversions(self) -> dict[int, float]:
        """For every tensor that is narrowed before a loop the bytes that this reads and writes for each of its own."""
        return {buffer.tensor: 1.0 + buffer.fraction for buffer in self.hoisted}

    @cached_property
    def working_sets(self) -> WorkingSets:
        """The bytes that are in memory at once with each tensor."""
        return WorkingSets(self.graph, self.buffers, self.spans)


def compiled(graph: Graph, grouping: Grouping, compiler: CompilerModel) -> CompiledProgram:
    """What a compiler makes of a graph: its passes, one after the other."""
    program = CompiledProgram(
        graph=graph,
        grouping=grouping,
        compiler=compiler,
        fused=[False] * len(graph.ops),
        materialized=[True] * len(graph.tensors),
        narrow=NarrowReads(graph, moved=compiler.runs("convert-mover")),
        # Until live ranges are known everything is needed to the end.
        last_use=[len(graph.ops)] * len(graph.tensors),
        spans=region_spans(graph),
    )
    for one in compiler.passes:
        if one.run is not None:
            one.run(program)
    return program
