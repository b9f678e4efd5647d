"""Where a pytree is otherwise than the one planned for, in words: what is missing, what is more, what is another object."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

MOST_NAMED = 3
"""Differences that are named; the others are counted."""


def structure_differences(planned: Any, value: Any, name: str) -> str:
    """How the structure of a pytree differs from the planned one (a treedef); `name` is what the pytree is called."""
    found = list(_differences(planned, value, name))
    more = len(found) - MOST_NAMED
    return "; ".join(found[:MOST_NAMED]) + (f"; and {more} more differences" if more > 0 else "")


def _differences(planned: Any, value: Any, name: str) -> Iterator[str]:
    given = jax.tree.structure(value)
    if given == planned:
        return
    before, now = planned.node_data(), given.node_data()
    if before is None or now is None or before[0] is not now[0]:
        got = f"the function {_name_of(value)}" if now is None and callable(value) else _kind(now)
        yield f"{name} was planned as {_kind(before)}, got {got}"
        return
    children = dict(_children(value))
    if before[0] is dict:
        yield from (f"{name}: key {key!r} is missing" for key in before[1] if key not in now[1])
        yield from (f"{name}: key {key!r} was not planned" for key in now[1] if key not in before[1])
        pairs = [(str(key), tree) for key, tree in zip(before[1], planned.children(), strict=True) if key in now[1]]
    else:
        yield from _of_static(before[0], before[1], now[1], name)
        if len(planned.children()) != len(children):
            yield f"{name} was planned with {len(planned.children())} items, got {len(children)}"
            return
        pairs = list(zip(children, planned.children(), strict=True))
    for key, tree in pairs:
        yield from _differences(tree, children[key], f"{name}/{key}")


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    for path, child in jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda inner: inner is not value)[0]:
        yield jax.tree_util.keystr(path, simple=True, separator="/"), child


def _of_static(kind: type, planned: Any, given: Any, name: str) -> Iterator[str]:
    """What differs in the part of a node that is not among its children."""
    if planned == given:
        return
    values = (planned, given)
    if not all(isinstance(value, tuple) for value in values) or len(planned) != len(given):
        yield f"{name} ({kind.__name__}) differs in what is no array of it: planned as {planned!r}, got {given!r}"
        return
    names = _static_fields(kind)
    for place, (before, now) in enumerate(zip(planned, given, strict=True)):
        if before != now:
            field = f"{name}.{names[place]}" if len(names) == len(planned) else f"{name}: static value {place}"
            change = f"planned as {before!r}, got {now!r}" if _short(before, now) else "another object than was planned"
            yield f"{field} is {change}; use the same object, or one that is equal"


def _static_fields(kind: type) -> Sequence[str]:
    """The names of the fields of a dataclass that are no children, as Flax and Equinox mark them."""
    if not dataclasses.is_dataclass(kind):
        return ()
    static = [f.name for f in dataclasses.fields(kind) if not f.metadata.get("pytree_node", True)]
    return static or [f.name for f in dataclasses.fields(kind) if f.metadata.get("static", False)]


def _short(*values: Any) -> bool:
    return all(isinstance(value, (bool, int, float, str)) for value in values)


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _kind(node: tuple[type, Any] | None) -> str:
    if node is None:
        return "an array"
    kind, keys = node
    if kind is type(None):
        return "None"
    return f"a dict with the keys {', '.join(map(repr, keys))}" if kind is dict else f"a {kind.__name__}"
