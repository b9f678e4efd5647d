"""Jitted functions: what one that is handed over to be planned brings along, donation and static arguments above all."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding

from planner.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Positions of arguments that a function donates and takes as constants by itself, and what is told of the rest."""

    donate: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def brought(fn: Callable[..., Any], count: int, by_keyword: Sequence[str] = ()) -> Brought:
    """What a function brings along when it is called with `count` positional arguments, and others by keyword.

    Those by keyword have the positions after the others.

    Read of `jax.jit`, `flax.nnx.jit` and `equinox.filter_jit`, and of what `functools.partial` or an instance binds of
    them; nothing for a plain function. Raises: ArgumentError for a jitted function that does not tell.
    """
    bound, keywords = 0, set[str]()
    while isinstance(fn, partial) or inspect.ismethod(fn):
        bound += len(fn.args) if isinstance(fn, partial) else 1
        keywords |= set(fn.keywords) if isinstance(fn, partial) else set()
        fn = fn.func if isinstance(fn, partial) else fn.__func__
    jitted = getattr(fn, "jitted_fn", fn)  # of flax.nnx.jit: a function of the split arguments, one for each
    filtered: Any = fn
    if type(fn).__module__.startswith("equinox.") and isinstance(getattr(fn, "donate_first", None), bool):
        donates = {i for i in range(bound + count) if (filtered.donate_rest if i else filtered.donate_first)}
        named = range(count, count + len(by_keyword) if filtered.donate_rest else count)
        return Brought(donate=_shifted(donates, bound) | set(named), notes=_notes_on_bound(donates, bound))
    if not isinstance(jitted, jax.stages.Wrapped):
        return Brought()
    info = getattr(jitted, "_jit_info", None)
    if info is None:
        raise ArgumentError(
            f"what {jitted!r} donates and which of its arguments are static cannot be read under JAX {jax.__version__}; "
            "give the function that it wraps, with donate_argnums and static_argnums"
        )
    # Positions past the arguments that are given belong to parameters left at their defaults.
    donates, static = (
        {i % (bound + count) for i in positions if -(bound + count) <= i < bound + count}
        for positions in (info.donate_argnums, info.static_argnums)
    )
    if info.compiler_options_kvs:
        raise ArgumentError(
            f"the jitted function has compiler_options={dict(info.compiler_options_kvs)!r}, which a plan cannot take over; "
            "give the function that it wraps"
        )
    of_bound = _notes_on_bound(donates, bound) or _notes_on_bound(keywords & set(info.donate_argnames), 1)
    placements = (*info.in_shardings_leaves, *info.out_shardings_leaves)
    elsewhere = [s for s in placements if isinstance(s, jax.sharding.Sharding) and not isinstance(s, NamedSharding)]
    layouts = [s for s in (*info.in_layouts_leaves, *info.out_layouts_leaves) if s is not None]
    dropped = {"backend": info.backend, "device": info.device, "shardings": elsewhere, "layouts": layouts}
    notes = [
        f"the jitted function's {name} {value!r} is not taken over: the plan places it anew"
        for name, value in dropped.items()
        if value
    ]
    donated, constant = (
        {count + i for i, name in enumerate(by_keyword) if name in names}
        for names in (info.donate_argnames, info.static_argnames)
    )
    return Brought(
        donate=_shifted(donates, bound) | donated, static=_shifted(static, bound) | constant, notes=(*of_bound, *notes)
    )


def _shifted(positions: set[int], bound: int) -> frozenset[int]:
    return frozenset(i - bound for i in positions if i >= bound)


def _notes_on_bound(donates: set[Any], bound: int) -> tuple[str, ...]:
    if not any(isinstance(i, str) or i < bound for i in donates):
        return ()
    return ("an argument that the function donates is bound to it: it is kept, as a constant of the plan",)
