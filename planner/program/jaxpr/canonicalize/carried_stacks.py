"""Stacks carried: a loop that makes a new stack of a donated one, slice by slice, written to update that one in place.

What a scan takes in slices (xs) and what it gives back in slices (ys) are two stacks to a compiler, so that a donated
cache stands twice in memory while the loop runs, and is copied back behind it. Where the one is given away for the other,
and nothing else reads it, the stack goes through the loop as part of its carry: a trip reads its slice of it and writes
its slice of it. The results are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp

from planner.program.fed_back import pair_outputs
from planner.program.jaxpr.bodies import Structure, body_of, closed, opened, structure_of, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by, scanned, variable
from planner.program.jaxpr.canonicalize.slice_of_stack import Slice, in_stack, is_update
from planner.program.jaxpr.variables import all_named, fresh_var
from planner.program.tracing.traced import Program

Pairs = Mapping[int, int]
"""By the position of a result of a body: that of the argument whose place it takes."""


def with_stacks_carried(program: Program) -> Program:
    """The program with the stacks of its loops carried that take the place of one another."""
    aliases, _ = pair_outputs(program)
    jaxpr = _rewritten(program.jaxpr, aliases)
    return program if jaxpr is program.jaxpr else replace(program, jaxpr=jaxpr)


def _rewritten(jaxpr: Any, pairs: Pairs) -> Any:
    """A body with stacks carried, those of the bodies in it included; the same object where there are none."""
    body = opened(jaxpr)
    found = _Successions(body)
    for result, argument in pairs.items():
        found.lead_back(body.outvars[result], body.invars[argument])
    eqns: list[Any] = []
    renamed: dict[Any, Any] = {}
    for number, eqn in enumerate(body.eqns):
        invars = all_named(eqn.invars, renamed)
        step, structure = eqn.replace(invars=invars) if renamed else eqn, structure_of(eqn)
        stacks = found.stacks.get(number)
        if structure is not None:
            inner_pairs = partial(_inner_pairs, structure, len(eqn.outvars), found.passed.get(number, {}))
            step = with_bodies(step, lambda inner, place, of=inner_pairs: _rewritten(inner, of(place[0])))
        if structure is None or stacks is None:
            eqns.append(step)
            continue
        steps, others = _carrying(step, structure, stacks)
        eqns += steps
        renamed |= others
    if len(eqns) == len(body.eqns) and all(map(lambda a, b: a is b, eqns, body.eqns)):
        return jaxpr
    return with_fields(jaxpr, eqns=eqns, outvars=all_named(body.outvars, renamed))


def _inner_pairs(structure: Structure, results: int, passed: Pairs, name: str) -> Pairs:
    """What takes the place of what in a body: each carry that of the trip before, in a call what does so around it."""
    if structure.kind == "inline":
        return passed
    if structure.kind == "scan":
        return {i: structure.num_consts + i for i in range(structure.num_carry)}
    return {i: structure.num_consts + i for i in range(results)} if name == "body_jaxpr" else {}


@dataclass
class _Successions:
    """Which stacks a body's loops make in the place of others.

    `stacks[number]`: for the equation of this number, by the position of a stack that it gives back, the position of the
    operand whose place it takes; `passed[number]`: the same for a call, by position in its body.
    """

    body: Any
    stacks: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])
    passed: dict[int, dict[int, int]] = field(default_factory=dict[int, dict[int, int]])

    def __post_init__(self) -> None:
        steps = list(enumerate(self.body.eqns))
        self._made = {var: (number, i) for number, eqn in steps for i, var in enumerate(eqn.outvars)}
        # Each variable is followed once and each body read once: a step of many arguments, called in calls, asks of every
        # result whether it follows from every argument.
        self._sources: dict[Any, frozenset[Any]] = {var: frozenset({var}) for var in self.body.invars}
        self._bodies: dict[int, _Successions] = {}
        self._reads: dict[Any, list[int]] = {}
        for number, eqn in (*steps, (len(steps), None)):
            for atom in self.body.outvars if eqn is None else eqn.invars:
                if not isinstance(atom, jex_core.Literal):
                    self._reads.setdefault(atom, []).append(number)

    def lead_back(self, result: Any, argument: Any) -> None:
        """Notes the loops by which a result follows from an argument that is given away for it, if it does."""
        for number, made, taken in self.steps(result, argument) or ():
            eqn, structure = self.body.eqns[number], structure_of(self.body.eqns[number])
            reads = self._reads[eqn.invars[taken]]
            if structure is None or reads[-1] != number or reads.count(number) > 1:
                continue
            if structure.kind == "inline":
                self.passed.setdefault(number, {})[made] = _taken(structure, len(eqn.invars)).index(taken)
            elif structure.kind == "scan" and made >= structure.num_carry and not eqn.effects and structure.length > 0:
                self.stacks.setdefault(number, {})[made] = taken

    def steps(self, result: Any, argument: Any) -> list[tuple[int, int, int]] | None:
        """By which equations a variable takes the place of an argument: (number, position in results, in operands)."""
        if argument not in self.sources(result):
            return None
        if result is argument:
            return []
        number, made = self._made[result]
        operands = self.body.eqns[number].invars
        taken = next(i for i in self._followed(result) if argument in self.sources(operands[i]))
        return [*(self.steps(operands[taken], argument) or ()), (number, made, taken)]

    def sources(self, result: Any) -> frozenset[Any]:
        """The arguments of the body in whose place a variable may be made."""
        if isinstance(result, jex_core.Literal):
            return frozenset()
        found = self._sources.get(result)
        if found is None:
            operands = self.body.eqns[self._made[result][0]].invars if result in self._made else ()
            found = frozenset[Any]().union(*(self.sources(operands[i]) for i in self._followed(result)))
            self._sources[result] = found
        return found

    def _followed(self, result: Any) -> list[int]:
        """The operands, of its shape and type, in whose place a result of an equation may be made."""
        if result not in self._made:
            return []
        number, made = self._made[result]
        eqn = self.body.eqns[number]
        avals = [(i, eqn.invars[i].aval) for i in self._taken_from(eqn, made)]
        return [i for i, aval in avals if (aval.shape, aval.dtype) == (result.aval.shape, result.aval.dtype)]

    def _taken_from(self, eqn: Any, made: int) -> Iterator[int]:
        structure = structure_of(eqn)
        if structure is None:
            yield from (0,) if is_update(eqn) or eqn.primitive.name == "sharding_constraint" else ()
        elif structure.kind == "inline":
            inner = opened(body_of(eqn, structure.bodies[0]))
            if id(inner) not in self._bodies:
                self._bodies[id(inner)] = _Successions(inner)
            sources = self._bodies[id(inner)].sources(inner.outvars[made])
            taken = zip(inner.invars, _taken(structure, len(eqn.invars)), strict=True)
            yield from (i for var, i in taken if var in sources)
        elif structure.kind == "scan":
            first = structure.num_consts + structure.num_carry
            yield from (structure.num_consts + made,) if made < structure.num_carry else range(first, len(eqn.invars))
        elif structure.kind == "while":
            yield structure.cond_consts + structure.num_consts + made


def _taken(structure: Structure, operands: int) -> tuple[int, ...]:
    """The operands of a call that its body takes."""
    return tuple(range(operands)) if structure.takes is None else structure.takes


def _carrying(eqn: Any, structure: Structure, stacks: Pairs) -> tuple[list[Any], dict[Any, Any]]:
    """The equations in the place of a scan that carry stacks of it, and what they call results otherwise."""
    first, carries = structure.num_consts + structure.num_carry, structure.num_carry
    inner = body_of(eqn, structure.bodies[0])
    body = opened(inner)
    index = variable((), jnp.int32)
    steps, given, left = list(body.eqns), list[Any](), list[Any]()
    for made, taken in stacks.items():
        given.append(fresh_var(eqn.invars[taken]))
        part = Slice(
            old=body.invars[taken], new=body.outvars[made], stack=given[-1], index=index, source=eqn.source_info
        )
        steps, stack = in_stack(steps, [var for i, var in enumerate(body.outvars) if i != made], part)
        left.append(stack)
    sliced = [i for i in range(first, len(eqn.invars)) if i not in stacks.values()]
    stacked = [i for i in range(carries, len(eqn.outvars)) if i not in stacks]
    new = with_fields(
        inner,
        eqns=steps,
        invars=[*body.invars[:first], *given, *(body.invars[i] for i in sliced), index],
        outvars=[*body.outvars[:carries], *left, *(body.outvars[i] for i in stacked)],
    )
    run = jex_core.jaxpr_as_fun(closed(new))

    def looped(*operands: Any) -> list[Any]:
        carry = [*operands[structure.num_consts : first], *(operands[i] for i in stacks.values())]
        xs = [*(operands[i] for i in sliced), jnp.arange(eqn.params["length"], dtype=jnp.int32)]
        made = scanned(eqn.params, run, operands[: structure.num_consts], carry, xs)
        found = dict(zip((*range(carries), *stacks, *stacked), made, strict=True))
        return [found[i] for i in range(len(eqn.outvars))]

    return equations_by(looped, eqn.invars, eqn.outvars, eqn.source_info)
