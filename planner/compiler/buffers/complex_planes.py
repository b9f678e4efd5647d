"""Complex numbers on a TPU: real and imaginary parts, each an array of its own, and what transforms of them need besides.

Everything is computed on the two planes. An argument is split into them, and stays as it is beside them; a result is joined
of them, which stand until it is. What is computed in between stands as planes alone, which take as many bytes.

A transform of real numbers, or to them, is computed as one of complex numbers of the whole length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.compiler.buffers.buffer import Buffer
from planner.program.graph import Graph

FORWARD, BACKWARD, IN_STEPS = 0.5, 1.5, 2.5
"""What a transform of real numbers, and one to them, hold besides operand and result, in arrays of the real numbers.

Temporaries by libtpu 0.0.42 for v5e, less a spectrum: 0.5 to 0.6 forward and 1.5 to 2.0 backward, of 256 and 1,000
elements; in steps 2.0 either way of 512, 3.0 and 2.5 of 1,024 and of 2,048, 4.7 forward of 1,536, 2.5 to 3.0 of two dims.
"""
STEP, LONGEST_WHOLE = 128, 256
"""Longer dims than this are transformed in steps where the extent of a step divides them, else by one product."""


def complex_planes(graph: Graph, last: Sequence[int]) -> list[Buffer]:
    """The buffers of the planes of complex arguments and results; `last`: until when each tensor is needed."""
    found: list[Buffer] = []
    for tensor in _complex(graph, graph.inputs):
        if graph.consumers[tensor]:
            first = min(op for op, _ in graph.consumers[tensor])
            found.append(Buffer(tensor, first, max(first + 1, min(last[tensor], len(graph.ops)))))
    for tensor in _complex(graph, graph.outputs):
        op = graph.maker(tensor)
        if op is not None:
            found.append(Buffer(tensor, op.id, op.id + 1))
    return found


def real_transforms(graph: Graph) -> list[Buffer]:
    """The buffers of transforms of real numbers while they are computed."""
    found: list[Buffer] = []
    for op in graph.of_kinds(("fft",)):
        lengths = op.params["fft_lengths"]
        steps = len(lengths) > 1 or any(length > LONGEST_WHOLE and length % STEP == 0 for length in lengths)
        for tensor, whole in ((op.operands[0], FORWARD), (op.results[0], BACKWARD)):
            if not _is_complex(graph, tensor):
                found.append(Buffer(tensor, op.id, op.id + 1, IN_STEPS if steps else whole))
    return found


def _complex(graph: Graph, tensors: Sequence[int]) -> Iterator[int]:
    return (tensor for tensor in dict.fromkeys(tensors) if _is_complex(graph, tensor))


def _is_complex(graph: Graph, tensor: int) -> bool:
    return graph.tensors[tensor].aval.dtype.startswith("complex")
