"""The batch of a program: the dim of its data along which it may be computed part by part, with the same results.

It is sought among the dims of the arguments. Where the batch only passes through ops, or is summed over and the sums are
no more than scaled, moved and added to one another, parts of it may be computed one after the other and what they sum to
added up. What reads a sum otherwise is run once behind all parts (clipping, an optimizer); what every part needs of the
whole batch is run before, where it takes little (the sum of a mask). A program in which a matmul, a convolution or a loop
would need what is there behind the parts only, such as one with a batch norm, cannot be computed so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.program.batch_parts import Batch, Part
from planner.program.graph import Graph, Op
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.microbatch.expanded import expanded, facts_of, has_remats
from planner.program.slots import Slot, result_slot
from planner.program.tracing.traced import Program
from planner.rules.op_work import op_flops, op_name
from planner.rules.primitives import traits
from planner.transforms.propagate_batch import Flat, Spread, number

MADE_OF_NOTHING = 16
"""How many times as many bytes as it reads an op makes that is run again for every part rather than kept for all."""
ENOUGH = 0.5
"""The share of the work of matmuls that must run part by part."""
SUMS, TAKES_WHOLE = "sums over the batch", "takes the whole batch at once"
MOST_DIMS = 2
"""How many leading dims of an argument may be the batch."""
MOST_TRIED = 24
"""How many dims are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why a program cannot be computed part by part."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conflict:
    """An op that would have to be run behind all parts and cannot be, and the ops because of which."""

    op: Op
    causes: tuple[int, ...]


def batch_of(program: Program) -> Batch | Refused:
    """How a program may be computed batch part by batch part, or why it cannot be."""
    if any(leaf.aval.dtype == "float0" for leaf in program.arguments):
        return Refused(why="it takes arguments without values (float0)")
    if program.effects.ordered:
        return Refused(why="it has ordered side effects")
    found = _sought(program, remats=False)
    if isinstance(found, Refused) and has_remats(program.jaxpr):
        # What is recomputed in one with other things may have to be run before or behind the parts.
        again = _sought(program, remats=True)
        return found if isinstance(again, Refused) else again
    return found


def _sought(program: Program, *, remats: bool) -> Batch | Refused:
    jaxpr = expanded(program.jaxpr, remats=remats)
    graph = build_graph(replace(program, jaxpr=jaxpr), tests=True)
    flat = Flat(graph=graph, facts=facts_of(jaxpr))
    heavy = {
        op.id: op_flops(graph, op) * graph.regions[op.region].trips
        for op in graph.ops
        if traits(op.kind).matmul or op.body is not None
    }
    refused: Refused | None = None
    tried: set[tuple[int, int]] = set()
    for tensor, dim in _candidates(program, graph):
        if (tensor, dim) in tried or len(tried) >= MOST_TRIED:
            continue
        tried.add((tensor, dim))
        spread = _spread(flat, tensor, dim)
        if isinstance(spread, Refused):
            refused = refused or spread
            continue
        tried |= {(t, part.dim) for t, part in spread.start.items()}
        inside = sum(flops for op, flops in heavy.items() if _is_inside(spread, graph.ops[op]))
        # What hangs on sums alone, such as an optimizer with matmuls, is none of the batch's work.
        after_loop = sum(flops for op, flops in heavy.items() if spread.is_late(graph.ops[op]))
        share = inside / (sum(heavy.values()) - after_loop) if sum(heavy.values()) > after_loop else 1.0
        if share >= ENOUGH and any(map(spread.inside, graph.ops)):
            return batch_in(spread, jaxpr)
        why = _whole(spread, tensor, dim) if spread.early else "little of its work runs over its batch"
        refused = refused or Refused(why=why)
    return refused or Refused(why="none of its arguments has a dim that could be a batch")


def _is_inside(spread: Spread, op: Op) -> bool:
    return spread.inside(op) or spread.reads_parts(op)


def _candidates(program: Program, graph: Graph) -> Iterator[tuple[int, int]]:
    """The arguments and dims that may be the batch: those of data, not of what one call returns to the next.

    That is asked only where all is. Of several arguments those of few arrays come first: parameters are many.
    """
    fed = set(graph.feeds.values()) | set(program.donated)
    roots: dict[str, int] = {}
    for leaf in program.arguments:
        roots[leaf.name.split("/")[0]] = roots.get(leaf.name.split("/")[0], 0) + 1
    arrays = [i for i, leaf in enumerate(program.arguments) if not leaf.constant and leaf.aval.shape]
    order = sorted(
        [i for i in arrays if i not in fed] or arrays,
        key=lambda i: (roots[program.arguments[i].name.split("/")[0]], i),
    )
    for dim in range(MOST_DIMS):
        for i in order:
            shape = program.arguments[i].aval.shape
            if dim < len(shape) and shape[dim] > 1:
                yield graph.inputs[i], dim


def _spread(flat: Flat, tensor: int, dim: int) -> Spread | Refused:
    """What becomes of all arrays where the batch is this dim of an argument; or why that cannot be."""
    graph = flat.graph
    extent = graph.tensors[tensor].aval.shape[dim]
    start, early, after_loop = {tensor: Part(dim, 1, 1)}, frozenset[int](), frozenset[int]()
    while True:
        spread = Spread(program=flat, extent=extent, start=dict(start), early=early, after_loop=after_loop)
        more = {t: part for t, part in spread.wanted_arguments().items() if t not in start}
        if more:
            start |= more
            continue
        late = _late_blocks(spread)
        if late - after_loop:
            after_loop |= late
            continue
        conflict = _conflict(spread)
        if conflict is None:
            spread.sink()
            return spread
        sooner = {cause for cause in conflict.causes if cause not in early and _is_cheap(flat, graph.ops[cause])}
        if not sooner:
            return _refused(spread, tensor, dim, conflict)
        early |= sooner


def _late_blocks(spread: Spread) -> frozenset[int]:
    """The equations with bodies that are run behind all parts as a whole: they read no parts, but what those sum to."""
    graph, flat = spread.program.graph, spread.program
    parts, sums = set[int](), set[int]()
    for op in graph.ops:
        at = number(op)
        if at not in flat.in_block:
            continue
        states = spread.operands(op)
        if any(state.kind == "part" or state.wide for state in states):
            parts.add(at)
        if any(state.kind in ("sum", "late") for state in states) or spread.is_late(op):
            sums.add(at)
    return frozenset(sums - parts)


def _conflict(spread: Spread) -> _Conflict | None:
    """The first op that cannot be run behind all parts and would have to be."""
    graph, flat = spread.program.graph, spread.program
    for op in graph.ops:
        if not spread.is_late(op):
            continue
        blocked = number(op) in flat.in_block and number(op) not in spread.after_loop
        if blocked or (op.results and spread.reads_parts(op) and flat.is_heavy(op)):
            return _Conflict(op=op, causes=spread.causes(op))
    return None


def _is_cheap(flat: Flat, op: Op) -> bool:
    """Whether an op and all that it needs take little, and can be run before anything else."""
    graph, seen, left = flat.graph, set[int](), [op.id]
    while left:
        at = left.pop()
        if at in seen:
            continue
        seen.add(at)
        found = graph.ops[at]
        if number(found) in flat.in_block or flat.is_heavy(found):
            return False
        left += [p for t in found.operands if (p := graph.tensors[t].producer) is not None]
    return True


def _refused(spread: Spread, tensor: int, dim: int, conflict: _Conflict) -> Refused:
    graph = spread.program.graph
    cause, op = graph.ops[conflict.causes[0]], conflict.op
    sums = any((state := spread.states[t]) is not None and state.kind == "sum" for t in cause.results)
    what = f"{op_name(cause)} at {cause.source} {SUMS if sums else TAKES_WHOLE}"
    if cause.id != op.id:
        what += f", and {op_name(op)} at {op.source} needs the result for every part of it"
    return Refused(why=f"{what} (the batch is dim {dim} of {graph.tensors[tensor].name})")


def _whole(spread: Spread, tensor: int, dim: int) -> str:
    """Why little runs part by part: what an op makes of the whole batch is no longer one."""
    graph = spread.program.graph
    op = graph.ops[min(spread.early)]
    return f"{op_name(op)} at {op.source} {TAKES_WHOLE} (the batch is dim {dim} of {graph.tensors[tensor].name})"


def batch_in(spread: Spread, jaxpr: object) -> Batch:
    """What is run when, of a program whose arrays are spread so."""
    graph = spread.program.graph
    parts, cut = spread.places()
    inside, after_loop, drawn = set[int](), set[int](), set[int]()
    sums: set[Slot] = set()
    deferred = spread.deferred()
    for op in graph.ops:
        if spread.is_late(op) or number(op) in spread.after_loop or op.id in deferred:
            after_loop.add(number(op))
        elif spread.inside(op):
            inside.add(number(op))
        for i, tensor in enumerate(op.results):
            state = spread.states[tensor]
            if state is not None and state.kind == "sum":
                sums.add(result_slot(op, i))
    inside -= after_loop
    for reader in graph.ops:
        for position, tensor in enumerate(reader.operands) if number(reader) in inside else ():
            op = graph.maker(tensor)
            if op is None or number(op) in spread.program.in_block or op.id in spread.early:
                continue
            in_parts = (reader.id, position) in spread.cut
            if (in_parts or traits(op.kind).fused) and _made_of_nothing(graph, op):
                drawn.add(number(op))
    for slot, made in spread.program.facts.passed.items():
        if made in parts:
            parts[slot] = parts[made]
        if made in sums:
            sums.add(slot)
    return Batch(
        jaxpr=jaxpr,
        extent=spread.extent,
        parts=parts,
        cut=cut,
        sums=frozenset(sums),
        inside=frozenset(inside),
        drawn=frozenset(drawn - inside - after_loop),
        after_loop=frozenset(after_loop),
    )


def _made_of_nothing(graph: Graph, op: Op) -> bool:
    read = sum(graph.tensors[t].aval.bytes for t in op.operands)
    return read * MADE_OF_NOTHING <= sum(graph.tensors[t].aval.bytes for t in op.results)


def part_counts(extent: int) -> list[int]:
    """In how many parts a batch is taken where that is chosen: for each power of two the next number that divides it."""
    divisors = [count for count in range(2, extent + 1) if extent % count == 0]
    powers = [1 << i for i in range(1, extent.bit_length())]
    return sorted({divisors[bisect_left(divisors, power)] for power in powers})
