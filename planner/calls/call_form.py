"""Call forms: how the arguments of calls of one function stand in order, and which of them are static or donated.

The order is that of `planner.program.tracing.call`. It depends on how many arguments a call gives by position and on its
keywords alone, so that it is worked out once for calls that are spelt alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, update_wrapper
from typing import Any, final

from planner.errors import ArgumentError
from planner.program.tracing.arguments import name_of
from planner.program.tracing.call import call_of, called, marked
from planner.program.tracing.jitted import brought


@dataclass(frozen=True, kw_only=True, eq=False)
class CallForm:
    """How calls are laid out that give so many arguments by position, and the others by these keywords.

    `names` are those of all arguments in order, the last being given by `keywords` alone; `given` are the keywords of a
    call, in the order of the arguments that they are.
    """

    names: tuple[str, ...]
    keywords: tuple[str, ...]
    given: tuple[str, ...]
    static: frozenset[int]
    donated: frozenset[int]

    @cached_property
    def dynamic(self) -> tuple[int, ...]:
        """The positions of the arguments that are not static."""
        return tuple(i for i in range(len(self.names)) if i not in self.static)

    @property
    def positional(self) -> int:
        """How many of the arguments are given by position."""
        return len(self.names) - len(self.keywords)

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all forms of one call: whether a parameter is given by name or by position is no difference."""
        return self.names, self.keywords

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call in order."""
        return (*args, *(kwargs[name] for name in self.given)) if self.given else args

    def by_keyword(self, values: Sequence[Any]) -> dict[str, Any]:
        """Of arguments in order those by keyword."""
        return dict(zip(self.keywords, values[self.positional :], strict=True))

    def around(self, fn: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
        """A function with the name and the signature of another, which calls `inner` with its arguments in order."""

        def outer(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, *(kwargs[name] for name in self.keywords))

        outer.__name__ = outer.__qualname__ = name_of(fn)
        return update_wrapper(outer, fn)

    def call(self, fn: Callable[..., Any], values: Sequence[Any]) -> Any:
        """The result of the function for arguments in order."""
        return called(fn, values, self.keywords)


@final
class CallForms:
    """The call forms of one function, whose static and donated arguments are marked as `jax.jit` takes them."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        donate_argnums: Sequence[int] | int,
        donate_argnames: Sequence[str] | str,
        static_argnums: Sequence[int] | int,
        static_argnames: Sequence[str] | str,
    ) -> None:
        self._fn = fn
        self._donated, self._static = (donate_argnums, donate_argnames), (static_argnums, static_argnames)
        self._known: dict[tuple[int, tuple[str, ...]], CallForm] = {}

    def form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm:
        """The form of a call. Raises: ArgumentError where the function has not such arguments."""
        key = len(args), tuple(kwargs)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._form(args, kwargs)
        return found

    def _form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm:
        call = call_of(self._fn, args, kwargs)
        own = brought(self._fn, call.positional, call.keywords)
        static = own.static | set(marked(call, "static", *self._static))
        donated = own.donate | set(marked(call, "donate", *self._donated))
        if both := static & donated:
            raise ArgumentError(
                f"argument {call.parameters[min(both)]} is both static and donated; only arrays can be donated"
            )
        return CallForm(
            names=call.parameters,
            keywords=call.keywords,
            given=call.parameters[len(args) :],
            static=frozenset(static),
            donated=frozenset(donated),
        )
