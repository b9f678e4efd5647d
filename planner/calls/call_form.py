"""Call forms: which parameters the arguments of a call are, which are static or donated, and all of them by position.

Plans take arguments by position. A call with keywords has its keywords' values after the named positional ones, and what
`*args` takes comes last, so that every value keeps the name that it has in the signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from planner.errors import ArgumentError
from planner.program.tracing.arguments import name_of, parameter_names
from planner.program.tracing.jitted import brought


@dataclass(frozen=True, kw_only=True, eq=False)
class CallForm:
    """How calls with so many positional arguments and these keywords are laid out.

    `names` are those of all values in order. `leading` of the positional arguments come before the values of `keywords`,
    the others after them. The first `filled` keywords are parameters that may be given by position.
    """

    names: tuple[str, ...]
    keywords: tuple[str, ...]
    leading: int
    filled: int
    static: frozenset[int]
    donated: frozenset[int]

    @cached_property
    def dynamic(self) -> tuple[int, ...]:
        """The positions of the values that are not static."""
        return tuple(i for i in range(len(self.names)) if i not in self.static)

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for all forms of one call: whether a parameter is given by name or by position is no difference."""
        return self.names, self.keywords[self.filled :]

    def values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of a call, all by position."""
        if not self.keywords:
            return args
        return (*args[: self.leading], *(kwargs[name] for name in self.keywords), *args[self.leading :])

    def call(self, fn: Callable[..., Any], values: Sequence[Any]) -> Any:
        """The result of the function for values by position."""
        first, last = self.leading + self.filled, self.leading + len(self.keywords)
        given = dict(zip(self.keywords[self.filled :], values[first:last], strict=True))
        return fn(*values[:first], *values[last:], **given)

    def by_position(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function of the values by position, whose signature has their names."""
        rest = next((i for i, name in enumerate(self.names) if "/" in name), len(self.names))
        kinds = inspect.Parameter
        parameters = [kinds(name, kinds.POSITIONAL_ONLY) for name in self.names[:rest]]
        if rest < len(self.names):
            parameters.append(kinds(self.names[rest].split("/")[0], kinds.VAR_POSITIONAL))

        def positional(*values: Any) -> Any:
            return call(*values)

        positional.__name__ = positional.__qualname__ = name
        positional.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        return positional


@final
class CallForms:
    """The call forms of one function. Raises: ArgumentError for positions and names that it has not."""

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
        try:
            self._signature = inspect.signature(fn)
        except (TypeError, ValueError):
            self._signature = None
        self._donated = self._checked("donate", donate_argnums, donate_argnames)
        self._static = self._checked("static", static_argnums, static_argnames)
        self._known: dict[tuple[int, tuple[str, ...]], CallForm] = {}

    def form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm:
        """The form of a call. Raises: TypeError where the function does not take such arguments."""
        key = len(args), tuple(kwargs)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._form(args, kwargs)
        return found

    def _form(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallForm:
        by_position, by_name = args, dict(kwargs)
        if self._signature is not None:
            bound = self._signature.bind(*args, **kwargs)
            by_position, by_name = bound.args, bound.kwargs
        names = parameter_names(self._fn, len(by_position))
        filled = names[len(args) :]
        keywords = (*filled, *(name for name in self._parameters if name in by_name))
        keywords = (*keywords, *sorted(name for name in by_name if name not in keywords))
        # What *args takes is named after it, and stands behind the keywords.
        leading = sum("/" not in name for name in names[: len(args)]) if keywords else len(args)
        given = (*names[:leading], *keywords, *names[leading : len(args)])
        of_jitted = brought(self._fn, len(by_position))
        static = self._positions(self._static, given, of_jitted.static, names)
        donated = self._positions(self._donated, given, of_jitted.donate, names)
        if both := static & donated:
            raise ArgumentError(f"argument {given[min(both)]} is both static and donated; only arrays can be donated")
        return CallForm(
            names=given, keywords=keywords, leading=leading, filled=len(filled), static=static, donated=donated
        )

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return {} if self._signature is None else self._signature.parameters

    def _checked(self, kind: str, argnums: Any, argnames: Any) -> tuple[frozenset[int], frozenset[str]]:
        """Positions and names; parameters that can be given both ways are among both."""
        nums = _listed(f"{kind}_argnums", argnums, int, "the position of an argument, or a tuple of positions")
        names = set(_listed(f"{kind}_argnames", argnames, str, "the name of a parameter, or a tuple of names"))
        if self._signature is None:
            return frozenset(nums), frozenset(names)
        kinds, parameters = inspect.Parameter, list(self._parameters.values())
        open_ended = {parameter.kind for parameter in parameters}
        positional = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        function, listed = name_of(self._fn), ", ".join(self._parameters) or "none"
        for name in names:
            if name not in self._parameters and kinds.VAR_KEYWORD not in open_ended:
                raise ArgumentError(
                    f"{kind}_argnames has {name!r}, but the parameters of {function} are: {listed}; give one of these"
                )
        # Behind *args positions count from the end of those that a call gives.
        if kinds.VAR_POSITIONAL in open_ended:
            return frozenset(nums), frozenset(names)
        for i in nums:
            if not -len(positional) <= i < len(positional):
                raise ArgumentError(
                    f"{kind}_argnums holds {i!r}, but {function} takes {len(positional)} positional arguments; "
                    "give one of their positions"
                )
            names.add(positional[i])
        return frozenset(), frozenset(names)

    @staticmethod
    def _positions(
        of: tuple[frozenset[int], frozenset[str]],
        given: Sequence[str],
        of_jitted: frozenset[int],
        names: Sequence[str],
    ) -> frozenset[int]:
        nums, wanted = of
        wanted = wanted | {names[i] for i in (*nums, *of_jitted) if -len(names) <= i < len(names)}
        return frozenset(i for i, name in enumerate(given) if name in wanted)


def _listed(what: str, given: Any, kind: type, wanted: str) -> tuple[Any, ...]:
    """One or several marks as a tuple. Raises: ArgumentError."""
    several = given if isinstance(given, (tuple, list, range)) else (given,)
    if not all(isinstance(one, kind) for one in several):
        raise ArgumentError(f"{what} is {given!r:.200}; give {wanted}")
    return tuple(several)
