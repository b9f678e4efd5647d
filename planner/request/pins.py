"""Pins by name: what a user pins as pytrees, as shardings, by position or by logical names, as specs of named arrays.

A key is a pattern over names, the name of an argument, a result (`out`) or a part of one, or the position of an argument.
Of the latter the value may be a pytree of specs like what is named, or a prefix of it, as `jax.jit(in_shardings=...)` takes
it: a spec there is that of all arrays below. Pytrees are compared by the names of their paths, so that a dict of specs
serves for the train state that has such fields. None leaves free what it stands for. Rules say which mesh axes split what
the program, or the user, names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from planner.errors import PinError
from planner.logical import Names, spec_by_rules
from planner.pricing.candidates.pins import close_names, exactly, matcher
from planner.program.spec_entries import axes_of_entry
from planner.program.tracing.arguments import joined
from planner.program.tracing.traced import Program
from planner.units import listed

Pins = Mapping[str, Any] | Mapping[int, Any] | Mapping[str | int, Any]
"""Pins as a user gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPins:
    """Specs by pattern, and the names of the arrays that the user leaves free."""

    specs: Mapping[str, PartitionSpec]
    free: frozenset[str]


def is_pin(value: Any) -> bool:
    """Whether a value is what pins say of an array, and no container."""
    return value is None or isinstance(value, (PartitionSpec, jax.sharding.Sharding))


def named_pins(pins: Any, program: Program) -> NamedPins:
    """The pins a user gave, by name. Raises: PinError where they are not like what they are for."""
    if pins is not None and not isinstance(pins, Mapping):
        raise PinError(
            f"pins is {pins!r:.200}; give a mapping from names of arguments, or patterns of names, to PartitionSpecs"
        )
    names = [leaf.name for leaf in (*program.arguments, *program.results)]
    specs: dict[str, PartitionSpec] = {}
    free: set[str] = set()
    for key, value in (pins or {}).items():
        name = _name(key, program)
        for pattern, spec in _stated(name, value, names, program):
            if spec is None:
                matches = matcher(pattern)
                free |= {other for other in names if matches(other)}
            else:
                specs[pattern] = spec
    return NamedPins(specs=specs, free=frozenset(free))


def with_common(own: Any, common: Mapping[str, Any], program: Program) -> Any:
    """The pins of one of several programs: its own after those `common` to all of which it has arguments or results."""
    if own is not None and not isinstance(own, Mapping):
        return own
    given = own or {}
    return {**{key: value for key, value in common.items() if key not in given and names_meant(key, program)}, **given}


def names_meant(key: str, program: Program) -> list[str]:
    """The names of arguments and results that the key of a pin matches, or is the beginning of."""
    matches = matcher(key)
    return [
        leaf.name
        for leaf in (*program.arguments, *program.results)
        if not leaf.constant and (matches(leaf.name) or leaf.name.startswith(f"{key}/"))
    ]


def _name(key: Any, program: Program) -> str:
    """The name, or the pattern, that a key is. Raises: PinError."""
    if isinstance(key, int) and not isinstance(key, bool):
        if not -program.num_args <= key < program.num_args:
            raise PinError(f"pins has the position {key}, but there are {program.num_args} arguments")
        return program.parameters[key]
    if not isinstance(key, str):
        raise PinError(
            f"the pin {key!r} is no name; its key is that of an argument, its position, or a pattern such as "
            "'params/*/kernel'"
        )
    return key


def _stated(
    name: str, value: Any, names: Sequence[str], program: Program
) -> Iterator[tuple[str, PartitionSpec | None]]:
    """(pattern, spec or None) of all that one pin says. Raises: PinError."""
    below = [other for other in names if other.startswith(f"{name}/")]
    if is_pin(value):
        spec = _spec(name, value)
        if below and name not in names:
            yield from ((exactly(other), spec) for other in below)
        else:
            yield name, spec
        return
    of = below if name not in names else [name]
    leaves = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_pin)[0]
    known = [*program.parameters, "out"]
    if not of and not (name in known and all(leaf is None for _, leaf in leaves)):
        raise PinError(
            f"the pin {name!r} is a {type(value).__name__}, but no argument or result has this name; names look like "
            f"{close_names(name, [*known, *names])}"
        )
    named: set[str] = set()
    under = _by_prefix(of)
    for path, leaf in leaves:
        place = joined(name, path)
        meant = under.get(place, [])
        spec = _spec(place, leaf)
        # Where the argument has None itself, `jax.tree.map` over it leaves None, which says nothing of any array.
        if not meant and spec is not None:
            raise PinError(
                f"the pin {name!r} says {spec} of {place}, but {name} has no array there; it has "
                f"{close_names(place, of)}"
            )
        named.update(meant)
        yield from ((exactly(other), spec) for other in meant)
    left = [other for other in of if other not in named]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise PinError(f"the pin {name!r} says nothing of {left[0]}{more}; give None for what is to be free")


def _by_prefix(names: Sequence[str]) -> dict[str, list[str]]:
    """The names that are, or lie below, every path that there is."""
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            found.setdefault("/".join(parts[:depth]), []).append(name)
    return found


def _spec(name: str, value: Any) -> PartitionSpec | None:
    """What a pin says of an array. Raises: PinError where it is neither a spec nor a sharding by one."""
    if isinstance(value, NamedSharding):
        return value.spec
    if value is None or isinstance(value, PartitionSpec):
        return value
    what = "the sharding " if isinstance(value, jax.sharding.Sharding) else ""
    raise PinError(
        f"the pin {name!r} has the value {what}{value!r:.200}; give a jax.sharding.PartitionSpec, a NamedSharding, or "
        "None for what is to be free"
    )


# ---------------------------------------------------------------- pins by logical names


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
    pins = {exactly(name): _by_names(names, read) for name, names in brought.items() if name not in named.free}
    # A pin on the name itself takes the place of what the argument brings.
    return replace(named, specs={**pins, **{name: _read(spec, read) for name, spec in named.specs.items()}}), notes


def _unread_notes(brought: Mapping[str, Names]) -> tuple[str, ...]:
    """What a plan says of names that it does not read as pins."""
    if not brought:
        return ()
    distinct = list(dict.fromkeys(name for names in brought.values() for name in names if name is not None))
    count = len(brought)
    return (
        f"the names that {count} argument{'s bring' if count > 1 else ' brings'} for the dims "
        f"({listed(distinct, MOST_NAMED)}) are no pins; logical_rules=... makes pins of them",
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
    named = listed(list(map(repr, absent)), MOST_NAMED)
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


def _by_names(names: Names, rules: Rules) -> PartitionSpec:
    """The spec of an array whose dims have names."""
    return PartitionSpec(*(axes or None for axes in spec_by_rules(names, rules)))
