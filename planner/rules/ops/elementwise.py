"""Rules of ops that compute every element of the result from the same element of each operand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Dim, Factors
from planner.rules.rule import Dims, Rule


def aligned(factors: Factors, dims: Dims, shape: Sequence[int], aval: Aval) -> Dims:
    """The dims of an operand that is broadcast against `shape` (whose dims are `dims`) as numpy would, rank kept.

    Scalars have no dims, dims of extent 1 no factor; a dim that fits neither way must stay whole.
    """
    if not aval.shape:
        return ()
    if len(aval.shape) != len(shape):
        return factors.dims(aval.shape, "replicate")
    return tuple(
        dim if extent == whole else factors.dim(extent, "replicate")
        for dim, extent, whole in zip(dims, aval.shape, shape, strict=True)
    )


def elementwise(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, i j, () -> i j`: operands have the shape of the results, extents of 1 in its place, or no dims at all."""
    del params
    factors = Factors()
    shape = results[0].shape
    dims = factors.dims(shape)
    return factors.rule(
        [aligned(factors, dims, shape, aval) for aval in operands],
        [aligned(factors, dims, shape, aval) for aval in results],
    )


def paired(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i, j k -> i, j k`: result n is operand n, each pair with factors of its own."""
    del params, results
    factors = Factors()
    dims = [factors.dims(aval.shape) for aval in operands]
    return factors.rule(dims, dims)


def leading(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i j k | replicate k`: each element becomes a short trailing dim, or is made of one.

    Bitcasts between types of different size, and key arrays and the words that a key consists of.
    """
    del params
    (operand,), (result,) = operands, results
    factors = Factors()
    shared: tuple[Dim, ...] = factors.dims(min(operand.shape, result.shape, key=len))
    return factors.rule(
        [shared + factors.dims(operand.shape[len(shared) :], "replicate")],
        [shared + factors.dims(result.shape[len(shared) :], "replicate")],
    )
