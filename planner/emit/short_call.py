"""The short call: what runs a plan whose arguments were looked at, and placed, one by one in an earlier call.

Microseconds count here. Between two calls the devices' threads push the interpreter out of the processor's caches, so that
every function, property and lookup on the way costs up to a microsecond: all that a call needs is bound once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from planner.emit.call_arguments import is_planned
from planner.machine.global_arrays import any_deleted, consume
from planner.machine.target import Target

ShortCall = Callable[[Sequence[Any], Sequence[Any] | None], Any]
"""The result of a call, for its arguments in order and the leaves of those that are not static, where these are at hand."""


def short_call(
    *,
    executable: Callable[..., Any],
    constants: tuple[Any, ...],
    static_args: Mapping[int, Any],
    dynamic: Callable[[Sequence[Any]], Sequence[Any]],
    donated: Callable[[Sequence[Any]], Sequence[Any]],
    checked: Callable[[Sequence[Any]], Any],
    settled: Callable[[Sequence[Any], Any], Any] | None,
    target: Target,
) -> ShortCall:
    """A call of the compiled program, which goes over to `checked` where JAX refuses the arguments.

    `dynamic` gives the arguments that are not static, `donated` the leaves of those that are donated; `settled` makes the
    function's own result of the program's, where that returns more.
    """
    static, flatten = tuple(static_args.items()), jax.tree.leaves
    # On several host devices a deleted argument brings the process down (JAX 0.10); elsewhere JAX refuses it.
    guarded = target.on_host and len(target.devices or ()) > 1
    in_place = False

    def call(args: Sequence[Any], leaves: Sequence[Any] | None) -> Any:
        nonlocal in_place
        given = args
        if static:
            if not all(is_planned(value, args[i]) for i, value in static):
                return checked(args)
            given = dynamic(args)
        if guarded and any_deleted(flatten(given) if leaves is None else leaves):
            return checked(args)
        try:
            # JAX itself checks the arguments, and places those that lie nowhere in particular.
            results = executable(*given, *constants)
        except (TypeError, ValueError):
            # Before anything runs it refuses what lies elsewhere, is traced, or is not what was planned for.
            return checked(args)
        except RuntimeError:
            # So JAX refuses deleted arrays, without their names.
            if any_deleted(flatten(given)):
                return checked(args)
            raise
        if not in_place:
            # To look at every leaf takes longer than JAX takes for all of the call: it is done until it finds nothing.
            in_place = consume(donated(args))
        return results if settled is None else settled(args, results)

    return call
