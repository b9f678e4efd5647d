"""Common subexpressions: tensors that a TPU's compiler does not keep because another one in memory serves as well.

- A tensor that is computed twice from the same operands is computed once (`Graph.equal`).
- A tensor that one fused op computes from a single stored tensor of its type, such as a rectified sum, its readers compute
  anew.

Seen in the buffer assignments of XLA's TPU compiler: of the sum behind a residual block and its activation the sum alone is
kept for the gradients of both; of the indices that every layer of a graph network derives from its edges one array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.compiler.buffers.buffer import Buffer
from planner.program.graph import Graph
from planner.rules.primitives import traits


def equivalents(
    graph: Graph, fused: Sequence[bool], stored: Sequence[bool], must_be_stored: Callable[[int], bool]
) -> dict[int, int]:
    """By stored tensor the one read in its place; `must_be_stored`: whether a tensor's readers need the tensor itself."""
    firsts: dict[int, int] = {}
    found: dict[int, int] = {}
    for tensor in graph.tensors:
        producer = tensor.producer
        if producer is None or not stored[tensor.id]:
            continue
        first = firsts.setdefault(graph.equal.get(tensor.id, tensor.id), tensor.id)
        if first != tensor.id:
            found[tensor.id] = first
            continue
        op = graph.ops[producer]
        if fused[producer] and not traits(op.kind).costly and not traits(op.kind).renames:
            read = [t for t in dict.fromkeys(op.operands) if graph.tensors[t].aval.size > 1]
            same = len(read) == 1 and stored[read[0]] and graph.tensors[read[0]].aval == tensor.aval
            if same and tensor.id not in graph.returned and not must_be_stored(tensor.id):
                found[tensor.id] = read[0]
    return found


def without_duplicates(buffers: Sequence[Buffer], replaced: Mapping[int, int]) -> list[Buffer]:
    """The buffers where some tensors are `replaced` by others, which live as long as these are read."""
    made = {buffer.tensor: buffer for buffer in buffers}
    last = {tensor: buffer.stop for tensor, buffer in made.items()}
    dropped: set[int] = set()
    for tensor, other in sorted(replaced.items(), reverse=True):
        if tensor in made and other in made and made[tensor].fraction == made[other].fraction:
            last[other] = max(last[other], last[tensor])
            dropped.add(tensor)
    found: list[Buffer] = []
    for buffer in buffers:
        if buffer.tensor in dropped:
            found.append(buffer._replace(fraction=0.0))
            continue
        found.append(buffer)
        if last[buffer.tensor] > buffer.stop:
            found.append(buffer._replace(start=buffer.stop, stop=last[buffer.tensor]))
    return found
