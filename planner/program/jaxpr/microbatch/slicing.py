"""Equations on one part of the batch: those of a program with smaller arrays, bodies included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.extend.core as jex_core
from jax import lax

from planner.program.batch_parts import Batch, Part
from planner.program.graph import Path
from planner.program.jaxpr.bodies import REMATS, Structure, body_of, body_path, closed, opened, put_body, structure_of
from planner.program.jaxpr.calls import equations_by
from planner.program.jaxpr.microbatch.sliced_steps import check_kernel, check_part, on_parts, part_params

Held = Mapping[Any, tuple[Any, Part | None]]
"""By variable of the whole program: the one that stands for it here, and where the batch lies in it if it is a part."""


def part_variable(var: Any, part: Part | None, count: int) -> Any:
    """A new variable like another, for one of `count` parts of what that holds."""
    aval = var.aval
    return jex_core.Var(aval if part is None else aval.update(shape=part.shape(aval.shape, count)))


def taken(array: Any, index: Any, *, part: Part, extent: int, count: int) -> Any:
    """The part of this index of a whole array: of every `count` examples one."""
    apart = lax.reshape(array, _apart_shape(array.shape, part, extent, count))
    found = lax.dynamic_index_in_dim(apart, index, part.dim + 2, keepdims=False)
    return lax.reshape(found, part.shape(array.shape, count))


def stacked(array: Any, *, part: Part, extent: int, count: int) -> Any:
    """All parts of a whole array, one behind the other along a new leading dim."""
    apart = lax.reshape(array, _apart_shape(array.shape, part, extent, count))
    at = part.dim + 2
    transposed = lax.transpose(apart, (at, *(d for d in range(apart.ndim) if d != at)))
    return lax.reshape(transposed, (count, *part.shape(array.shape, count)))


def put_back(stack: Any, *, part: Part, extent: int, count: int) -> Any:
    """The whole array of its parts, as `stacked` lays them."""
    whole = tuple(e * count if d == part.dim else e for d, e in enumerate(stack.shape[1:]))
    apart = _apart_shape(whole, part, extent, count)
    at = part.dim + 2
    apart_parts = lax.reshape(stack, (count, *apart[:at], *apart[at + 1 :]))
    order = (*range(1, at + 1), 0, *range(at + 1, len(apart)))
    return lax.reshape(lax.transpose(apart_parts, order), whole)


def _apart_shape(shape: Sequence[int], part: Part, extent: int, count: int) -> tuple[int, ...]:
    """A shape whose dim of the batch is four: what is before, the examples of a part, the parts, what is after.

    The parts are the minor of the two, so that what splits the batch over devices splits every part of it alike.
    """
    return (
        *shape[: part.dim],
        part.before,
        extent // count,
        count,
        part.after,
        *shape[part.dim + 1 :],
    )


@dataclass(kw_only=True)
class PartWriter:
    """Writes equations for one of `count` parts of the batch.

    `index` is the variable of the part's number in the body that is being written, `indexed` whether that is read.
    """

    batch: Batch
    count: int
    index: Any
    indexed: bool = False
    apart: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def steps(
        self,
        eqns: Iterable[tuple[int, Any]],
        path: Path,
        held: dict[Any, tuple[Any, Part | None]],
        read: Callable[[Any, Part | None, Any], tuple[Any, list[Any]] | None],
    ) -> list[Any]:
        """Equations, given with their numbers in the body of this path, on one part; what they make joins `held`.

        `read` gives a variable of what is not held, for a part of it or whole, and equations that make it.
        """
        found: list[Any] = []
        for number, eqn in eqns:
            here = (*path, number)
            invars = [
                self._operand(atom, ("operand", here, i), held, read, eqn, found) for i, atom in enumerate(eqn.invars)
            ]
            parts = [self._part(atom, held) for atom in eqn.invars]
            outvars: list[Any] = []
            for i, var in enumerate(eqn.outvars):
                part = self.batch.parts.get(("result", here, i))
                outvars.append(var if isinstance(var, jex_core.DropVar) else part_variable(var, part, self.count))
                if isinstance(var, jex_core.DropVar) and part is not None:
                    outvars[-1] = part_variable(var, part, self.count)
                held[var] = outvars[-1], part
            structure = structure_of(eqn)
            kernel = on_parts(eqn) if any(parts) else None
            if kernel is not None:
                check_kernel(eqn, kernel, invars, outvars)
                found += equations_by(kernel, invars, outvars, eqn.source_info)[0]
            elif structure is None:
                step = eqn.replace(invars=invars, outvars=outvars, params=part_params(eqn, invars, outvars))
                if any(part is not None for _, part in (held[var] for var in eqn.outvars)) or any(parts):
                    check_part(step)
                found.append(step)
            else:
                found += self._with_bodies(eqn, structure, here, invars, outvars, parts)
        return found

    def _part(self, atom: Any, held: Held) -> Part | None:
        return None if isinstance(atom, jex_core.Literal) or atom not in held else held[atom][1]

    def _operand(
        self,
        atom: Any,
        slot: Any,
        held: dict[Any, tuple[Any, Part | None]],
        read: Callable[[Any, Part | None, Any], tuple[Any, list[Any]] | None],
        eqn: Any,
        found: list[Any],
    ) -> Any:
        """What stands for an operand here; equations that take a part of it join those `found`."""
        if isinstance(atom, jex_core.Literal):
            return atom
        wanted = self.batch.cut.get(slot)
        if atom not in held:
            got = read(atom, wanted, eqn)
            if got is not None:
                found += got[1]
                return got[0]
            held[atom] = atom, None
        var, part = held[atom]
        if wanted is None or part is not None:
            return var
        key = (var, wanted)
        if key not in self.apart:
            self.apart[key] = part_variable(var, wanted, self.count)
            self.indexed = True
            cut = partial(taken, part=wanted, extent=self.batch.extent, count=self.count)
            found += equations_by(cut, [var, self.index], [self.apart[key]], eqn.source_info)[0]
        return self.apart[key]

    def body(self, jaxpr: Any, path: Path, parts: Sequence[Part | None]) -> tuple[Any, Any]:
        """A body on one part, and the variable of the part's number, which it takes last if it reads that, else None."""
        body = opened(jaxpr)
        held: dict[Any, tuple[Any, Part | None]] = {
            var: (part_variable(var, part, self.count), part) for var, part in zip(body.invars, parts, strict=True)
        }
        held.update({var: (var, None) for var in body.constvars})
        outer, self.index, self.indexed = (self.index, self.indexed), jex_core.Var(self.index.aval), False
        eqns = self.steps(enumerate(body.eqns), path, held, lambda atom, part, eqn: None)
        like = body.eqns[-1] if body.eqns else None
        outvars: list[Any] = []
        for i, atom in enumerate(body.outvars):
            outvars.append(self._operand(atom, ("outvar", path, i), held, lambda *_: None, like, eqns))
        index = self.index if self.indexed else None
        self.index, self.indexed = outer[0], outer[1] or self.indexed
        invars = [held[var][0] for var in body.invars]
        new = body.replace(eqns=eqns, invars=[*invars, *([] if index is None else [index])], outvars=outvars)
        return (new if jaxpr is body else jaxpr.replace(jaxpr=new)), index

    def _with_bodies(
        self,
        eqn: Any,
        structure: Structure,
        here: Path,
        invars: list[Any],
        outvars: list[Any],
        parts: Sequence[Part | None],
    ) -> list[Any]:
        """The equations in the place of one with bodies."""
        made: list[tuple[Any, Any]] = []
        for place in structure.bodies:
            inner, path = body_of(eqn, place), body_path(here, place)
            count = len(opened(inner).invars)
            entering = [self.batch.parts.get(("invar", path, i)) for i in range(count)]
            if structure.kind == "inline":
                entering = [parts[i] for i in structure.takes or range(count)]
            elif structure.kind == "while" and place == structure.bodies[0]:
                carries = count - structure.cond_consts
                looped = body_path(here, structure.bodies[1])
                entering[structure.cond_consts :] = [
                    self.batch.parts.get(("invar", looped, structure.num_consts + i)) for i in range(carries)
                ]
            made.append(self.body(inner, path, entering))
        params = dict(eqn.params)
        if all(index is None for _, index in made):
            for place, (inner, _) in zip(structure.bodies, made, strict=True):
                put_body(params, place, inner)
            return [eqn.replace(invars=invars, outvars=outvars, params=params)]
        return _with_index(eqn, structure, made, [*invars, self.index], outvars)


def _with_index(
    eqn: Any, structure: Structure, made: Sequence[tuple[Any, Any]], operands: Sequence[Any], outvars: Sequence[Any]
) -> list[Any]:
    """The equations in the place of one whose bodies also take the number of the part, the last of `operands`."""
    if eqn.primitive.name in REMATS:
        params = dict(eqn.params)
        put_body(params, structure.bodies[0], made[0][0])
        return [eqn.replace(invars=list(operands), outvars=list(outvars), params=params)]
    calls = [_call(inner, index is not None) for inner, index in made]
    consts = structure.cond_consts + structure.num_consts

    def scan(*operands: Any) -> list[Any]:
        *values, index = operands
        first = consts + structure.num_carry

        def trip(carry: Sequence[Any], xs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
            results = calls[0](*values[:consts], *carry, *xs, index)
            return results[: structure.num_carry], results[structure.num_carry :]

        carry, ys = lax.scan(
            trip,
            list(values[consts:first]),
            list(values[first:]),
            length=eqn.params["length"],
            reverse=eqn.params["reverse"],
            unroll=eqn.params["unroll"],
        )
        return [*carry, *ys]

    def loop(*operands: Any) -> list[Any]:
        *values, index = operands
        test, body = values[: structure.cond_consts], values[structure.cond_consts : consts]
        return lax.while_loop(
            lambda carry: calls[0](*test, *carry, index)[0],
            lambda carry: calls[1](*body, *carry, index),
            list(values[consts:]),
        )

    def branch(*values: Any) -> list[Any]:
        return lax.switch(values[0], calls, *values[1:])

    function = {"scan": scan, "while": loop, "cond": branch, "inline": lambda *values: calls[0](*values)}[
        structure.kind
    ]
    return equations_by(function, operands, outvars, eqn.source_info)[0]


def _call(jaxpr: Any, indexed: bool) -> Callable[..., list[Any]]:
    """A body as a function of its operands and the number of the part."""
    run = jex_core.jaxpr_as_fun(closed(jaxpr))
    return run if indexed else lambda *operands: run(*operands[:-1])
