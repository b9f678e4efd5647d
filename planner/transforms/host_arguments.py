"""Arguments on hosts: which arguments of a program may wait in the memory of hosts, and the program that takes them there.

An optimizer's state may, where what takes its place at the next call is made of it slice by slice along its leading dim,
as the slice of a layer is, and nothing else reads it. The parameters that are updated with it may as well, where besides
only loops read them, slice by slice; then their gradients go where they lie. The device holds a slice at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.errors import ArgumentError
from planner.program.batch_parts import Part
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.microbatch.expanded import expanded, facts_of
from planner.program.jaxpr.microbatch.updates_in_slices import NotOnHosts, updated_in_slices
from planner.program.tracing.traced import Leaf, Program
from planner.transforms.batch import batch_in
from planner.transforms.propagate_batch import Flat, Spread

WORTHWHILE = 0.002
"""Arguments of less than this part of the bytes of all stay on the devices, where the planner chooses."""
MOST_SLICES = 128
"""Up to this leading extent the slices are of one element, as those of layers are; else there are as many as divide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What may wait on hosts, by position of the argument: the `state` that an update alone reads, and `parameters`."""

    state: tuple[int, ...]
    parameters: tuple[int, ...]


def may_wait(program: Program, *, parameters: bool = True) -> Waiting:
    """What of a program's arguments may wait on hosts and is worth it; of these the state alone without `parameters`."""
    flat = _flat(program)
    pairs, state = _pairs(flat.graph), set(_of_updates(flat))
    large = WORTHWHILE * sum(leaf.aval.bytes for leaf in program.arguments)
    left = {i for i in (pairs if parameters else state) if program.arguments[i].aval.bytes >= large}
    while left & state:
        try:
            _on_host(program, flat, left)
            break
        except _Refused as error:
            left -= error.positions or left
    state &= left
    return Waiting(state=tuple(sorted(state)), parameters=tuple(sorted(left - state)) if state else ())


class _Refused(ArgumentError):
    """Some arguments cannot wait on hosts; `positions` are those of which it is known."""

    def __init__(self, message: str, positions: Collection[int]) -> None:
        super().__init__(message)
        self.positions = frozenset(positions)


def with_arguments_on_host(program: Program, positions: Collection[int]) -> Program:
    """The program that takes these arguments, and gives back what takes their place, on hosts. Raises: ArgumentError."""
    return _on_host(program, _flat(program), positions)


def _on_host(program: Program, flat: _Expanded, positions: Collection[int]) -> Program:
    state = set(_of_updates(flat)) & set(positions)
    left, form = set(positions) - state, replace(program.form, hosted=tuple(sorted(positions)))
    for number, (count, members) in enumerate(_by_slices(program.arguments, state)):
        program, also = _in_slices(program, _flat(program) if number else flat, count, members, left)
        left -= also
    if left:
        raise _refused(program, left, "it is not updated with a state that waits there, slice by slice")
    return replace(program, form=form)


def _in_slices(
    program: Program, flat: _Expanded, count: int, members: Collection[int], others: Collection[int]
) -> tuple[Program, set[int]]:
    """A program with a state on hosts that is updated in so many slices, and those of the `others` that are so as well."""
    graph, arguments = flat.graph, program.arguments
    pairs = _pairs(graph)
    start = {graph.inputs[i]: Part(0, 1, arguments[i].aval.shape[0] // count) for i in members}
    spread = Spread(program=flat, extent=count, start=start)
    spread.sink()
    failed = [i for i in members if _part_of(spread, graph.outputs[pairs[i]]) != start[graph.inputs[i]]]
    if failed:
        raise _refused(program, failed, "what takes its place is not made slice by slice along its leading dim")
    wanted = spread.wanted_arguments()
    also = {i for i in others if graph.inputs[i] in wanted and _part_of(spread, graph.outputs[pairs[i]]) is not None}
    away = {*members, *also}
    batch = batch_in(spread, flat.jaxpr)
    carried = {i: made for i, made in pairs.items() if _part_of(spread, graph.outputs[made]) is not None}
    try:
        jaxpr = updated_in_slices(batch, carried, away)
    except NotOnHosts as error:
        raise _refused(program, error.positions or also or members, str(error)) from error
    leaves = [leaf.on(host=True) if i in away else leaf for i, leaf in enumerate(arguments)]
    made = {pairs[i] for i in away}
    results = [leaf.on(host=True) if i in made else leaf for i, leaf in enumerate(program.results)]
    written = program.as_written.jaxpr
    return replace(program, jaxpr=jaxpr, arguments=tuple(leaves), results=tuple(results), written=written), also


def _part_of(spread: Spread, tensor: int) -> Part | None:
    state = spread.states[tensor]
    return None if state is None else state.part


def _refused(program: Program, positions: Collection[int], why: str) -> _Refused:
    names = ", ".join(program.arguments[i].name for i in sorted(positions)[:3])
    return _Refused(
        f"{names} cannot wait in the memory of hosts: {why}; name what an update reads slice by slice, and give it away "
        "(donate_argnums)",
        positions,
    )


def _flat(program: Program) -> _Expanded:
    jaxpr = expanded(program.jaxpr, remats=False)
    graph = build_graph(replace(program, jaxpr=jaxpr), tests=True)
    return _Expanded(graph=graph, facts=facts_of(jaxpr), jaxpr=jaxpr)


@dataclass(kw_only=True)
class _Expanded(Flat):
    """With the expanded program itself."""

    jaxpr: object


def _pairs(graph: Graph) -> Mapping[int, int]:
    """By the position of a donated argument with a leading dim that of the result in its place."""
    avals = {i: graph.tensors[graph.inputs[i]].aval for i in graph.aliases.values()}
    return {i: made for made, i in graph.aliases.items() if avals[i].shape and avals[i].shape[0] > 1}


def _of_updates(flat: Flat) -> Iterator[int]:
    """The arguments of which no matmul, kernel or loop is made: those of an update."""
    graph = flat.graph
    for i in _pairs(graph):
        seen, left = set[int](), [graph.inputs[i]]
        while left:
            tensor = left.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            readers = [graph.ops[op] for op, _ in graph.consumers[tensor]]
            if any(map(flat.is_heavy, readers)):
                break
            left += [result for op in readers for result in op.results]
        else:
            yield i


def _by_slices(arguments: Sequence[Leaf], positions: Collection[int]) -> list[tuple[int, list[int]]]:
    """In how many slices some arguments are updated: as many as layers where they have such a dim, few numbers in all."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for i in sorted(positions, key=lambda i: (arguments[i].aval.shape[0] > MOST_SLICES, -arguments[i].aval.size)):
        extent = arguments[i].aval.shape[0]
        known = next((count for count in found if extent > MOST_SLICES and extent % count == 0), None)
        most = max(n for n in range(1, min(extent, MOST_SLICES) + 1) if extent % n == 0)
        found[known or most].append(i)
    return list(found.items())
