"""Microbatches: a program as a loop over parts of its batch, whose sums are added up.

What every part needs of the whole batch is computed before the loop, what hangs on all parts behind it. A part holds of
every so many examples one, so that what splits the batch over devices splits every part alike, and nothing moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax

from planner.program.batch_parts import Batch, Part
from planner.program.jaxpr.bodies import closed, opened, with_fields
from planner.program.jaxpr.calls import equations_by, variable
from planner.program.jaxpr.dead_code import without_dead_code
from planner.program.jaxpr.microbatch.slicing import PartWriter, part_variable, put_back, stacked
from planner.program.jaxpr.variables import fresh_var, variables_in

NARROW = ("bfloat16", "float16")


def microbatched(batch: Batch, count: int) -> Any:
    """The program, its batch in `count` parts, as a jaxpr.

    Raises: NotInParts where some op is not known on a part of its operands.
    """
    jaxpr = batch.jaxpr
    body = opened(jaxpr)
    after_loop = [eqn for number, eqn in enumerate(body.eqns) if number in batch.after_loop]
    made = {var: (number, i) for number, eqn in enumerate(body.eqns) for i, var in enumerate(eqn.outvars)}
    needed = read_by(after_loop) | variables_in(body.outvars)
    late = {var for eqn in after_loop for var in eqn.outvars}
    loop = _Loop(batch, count, body)

    def in_loop(var: Any) -> bool:
        place = made.get(var)
        slot = None if place is None else ("result", (place[0],), place[1])
        return (
            slot is not None
            and place is not None
            and place[0] in batch.inside
            and (slot in batch.sums or slot in batch.parts)
        )

    whole = {var for var in needed | loop.operands if not in_loop(var)} - late
    before = _needed_for(body, after_loop, [var for var in made if var in whole])
    there = {var for eqn in before for var in eqn.outvars}
    left = [var for var in made if var in needed and var not in whole and var not in there and var not in late]
    eqns = [*before, *loop.equations(left, made), *after_loop]
    return with_fields(jaxpr, eqns=eqns)


def read_by(eqns: Iterable[Any]) -> set[Any]:
    """The variables that equations read."""
    return {var for eqn in eqns for var in variables_in(eqn.invars)}


def _needed_for(body: Any, after_loop: Sequence[Any], wanted: Sequence[Any]) -> list[Any]:
    """The equations that make these variables of the whole batch, or have effects."""
    removed = set(map(id, after_loop))
    part = body.replace(eqns=[eqn for eqn in body.eqns if id(eqn) not in removed], outvars=list(wanted))
    return list(without_dead_code(part).eqns)


class _Loop:
    """The loop over the parts while it is written: its body, and what that takes."""

    def __init__(self, batch: Batch, count: int, body: Any) -> None:
        self._batch, self._count = batch, count
        self._index = variable((), jnp.int32)
        self._held: dict[Any, tuple[Any, Part | None]] = {}
        self._stacks: dict[tuple[Any, Part], Any] = {}
        self._consts: dict[Any, Any] = {}
        self._source: Any = None
        writer = PartWriter(batch=batch, count=count, index=self._index)
        chosen = [(n, eqn) for n, eqn in enumerate(body.eqns) if n in batch.inside or n in batch.drawn]
        self._source = next(eqn.source_info for n, eqn in chosen if n in batch.inside)
        for i, var in enumerate(body.invars):
            part = batch.parts.get(("invar", (), i))
            if part is not None:
                self._stacks[var, part] = part_variable(var, part, count)
                self._held[var] = self._stacks[var, part], part
        self._eqns = writer.steps(chosen, (), self._held, self._read)
        used = read_by(self._eqns)
        self._stacks = {key: var for key, var in self._stacks.items() if var in used}

    @property
    def operands(self) -> set[Any]:
        """The variables of the whole batch that the loop takes."""
        return {*self._consts, *(var for var, _ in self._stacks)}

    def _read(self, atom: Any, part: Part | None, eqn: Any) -> tuple[Any, list[Any]]:
        """What is there before the loop: a part of it, taken in slices, or all of it."""
        del eqn
        if part is None:
            return self._consts.setdefault(atom, fresh_var(atom)), []
        if (atom, part) not in self._stacks:
            self._stacks[atom, part] = part_variable(atom, part, self._count)
        return self._stacks[atom, part], []

    def equations(self, results: Sequence[Any], made: dict[Any, tuple[int, int]]) -> list[Any]:
        """The equations of the loop, which make these variables."""
        if not results:
            return []
        sums = [var for var in results if self._held[var][1] is None]
        parts = [var for var in results if self._held[var][1] is not None]
        returned = [self._held[var][0] for var in (*sums, *parts)]
        givens = [*self._consts.values(), *self._stacks.values(), self._index]
        inner = part_jaxpr(self._eqns, givens, returned)
        run = jex_core.jaxpr_as_fun(closed(inner))
        consts, count, extent = len(self._consts), self._count, self._batch.extent

        def looped(*operands: Any) -> list[Any]:
            xs = [
                stacked(array, part=part, extent=extent, count=count)
                for array, (_, part) in zip(operands[consts:], self._stacks, strict=True)
            ]

            def trip(carry: Sequence[Any], xs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
                *slices, index = xs
                found = run(*operands[:consts], *slices, index)
                added = [
                    total + lax.convert_element_type(value, total.dtype)
                    for total, value in zip(carry, found[: len(sums)], strict=True)
                ]
                return added, found[len(sums) :]

            zeros = [jnp.zeros(var.aval.shape, adding(var.aval.dtype)) for var in sums]
            totals, stacks = lax.scan(trip, zeros, [*xs, jnp.arange(count, dtype=jnp.int32)])
            whole = [lax.convert_element_type(t, var.aval.dtype) for t, var in zip(totals, sums, strict=True)]
            for stack, var in zip(stacks, parts, strict=True):
                part = self._held[var][1]
                whole.append(stack if part is None else put_back(stack, part=part, extent=extent, count=count))
            return whole

        operands = [*self._consts, *(var for var, _ in self._stacks)]
        return equations_by(looped, operands, [*sums, *parts], self._source)[0]


def part_jaxpr(eqns: Sequence[Any], given: Sequence[Any], returned: Sequence[Any]) -> Any:
    """The body of one part, without what nothing reads."""
    like = opened(jax.make_jaxpr(lambda: ())())
    effects = frozenset(effect for eqn in eqns for effect in eqn.effects)
    whole = like.replace(eqns=list(eqns), invars=list(given), outvars=list(returned), effects=effects)
    return without_dead_code(whole)


def adding(dtype: Any) -> Any:
    """The type in which values of a type are added up."""
    return jnp.float32 if str(dtype) in NARROW else dtype
