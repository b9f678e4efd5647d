"""Mutation: what a function changes in its arguments in place, and how that reaches the objects of the user.

JAX calls a function that it traces with copies of the arguments' containers, so what the function writes into them is
lost. Of Flax nnx objects (modules, optimizers, metrics, random streams, variables) the new arrays become results of the
program, which are written back after every call, as `nnx.jit` does; of a donated one all arrays, as the old ones are
consumed. To other containers, as under `jax.jit`, nothing is written back: what a function changes there and does not
return is `lost`, for `trace` to refuse or to tell. Who splits objects into `nnx.State`s writes in JAX's style: what is made
of a State and changed is a matter of the function, and `dropped` unless it returns it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from planner.errors import ArgumentError, TraceError
from planner.program.tracing.arguments import joined


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentPlace:
    """A place of the arguments: an nnx object, an `nnx.State`, or a leaf outside of these.

    `leaves` are those it has among all of the arguments, from the position `start` on, in the structure `tree`.
    """

    name: str
    value: Any
    start: int
    leaves: tuple[Any, ...]
    tree: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a function changed: `updates` are (position of an argument leaf, position of the result it is written from).

    The first results are the function's own, then come those `added`; `lost` are (name, new value); `dropped` are names.
    """

    updates: tuple[tuple[int, int], ...]
    added: tuple[Any, ...]
    lost: tuple[tuple[str, Any], ...]
    dropped: tuple[str, ...]


def places(names: Sequence[str], args: Sequence[Any]) -> list[ArgumentPlace]:
    """The nnx objects in the arguments, and the leaves outside of them, in the order of the arguments' leaves."""
    found: list[ArgumentPlace] = []
    start = 0
    for name, arg in zip(names, args, strict=True):
        for path, value in jax.tree_util.tree_flatten_with_path(arg, is_leaf=_is_place)[0]:
            leaves, tree = jax.tree.flatten(value)
            found.append(
                ArgumentPlace(name=joined(name, path), value=value, start=start, leaves=tuple(leaves), tree=tree)
            )
            start += len(leaves)
    return found


class Watch:
    """The arguments of a function as they are before it runs; `changes` tells what it has changed."""

    def __init__(self, names: Sequence[str], args: Sequence[Any]) -> None:
        self._names, self._args = names, args
        self._before = {place.name: place for place in places(names, args)}
        # Containers that make their leaves anew whenever they are flattened cannot be watched.
        self._unsteady = {
            place.name for place in places(names, args) if place.leaves != self._before[place.name].leaves
        }

    def changes(self, result: Any, donated: Collection[int]) -> Changes:
        """What has changed, where a function has returned `result`; `donated` are positions of argument leaves.

        Raises: TraceError where more than arrays of an nnx object has changed.
        """
        own = jax.tree.leaves(result)
        known = {id(value): position for position, value in enumerate(own)}
        updates: list[tuple[int, int]] = []
        added: list[Any] = []
        lost: list[tuple[str, Any]] = []
        dropped: list[str] = []
        for place in self._after():
            old = self._before.get(place.name)
            if old is not None and old.value is place.value and _is_object(place.value):
                for position, value in _new_arrays(old, place, donated):
                    if id(value) not in known:
                        known[id(value)] = len(own) + len(added)
                        added.append(value)
                    updates.append((position, known[id(value)]))
            elif place.name not in self._unsteady:
                was = {id(leaf) for leaf in old.leaves} if old is not None else set[int]()
                new = [leaf for leaf in place.leaves if id(leaf) not in was and id(leaf) not in known]
                if _is_state(place.value):
                    dropped += [place.name] if new else []
                    continue
                lost += [(place.name, leaf) for leaf in new if isinstance(leaf, _ARRAYS)]
        return Changes(updates=tuple(updates), added=tuple(added), lost=tuple(lost), dropped=tuple(dropped))

    def _after(self) -> list[ArgumentPlace]:
        found: list[ArgumentPlace] = []
        for name, arg in zip(self._names, self._args, strict=True):
            try:
                found += places([name], [arg])
            except Exception:  # Some containers are void once a successor is made of them: equinox.nn.State.
                continue
        return found


_ARRAYS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)


def _new_arrays(old: ArgumentPlace, new: ArgumentPlace, donated: Collection[int]) -> list[tuple[int, Any]]:
    """(position, value) of the leaves of an nnx object to be written back. Raises: TraceError where others changed."""
    if old.tree != new.tree:
        raise TraceError(
            f"the function changes more of {old.name} than its arrays: it adds, removes or sets Variables or attributes, "
            "so that the next call would need another plan. Bring the object into the state in which a call leaves it "
            "before planning (by its eval() or train(), or a cache made beforehand), and take out what the function "
            "adds before it returns (nnx.pop)"
        )
    both = enumerate(zip(old.leaves, new.leaves, strict=True), old.start)
    return [(position, value) for position, (was, value) in both if value is not was or position in donated]


def check_immutable(name: str, leaf: Any) -> None:
    """Nothing. Raises: ArgumentError for a mutable array: a `jax.Ref`, or an nnx Variable that is no container of one."""
    nnx = _nnx()
    if isinstance(leaf, jax.Ref) or (nnx is not None and isinstance(leaf, nnx.Variable)):
        raise ArgumentError(
            f"argument {name} is a mutable array, of type {type(leaf).__name__}, which a plan cannot take; give its value "
            "(ref[...]) and return the new one, or make nnx Variables without ref=True and hijax=True"
        )


def write_back(args: Sequence[Any], values: dict[int, Any]) -> None:
    """Puts new values, by position among the leaves of the arguments, into the nnx objects that hold them."""
    held: list[Any] = []
    made: list[Any] = []
    for place in places([""] * len(args), args):
        leaves = [values.get(position, leaf) for position, leaf in enumerate(place.leaves, place.start)]
        if any(a is not b for a, b in zip(leaves, place.leaves, strict=True)):
            held.append(place.value)
            made.append(jax.tree.unflatten(place.tree, leaves))
    if held:
        nnx = _nnx()
        nnx.update(held, nnx.state(made))


def tied(originals: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]] | None:
    """Makes copies of the arguments share nnx Variables as the originals do; None where there are none to share.

    JAX copies containers as trees: a Variable that two modules share becomes two.
    """
    if not shares(originals):
        return None
    nnx = _nnx()
    graph, state = nnx.split(originals)
    paths = [path for path, _ in nnx.to_flat_state(state)]

    def again(copies: tuple[Any, ...]) -> tuple[Any, ...]:
        given = dict(nnx.to_flat_state(nnx.state(copies)))
        return nnx.merge(graph, nnx.from_flat_state([(path, given[path]) for path in paths]))

    return again


def shares(args: Sequence[Any]) -> bool:
    """Whether an nnx Variable stands at more than one place of the arguments."""
    nnx = _nnx()
    if nnx is None:
        return False
    places = jax.tree.leaves(list(args), is_leaf=lambda value: isinstance(value, nnx.Variable))
    variables = [id(value) for value in places if isinstance(value, nnx.Variable)]
    return len(set(variables)) < len(variables)


def _nnx() -> Any:
    """Flax nnx where the user has imported it: only then can there be objects of it."""
    return sys.modules.get("flax.nnx")


def _is_place(value: Any) -> bool:
    return _is_object(value) or _is_state(value)


def _is_state(value: Any) -> bool:
    nnx = _nnx()
    return nnx is not None and isinstance(value, nnx.State)


def _is_object(value: Any) -> bool:
    nnx = _nnx()
    return nnx is not None and isinstance(value, (nnx.Pytree, nnx.Variable))
