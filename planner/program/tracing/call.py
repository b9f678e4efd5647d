"""A call: a function with the arguments of one call of it, in one order: those by position, then those by keyword.

What stands in that order are positions to all that follows, for arguments by keyword, too. An argument that could be given
by position as well is one by position, however it was given, so that plans do not depend on how a call is spelt.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from planner.errors import ArgumentError
from planner.program.tracing.arguments import name_of, parameter_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function, its arguments in order, and their names; `keywords` are the names of the last, in alphabetical order."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    parameters: tuple[str, ...]
    keywords: tuple[str, ...] = ()

    @property
    def positional(self) -> int:
        """How many of the arguments are given by position."""
        return len(self.args) - len(self.keywords)

    def result(self, values: Sequence[Any]) -> Any:
        """What the function returns for other values of its arguments."""
        return called(self.fn, values, self.keywords)


def called(fn: Callable[..., Any], values: Sequence[Any], keywords: Sequence[str]) -> Any:
    """What a function returns for arguments in order, the last of which are given by these keywords."""
    positional = len(values) - len(keywords)
    return fn(*values[:positional], **dict(zip(keywords, values[positional:], strict=True)))


def call_of(fn: Any, example_args: Any, example_kwargs: Mapping[str, Any] | None = None) -> Call:
    """The call of a function with these arguments. Raises: ArgumentError where they are not arguments of it."""
    if not callable(fn):
        raise ArgumentError(f"fn must be a function, got {type(fn).__name__}; pass the function to be planned")
    if not isinstance(example_args, (tuple, list)):
        raise ArgumentError(
            f"example_args must be the tuple of positional arguments, got {type(example_args).__name__}; "
            "write plan(fn, (x,)) for one argument"
        )
    if not (example_kwargs is None or isinstance(example_kwargs, Mapping)) or not all(
        isinstance(name, str) for name in example_kwargs or ()
    ):
        raise ArgumentError(
            f"example_kwargs is {example_kwargs!r:.200}; give a mapping from names of arguments to their values"
        )
    args, by_keyword = tuple(example_args), dict(example_kwargs or {})
    signature = _signature(fn)
    if by_keyword and signature is not None:
        try:
            bound = signature.bind(*args, **by_keyword)
        except TypeError as error:
            raise ArgumentError(
                f"{name_of(fn)} cannot be called with {len(args)} arguments by position and the keywords "
                f"{', '.join(by_keyword)}: {error}; give the arguments of a call"
            ) from error
        args, by_keyword = bound.args, bound.kwargs
    return call_in_order(fn, (*args, *(by_keyword[name] for name in sorted(by_keyword))), tuple(sorted(by_keyword)))


def call_in_order(fn: Callable[..., Any], args: tuple[Any, ...], keywords: tuple[str, ...]) -> Call:
    """The call of a function with arguments that are in order, the last of which are given by these keywords."""
    names = parameter_names(fn, len(args) - len(keywords))
    return Call(fn=fn, args=args, parameters=(*names, *keywords), keywords=keywords)


def named_as(call: Call, dynamic: Sequence[int], wrapper: Any) -> Any:
    """A function of the arguments at the positions `dynamic`, which JAX's errors call as the function of a call.

    They say its name, its file and line, and the names of its arguments.
    """
    fn: Any = call.fn
    while isinstance(fn, partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not hasattr(fn, "__code__") and not inspect.isbuiltin(fn):  # an object that can be called
        fn = inspect.unwrap(type(fn).__call__)
    names = [re.sub(r"\W", "_", call.parameters[i]) for i in dynamic]
    if len(set(names)) == len(names):
        kind = inspect.Parameter.POSITIONAL_ONLY
        wrapper.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        wrapper.__wrapped__ = fn
    return wrapper


def marked(
    call: Call, what: str, argnums: Sequence[int] | int = (), argnames: Sequence[str] | str = ()
) -> tuple[int, ...]:
    """The positions of the arguments that a user marks, as `jax.jit` takes `static_argnums` and `static_argnames`.

    `what` is what both are called before "_argnums" and "_argnames". An argument left at its default is none of the call's.

    Raises: ArgumentError for what is neither a position nor a name of an argument of the function.
    """
    numbers = _listed(f"{what}_argnums", argnums, int, "the position of an argument, or a tuple of positions")
    names = _listed(f"{what}_argnames", argnames, str, "the name of an argument, or a tuple of names")
    known = _names(call.fn)
    found = [_position(call, f"{what}_argnums", number, known) for number in numbers]
    found += [_named(call, f"{what}_argnames", name, known) for name in names]
    return tuple(sorted({position for position in found if position is not None}))


def _listed(what: str, given: Any, kind: type, wanted: str) -> tuple[Any, ...]:
    """One or several marks as a tuple. Raises: ArgumentError."""
    several = given if isinstance(given, (tuple, list, range, set, frozenset)) else (given,)
    if not all(isinstance(one, kind) for one in several):
        raise ArgumentError(f"{what} is {given!r:.200}; give {wanted}")
    return tuple(several)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The names of the parameters of a function: those that a call may give by position, and all.

    `open_ended`: it takes any keyword.
    """

    by_position: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    open_ended: bool = False


def _names(fn: Callable[..., Any]) -> _Names:
    signature = _signature(fn)
    if signature is None:
        return _Names()
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    collecting = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return _Names(
        by_position=tuple(name for name, kind in kinds.items() if kind in positional),
        every=tuple(name for name, kind in kinds.items() if kind not in collecting),
        open_ended=inspect.Parameter.VAR_KEYWORD in kinds.values(),
    )


def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return None


def _position(call: Call, what: str, number: int, known: _Names) -> int | None:
    """The position of an argument of a call by that among the parameters; None where it is left at its default."""
    if -call.positional <= number < call.positional:
        return number % call.positional
    if call.positional <= number < len(known.by_position):
        return _named(call, what, known.by_position[number], known)
    count = len(call.args)
    raise ArgumentError(f"{what} holds {number!r}, but there are {count} arguments; use 0 to {count - 1}")


def _named(call: Call, what: str, name: str, known: _Names) -> int | None:
    """The position of an argument of a call by its name; None where it is left at its default. Raises: ArgumentError."""
    if name in call.parameters:
        return call.parameters.index(name)
    if name in known.every or known.open_ended:
        return None
    names = dict.fromkeys((*known.every, *call.parameters))
    close = get_close_matches(name, names, n=1)
    raise ArgumentError(
        f"{what} holds {name!r}, and {name_of(call.fn)} has no argument of that name; "
        f"{f'use {close[0]!r}' if close else 'use one of ' + ', '.join(map(repr, names))}"
    )
