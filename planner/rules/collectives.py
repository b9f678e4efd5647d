"""The collectives that a program runs itself, in the bodies of its `shard_map`s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from planner.program.graph import Body, Graph, Op
from planner.rules.primitives import kinds_where, traits


class OwnCollective(NamedTuple):
    """A collective of a body, over `axes`: `bytes` are the larger of what a device gives and gets, in each of `trips` runs.

    `trips` is per run of the body; `assumed` the part of it that nothing says, `source` and `line` as of an `Op`.
    """

    kind: str
    bytes: float
    axes: tuple[str, ...]
    trips: float
    assumed: float
    dtype: str
    source: str
    line: str


def collectives_of(body: Body) -> Iterator[OwnCollective]:
    """The collectives of a body, in program order, those of bodies within it after them."""
    graph = body.graph
    for op in graph.of_kinds(kinds_where(lambda row: row.collective is not None)):
        region = graph.regions[op.region]
        kind = traits(op.kind).collective
        for moved, dtype in _moved(graph, op):
            if kind is not None:
                axes = _axes(op.params)
                yield OwnCollective(kind, moved, axes, region.trips, region.assumed, dtype, op.source, op.line)
    for op in graph.ops:
        region = graph.regions[op.region]
        for inner in collectives_of(op.body) if op.body is not None else ():
            trips, assumed = region.trips * inner.trips, region.assumed * inner.assumed
            yield inner._replace(trips=trips, assumed=assumed)


def _moved(graph: Graph, op: Op) -> Iterator[tuple[float, str]]:
    """(bytes, dtype) of every array that an op moves: each operand of a sum, or the one of another collective."""
    operands, results = graph.avals(op.operands), graph.avals(op.results)
    each = len(operands) == len(results)
    for i, operand in enumerate(operands if each else operands[:1]):
        yield max([operand.bytes, *(result.bytes for result in results[i : i + 1])]), operand.dtype


def _axes(params: Any) -> tuple[str, ...]:
    """The names of the axes over which a collective runs; positions, as of `vmap`, are none."""
    axes = params["axes"] if "axes" in params else params["axis_name"]
    return tuple(name for name in (axes if isinstance(axes, tuple) else (axes,)) if isinstance(name, str))
