"""What the kernels of a group move, whatever the mesh: the arrays that go to and from memory, by op, in one run of each.

An op that picks reads of its first operand what it returns; one that updates writes the update over its place, and reads
that first where it combines the two. What is not written in place is read and written once more (see `in_place`); what is
narrowed before a loop is read once and written narrow, in the name of the first loop that reads it (see `hoisted`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from planner.compiler.fusion.kernels import SLICES_ON_CHIP, Access, Home, Kernel, Kernels
from planner.compiler.fusion.ragged_dot import times_moved
from planner.compiler.layout.gather_tables import LargeRows, Rows
from planner.compiler.layout.multiplied import Order
from planner.compiler.program import CompiledProgram
from planner.decisions.groups import Group
from planner.program.graph import Op
from planner.program.slots import TAKEN_IN
from planner.rules.op_work import op_passes
from planner.rules.primitives import traits
from planner.rules.rule import Dims

ON_CHIP: Mapping[Home, float] = {
    "chip": 1 / 2,
    "product": 1 / 2,
    "late product": 0.0,
    "passes": 1 / 8,
    "slice": SLICES_ON_CHIP,
    "loop": 1 / 32,
    "border": 1 / 2,
    "border product": 1 / 2,
    "memory": 0.0,
}
"""The largest share of the memory on the chip that an array takes there, as seen in schedules of v5e, v5p and v6e."""

WORKING_SET = 0.7
"""The share of it that all arrays of a body take there at once (see `working_sets`).

In schedules by libtpu 0.0.42 up to 0.74 of it are taken (see `prefetch.ROOM_ON_CHIP`), gaps between arrays not counted;
in a loop of a model of the weather (v5e) arrays that take 0.6 at once stay there, in one of a state-space model such as
take 0.68.
"""


class Array(NamedTuple):
    """An array that is moved: its shape, whose dims are in the factors of a group, and where it may stand.

    It is moved only where a device holds several elements along each dim of `several`; with `copied_slice`, a dim and an
    itemsize, only where besides an argument like it of such elements lies in the order of its dims; with
    `rows` it is copied as `gathered_rows` says. `in_rows`: how it lies in rows. `at_once`: the bytes that stand at once
    for each of its own (see `working_sets`); inf where its share of the memory on the chip is that of its home anyway.
    `share`: the largest that it gets beside others (see `memory_space`), 1 where that is no less than its home's.
    """

    shape: tuple[int, ...]
    itemsize: float
    dims: Dims
    home: Home
    copied_slice: tuple[int, float] | None = None
    several: tuple[int, ...] = ()
    rows: Rows | LargeRows | None = None
    in_rows: Order | None = None
    at_once: float = math.inf
    share: float = 1.0


class Movement(NamedTuple):
    """Of an op, in one run: `times` the bytes of an array, which is the whole of what it lies in, or part of it."""

    op: int
    array: Array
    times: float
    inside: Array


def movements(program: CompiledProgram, kernels: Kernels | None, group: Group) -> Iterator[Movement]:
    """What the ops of a group move; nothing where no kernels are known."""
    if kernels is None:
        return
    for kernel in kernels.of_group.get(group.id, ()):
        yield from _of_kernel(program, kernel)
    graph, conversions = program.graph, program.conversions
    for number in group.ops:
        op = graph.ops[number]
        copied = program.in_place.extra_traffic.get(number)
        if copied:
            yield _whole(program, op, op.results[0], graph.regions[op.region].per_run(copied))
        if number in program.transposes:
            times, several = program.transposes[number]
            whole = _whole(program, op, op.results[0], graph.regions[op.region].per_run(times))
            dim = several + len(whole.array.shape) - len(graph.tensors[op.operands[0]].aval.shape)
            array = whole.array._replace(several=(dim,))
            yield whole._replace(array=array, inside=array)
        if op.kind in TAKEN_IN and op.operands[0] in conversions and graph.consumers[op.operands[0]][0][0] == number:
            times = graph.regions[op.region].per_run(conversions[op.operands[0]])
            yield _whole(program, op, op.operands[0], times)


def _of_kernel(program: CompiledProgram, kernel: Kernel) -> Iterator[Movement]:
    op, compiler = program.graph.ops[kernel.op], program.compiler
    row = traits(op.kind)
    parts = kernel.operands and (row.picks or row.updates is not None)
    if parts and row.picks:
        table = next((array_of(access) for access in kernel.operands[0]), None)
        yield _whole(program, op, op.results[0], inside=table)
    elif parts and row.updates is not None:
        target = next((array_of(access) for access in kernel.results[0]), None)
        times = 1.0 if row.overwrites else 2.0
        yield _whole(program, op, op.operands[row.updates], times, inside=target)
    passes = op_passes(program.graph, op) if kernel.operands and compiler.runs("multi-pass-lowering") else 1.0
    expanded = compiler.runs("ragged-dot-expander")
    for position, accesses in enumerate(kernel.operands):
        times = passes * (times_moved(program.graph, op, position) if expanded else 1.0)
        yield from (_moved(op, access, times) for access in accesses if position or not parts)
    for access in chain.from_iterable(kernel.results if row.updates is None else ()):
        yield _moved(op, access, passes)
        if passes != 1.0 and access.home == "product":
            # However little goes over memory several times, two cores share what is made of it.
            yield _moved(op, access)
    yield from (_moved(op, access) for access in kernel.others)


def array_of(access: Access, home: Home | None = None) -> Array:
    """The array that a kernel reads or writes, at its home or another."""
    home = home or access.home
    return Array(
        *(access.shape, access.itemsize, access.dims, home, access.copied_slice),
        several=access.several,
        rows=access.rows,
        in_rows=access.in_rows,
        at_once=access.at_once if access.at_once * ON_CHIP[home] < WORKING_SET else math.inf,
        share=access.share if access.share < ON_CHIP[home] else 1.0,
    )


def _moved(op: Op, access: Access, passes: float = 1.0) -> Movement:
    """What an op moves; an array that goes over memory several times has more in flight."""
    several = passes != 1.0 and access.home in ("chip", "product")
    array = array_of(access, "passes" if several else None)
    return Movement(op.id, array, passes * access.times, array)


def _whole(
    program: CompiledProgram, op: Op, tensor: int, times: float = 1.0, *, inside: Array | None = None
) -> Movement:
    """An operand or result of an op, once or more, in memory or inside of another array."""
    placement, aval = program.grouping.placements[op.id], program.graph.tensors[tensor].aval
    sides = zip((*op.operands, *op.results), (*placement.operands, *placement.results), strict=True)
    dims = next(dims for of, dims in sides if of == tensor)
    # A carry is in the body until the end of a trip.
    at_once = program.working_sets.per_byte(op.operands[0] if op.kind == "loop_carry_out" else tensor)
    rows = program.row_major.get(tensor)
    array = Array(aval.shape, aval.itemsize, dims, "memory", in_rows=rows, at_once=at_once)
    return Movement(op.id, array, times, array if inside is None else inside)
