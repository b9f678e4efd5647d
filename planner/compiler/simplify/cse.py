"""Stand-ins: what a TPU's compiler does not keep because another tensor in memory serves as well.

- What is computed twice from the same is computed once (`Graph.equal`).
- What one pass computes from a single stored tensor of its type, such as a rectified sum, its readers compute anew.

Seen in the buffer assignments of XLA's TPU compiler: of the sum behind a residual block and its activation the sum alone is
kept for the gradients of both; of the indices that every layer of a graph network derives from its edges one array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from planner.compiler.buffers.buffer import Buffer
from planner.program.graph import Graph
from planner.rules.primitives import traits


def stand_ins(
    graph: Graph, passes: Sequence[bool], stored: Sequence[bool], must_stand: Callable[[int], bool]
) -> dict[int, int]:
    """By stored tensor the stored one that is read instead of it; `must_stand`: whether a tensor's readers need itself."""
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
        if passes[producer] and not traits(op.kind).costly and not traits(op.kind).renames:
            read = [t for t in dict.fromkeys(op.operands) if graph.tensors[t].aval.size > 1]
            alike = len(read) == 1 and stored[read[0]] and graph.tensors[read[0]].aval == tensor.aval
            if alike and tensor.id not in graph.returned and not must_stand(tensor.id):
                found[tensor.id] = read[0]
    return found


def stood_in(buffers: Sequence[Buffer], stands: Mapping[int, int]) -> list[Buffer]:
    """The buffers as they are where others stand in for some of them on a TPU, and live as long as these are read."""
    made = {buffer.tensor: buffer for buffer in buffers}
    last = {tensor: buffer.stop for tensor, buffer in made.items()}
    gone: set[int] = set()
    for tensor, other in sorted(stands.items(), reverse=True):
        if tensor in made and other in made and made[tensor].share == made[other].share:
            last[other] = max(last[other], last[tensor])
            gone.add(tensor)
    found: list[Buffer] = []
    for buffer in buffers:
        if buffer.tensor in gone:
            found.append(buffer._replace(share=buffer.share._replace(tpu=0.0)))
            continue
        found.append(buffer)
        if last[buffer.tensor] > buffer.stop:
            longer = buffer._replace(start=buffer.stop, stop=last[buffer.tensor])
            found.append(longer._replace(share=buffer.share._replace(elsewhere=0.0)))
    return found
