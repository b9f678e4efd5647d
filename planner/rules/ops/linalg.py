"""Rules of ops on the matrices or vectors in the last dims: decompositions, solves, Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Dim, Factors
from planner.rules.rule import Dims, Rule


def batched(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any], *, core: int) -> Rule:
    """`b i j -> b i j | replicate i j`: batch dims pass, the last `core` dims of the first operand must stay whole.

    All other arrays have the same batch dims, and what follows these must stay whole.
    """
    del params
    return _cores(operands, results, core)


def fft(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b i j -> b i j | replicate i j`: the transformed dims, which come last, must stay whole."""
    return _cores(operands, results, len(params["fft_lengths"]))


def _cores(operands: Sequence[Aval], results: Sequence[Aval], core: int) -> Rule:
    factors = Factors()
    batch_rank = len(operands[0].shape) - core
    batch = factors.dims(operands[0].shape[:batch_rank])
    cores: dict[tuple[int, int], Dim] = {}

    def array(aval: Aval) -> Dims:
        dims = list(batch)
        for place, extent in enumerate(aval.shape[batch_rank:]):
            if (place, extent) not in cores:
                cores[place, extent] = factors.dim(extent, "replicate")
            dims.append(cores[place, extent])
        return tuple(dims)

    return factors.rule([array(aval) for aval in operands], [array(aval) for aval in results])


def triangular_solve(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b i j, b i k -> b i k | replicate i j`, or `b k i` with the matrix on the right: right-hand sides pass."""
    del results
    factors = Factors()
    *batch_shape, rows, columns = operands[0].shape
    batch = factors.dims(batch_shape)
    left, right = factors.dims((rows, columns), "replicate")
    rank = len(batch)
    if params.get("left_side"):
        sides = (left, factors.dim(operands[1].shape[rank + 1]))
    else:
        sides = (factors.dim(operands[1].shape[rank]), left)
    return factors.rule([(*batch, left, right), (*batch, *sides)], [(*batch, *sides)])


def tridiagonal_solve(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b i, b i, b i, b i k -> b i k | replicate i`: three diagonals; right-hand sides pass."""
    del params, results
    factors = Factors()
    *batch_shape, rows = operands[0].shape
    batch = factors.dims(batch_shape)
    row = factors.dim(rows, "replicate")
    sides = factors.dims(operands[3].shape[len(batch) + 1 :])
    return factors.rule([(*batch, row)] * 3 + [(*batch, row, *sides)], [(*batch, row, *sides)])
