"""The layout that a user asks for: pins by name, those of another plan, and the mesh that the program names itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.errors import MeshError, NothingSharedError, PinError
from planner.machine.target import Target
from planner.pricing.candidates.pins import exactly, pinned_dims
from planner.program.graph import type_text
from planner.program.tracing.traced import Leaf, Program
from planner.request.matching_arrays import same_arrays
from planner.request.pins import LogicalRules, Pins, by_rules, named_pins, with_common
from planner.units import listed

MOST_NAMED = 4
"""Parts of pytrees that a note names one by one."""


def laid_out(
    program: Program,
    pins: Pins | None,
    like: Decision | None,
    logical_rules: LogicalRules | None,
    *,
    axes: Collection[str],
    among_others: Mapping[str, Any] | None,
) -> tuple[dict[str, PartitionSpec], tuple[str, ...]]:
    """The specs asked for, by pattern, and what is to be told of them; what the user pins goes before another plan,
    and so does what the program names, by logical rules. `axes` are those that the mesh may have.

    `among_others`: the pins common to it and other programs, where it is planned with others, else None.

    Raises: PinError; NothingSharedError where nothing of the other plan is found in the program, unless it is among others.
    """
    stated = pins if among_others is None else with_common(pins, among_others, program)
    named, notes = by_rules(named_pins(stated, program), logical_rules, program, axes)
    typed, on_types = _by_types(program)
    free = set(map(exactly, named.free))
    named = replace(named, specs={**{name: spec for name, spec in typed.items() if name not in free}, **named.specs})
    notes = (*notes, *on_types)
    if like is None:
        return dict(named.specs), notes
    mine = program_leaves(program)
    theirs, specs = leaves_of(like)
    same = same_arrays(mine, theirs)
    if not same.of and among_others is not None:
        return dict(named.specs), (*notes, f"it has nothing in common with the plan of {like.function_name}")
    if not same.of:
        raise NothingSharedError(
            f"like= is the plan of {like.function_name}, and no argument or result of {program.function_name} is one of "
            f"its arrays, by names, structure and types: the one has {_some(theirs)}, the other {_some(mine)}; leave like "
            "out, or say with pins what is to lie how"
        )
    taken = {exactly(mine[i].name): specs[other] for i, other in same.of.items() if mine[i].name not in named.free}
    return {**taken, **named.specs}, (*notes, _layout_notes(program, like, mine, same.of, same.parts, len(taken)))


def _by_types(program: Program) -> tuple[dict[str, PartitionSpec], tuple[str, ...]]:
    """The specs in the types of arguments and results, by name, and notes on them."""
    types = program.types
    if types is None:
        return {}, ()
    shape = dict(types.mesh.shape)
    specs: dict[str, PartitionSpec] = {}
    left: list[str] = []
    leaves = (*program.arguments[: len(types.arguments)], *program.results)
    for leaf, spec in zip(leaves, (*types.arguments, *types.results), strict=True):
        if spec is None:
            continue
        try:
            pinned_dims(leaf.name, spec, leaf.aval.shape, shape)
        except PinError as error:
            left.append(f"the placement in the type of {leaf.name} is left to the planner: {error}")
            continue
        specs[exactly(leaf.name)] = spec
    kept = (f"{len(specs)} arguments and results lie as their types say",) if specs else ()
    return specs, (*kept, *left)


def program_leaves(program: Program) -> list[Leaf]:
    """The arguments and results of a program, without what its function closes over."""
    return [leaf for leaf in (*program.arguments, *program.results) if not leaf.constant]


def leaves_of(decision: Decision) -> tuple[list[Leaf], list[PartitionSpec]]:
    """The arguments and results of a plan, without what its function closes over, and their specs."""
    leaves, specs = (*decision.arguments, *decision.results), (*decision.in_specs, *decision.out_specs)
    kept = [i for i, leaf in enumerate(leaves) if not leaf.constant]
    return [leaves[i] for i in kept], [specs[i] for i in kept]


def check_own_mesh(program: Program, target: Target) -> None:
    """Nothing. Raises: MeshError where the program names a mesh itself that lies otherwise than the one given."""
    own = program.parallelism
    if own is None or own.mesh is None or target.mesh is None:
        return
    if list(own.mesh.devices.flat) != list(target.mesh.devices.flat):
        raise MeshError(
            f"{program.function_name} names the mesh {dict(own.shape)} itself, of other devices, or in another order, than "
            "the mesh that is given; give the same, or leave mesh out"
        )


def _layout_notes(
    program: Program,
    like: Decision,
    mine: Sequence[Leaf],
    found: Mapping[int, int],
    parts: Sequence[tuple[str, str]],
    taken: int,
) -> str:
    """What a plan says of the layout that it has of another."""
    named = [one if one == other else f"{one} as {other}" for one, other in parts[:MOST_NAMED]]
    more = [f"{len(parts) - MOST_NAMED} more parts"] if len(parts) > MOST_NAMED else []
    free = [leaf.name for i, leaf in enumerate(mine) if i not in found]
    rest = f"; of its own: {listed(list(dict.fromkeys(free)), MOST_NAMED)}" if free else ""
    return (
        f"{taken} of {len(mine)} arguments and results lie as in the plan of {like.function_name}: "
        f"{', '.join((*named, *more))}{rest}"
    )


def _some(leaves: Sequence[Leaf]) -> str:
    return listed([f"{leaf.name} {type_text(leaf.aval)}" for leaf in leaves], MOST_NAMED)
