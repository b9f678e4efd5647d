"""What the kernels of a group move, whatever the mesh: the arrays that go to and from memory, by op, in one run of each.

An op that picks reads of its first operand what it returns; one that updates writes the update over its place, and reads
that first where it combines the two. What is not written in place is read and written once more (see `in_place`); what is
narrowed before a loop is read once and written narrow, in the name of the first loop that reads it (see `hoisted`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from planner.any_mesh.gathered_rows import Rows
from planner.any_mesh.grouped_products import times_moved
from planner.any_mesh.groups import Group, Grouping
from planner.any_mesh.kernels import Access, Home, Kernel, Kernels
from planner.any_mesh.liveness import Liveness
from planner.any_mesh.row_order import InRows
from planner.program.graph import Graph, Op
from planner.program.slots import TAKEN_IN
from planner.rules.op_work import op_passes
from planner.rules.primitives import traits
from planner.rules.rule import Dims


class Array(NamedTuple):
    """An array that is moved: its shape, whose dims are in the factors of a group, and where it may stand.

    With `several`, a dim, it is moved only where a device holds several elements along that dim; with `turned`, a dim and
    an itemsize, only where besides an argument like it of such elements lies in the order of its dims; with `rows` it is
    copied as `gathered_rows` says. `in_rows`: how it lies in rows. `at_once`: the bytes that stand at once for each of its
    own (see `working_sets`).
    """

    shape: tuple[int, ...]
    itemsize: float
    dims: Dims
    home: Home
    turned: tuple[int, float] | None = None
    several: int | None = None
    rows: Rows | None = None
    in_rows: InRows | None = None
    at_once: float = math.inf


class Movement(NamedTuple):
    """Of an op, in one run: `times` the bytes of an array, which is the whole of what it lies in, or part of it."""

    op: int
    array: Array
    times: float
    inside: Array


def movements(
    graph: Graph, grouping: Grouping, liveness: Liveness, kernels: Kernels | None, group: Group
) -> Iterator[Movement]:
    """What the ops of a group move; nothing where no kernels are known."""
    if kernels is None:
        return
    for kernel in kernels.of_group.get(group.id, ()):
        yield from _of_kernel(graph, grouping, liveness, kernel)
    narrowed = liveness.narrowed
    for number in group.ops:
        op = graph.ops[number]
        copied = liveness.in_place.passes.get(number)
        if copied:
            yield _whole(graph, grouping, liveness, op, op.results[0], graph.regions[op.region].per_run(copied))
        if number in liveness.turning:
            passes, several = liveness.turning[number]
            whole = _whole(graph, grouping, liveness, op, op.results[0], graph.regions[op.region].per_run(passes))
            dim = several + len(whole.array.shape) - len(graph.tensors[op.operands[0]].aval.shape)
            array = whole.array._replace(several=dim)
            yield whole._replace(array=array, inside=array)
        if (
            liveness.fusion.computes_operands
            and op.kind in TAKEN_IN
            and graph.consumers[op.operands[0]][0][0] == number
            and op.operands[0] in narrowed
        ):
            times = graph.regions[op.region].per_run(narrowed[op.operands[0]])
            yield _whole(graph, grouping, liveness, op, op.operands[0], times)


def _of_kernel(graph: Graph, grouping: Grouping, liveness: Liveness, kernel: Kernel) -> Iterator[Movement]:
    op, tiled = graph.ops[kernel.op], liveness.fusion.computes_operands
    row = traits(op.kind)
    parts = kernel.operands and (row.picks or row.updates is not None)
    if parts and row.picks:
        table = next((array_of(access) for access in kernel.operands[0]), None)
        yield _whole(graph, grouping, liveness, op, op.results[0], inside=table)
    elif parts and row.updates is not None:
        target = next((array_of(access) for access in kernel.results[0]), None)
        times = 1.0 if row.overwrites else 2.0
        yield _whole(graph, grouping, liveness, op, op.operands[row.updates], times, inside=target)
    passes = op_passes(graph, op) if kernel.operands and tiled else 1.0
    for position, accesses in enumerate(kernel.operands):
        times = passes if tiled else times_moved(graph, op, position)
        yield from (_moved(op, access, times) for access in accesses if position or not parts)
    for accesses in kernel.results if row.updates is None else ():
        yield from (_moved(op, access, passes) for access in accesses)
    yield from (_moved(op, access) for access in kernel.others)


def array_of(access: Access) -> Array:
    """The array that a kernel reads or writes."""
    return Array(
        *(access.shape, access.itemsize, access.dims, access.home, access.turned),
        rows=access.rows,
        in_rows=access.in_rows,
        at_once=access.at_once,
    )


def _moved(op: Op, access: Access, passes: float = 1.0) -> Movement:
    """What an op moves; what goes over memory several times has more in flight."""
    array = array_of(access)
    if passes != 1.0 and access.home in ("chip", "product"):
        array = array._replace(home="passes")
    return Movement(op.id, array, passes * access.times, array)


def _whole(
    graph: Graph,
    grouping: Grouping,
    liveness: Liveness,
    op: Op,
    tensor: int,
    times: float = 1.0,
    *,
    inside: Array | None = None,
) -> Movement:
    """An operand or result of an op, once or more, in memory or inside of another array."""
    placement, aval = grouping.placements[op.id], graph.tensors[tensor].aval
    sides = zip((*op.operands, *op.results), (*placement.operands, *placement.results), strict=True)
    dims = next(dims for of, dims in sides if of == tensor)
    # What a trip leaves in the carry stands in the body until then.
    at_once = liveness.working_sets.per_byte(op.operands[0] if op.kind == "loop_carry_out" else tensor)
    lies = liveness.in_rows.get(tensor)
    array = Array(aval.shape, aval.itemsize, dims, "memory", in_rows=lies, at_once=at_once)
    return Movement(op.id, array, times, array if inside is None else inside)
