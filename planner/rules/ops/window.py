"""Rules of ops that slide a window along dims, or scan one: pooling, its gradients, cumulative sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Dim, Rule
from planner.rules.sliding import Slide, gradient_slides, pooling_slides


def reduce_window(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i k | replicate j k`: dims whose window is a single element pass, windowed dims must stay whole.

    Operands of the shape of the first come before scalars (initial values); all results have one shape.
    """
    factors = Factors()
    wide, narrow = _windowed(factors, operands[0], results[0], params, ())
    return factors.rule([wide if aval.shape else () for aval in operands], [narrow] * len(results))


def pooling(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i (j p) -> i (j q) | replicate p q | permute j`: windowed dims are split where all parts see alike (`sliding`)."""
    factors = Factors()
    wide, narrow = _windowed(factors, operands[0], results[0], params, pooling_slides(operands, results, params))
    return factors.rule([wide], [narrow])


def select_and_scatter_add(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i (j q), i (j p) -> i (j p) | replicate p q | permute j`: source, then operand; the gradient of a max pool."""
    source, operand = operands
    factors = Factors()
    wide, narrow = _windowed(factors, operand, source, params, gradient_slides(operands, results, params))
    return factors.rule([narrow, wide], [wide])


def select_and_scatter(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, i k, () -> i j | replicate j k`: operand, source, initial value."""
    del results
    operand, source, _ = operands
    factors = Factors()
    wide, narrow = _windowed(factors, operand, source, params, ())
    return factors.rule([wide, narrow, ()], [wide])


def cumulative(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i j | replicate j`: the scanned dim must stay whole."""
    factors = Factors()
    axis = params["axis"]
    dims = [factors.dim(size, "replicate" if d == axis else "pass") for d, size in enumerate(operands[0].shape)]
    return factors.rule([dims] * len(operands), [dims] * len(results))


def _windowed(
    factors: Factors, wide: Aval, narrow: Aval, params: Mapping[str, Any], moving: Sequence[Slide]
) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """The dims of what windows slide over, and of what has one element per window."""
    rank = len(wide.shape)
    ones = (1,) * rank
    still = [
        window == stride == base == 1 and not any(padding)
        for window, stride, base, padding in zip(
            params["window_dimensions"],
            params.get("window_strides") or ones,
            params.get("base_dilation") or ones,
            params["padding"],
            strict=True,
        )
    ]
    slide_of = {slide.image_dim: slide for slide in moving}
    pairs: list[tuple[Dim, Dim]] = []
    for d, (before, after, free) in enumerate(zip(wide.shape, narrow.shape, still, strict=True)):
        if free and before == after:
            same = factors.dim(before)
            pairs.append((same, same))
        elif d in slide_of:
            pairs.append(factors.shared(before, after, slide_of[d].count, "permute"))
        else:
            pairs.append(factors.pair(before, after))
    return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)
