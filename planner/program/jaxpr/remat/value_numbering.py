"""Value numbers: values of a program that are equal because they are computed alike from equal ones have one number.

A value of a loop's body stands for those of all its passes: the slice of a stack that the body takes has the number of what
another loop of the same length has put into that stack at that place. So what a backward loop computes again is known to be
what its forward loop has computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from planner.program.jaxpr.bodies import Structure, body_of, holds_constants, opened, structure_of

Numbers = dict[Any, int]
"""By variable its value number."""


@dataclass
class ValueNumbers:
    """Gives value numbers to what equations make; equal keys, equal numbers."""

    known: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    count: int = 0
    sliced: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """By depth of a loop and number of a stack: the number of its slice, where a loop has made the stack."""

    def new(self) -> int:
        """The number of a value that equals no other."""
        self.count += 1
        return self.count

    def of(self, key: Hashable) -> int:
        """The number of what has this key."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.new()
        return found

    def read(self, atom: Any, numbers: Numbers) -> int:
        """The number of what an equation reads."""
        if isinstance(atom, jex_core.Literal):
            value = np.asarray(atom.val)
            return self.of(("literal", atom.aval.str_short(), value.tobytes()))
        return numbers[atom]

    def walk(self, eqns: Iterable[Any], numbers: Numbers, depth: int) -> None:
        """Numbers what equations make, one after the other."""
        for eqn in eqns:
            self.add(eqn, numbers, depth)

    def add(self, eqn: Any, numbers: Numbers, depth: int) -> None:
        """Numbers what an equation makes."""
        operands = [self.read(atom, numbers) for atom in eqn.invars]
        structure = structure_of(eqn)
        if _keeps_all_bits(eqn):
            made = operands
        elif eqn.effects:
            made = [self.new() for _ in eqn.outvars]
        elif structure is not None and structure.kind == "scan":
            made = self._of_scan(eqn, structure, operands, depth)
        elif structure is not None and structure.kind == "inline" and structure.takes is None:
            made = self._of_call(eqn, body_of(eqn, structure.bodies[0]), operands, depth)
        else:
            made = self._of_leaf(eqn, operands)
        numbers.update(zip(eqn.outvars, made, strict=True))

    def _of_leaf(self, eqn: Any, operands: list[int]) -> list[int]:
        key = (eqn.primitive.name, tuple(operands), tuple(sorted(eqn.params.items(), key=lambda item: item[0])))
        try:
            return [self.of((key, position)) for position in range(len(eqn.outvars))]
        except TypeError:  # a param that cannot be hashed
            return [self.new() for _ in eqn.outvars]

    def _of_call(self, eqn: Any, called: Any, operands: list[int], depth: int) -> list[int]:
        if holds_constants(called):
            return self._of_leaf(eqn, operands)
        body = opened(called)
        inner = dict(zip(body.invars, operands, strict=True))
        self.walk(body.eqns, inner, depth)
        return [self.read(atom, inner) for atom in body.outvars]

    def _of_scan(self, eqn: Any, structure: Structure, operands: list[int], depth: int) -> list[int]:
        """Results of a loop: a stack is known by what its slices are, what is carried is like nothing else."""
        if holds_constants(body_of(eqn, ("jaxpr", None))):
            return self._of_leaf(eqn, operands)
        body = opened(body_of(eqn, ("jaxpr", None)))
        inner = self.entering(structure, body, operands, depth + 1)
        self.walk(body.eqns, inner, depth + 1)
        return self.leaving(structure, body, inner, depth + 1)

    def entering(self, structure: Structure, body: Any, operands: list[int], depth: int) -> Numbers:
        """The numbers of what the body of a loop takes; `depth` is that of the body."""
        consts, carry = structure.num_consts, structure.num_carry
        numbers: Numbers = {}
        for position, (var, number) in enumerate(zip(body.invars, operands, strict=True)):
            if position < consts:
                numbers[var] = number
            elif position < consts + carry:
                numbers[var] = self.new()
            else:
                numbers[var] = self.slice_of(number, depth)
        return numbers

    def slice_of(self, stack: int, depth: int) -> int:
        """The number of the slice of a stack in the body of a loop of this depth."""
        return self.sliced.get((depth, stack)) or self.of(("slice", depth, stack))

    def leaving(self, structure: Structure, body: Any, inner: Numbers, depth: int) -> list[int]:
        """The numbers of what a loop returns."""
        carry, length = structure.num_carry, structure.length
        made: list[int] = []
        for position, atom in enumerate(body.outvars):
            if position < carry:
                made.append(self.new())
                continue
            number = self.read(atom, inner)
            stack = self.of(("stack", depth, length, number))
            self.sliced[depth, stack] = number
            made.append(stack)
        return made


def _keeps_all_bits(eqn: Any) -> bool:
    """Whether an equation rounds to the type that its operand has: so policies of checkpoints mark what they save."""
    if eqn.primitive.name != "reduce_precision":
        return False
    told, dtype = eqn.params, eqn.outvars[0].aval.dtype
    return (told["exponent_bits"], told["mantissa_bits"]) == (jnp.finfo(dtype).nexp, jnp.finfo(dtype).nmant)
