"""Leaves of arguments: which of them a call computes with, and which are static.

Arrays and numbers are computed with, as under `jax.jit`. What is neither (a function, a string) is static: it belongs to
the program, and a call with another value gets another plan. So do numbers within Equinox modules, which steer what these
compute, as `equinox.filter_jit` has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer

from planner.errors import ArgumentError
from planner.program.tracing.arguments import abstracted, joined

NUMBERS = (bool, int, float, complex)


def kinds_of(leaves: Sequence[Any]) -> list[Any]:
    """What tells the leaves of two calls apart, but for static values: the types of arrays, else Python types."""
    try:
        return [leaf.aval for leaf in leaves]
    except AttributeError:
        return [_kind_of(leaf) for leaf in leaves]


def _kind_of(leaf: Any) -> Any:
    if hasattr(leaf, "aval"):
        return leaf.aval
    return _type_of(abstracted(leaf)) if _is_array(leaf) else type(leaf)


def placeless(kinds: Sequence[Any], *, typed: bool) -> tuple[Any, ...]:
    """The same kinds wherever the arrays lie, and hashable; `typed`: whether the placements in types count."""
    return tuple(kind if isinstance(kind, (type, tuple)) else _type_of(kind, typed=typed) for kind in kinds)


def _type_of(aval: Any, *, typed: bool = False) -> tuple[Any, ...]:
    own = (getattr(aval, "shape", ()), getattr(aval, "dtype", None), bool(getattr(aval, "weak_type", False)))
    return (*own, getattr(aval, "sharding", None)) if typed else own


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def static_leaves(tree: Any, names: Sequence[str]) -> dict[int, Any]:
    """The static leaves of a tuple of pytrees by position; `names` are those of its items.

    Raises: ArgumentError for one without a hash.
    """
    found: dict[int, Any] = {}
    within = _within_modules(tree)
    paths: list[tuple[Any, Any]] = jax.tree_util.tree_flatten_with_path(tree)[0]
    for position, (path, leaf) in enumerate(paths):
        if _is_array(leaf) or (isinstance(leaf, NUMBERS) and position not in within):
            continue
        item: int = path[0].idx
        check_hash(joined(names[item], path[1:]), leaf)
        found[position] = leaf
    return found


def check_hash(name: str, value: Any) -> None:
    """Nothing. Raises: ArgumentError for a static value without a hash."""
    try:
        hash(value)
    except TypeError as error:
        raise ArgumentError(
            f"argument {name} is {value!r:.80} of type {type(value).__name__}: no array, and without a hash it cannot be "
            "static; give an array or a hashable value"
        ) from error


def _within_modules(tree: Any) -> set[int]:
    """The positions of the leaves that Equinox modules hold."""
    equinox = sys.modules.get("equinox")  # whoever has modules has imported it
    if equinox is None:
        return set()
    found: set[int] = set()
    first = 0
    for node in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, equinox.Module)):
        count = len(jax.tree.leaves(node))
        if isinstance(node, equinox.Module):
            found.update(range(first, first + count))
        first += count
    return found


def is_same(one: Any, other: Any) -> bool:
    """Whether two static values are the same: 1, 1.0 and True are three."""
    return one is other or (type(one) is type(other) and bool(one == other))


def example(leaf: Any) -> Any:
    """A leaf to plan with: the type of one that JAX traces."""
    return abstracted(leaf) if isinstance(leaf, Tracer) else leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """A pytree's structure and static leaves by position; `dynamic` pytrees have None in the place of these."""

    tree: Any
    static: Mapping[int, Any]

    def dynamic(self, leaves: Sequence[Any]) -> Any:
        """The pytree of these leaves without the static ones."""
        return jax.tree.unflatten(self.tree, [None if i in self.static else leaf for i, leaf in enumerate(leaves)])

    def whole(self, dynamic: Any) -> Any:
        """The pytree with the static leaves in their places."""
        others = iter(jax.tree.leaves(dynamic))
        leaves = [self.static[i] if i in self.static else next(others) for i in range(self.tree.num_leaves)]
        return jax.tree.unflatten(self.tree, leaves)


class StaticResults:
    """The static leaves of a function's result, taken out while JAX traces it, and put back after calls."""

    def __init__(self) -> None:
        self._parted: Parted | None = None

    def taken_out(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, without the static leaves of its result."""

        def call(*args: Any) -> Any:
            result = fn(*args)
            leaves, tree = jax.tree.flatten(result)
            self._parted = Parted(tree=tree, static=static_leaves((result,), ("out",)))
            return self._parted.dynamic(leaves)

        return call

    def put_back(self, result: Any) -> Any:
        """The result of a call as the function returns it."""
        return result if self._parted is None or not self._parted.static else self._parted.whole(result)
