"""Fusion: what the compilers of TPUs and of GPUs make part of the kernel of a matmul, as `liveness` and `kernels` ask it.

XLA's TPU compiler computes the operands of a matmul or convolution on the way, and goes on with its result. Its GPU
compiler has a matmul read what stands in memory, through what only renames, widens, narrows or turns it for this matmul
alone, and go on with its result only where nothing else reads it. A slice of a stack it copies out first. A pass that
reduces rows goes on with what it has read of them (a softmax), unless it reduces them to several results side by side. Seen
in schedules of libtpu 0.0.42 and of jaxlib 0.10.2 for H100.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from planner.any_mesh.bad_transposes import bad_transposes
from planner.program.graph import Graph, Op
from planner.program.slots import BOUNDARY
from planner.rules.primitives import kinds_where, traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """`computes_operands`: of a matmul, whatever they are, and it goes on with its result whoever reads it.

    `rows_kept`: passes go on with rows that they have reduced. `eases_moves`: partial sums are added to one another before
    they are summed over devices, and what is read narrow is moved narrow. `fuses_gathers`: a gather is part of the passes
    that read it, once its table stands. `stores_softmaxes`: as `softmaxes` says.
    """

    computes_operands: bool
    rows_kept: bool
    eases_moves: bool
    fuses_gathers: bool
    stores_softmaxes: bool


ON_TPU = Fusion(computes_operands=True, rows_kept=False, eases_moves=True, fuses_gathers=False, stores_softmaxes=True)
ON_GPU = Fusion(computes_operands=False, rows_kept=True, eases_moves=False, fuses_gathers=True, stores_softmaxes=False)
UNKNOWN = replace(ON_TPU, stores_softmaxes=False)
"""What is taken for the memory of targets whose kernels are not known."""


def stored_on_gpus(graph: Graph, passes: list[bool]) -> frozenset[int]:
    """The tensors that stand on GPUs where TPUs compute them on the way: what matmuls read, and bad transposes."""
    found = set[int]()
    for op in map(graph.ops.__getitem__, bad_transposes(graph)):
        found |= {op.results[0], source(graph, op.operands[0])}
    for op in graph.of_kinds(kinds_where(lambda row: row.matmul)):
        if not passes[op.id]:
            found.update(source(graph, tensor) for tensor in op.operands)
    return frozenset(found)


def source(graph: Graph, tensor: int) -> int:
    """The tensor that a matmul reads for an operand, through what is seen through."""
    while (producer := graph.tensors[tensor].producer) is not None:
        op = graph.ops[producer]
        row = traits(op.kind)
        alone = op.kind == "convert_element_type" or op.kind == "transpose"
        alone &= len(graph.consumers[tensor]) == 1
        if op.kind in BOUNDARY or not (row.reshapes or row.renames or alone):
            break
        tensor = op.operands[0]
    return tensor


def read_alone(graph: Graph, stands: Sequence[bool], op: Op, made: Collection[int]) -> bool:
    """Whether an op alone reads what a matmul made, through results that do not stand and nothing else reads."""
    left = list(op.operands)
    while left:
        tensor = left.pop()
        if tensor in made or not stands[tensor]:
            if len(graph.consumers[tensor]) > 1:
                return False
            producer = graph.tensors[tensor].producer
            left += graph.ops[producer].operands if tensor not in made and producer is not None else ()
    return True


def sunk_share(graph: Graph, tensor: int) -> float:
    """The bytes that are read for each byte of a tensor: fewer for what was broadcast before the loop that reads it.

    Compilers broadcast it again in every trip.
    """
    tensors, source = graph.tensors, tensor
    while (producer := tensors[source].producer) is not None:
        op = graph.ops[producer]
        if op.kind not in ("loop_const", "broadcast_in_dim") or (source == tensor and op.kind != "loop_const"):
            break
        source = op.operands[0]
    return min(1.0, tensors[source].aval.bytes / max(tensors[tensor].aval.bytes, 1.0))
