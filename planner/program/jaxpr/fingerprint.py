"""A digest of a traced program, by which a saved plan knows it again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import body_of, opened, structure_of
from planner.program.tracing.traced import Program


def fingerprint(program: Program) -> str:
    """A digest of the traced program: its equations, what each reads and its plain parameters.

    Two programs with one fingerprint have the same places to constrain, and the same reasons to.
    """
    digest, texts = hashlib.sha256(), _Texts()

    def visit(jaxpr: Any) -> None:
        body = opened(jaxpr)
        numbers: dict[Any, str] = {}
        for var in (*body.constvars, *body.invars):
            numbers[var] = str(len(numbers))

        def named(atoms: Sequence[Any]) -> str:
            return ",".join(
                ["literal" if isinstance(atom, jex_core.Literal) else numbers.get(atom, "None") for atom in atoms]
            )

        for eqn in body.eqns:
            for var in eqn.outvars:
                numbers[var] = str(len(numbers))
            avals = ", ".join([texts.of_aval(var.aval) for var in eqn.outvars])
            digest.update(f"{named(eqn.invars)}[{avals}]{texts.of_params(eqn)}".encode())
            structure = structure_of(eqn)
            for place in structure.bodies if structure else ():
                visit(body_of(eqn, place))
        digest.update(f"returns {named(body.outvars)}".encode())

    visit(program.jaxpr)
    return digest.hexdigest()[:16]


@dataclass
class _Texts:
    """What primitives with their parameters, and avals, are called in a fingerprint: found once for all that are equal."""

    params: dict[Any, str] = field(default_factory=dict[Any, str])
    avals: dict[Any, str] = field(default_factory=dict[Any, str])
    dtypes: dict[Any, str] = field(default_factory=dict[Any, str])

    def of_params(self, eqn: Any) -> str:
        """The primitive of an equation and its plain parameters."""
        key = (eqn.primitive.name, tuple(eqn.params.values()))
        try:
            found = self.params.get(key)
        except TypeError:  # a parameter that cannot be hashed
            return self._of_params(eqn)
        if found is None:
            found = self.params[key] = self._of_params(eqn)
        return found

    def _of_params(self, eqn: Any) -> str:
        plain = sorted([(name, self.of(value)) for name, value in eqn.params.items() if _is_plain(value)])
        return f"{eqn.primitive.name}{plain}"

    def of_aval(self, aval: Any) -> str:
        found = self.avals.get(aval)
        if found is None:
            found = repr((aval.shape, self.of(aval.dtype)) if hasattr(aval, "shape") else str(aval))
            self.avals[aval] = found
        return found

    def of(self, value: Any) -> str:
        if not isinstance(value, np.dtype):
            return str(value)
        found = self.dtypes.get(value)
        if found is None:
            found = self.dtypes[value] = str(value)
        return found


_PLAIN = frozenset((type(None), bool, int, float, str))


def _is_plain(value: Any) -> bool:
    """Whether a parameter is numbers and words only, so that it reads the same in every process."""
    if type(value) in _PLAIN:
        return True
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, np.dtype))
