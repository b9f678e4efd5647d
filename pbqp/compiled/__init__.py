"""The method for large problems, its inner loops compiled with numba.

In: a problem of more than `COMPILED_CHOICES` choices, as arrays.
Out: an assignment and a lower bound.
Entry: `pbqp.compiled.primal_dual.run_primal_dual`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pbqp.problem import Array

COMPILED_CHOICES = 2_000
"""Choices of a problem from which on it is solved compiled: the first time on a machine, compiling takes ten seconds."""
LARGE_CHOICES = 50_000
"""Choices of a problem from which on a gap may stay."""


def is_compiled(node_costs: Sequence[Array]) -> bool:
    """Whether a problem with so many choices, and all that is cut out of it, is solved compiled."""
    return sum(costs.size for costs in node_costs) > COMPILED_CHOICES


def is_large(node_costs: Sequence[Array]) -> bool:
    """Whether a problem with so many choices, and all that is cut out of it, is so large that a gap may stay."""
    return sum(costs.size for costs in node_costs) > LARGE_CHOICES
