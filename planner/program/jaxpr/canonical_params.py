"""Parameters of equations in a form that is equal for equations that compute alike.

Programs in parameters, such as those of kernels, are compared by what they compute: names of variables, source lines and
names of modules are left out. Everything else keeps its own equality.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import consts_of, opened

_PLAIN = frozenset((type(None), bool, int, float, str))


@dataclass
class CanonicalParams:
    """Gives parameters their canonical form; a program in them is read once."""

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
                return atom.aval, np.asarray(atom.val).tobytes()
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
