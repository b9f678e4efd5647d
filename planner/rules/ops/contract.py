"""Rules of products that sum over shared indices: dot_general and its ragged and scaled forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors, replicated
from planner.rules.rule import Dim, Dims, Kind, Rule


def dot_general(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b i k, b k j -> b i j | reduce k`: result dims are batch, then free of the left, then free of the right."""
    del results
    factors = Factors()
    lhs, rhs, result = _dot(factors, operands[0].shape, operands[1].shape, params["dimension_numbers"], "reduce")
    return factors.rule([lhs, rhs], [result])


def scaled_dot(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b i k, b k j, b i l, b m j -> b i j | replicate k l m`: each scale serves a block of the summed dim."""
    del results
    (lhs_sum, rhs_sum), _ = numbers = params["dimension_numbers"]
    factors = Factors()
    lhs, rhs, result = _dot(factors, operands[0].shape, operands[1].shape, numbers, "replicate")

    def scale(aval: Aval, dims: Dims, summed: Sequence[int]) -> Dims:
        return tuple(
            factors.dim(extent, "replicate") if d in summed else dims[d] for d, extent in enumerate(aval.shape)
        )

    scales = [scale(operands[2], lhs, lhs_sum), scale(operands[3], rhs, rhs_sum)]
    return factors.rule([lhs, rhs, *scales], [result])


def ragged_dot_general(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """The rule of a dot whose rows, summed elements or batches come in groups of the sizes that an operand holds.

    Three modes, by the dim of the left operand that is ragged; the ragged dim and the groups must stay whole::

        m k, g k n, g -> m n | replicate m g | reduce k      ragged rows (a mixture of experts)
        m k, k n, g -> g m n | replicate k g                 ragged sum (the gradient of its weights)
        b m k, b k n, g -> b m n | replicate b g | reduce k  ragged batch

    Group sizes of more than one dim differ between rows: then nothing is split.
    """
    numbers = params["ragged_dot_dimension_numbers"]
    lhs_aval, rhs_aval, groups_aval = operands[:3]
    if len(groups_aval.shape) != 1 or len(operands) != 3:
        return replicated(operands, results)
    (lhs_sum, rhs_sum), (lhs_batch, rhs_batch) = numbers.dot_dimension_numbers
    (ragged,) = numbers.lhs_ragged_dimensions
    rhs_groups = tuple(numbers.rhs_group_dimensions)
    factors = Factors()
    group = factors.dim(groups_aval.shape[0], "replicate")
    # The group dims of the right operand are neither batch, summed nor free: leave them out, then put them back.
    kept = [d for d in range(len(rhs_aval.shape)) if d not in rhs_groups]
    inner = (
        (tuple(lhs_sum), tuple(kept.index(d) for d in rhs_sum)),
        (tuple(lhs_batch), tuple(kept.index(d) for d in rhs_batch)),
    )
    shape = [rhs_aval.shape[d] for d in kept]
    lhs, rhs, result = _dot(factors, lhs_aval.shape, shape, inner, "reduce", ragged)
    weights: list[Dim] = [group] * len(rhs_aval.shape)
    for d, dim in zip(kept, rhs, strict=True):
        weights[d] = dim
    if ragged in lhs_sum:
        result = (group, *result)
    return factors.rule([lhs, weights, (group,)], [result])


def _dot(
    factors: Factors,
    lhs: Sequence[int],
    rhs: Sequence[int],
    numbers: Any,
    summed: Kind,
    whole: int = -1,
) -> tuple[Dims, Dims, Dims]:
    """The dims of both operands and the result of a dot; dim `whole` of the left operand must stay whole."""
    (lhs_sum, rhs_sum), (lhs_batch, rhs_batch) = numbers
    left = tuple(
        factors.dim(extent, "replicate" if d == whole else summed if d in lhs_sum else "pass")
        for d, extent in enumerate(lhs)
    )
    shared = {r: left[d] for d, r in zip((*lhs_batch, *lhs_sum), (*rhs_batch, *rhs_sum), strict=True)}
    right = tuple(shared[d] if d in shared else factors.dim(extent) for d, extent in enumerate(rhs))
    result = (
        *(left[d] for d in lhs_batch),
        *(dim for d, dim in enumerate(left) if d not in (*lhs_batch, *lhs_sum)),
        *(dim for d, dim in enumerate(right) if d not in shared),
    )
    return left, right, result
