"""Rules of ops that move elements without computing: reshape, transpose, broadcast, slice, concatenate and the like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Dim, Dims, Rule
from planner.rules.sliding import roll_slides


def created(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`() -> i j`: the results are made of nothing (iota, empty), so each device makes its own part."""
    del params
    factors = Factors()
    dims = factors.dims(results[0].shape)
    return factors.rule([factors.dims(aval.shape, "replicate") for aval in operands], [dims] * len(results))


def broadcast_in_dim(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`j -> i j`: new dims cost nothing to split."""
    factors = Factors()
    shape = results[0].shape
    dims = factors.dims(shape)
    operand = tuple(
        dims[target] if extent == shape[target] else ()
        for extent, target in zip(operands[0].shape, params["broadcast_dimensions"], strict=True)
    )
    return factors.rule([operand, *((),) * (len(operands) - 1)], [dims])


def transpose(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j k -> k i j`."""
    del results
    factors = Factors()
    dims = factors.dims(operands[0].shape)
    return factors.rule([dims], [[dims[d] for d in params["permutation"]]])


def squeeze(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i 1 j -> i j`."""
    del results
    factors = Factors()
    dims = factors.dims(operands[0].shape)
    return factors.rule([dims], [[dim for d, dim in enumerate(dims) if d not in params["dimensions"]]])


def reshape(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`(i j) k -> i j k`: see `regrouped`. Extra operands are sizes of dims, which are scalars."""
    factors = Factors()
    shape = operands[0].shape
    order = params.get("dimensions") or range(len(shape))
    left, right = regrouped(factors, [shape[d] for d in order], results[0].shape)
    operand: list[Dim] = [()] * len(shape)
    for d, dim in zip(order, left, strict=True):
        operand[d] = dim
    return factors.rule([operand, *((),) * (len(operands) - 1)], [right])


def regrouped(factors: Factors, left: Sequence[int], right: Sequence[int]) -> tuple[Dims, Dims]:
    """The dims of two shapes of the same elements in the same order, sharing every factor that can be split in both.

    Both shapes are read from the major end. While all before them agrees, the greatest common divisor of what is left
    of the two current dims is a factor of both. Where it is 1 nothing further can be split in both, up to the
    next point where the products of extents agree: the rest of these dims must stay whole.
    """
    if 0 in left or 0 in right:
        return factors.dims(left, "replicate"), factors.dims(right, "replicate")
    made: tuple[list[Dim], list[Dim]] = ([()] * len(left), [()] * len(right))
    # Dims not yet used up, as [dim, what is left of its extent], the major one last.
    rests = [[[d, extent] for d, extent in enumerate(shape) if extent > 1][::-1] for shape in (left, right)]

    def take(side: int, extent: int, factor: Dim) -> None:
        current = rests[side][-1]
        made[side][current[0]] += factor
        current[1] //= extent
        if current[1] == 1:
            rests[side].pop()

    while rests[0] and rests[1]:
        common = gcd(rests[0][-1][1], rests[1][-1][1])
        if common > 1:
            shared = factors.dim(common)
            take(0, common, shared)
            take(1, common, shared)
            continue
        passed = [1, 1]
        while passed[0] != passed[1] or passed[0] == 1:
            shorter = 0 if passed[0] <= passed[1] else 1
            rest = rests[shorter][-1][1]
            take(shorter, rest, factors.dim(rest, "replicate"))
            passed[shorter] *= rest
    return tuple(made[0]), tuple(made[1])


def slice_(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i k | replicate j k`: a dim taken whole passes, a dim cut must stay whole."""
    strides = params.get("strides") or (1,) * len(operands[0].shape)
    return _resized(operands, results, [stride == 1 for stride in strides])


def pad(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, () -> i k | replicate j k`: a dim without padding passes."""
    return _resized(operands, results, [not any(config) for config in params["padding_config"]])


def rev(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i j | replicate j`: a reversed dim must stay whole."""
    return _resized(operands, results, [d not in params["dimensions"] for d in range(len(operands[0].shape))])


def roll(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i (j p) -> i (j p) | replicate p | permute j`: a dim is turned around by no more than its parts hold (`sliding`)."""
    moving = {slide.image_dim: slide for slide in roll_slides(operands, results, params)}
    factors, rolled = Factors(), params["dimension"]
    dims: list[Dim] = []
    for d, extent in enumerate(operands[0].shape):
        if d in moving:
            dims.append(factors.shared(extent, extent, moving[d].count, "permute")[0])
        else:
            dims.append(factors.dim(extent, "replicate" if d == rolled else "pass"))
    return factors.rule([dims], [dims])


def _resized(operands: Sequence[Aval], results: Sequence[Aval], may_pass: Sequence[bool]) -> Rule:
    """The rule where dims marked, and of one extent before and after, pass; all further operands are scalars."""
    factors = Factors()
    pairs = [
        (factors.dim(before),) * 2 if free and before == after else factors.pair(before, after)
        for before, after, free in zip(operands[0].shape, results[0].shape, may_pass, strict=True)
    ]
    return factors.rule([[left for left, _ in pairs], *((),) * (len(operands) - 1)], [[right for _, right in pairs]])


def concatenate(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, i k -> i l | replicate j k l`."""
    return _joined(operands, results, params["dimension"])


def split(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i k, i l | replicate j k l`."""
    return _joined(operands, results, params["axis"])


def _joined(operands: Sequence[Aval], results: Sequence[Aval], joined: int) -> Rule:
    """The rule where all arrays share all dims but `joined`, which must stay whole in each."""
    factors = Factors()
    dims = factors.dims(results[0].shape)

    def array(aval: Aval) -> Dims:
        return (*dims[:joined], *factors.dims(aval.shape[joined : joined + 1], "replicate"), *dims[joined + 1 :])

    return factors.rule([array(aval) for aval in operands], [array(aval) for aval in results])


def stack(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, i j -> i k j | replicate k`: the new dim must stay whole."""
    factors = Factors()
    axis = params["axis"]
    dims = factors.dims(operands[0].shape)
    new = factors.dim(results[0].shape[axis], "replicate")
    return factors.rule([dims] * len(operands), [(*dims[:axis], new, *dims[axis:])])


def unstack(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i k j -> i j, i j | replicate k`: the dim taken apart must stay whole."""
    factors = Factors()
    axis = params["axis"]
    dims = factors.dims(results[0].shape)
    old = factors.dim(operands[0].shape[axis], "replicate")
    return factors.rule([(*dims[:axis], old, *dims[axis:])], [dims] * len(results))


def tile(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> (k i) j`: the copies are a factor before the dim's own."""
    del results
    factors = Factors()
    dims = factors.dims(operands[0].shape)
    return factors.rule([dims], [[factors.dim(reps) + dim for reps, dim in zip(params["reps"], dims, strict=True)]])
