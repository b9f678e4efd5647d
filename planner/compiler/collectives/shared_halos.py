"""Shared halos: how many ops of a region need the same halo of a tensor, such as a convolution and its gradient.

The compiler fetches what they all need once, or for all of them at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.program.graph import Graph, Op
from planner.rules.primitives import slides_of, traits
from planner.rules.sliding import Margin, margins

SharedHalos = Mapping[tuple[int, int], int]
"""By op and position of the operand; operands without a halo are not in it."""


def shared_halos(graph: Graph) -> SharedHalos:
    """How many ops of a region need the halo of each operand of the ops that slide a window, themselves included.

    Rolls of a tensor one way and the other fetch theirs at the same time, over wires that go both ways.
    """
    halos = {(op.id, at): halo for op in graph.ops for at, halo in halos_of(graph, op).items()}
    found: dict[tuple[int, int], int] = {}
    for (number, at), halo in halos.items():
        op, wanted = graph.ops[number], [halo]
        if traits(op.kind).joins:
            wanted.append([replace(margin, left=margin.right, right=margin.left) for margin in halo])
        readers = [read for read in graph.consumers[op.operands[at]] if graph.ops[read[0]].region == op.region]
        found[number, at] = sum(halos.get(read) in wanted for read in readers)
    return found


def halos_of(graph: Graph, op: Op) -> dict[int, list[Margin]]:
    """By operand of an op its halo, where every dim that can be is split, as often as it can."""
    found: dict[int, list[Margin]] = {}
    for slide in slides_of(graph, op):
        for margin in margins(op.kind, slide, slide.count):
            found.setdefault(margin.operand, []).append(replace(margin, operand=0))
    return found
