"""Equal values: what a program computes twice from the same, and compilers compute once.

XLA merges equal ops on equal operands (common subexpressions), such as the indices that every layer derives from one
argument. Not what a gradient computes again to save memory (`remat`): a barrier keeps that apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import REMATS


@dataclass
class EqualValues:
    """By tensor the first one of its body that has the same value, where there is one before it; found while walking."""

    first: dict[int, int] = field(default_factory=dict[int, int])
    _known: dict[Hashable, tuple[int, ...]] = field(default_factory=dict[Hashable, tuple[int, ...]])
    _apart: int = 0
    _bodies: int = 0

    def enter(self, eqn: Any) -> int:
        """Enters the body of a call; returns what `leave` wants to know when it is left."""
        outside = self._apart
        params = eqn.params
        if eqn.primitive.name in REMATS and params.get("differentiated") and params.get("prevent_cse"):
            self._bodies += 1
            self._apart = self._bodies
        return outside

    def leave(self, outside: int) -> None:
        """Leaves the body of a call."""
        self._apart = outside

    def add(self, eqn: Any, operands: Sequence[int], results: Sequence[int], region: int) -> None:
        """Notes an op without a body of its own, whose results are these tensors."""
        if eqn.effects or eqn.primitive.name == "optimization_barrier":
            return
        values: list[Hashable] = [self.first.get(tensor, tensor) for tensor in operands]
        for i, atom in enumerate(eqn.invars):
            if isinstance(atom, jex_core.Literal):
                values[i] = atom.aval, np.asarray(atom.val).tobytes()
        key = (eqn.primitive, tuple(values), tuple(eqn.params.items()), region, self._apart)
        try:
            known = self._known.setdefault(key, tuple(results))
        except TypeError:  # a param that cannot be hashed
            return
        if known[:1] != tuple(results[:1]):
            self.first.update(zip(results, known, strict=True))
