"""Added stacks: what a loop adds to an accumulator, and a loop inside stacks, added slice by slice by the loop inside.

A loop over microbatches adds up the gradients of scanned layers: `total + convert(stack)`, of a stack that the backward
loop over the layers makes. Compilers write the stack, read it, and read and write all of the accumulator in every
microbatch. Where nothing else reads the stack, the accumulator goes through the loop inside as part of its carry, and a
trip adds its slice: there is no stack, and the kernel that makes a slice adds it in place. The results are the same to the
bit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax

from planner.program.jaxpr.bodies import Structure, body_of, closed, opened, structure_of, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by, scanned, variable
from planner.program.jaxpr.canonicalize.inlined import inlined, unread_dropped
from planner.program.jaxpr.variables import all_named, fresh_var, is_on_host

SUMS = ("add", "add_any")
SLICEWISE = ("convert_element_type", "div", "mul", "neg", "reduce_precision")
"""Primitives that do to each slice of a stack what they do to the stack, beside scalars."""


def with_stacks_added(jaxpr: Any) -> Any:
    """A program whose loops add slices to the accumulators of loops around them; the same object where none can."""
    body = opened(jaxpr)
    eqns = [with_bodies(eqn, lambda inner, _: with_stacks_added(inner)) for eqn in body.eqns]
    eqns = [with_bodies(eqn, partial(_accumulating, structure_of(eqn))) for eqn in eqns]
    if all(new is old for new, old in zip(eqns, body.eqns, strict=True)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns)


class _Addition(NamedTuple):
    """`result`, the sum of `total` and what `steps` make of a stack: the result of a loop at the position `stack`.

    `places` are the indices of the slice of `total` to which it is added, outermost first.
    """

    stack: int
    steps: tuple[Any, ...]
    total: Any
    result: Any
    places: tuple[Any, ...] = ()


def _accumulating(structure: Structure | None, jaxpr: Any, place: Any) -> Any:
    """The body of a loop whose loops inside add to its carries; the same object where none can."""
    del place
    if structure is None or structure.kind != "scan":
        return jaxpr
    new = _with_carries_added(jaxpr, structure)
    if new is not jaxpr:
        return new
    calls_opened = inlined(jaxpr)
    new = _with_carries_added(calls_opened, structure)
    return jaxpr if new is calls_opened else unread_dropped(new)


def _with_carries_added(jaxpr: Any, structure: Structure) -> Any:
    """A body some of whose carries are sums of themselves and the stack of a loop inside, which adds them up."""
    body = _Body(opened(jaxpr))
    found, removed = defaultdict[int, list[_Addition]](list), set[int]()
    carries = opened(jaxpr).invars[structure.num_consts :][: structure.num_carry]
    for total, result in zip(carries, body.outvars, strict=False):
        number = body.makes_alone(result)
        if (
            number is None
            or body.eqns[number].primitive.name not in SUMS
            or body.reads[total] != 1
            or is_on_host(total)
        ):
            continue
        summed = body.eqns[number]
        terms = [atom for atom in summed.invars if atom is not total]
        stack = body.stack(terms[0], (summed,)) if len(terms) == 1 else None
        if stack is not None:
            found[stack.loop].append(_Addition(stack.position, stack.steps, total, result))
            removed.update((number, *stack.removed))
    return body.adding(jaxpr, found, removed) if found else jaxpr


class _Stack(NamedTuple):
    """A stack that the loop of a number makes, at a `position` among its results, and the `steps` that go on with it.

    Without the equations `removed`, which are some of them, nothing reads it.
    """

    loop: int
    position: int
    steps: tuple[Any, ...]
    removed: tuple[int, ...]


class _Body:
    """A body, and what is read in it how often."""

    def __init__(self, body: Any) -> None:
        self.eqns, self.outvars = body.eqns, body.outvars
        atoms = [*(atom for eqn in self.eqns for atom in eqn.invars), *self.outvars]
        self.reads = Counter(atom for atom in atoms if not isinstance(atom, jex_core.Literal))
        self._made = {var: number for number, eqn in enumerate(self.eqns) for var in eqn.outvars}

    def makes_alone(self, atom: Any) -> int | None:
        """The number of the equation that makes what is read once; None where there is none."""
        return None if isinstance(atom, jex_core.Literal) or self.reads[atom] != 1 else self._made.get(atom)

    def stack(self, atom: Any, steps: tuple[Any, ...], removed: tuple[int, ...] = ()) -> _Stack | None:
        """The stack of which a variable is made slice by slice, and then others by `steps`; None where it is of none."""
        number = self.makes_alone(atom)
        if number is None:
            return None
        eqn, structure = self.eqns[number], structure_of(self.eqns[number])
        if eqn.primitive.name in SLICEWISE:
            arrays = [operand for operand in eqn.invars if operand.aval.shape]
            return self.stack(arrays[0], (eqn, *steps), (*removed, number)) if len(arrays) == 1 else None
        if structure is None or structure.kind != "scan" or eqn.effects or not structure.length:
            return None
        position = eqn.outvars.index(atom)
        late = any(self._made.get(scalar, -1) >= number for scalar in _scalars(steps))
        return None if late or position < structure.num_carry else _Stack(number, position, steps, removed)

    def adding(
        self,
        jaxpr: Any,
        additions: Mapping[int, Sequence[_Addition]],
        removed: Collection[int],
        more: Sequence[Any] = (),
        **fields: Any,
    ) -> Any:
        """The body whose loops, by number, add to what they are given, with `more` equations at its end."""
        eqns: list[Any] = []
        renamed: dict[Any, Any] = {}
        for number, eqn in enumerate((*self.eqns, *more)):
            step = eqn.replace(invars=all_named(eqn.invars, renamed)) if renamed else eqn
            if number in additions:
                steps, others = _with_carries(step, additions[number])
                eqns += steps
                renamed |= others
            elif number not in removed:
                eqns.append(step)
        outvars = all_named(fields.pop("outvars", self.outvars), renamed)
        return with_fields(jaxpr, eqns=eqns, outvars=outvars, **fields)


def _with_carries(eqn: Any, additions: Sequence[_Addition]) -> tuple[list[Any], dict[Any, Any]]:
    """The equations in the place of a loop that add slices to carries of it, and what they call results otherwise."""
    structure, inner = structure_of(eqn), body_of(eqn, ("jaxpr", None))
    if structure is None:
        raise TypeError(f"{eqn.primitive} is no loop")
    body, index = opened(inner), variable((), jnp.int32)
    # What the loop takes besides: the places of slices in loops around it, and scalars.
    besides = (atom for addition in additions for atom in (*addition.places, *_scalars(addition.steps)))
    names = {atom: fresh_var(atom) for atom in besides}
    first, last = structure.num_consts, structure.num_consts + structure.num_carry
    own, more = list[_Addition](), list[Any]()
    found, removed = defaultdict[int, list[_Addition]](list), set[int]()
    known = _Body(body)
    for addition in additions:
        total, places = fresh_var(addition.total), (*all_named(addition.places, names), index)
        within = {**names, addition.total: total}
        steps = tuple(step.replace(invars=all_named(step.invars, within)) for step in addition.steps)
        slice_of = body.outvars[addition.stack]
        stack = known.stack(slice_of, steps)
        own.append(_Addition(addition.stack, steps, total, fresh_var(total), places))
        if stack is None:
            more += _slice_added(own[-1], slice_of, eqn.source_info)
        else:
            found[stack.loop].append(own[-1]._replace(stack=stack.position, steps=stack.steps))
            removed.update(stack.removed)
    stacks = {addition.stack for addition in additions}
    stacked = [position for position in range(structure.num_carry, len(eqn.outvars)) if position not in stacks]
    new = known.adding(
        inner,
        found,
        removed,
        more,
        invars=[*names.values(), *body.invars[:last], *(a.total for a in own), index, *body.invars[last:]],
        outvars=[*body.outvars[: structure.num_carry], *(a.result for a in own), *(body.outvars[i] for i in stacked)],
    )
    run, begin = jex_core.jaxpr_as_fun(closed(new)), len(names) + first
    end, totals = len(names) + last + len(own), structure.num_carry + len(own)
    start, step = (structure.length - 1, -1) if structure.reverse else (0, 1)

    def looped(*operands: Any) -> list[Any]:
        def trip(*values: Any) -> list[Any]:
            made = run(*values)
            # Counted here, not taken from slices of an iota: XLA's GPU compiler updates in place only where what is read
            # and what is written is at one and the same index.
            return [*made[:totals], values[begin + totals] + step, *made[totals:]]

        carry = [*operands[begin:end], jnp.int32(start)]
        made = scanned(eqn.params, trip, operands[:begin], carry, operands[end:])
        return [*made[:totals], *made[totals + 1 :]]

    return equations_by(
        looped,
        [*names, *eqn.invars[:last], *(addition.total for addition in additions), *eqn.invars[last:]],
        [*eqn.outvars[: structure.num_carry], *(a.result for a in additions), *(eqn.outvars[i] for i in stacked)],
        eqn.source_info,
    )


def _slice_added(addition: _Addition, slice_of: Any, source: Any) -> list[Any]:
    """The equations by which a slice is added to its place in a total.

    That is read and written with all its dims: compilers do not see that a squeezed one is read where it is written.
    """
    total, places = addition.total, addition.places
    shape = (*(1 for _ in places), *total.aval.shape[len(places) :])
    before, new = variable(shape, total.aval.dtype), variable(shape, slice_of.aval.dtype)
    eqns = equations_by(partial(_read, shape), [total, *places], [before], source)[0]
    eqns += equations_by(lambda x: lax.expand_dims(x, range(len(places))), [slice_of], [new], source)[0]
    for step in addition.steps:
        invars = [before if atom is total else new if atom.aval.shape else atom for atom in step.invars]
        new = variable(shape, step.outvars[0].aval.dtype)
        eqns.append(step.replace(invars=invars, outvars=[new]))
    return eqns + equations_by(_written, [total, new, *places], [addition.result], source)[0]


def _read(shape: Sequence[int], total: Any, *places: Any) -> Any:
    return lax.dynamic_slice(total, _starts(total, places), shape, allow_negative_indices=False)


def _written(total: Any, new: Any, *places: Any) -> Any:
    return lax.dynamic_update_slice(total, new, _starts(total, places), allow_negative_indices=False)


def _starts(total: Any, places: Sequence[Any]) -> tuple[Any, ...]:
    return (*places, *(0 for _ in total.shape[len(places) :]))


def _scalars(steps: Sequence[Any]) -> list[Any]:
    """The scalars that equations read, but for numbers of the program's own."""
    return [a for step in steps for a in step.invars if not isinstance(a, jex_core.Literal) and not a.aval.shape]
