"""Value numbers: values of a program that are equal because they are computed alike from equal ones have one number.

What a loop carries is known by where it begins and how a pass makes it of what the pass before has left, kernels by
their parameters (see `CanonicalParams`), branches result by result. A value of a loop's body stands for those of all
its passes: the slice of a stack that the body takes has the number of what another loop of the same length has put into
that stack at that place; so does what a branch takes of an earlier branch on the same predicate. So what a backward
pass computes again is known to be what the forward pass has computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import (
    Structure,
    body_of,
    consts_of,
    holds_constants,
    manual_axes,
    opened,
    structure_of,
)
from planner.program.jaxpr.calls import keeps_all_bits
from planner.program.jaxpr.canonicalize.inlined import inlined
from planner.program.jaxpr.remat.carry_groups import carry_groups

_PLAIN = frozenset((type(None), bool, int, float, str))


@dataclass
class CanonicalParams:
    """Gives parameters of equations a form that is equal where they compute alike; a program in them is read once.

    Programs in parameters, such as those of kernels, are compared by what they compute: names of variables, source lines
    and names of modules are left out. Everything else keeps its own equality.
    """

    programs: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])
    """By identity a program, which is kept so that no other takes its identity, and the number of its form."""
    forms: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def of(self, params: Mapping[str, Any]) -> Hashable:
        """The canonical form of an equation's parameters. Raises: TypeError, where one has no equality to go by."""
        return tuple([(name, self._of(value)) for name, value in sorted(params.items())])

    def _of(self, value: Any) -> Hashable:
        if type(value) in _PLAIN:
            return value
        if isinstance(value, (tuple, list)):
            return type(value), tuple(map(self._of, value))
        if isinstance(value, Mapping):
            return type(value), tuple([(key, self._of(held)) for key, held in value.items()])
        if isinstance(value, np.ndarray):
            return value.shape, str(value.dtype), value.tobytes()
        if hasattr(opened(value), "eqns"):
            return "program", self._program(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return type(value), tuple([self._of(getattr(value, held.name)) for held in dataclasses.fields(value)])
        hash(value)
        return value

    def _program(self, jaxpr: Any) -> int:
        """The number of a program: that of all programs with the same equations, in the same order."""
        known = self.programs.get(id(jaxpr))
        if known is None:
            form = self._form(jaxpr)
            known = self.programs[id(jaxpr)] = jaxpr, self.forms.setdefault(form, len(self.forms))
        return known[1]

    def _form(self, jaxpr: Any) -> Hashable:
        body = opened(jaxpr)
        numbers: dict[Any, int] = {}
        for var in (*body.constvars, *body.invars):
            numbers[var] = len(numbers)

        def read(atom: Any) -> Hashable:
            if isinstance(atom, jex_core.Literal):
                return _literal(atom)
            return numbers[atom]

        steps: list[Hashable] = []
        for eqn in body.eqns:
            operands = tuple(map(read, eqn.invars))
            for var in eqn.outvars:
                numbers[var] = len(numbers)
            steps.append((eqn.primitive, operands, tuple(v.aval for v in eqn.outvars), self.of(eqn.params)))
        taken = tuple(var.aval for var in (*body.constvars, *body.invars))
        held = tuple(map(id, consts_of(jaxpr)))
        return taken, held, tuple(steps), tuple(map(read, body.outvars))


Numbers = dict[Any, int]
"""By variable its value number."""


@dataclass
class ValueNumbers:
    """Gives value numbers to what equations make; equal keys, equal numbers."""

    known: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    count: int = 0
    sliced: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """By depth of a loop and number of a stack: the number of its slice, where a loop has made the stack."""
    params: CanonicalParams = field(default_factory=CanonicalParams)
    constants: dict[int, tuple[Any, int]] = field(default_factory=dict[int, tuple[Any, int]])
    """By identity an array that a program holds, and its number."""
    wholes: dict[int, tuple[int, int, Any]] = field(default_factory=dict[int, tuple[int, int, Any]])
    """By number what a `shard_map` returns: on which devices it is put together, of parts of which number, and how."""
    reshaped: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict[int, tuple[int, tuple[int, ...]]])
    """By number what a reshape makes: of which array without reshapes, and the shape of that."""
    carried: dict[Hashable, list[tuple[tuple[int, ...], tuple[int, ...]]]] = field(
        default_factory=dict[Hashable, list[tuple[tuple[int, ...], tuple[int, ...]]]]
    )
    """By how loops run and what carries begin with: the numbers of such carries in a pass, and of what they become."""
    branched: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict[int, tuple[int, tuple[int, ...]]])
    """By number what a `cond` returns: of which predicate, and what each branch makes of it."""
    expanded: dict[int, tuple[Any, Any]] = field(default_factory=dict[int, tuple[Any, Any]])
    """By identity the body of a loop, and the same with its calls opened."""

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
            return self.of(("literal", *_literal(atom)))
        return numbers[atom]

    def walk(self, eqns: Iterable[Any], numbers: Numbers, depth: int) -> None:
        """Numbers what equations make, one after the other."""
        for eqn in eqns:
            self.add(eqn, numbers, depth)

    def add(self, eqn: Any, numbers: Numbers, depth: int) -> None:
        """Numbers what an equation makes."""
        operands = [self.read(atom, numbers) for atom in eqn.invars]
        structure = structure_of(eqn)
        if keeps_all_bits(eqn):
            made = operands
        elif eqn.primitive.name == "convert_element_type" and isinstance(eqn.invars[0], jex_core.Literal):
            # JAX converts a number where it traces, or leaves that to the program.
            made = [self.of(("literal", *_literal(eqn.invars[0], eqn.outvars[0].aval)))]
        elif eqn.primitive.name == "reshape" and eqn.params["dimensions"] is None:
            made = [self._of_reshape(eqn, operands[0])]
        elif any(type(effect).__name__ != "NamedAxisEffect" for effect in eqn.effects):
            made = [self.new() for _ in eqn.outvars]
        elif eqn.primitive.name == "shard_map":
            made = self._of_shard_map(eqn, operands, depth)
        elif structure is None:
            made = self._of_leaf(eqn, operands)
        else:
            made = self._of_bodies(eqn, structure, operands, depth)
        numbers.update(zip(eqn.outvars, made, strict=True))

    def _of_leaf(self, eqn: Any, operands: list[int]) -> list[int]:
        try:
            key = self.of((eqn.primitive.name, tuple(operands), self.params.of(eqn.params)))
        except TypeError:  # a param that cannot be hashed
            return [self.new() for _ in eqn.outvars]
        return [key] if len(eqn.outvars) == 1 else [self.of((key, position)) for position in range(len(eqn.outvars))]

    def _of_reshape(self, eqn: Any, operand: int) -> int:
        """The number of a reshape: that of what was reshaped first, where it gets its shape back."""
        first, shape = self.reshaped.get(operand, (operand, eqn.invars[0].aval.shape))
        if eqn.outvars[0].aval.shape == shape:
            return first
        made = self.of(("reshape", first, eqn.outvars[0].aval.shape, eqn.params.get("sharding")))
        self.reshaped[made] = first, shape
        return made

    def _of_bodies(self, eqn: Any, structure: Structure, operands: list[int], depth: int) -> list[int]:
        """Results of an equation whose bodies are part of the graph."""
        bodies = [body_of(eqn, place) for place in structure.bodies]
        match structure.kind:
            case "inline":
                taken = operands if structure.takes is None else [operands[i] for i in structure.takes]
                return self._of_body(bodies[0], taken, depth)
            case "scan":
                if holds_constants(bodies[0]):
                    return self._of_leaf(eqn, operands)
                body = self._with_calls_opened(opened(bodies[0]))
                inner = self.within(eqn, structure, body, operands, depth + 1)
                return self.leaving(structure, body, inner, depth + 1)
            case "while":
                return self._of_while(structure, bodies, operands, depth + 1)
            case "cond":
                return self._of_cond(bodies, operands[0], operands[1:], depth)

    def _of_cond(self, bodies: Sequence[Any], predicate: int, operands: list[int], depth: int) -> list[int]:
        """Results of branches; what an earlier `cond` of the same predicate returns is in each branch what that made."""
        made: list[list[int]] = []
        for branch, body in enumerate(bodies):
            earlier = [self.branched.get(number, (0, ())) for number in operands]
            taken = [
                parts[branch] if on == predicate else number
                for number, (on, parts) in zip(operands, earlier, strict=True)
            ]
            made.append(self._of_body(body, taken, depth))
        results: list[int] = []
        for either in zip(*made, strict=True):
            results.append(self.of(("cond", predicate, either)))
            self.branched[results[-1]] = predicate, either
        return results

    def _of_body(self, jaxpr: Any, operands: Sequence[int], depth: int) -> list[int]:
        body = opened(jaxpr)
        inner = dict(zip(body.invars, operands, strict=True))
        inner.update((var, self.new()) for var in body.constvars)
        inner.update((var, self.constant(value)) for var, value in zip(body.constvars, consts_of(jaxpr), strict=False))
        self.walk(body.eqns, inner, depth)
        return [self.read(atom, inner) for atom in body.outvars]

    def constant(self, value: Any) -> int:
        """The number of an array that a program holds: that of all equal ones; large ones are equal if the same."""
        if id(value) not in self.constants:
            self.constants[id(value)] = value, self.of(("constant", _content(value)))
        return self.constants[id(value)][1]

    def _with_calls_opened(self, body: Any) -> Any:
        """The body of a loop in which what depends on which carry can be told, result by result."""
        known = self.expanded.get(id(body))
        if known is None:
            known = self.expanded[id(body)] = body, inlined(body, remats=True)
        return known[1]

    def _of_shard_map(self, eqn: Any, operands: list[int], depth: int) -> list[int]:
        """Results of a body that runs on every device on its parts of the operands."""
        params = eqn.params
        on = self.of(("devices", params["mesh"], manual_axes(eqn)))
        parts = [self._part(on, *taken) for taken in zip(operands, params["in_specs"], strict=True)]
        made: list[int] = []
        for part in zip(self._of_body(params["jaxpr"], parts, depth), params["out_specs"], strict=True):
            made.append(self.of(("whole", on, *part)))
            self.wholes[made[-1]] = on, *part
        return made

    def _part(self, on: int, whole: int, spec: Any) -> int:
        """The number of a device's part of an array: what was put together of such parts is taken apart into them."""
        put = self.wholes.get(whole)
        return put[1] if put is not None and (put[0], put[2]) == (on, spec) else self.of(("part", on, whole, spec))

    def _of_while(self, structure: Structure, bodies: Sequence[Any], operands: list[int], depth: int) -> list[int]:
        """Results of a loop without a length: what is carried, all of which depends on how long it runs."""
        condition, body = bodies
        first, last = structure.cond_consts, structure.cond_consts + structure.num_consts
        begun = operands[last:]
        carried = [self.of(("carried", depth, position)) for position in range(len(begun))]
        left = self._of_body(body, [*operands[first:last], *carried], depth)
        goes_on = self._of_body(condition, [*operands[:first], *carried], depth)
        key = self.of(("while", tuple(begun), tuple(left), *goes_on))
        return [self.of((key, position)) for position in range(len(begun))]

    def within(self, eqn: Any, structure: Structure, body: Any, operands: Sequence[int], depth: int) -> Numbers:
        """The numbers of all values in the body of a scan, whose depth this is."""
        consts, carry = structure.num_consts, structure.num_carry
        numbers: Numbers = dict(zip(body.invars[:consts], operands, strict=False))
        for var, number in zip(body.invars[consts + carry :], operands[consts + carry :], strict=True):
            numbers[var] = self.slice_of(number, depth)
        carried, begun = body.invars[consts : consts + carry], operands[consts : consts + carry]
        run = depth, eqn.params["length"], eqn.params["reverse"]
        before, groups = carry_groups(body, carried)
        self.walk(before, numbers, depth)
        for group in groups:
            start = tuple([begun[position] for position in group.carries])
            known = self.carried.setdefault((run, start), [])
            fresh, left = tuple([self.new() for _ in start]), ()
            for now, then in (*known, (fresh, ())):
                # By induction: what begins alike and goes on alike, were it the same in a pass, is the same in every pass.
                numbers.update((carried[position], number) for position, number in zip(group.carries, now, strict=True))
                self.walk(group.eqns, numbers, depth)
                left = tuple([self.read(body.outvars[position], numbers) for position in group.carries])
                if left == then:
                    break
            else:
                known.append((fresh, left))
                if len(start) > 1:
                    for alone, now, then in zip(start, fresh, left, strict=True):
                        self.carried.setdefault((run, (alone,)), []).append(((now,), (then,)))
        return numbers

    def slice_of(self, stack: int, depth: int) -> int:
        """The number of the slice of a stack in the body of a loop of this depth."""
        return self.sliced.get((depth, stack)) or self.of(("slice", depth, stack))

    def leaving(self, structure: Structure, body: Any, inner: Numbers, depth: int) -> list[int]:
        """The numbers of what a scan returns."""
        first, length = structure.num_consts, structure.length
        made = [self.of(("after", inner[var])) for var in body.invars[first : first + structure.num_carry]]
        for atom in body.outvars[structure.num_carry :]:
            number = self.read(atom, inner)
            stack = self.of(("stack", depth, length, number))
            self.sliced[depth, stack] = number
            made.append(stack)
        return made


def _literal(atom: Any, aval: Any = None) -> tuple[Hashable, ...]:
    """A number of the program's own, as it is or as one of another type, however it is held."""
    own, aval = np.asarray(atom.val, atom.aval.dtype), aval or atom.aval
    return aval.str_short(), own.astype(aval.dtype).tobytes()


SMALL_BYTES = 2**20
"""Arrays of up to so many bytes are compared by what they hold."""


def _content(value: Any) -> Hashable:
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and value.nbytes <= SMALL_BYTES:
        return value.shape, dtype, np.asarray(value).tobytes()
    return id(value)
