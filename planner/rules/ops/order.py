"""Rules of ops that order elements along one dim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Rule


def sort(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, i j -> i j, i j | replicate j`: the sorted dim must stay whole."""
    factors = Factors()
    sorted_dim = params["dimension"]
    dims = [factors.dim(size, "replicate" if d == sorted_dim else "pass") for d, size in enumerate(operands[0].shape)]
    return factors.rule([dims] * len(operands), [dims] * len(results))


def top_k(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i k, i k | replicate j k`: the dim searched and the dim of what was found must stay whole."""
    (operand,) = operands
    rank = len(operand.shape)
    searched = params.get("axis", params.get("reduction_dimension", -1)) % rank
    factors = Factors()
    pairs = [
        factors.pair(before, after) if d == searched else (factors.dim(before),) * 2
        for d, (before, after) in enumerate(zip(operand.shape, results[0].shape, strict=True))
    ]
    return factors.rule([[left for left, _ in pairs]], [[right for _, right in pairs]] * len(results))
