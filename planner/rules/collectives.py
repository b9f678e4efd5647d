"""The collectives that a program runs itself, in the bodies of its `shard_map`s.

A TPU's collective-permutes are asynchronous, and its wires carry data both ways: two permutes of equally many bytes along
the same axes, one the inverse of the other, run at the same time where neither needs what the other brings, as those of a
collective matmul that sends one half of its operand either way. In schedules by libtpu 0.0.42 (v5e) of a model of the
weather whose transforms are such matmuls both have started before either is done, and products that neither need what is
sent nor are needed for it run meanwhile (XLA's latency hiding scheduler).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from planner.program.graph import Body, Graph, Op
from planner.rules.primitives import kinds_where, traits

PERMUTES = kinds_where(lambda row: row.collective == "collective-permute")
PRODUCTS = kinds_where(lambda row: row.matmul)


class OwnCollective(NamedTuple):
    """A collective of a body, over `axes`: `bytes` are the larger of what a device gives and gets, in each of `trips` runs.

    `trips` is per run of the body; `assumed` the part of it that nothing says, `source` and `line` as of an `Op`.
    `two_way`: whether another runs at the same time over the same wires, the other way.
    """

    kind: str
    bytes: float
    axes: tuple[str, ...]
    trips: float
    assumed: float
    dtype: str
    source: str
    line: str
    two_way: bool = False


def collectives_of(body: Body) -> Iterator[OwnCollective]:
    """The collectives of a body, in program order, those of bodies within it after them."""
    graph = body.graph
    two_way = _two_way(graph)
    for op in graph.of_kinds(kinds_where(lambda row: row.collective is not None)):
        region = graph.regions[op.region]
        kind = traits(op.kind).collective
        for moved, dtype in _moved(graph, op):
            if kind is not None:
                axes = _axes(op.params)
                own = OwnCollective(kind, moved, axes, region.trips, region.assumed, dtype, op.source, op.line)
                yield own._replace(two_way=op.id in two_way)
    for op in graph.ops:
        region = graph.regions[op.region]
        for inner in collectives_of(op.body) if op.body is not None else ():
            trips, assumed = region.trips * inner.trips, region.assumed * inner.assumed
            yield inner._replace(trips=trips, assumed=assumed)


def _two_way(graph: Graph) -> frozenset[int]:
    """The permutes of a graph that run in pairs, of one region, each in the other's opposite direction."""
    permutes = graph.of_kinds(PERMUTES)
    before = _before(graph, permutes)
    alone: dict[object, list[Op]] = {}
    paired = set[int]()
    for op in permutes:
        there = frozenset(tuple(pair) for pair in op.params["perm"])
        back = frozenset((target, source) for source, target in there)
        size = sum(aval.bytes for aval in graph.avals(op.operands))
        waiting = alone.get((op.region, _axes(op.params), size, back), []) if back != there else []
        other = next((one for one in waiting if one.id not in before[op.id]), None)
        if other is None:
            alone.setdefault((op.region, _axes(op.params), size, there), []).append(op)
        else:
            waiting.remove(other)
            paired |= {op.id, other.id}
    return frozenset(paired)


def beside_permutes(graph: Graph) -> frozenset[int]:
    """The products of matrices that run while a permute of their region does: neither is computed from the other."""
    permutes = graph.of_kinds(PERMUTES)
    products = graph.of_kinds(PRODUCTS) if permutes else []
    before = _before(graph, [*permutes, *products])
    return frozenset(
        product.id
        for product in products
        for permute in permutes
        if permute.region == product.region
        and permute.id not in before[product.id]
        and product.id not in before[permute.id]
    )


def _before(graph: Graph, ops: Sequence[Op]) -> Mapping[int, frozenset[int]]:
    """For each of these ops those of them whose results it is computed from; of a loop's, in the same trip."""
    found: dict[int, frozenset[int]] = {}
    reached: dict[int, frozenset[int]] = {}
    nothing, wanted = frozenset[int](), {op.id for op in ops}
    for op in graph.ops if ops else ():
        before = nothing.union(*(reached.get(tensor, nothing) for tensor in op.operands))
        if op.id in wanted:
            found[op.id] = before
            before |= {op.id}
        if before:
            reached |= dict.fromkeys(op.results, before)
    return found


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
