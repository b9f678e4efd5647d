"""Pins by logical names: rules that say which mesh axes split what the program, or the user, names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import PartitionSpec

from planner.errors import PinError
from planner.logical import Names, spec_by_rules
from planner.pricing.candidates.pins import exactly
from planner.program.spec_entries import axes_of_entry
from planner.program.tracing.traced import Program
from planner.request.pins import NamedPins

Entry = str | Sequence[str] | None
LogicalRules = Mapping[str, Entry] | Sequence[tuple[str, Entry]]
"""Name -> the mesh axes that split it, as Flax's logical axis rules say it."""
Rules = Sequence[tuple[str, tuple[str, ...]]]
"""The same as pairs of a name and axes."""
MOST_NAMED = 4
"""Names that a note tells."""


def by_rules(
    named: NamedPins, rules: LogicalRules | None, program: Program, axes: Collection[str]
) -> tuple[NamedPins, tuple[str, ...]]:
    """The pins with logical names read by rules, and what is to be told of them; `axes` are those that the mesh may have.

    With rules, the names that the program's arguments bring are pins as well, before those of the user; a name without a
    rule leaves its dim whole there, as in Flax, and is a mesh axis among the user's pins. Raises: PinError.
    """
    brought = {leaf.name: leaf.logical for leaf in program.arguments if leaf.logical is not None}
    if rules is None:
        return named, _unread_notes(brought)
    read, notes = _on_mesh(_checked(rules), axes)
    pins = {exactly(name): _spec(names, read) for name, names in brought.items() if name not in named.free}
    # A pin on the name itself takes the place of what the argument brings.
    return replace(named, specs={**pins, **{name: _read(spec, read) for name, spec in named.specs.items()}}), notes


def _unread_notes(brought: Mapping[str, Names]) -> tuple[str, ...]:
    """What a plan says of names that it does not read as pins."""
    if not brought:
        return ()
    distinct = list(dict.fromkeys(name for names in brought.values() for name in names if name is not None))
    more = f" and {len(distinct) - MOST_NAMED} more" if len(distinct) > MOST_NAMED else ""
    count = len(brought)
    return (
        f"the names that {count} argument{'s bring' if count > 1 else ' brings'} for the dims "
        f"({', '.join(distinct[:MOST_NAMED])}{more}) are no pins; logical_rules=... makes pins of them",
    )


def _checked(rules: Any) -> Rules:
    """Rules as pairs. Raises: PinError."""
    wanted = "give pairs of a name and a mesh axis, several, or None, such as (('embed', None), ('mlp', 'model'))"
    pairs = list(rules.items()) if isinstance(rules, Mapping) else rules
    if not isinstance(pairs, (list, tuple)):
        raise PinError(f"logical_rules is {rules!r:.200}; {wanted}")
    found: list[tuple[str, tuple[str, ...]]] = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise PinError(f"logical_rules has {pair!r:.200}; {wanted}")
        entry = pair[1]
        axes = axes_of_entry(entry)
        if not (entry is None or isinstance(entry, (str, list, tuple))) or not all(isinstance(a, str) for a in axes):
            raise PinError(f"logical_rules says {entry!r:.200} of {pair[0]!r}; {wanted}")
        found.append((pair[0], axes))
    return found


def _on_mesh(rules: Rules, axes: Collection[str]) -> tuple[Rules, tuple[str, ...]]:
    """Rules without the axes that the mesh does not have, and a note on these.

    Codebases write one list of rules for all meshes that they run on. A rule of no other axes is no rule: a later one for
    the same name may be. Where none of the axes is there, the rules are of another mesh, and the pins will say so.
    """
    absent = [axis for axis in dict.fromkeys(axis for _, own in rules for axis in own) if axis not in axes]
    if not absent or not any(axis in axes for _, own in rules for axis in own):
        return rules, ()
    kept = [(name, tuple(axis for axis in own if axis in axes)) for name, own in rules]
    left = [(name, own) for (name, own), (_, before) in zip(kept, rules, strict=True) if own or not before]
    more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
    named = f"{', '.join(map(repr, absent[:MOST_NAMED]))}{more}"
    return left, (f"logical_rules has axes that the mesh does not have, and they split nothing: {named}",)


def _read(spec: PartitionSpec, rules: Rules) -> PartitionSpec:
    """A spec whose entries may be logical names or mesh axes, in mesh axes."""
    known = {name for name, _ in rules}
    names = tuple(entry if isinstance(entry, str) and entry in known else None for entry in spec)
    if not any(names):
        return spec
    own = [() if name else axes_of_entry(entry) for name, entry in zip(names, spec, strict=True)]
    taken = {axis for axes in own for axis in axes}
    by_name = spec_by_rules(names, [(name, axes) for name, axes in rules if not taken & set(axes)])
    return PartitionSpec(*((axes or other) or None for axes, other in zip(by_name, own, strict=True)))


def _spec(names: Names, rules: Rules) -> PartitionSpec:
    """The spec of an array whose dims have names."""
    return PartitionSpec(*(axes or None for axes in spec_by_rules(names, rules)))
