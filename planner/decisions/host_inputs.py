"""Inputs: the arguments that hosts bring at every call, such as a batch, and the dim of each that counts examples.

Nothing in a program says so of an argument; it is concluded from what becomes of it. A program keeps *state* where some
argument is fed back by its results or donated. Of such a program an index counts examples where it passes through a product
with what is computed of the state alone and does not have it: every example meets the same weights. An argument that is no
state is an input where arrays with such an index are at least half of its bytes. So weights that are only read (those of a
teacher, of a model whose adapters are trained, of a decoder whose cache is the state) are not taken for inputs, and neither
is anything of a program that keeps no state: nobody knows then what is new in the next call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from planner.decisions.decision_graph import Flow
from planner.decisions.groups import Grouping
from planner.decisions.logical_dims import LogicalDims
from planner.program.graph import Graph
from planner.rules.primitives import traits

OF_STATE, OF_OTHERS = 1, 2
ENOUGH = 0.5
"""The share of the bytes of an argument that must have a dim of examples for it to be an input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An array that comes from hosts: its tensor, and which of its dims counts examples; None where none does.

    `batch` is the same for arrays whose examples are counted by one index.
    """

    tensor: int
    examples: int | None
    batch: tuple[int, ...] = ()


def concluded_inputs(
    graph: Graph, grouping: Grouping, flow: Flow, arguments: Iterable[Sequence[int]], donated: Collection[int]
) -> tuple[Input, ...]:
    """The inputs of a program, as the module says.

    `arguments` are the positions of the arrays of every argument, `donated` those of donated arrays.
    """
    state = {*graph.feeds.values(), *donated}
    if not state:
        return ()
    dims = LogicalDims(graph, grouping, flow)
    counted = _met_by_state(graph, dims, {graph.inputs[position] for position in state})
    if not counted:
        return ()
    looped = set(dims.looped())
    found: list[Input] = []
    for positions in arguments:
        if any(position in state for position in positions):
            continue
        arrays = [graph.inputs[position] for position in positions]
        own = [_input(dims, tensor, counted, looped) for tensor in arrays]
        whole = sum(graph.tensors[tensor].aval.bytes for tensor in arrays)
        if sum(graph.tensors[one.tensor].aval.bytes for one in own if one.batch) >= ENOUGH * whole > 0:
            found += own
    return tuple(found)


def named_inputs(graph: Graph, grouping: Grouping, flow: Flow, dims: Mapping[int, int | None]) -> tuple[Input, ...]:
    """Inputs that are known to be some, with the dim of their examples; None where it is the first of more than one."""
    logical = LogicalDims(graph, grouping, flow)
    found: list[Input] = []
    for tensor, dim in dims.items():
        indices, shape = logical.of(tensor), graph.tensors[tensor].aval.shape
        examples = dim if dim is not None else next((d for d, extent in enumerate(shape) if extent > 1), None)
        batch = () if examples is None else indices[examples]
        found.append(Input(tensor=tensor, examples=examples, batch=batch))
    return tuple(found)


def _input(dims: LogicalDims, tensor: int, counted: Collection[int], looped: Collection[int]) -> Input:
    """An array as an input: its examples are counted by the first dim that is made of nothing but such an index, and of
    others over which loops run (the parts of a batch)."""
    for dim, indices in enumerate(dims.of(tensor)):
        examples = [index for index in indices if index in counted and index not in looped]
        if examples and all(index in counted or index in looped for index in indices):
            return Input(tensor=tensor, examples=dim, batch=indices)
    return Input(tensor=tensor, examples=None)


def _met_by_state(graph: Graph, dims: LogicalDims, state: Collection[int]) -> set[int]:
    """The indices that pass through products with what is made of the state alone, and is not split by them."""
    origins, found = _origins(graph, state), set[int]()
    for op in graph.ops:
        if not traits(op.kind).matmul or len(op.operands) < 2 or not op.results:
            continue
        sides = [{index for dim in dims.read(op, position) for index in dim} for position in (0, 1)]
        result = {index for dim in dims.made(op, 0) for index in dim}
        for one, other in ((0, 1), (1, 0)):
            if origins[op.operands[other]] == OF_STATE:
                found |= (sides[one] & result) - sides[other]
    return found


def _origins(graph: Graph, state: Collection[int]) -> list[int]:
    """Of what every tensor is computed: bits for the state and for other arguments.

    In the first pass of a loop: weights that a loop over steps updates are those of the state there.
    """
    found = [0] * len(graph.tensors)
    for tensor in graph.inputs:
        found[tensor] = OF_STATE if tensor in state else OF_OTHERS
    for op in graph.ops:
        bits = 0
        for operand in op.operands:
            if operand >= 0:
                bits |= found[operand]
        for result in op.results:
            found[result] |= bits
    return found
