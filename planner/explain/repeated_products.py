"""Products of matrices by line of code: what a plan computes of them on a device, and what of that it computes again."""

from __future__ import annotations

import math
from collections.abc import Iterator

import cost_models
from planner.compiler.fusion.ragged_dot import times_computed
from planner.compiler.model import CompilerModel
from planner.explain.saved_values import SavedValues
from planner.prediction import Products
from planner.pricing.assignment import Chosen
from planner.program.graph import Graph, Op
from planner.program.jaxpr.remat.residuals import line_of
from planner.rules.op_work import body_of, op_flops
from planner.transforms.remat_prices import step_flops


def products_of(chosen: Chosen, saved: SavedValues, passes: int) -> tuple[Products, ...]:
    """The products at every line where some are computed again, and those at all others together, without a line.

    `passes` is the number of microbatches, in each of which that happens.
    """
    front = saved.front
    if front is None:
        return ()
    choice = front.settled(saved.form.saved, saved.form.offloaded)
    again: dict[str, float] = {}
    for crossing, repeated in zip(front.crossings, choice.repeated, strict=True):
        for step in (step for position in repeated for step in crossing.values[position].steps):
            if cost_models.engine(step.kind) == "matrix":
                line = line_of(step)
                again[line] = again.get(line, 0.0) + passes * crossing.length * step_flops(step)
    whole, own = dict.fromkeys(again, 0.0), dict.fromkeys([*again, ""], 0.0)
    for op, flops, parts in _products(chosen):
        line = op.line if op.line in again else ""
        own[line] += flops / parts
        if line in whole:
            whole[line] += flops
    return tuple(
        Products(line=line, flops=flops, again=min(flops, again[line] * flops / whole[line]) if flops and line else 0.0)
        for line, flops in own.items()
    )


def products_by_source(chosen: Chosen) -> dict[str, float]:
    """The operations of products of matrices on a device and call, by the user's own line of code."""
    found: dict[str, float] = {}
    for op, flops, parts in _products(chosen):
        found[op.source] = found.get(op.source, 0.0) + flops / parts
    return found


def _products(chosen: Chosen) -> Iterator[tuple[Op, float, float]]:
    """The ops that multiply matrices, the operations of a call as if they were not split, and in how many parts they are.

    Those in the body of a `shard_map` count as often as devices run it; ragged ones that a compiler computes for every
    group as often as there are groups.
    """
    graph = chosen.instance.model.graph
    compiler = chosen.instance.mesh.compiler
    for op in graph.ops:
        body = body_of(op)
        if body is None and not _multiplies(op):
            continue
        trips = graph.regions[op.region].trips
        if body is None:
            times = times_computed(graph, op, compiler)
            yield op, times * trips * op_flops(graph, op), _parts(chosen, op)
            continue
        parts = float(body.devices) if body.axes is not None else _parts(chosen, op)
        for inner, flops in _products_in(body.graph, compiler):
            yield inner, trips * body.devices * flops, parts


def _products_in(graph: Graph, compiler: CompilerModel) -> Iterator[tuple[Op, float]]:
    """The ops of a body that multiply matrices, with the operations of one run of it."""
    for op in graph.ops:
        trips, body = graph.regions[op.region].trips, body_of(op)
        if body is not None:
            for inner, flops in _products_in(body.graph, compiler):
                yield inner, trips * body.devices * flops
        elif _multiplies(op):
            yield op, times_computed(graph, op, compiler) * trips * op_flops(graph, op)


def _multiplies(op: Op) -> bool:
    return op.primitive is not None and cost_models.engine(op.kind) == "matrix"


def _parts(chosen: Chosen, op: Op) -> float:
    """Into how many parts a choice splits an op."""
    grouping, instance = chosen.instance.model.grouping, chosen.instance
    placement, group = grouping.placements[op.id], grouping.group_of[op.id]
    factors = {factor for dims in (*placement.operands, *placement.results) for dim in dims for factor in dim}
    split = instance.strategies[group].assignment[chosen.choice[group]].tolist()
    return float(math.prod(size for factor, size in zip(split, instance.mesh.sizes, strict=True) if factor in factors))
