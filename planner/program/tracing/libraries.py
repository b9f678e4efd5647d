"""What model libraries do not tell JAX of a function, heard while it is traced.

Flax nnx puts nothing on JAX's name stack: here the methods of a module do, under the attribute that its parent has it in,
or its class where no parent is known (`Transformer/blocks/0/attention`), as Flax linen names its modules by itself. And
`flax.linen.with_logical_constraint` does nothing where no rules or no mesh are in sight, which is told.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FunctionType
from typing import Any
from unittest.mock import patch

import jax

_one_at_a_time = threading.RLock()
"""Classes are changed while a function is traced, and must be as they were before another thread changes them."""


@contextmanager
def heard() -> Generator[list[str]]:
    """While a function is traced: nnx modules are named. Its notes, complete at the end, tell what has had no effect."""
    notes: list[str] = []
    with _one_at_a_time, ExitStack() as stack:
        _name_modules(stack)
        ignored = _ignored_constraints(stack)
        yield notes
    if ignored:
        notes.append(
            f"with_logical_constraint does nothing without logical axis rules and a mesh around it ({len(ignored)} calls); "
            "logical_rules=... heeds names of arguments, jax.lax.with_sharding_constraint constrains what is computed"
        )


def _name_modules(stack: ExitStack) -> None:
    nnx = sys.modules.get("flax.nnx")  # Whoever has modules has imported what defines them.
    if nnx is None:
        return
    names = _Names(nnx.Module)
    for kind in set(_below(nnx.Module)):
        for attribute, method in list(vars(kind).items()):
            public = isinstance(method, FunctionType) and not attribute.startswith("_")
            if public or attribute == "__call__":
                stack.enter_context(patch.object(kind, attribute, names.naming(method)))


def _below(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)


class _Names:
    """Names of modules by what holds them, and the modules whose methods run."""

    def __init__(self, module: type) -> None:
        self._module = module
        self._named: dict[int, tuple[Any, str]] = {}
        """By id, with the module: it must live as long as its id is used."""
        self._running: list[Any] = []

    def naming(self, method: Any) -> Callable[..., Any]:
        """A method that runs under the name of its module, but for what the module calls of itself."""

        @wraps(method)
        def named(module: Any, *args: Any, **kwargs: Any) -> Any:
            bound = method.__get__(module, type(module))
            if self._running and self._running[-1] is module:
                return bound(*args, **kwargs)
            _, name = self._named.get(id(module), (module, type(module).__name__))
            self._name_within(vars(module).items(), "")
            self._running.append(module)
            try:
                with jax.named_scope(name):
                    return bound(*args, **kwargs)
            finally:
                self._running.pop()

        return named

    def _name_within(self, held: Iterable[tuple[Any, Any]], prefix: str) -> None:
        """Names modules that another holds, those in containers too: lists, and modules that nobody calls."""
        for key, value in held:
            name = f"{prefix}{key}"
            if isinstance(value, self._module):
                self._named[id(value)] = (value, name)
            if isinstance(value, self._module) and not callable(value):
                self._name_within(vars(value).items(), f"{name}/")
            elif isinstance(value, (list, tuple)):
                self._name_within(enumerate(value), f"{name}/")
            elif isinstance(value, Mapping):
                self._name_within(value.items(), f"{name}/")


def _ignored_constraints(stack: ExitStack) -> list[Any]:
    """Filled while a function is traced: one for every logical constraint that Flax does not heed."""
    spmd, ignored = sys.modules.get("flax.linen.spmd"), list[Any]()
    if spmd is None:
        return ignored
    rules_in_sight, constrained = spmd.get_logical_axis_rules, spmd._with_sharding_constraint

    def rules() -> Any:
        found = rules_in_sight()
        if not found:
            ignored.append(None)
        return found

    def constrain(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = constrained(x, *args, **kwargs)
        if result is x:
            ignored.append(None)
        return result

    stack.enter_context(patch.object(spmd, "get_logical_axis_rules", rules))
    stack.enter_context(patch.object(spmd, "_with_sharding_constraint", constrain))
    return ignored
