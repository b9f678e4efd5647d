"""Rules of ops that address elements by index: gather, scatter, dynamic slices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Combiner, Dim, Dims, Rule


def gather(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`v d, b t 1 -> b t d | reduce v`: dims of the indices and dims taken whole pass.

    Lookups of single elements along a dim may split that dim: each device looks up what it holds, zero elsewhere,
    and the results are added. The dim that holds the index vectors, and dims cut by larger windows, stay whole.
    """
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    operand_shape, indices_shape, shape = operands[0].shape, operands[1].shape, results[0].shape
    factors = Factors()
    batch = factors.dims(indices_shape[:-1])
    operand = _batching(batch, operand_shape, numbers.operand_batching_dims, numbers.start_indices_batching_dims)
    result: list[Dim | None] = [None] * len(shape)
    windows = iter(sorted(numbers.offset_dims))
    for d, extent in enumerate(operand_shape):
        if d in numbers.operand_batching_dims:
            continue
        target = None if d in numbers.collapsed_slice_dims else next(windows)
        if target is not None and sizes[d] == extent:
            operand[d] = result[target] = factors.dim(extent)
            continue
        operand[d] = factors.dim(extent, "reduce" if d in numbers.start_index_map and sizes[d] == 1 else "replicate")
        if target is not None:
            result[target] = factors.dim(sizes[d], "replicate")
    rest = iter(batch)
    dims = [next(rest) if dim is None else dim for dim in result]
    return factors.rule([operand, (*batch, factors.dim(indices_shape[-1], "replicate"))], [dims])


def scatter_combined(
    operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any], *, combiner: Combiner
) -> Rule:
    """`v d, b t 1, b t d -> v d | reduce b t`: updates are combined with what they meet (scatter-add and its kin).

    Split dims of the updates leave partial results. A dim along which updates are single elements may be split in
    operand and result: each device applies the updates that meet its part.
    """
    return _scatter(operands, results, params, combiner)


def scatter(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`v d, b 1, b d -> v d | replicate b`: updates overwrite, so the dims that list them must stay whole."""
    return _scatter(operands, results, params, None)


def _scatter(
    operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any], combiner: Combiner | None
) -> Rule:
    del results
    numbers = params["dimension_numbers"]
    operand_shape, indices_shape, updates_shape = (aval.shape for aval in operands)
    batching = tuple(numbers.scatter_indices_batching_dims)
    factors = Factors()
    batch = tuple(
        factors.dim(extent, "pass" if d in batching else "reduce" if combiner else "replicate")
        for d, extent in enumerate(indices_shape[:-1])
    )
    operand = _batching(batch, operand_shape, numbers.operand_batching_dims, batching)
    updates: list[Dim | None] = [None] * len(updates_shape)
    windows = iter(sorted(numbers.update_window_dims))
    for d, extent in enumerate(operand_shape):
        if d in numbers.operand_batching_dims:
            continue
        source = None if d in numbers.inserted_window_dims else next(windows)
        if source is not None and updates_shape[source] == extent:
            operand[d] = updates[source] = factors.dim(extent)
            continue
        single = source is None or updates_shape[source] == 1
        indexed = d in numbers.scatter_dims_to_operand_dims
        operand[d] = factors.dim(extent, "pass" if indexed and single else "replicate")
        if source is not None:
            updates[source] = factors.dim(updates_shape[source], "replicate")
    rest = iter(batch)
    update_dims = [next(rest) if dim is None else dim for dim in updates]
    indices = (*batch, factors.dim(indices_shape[-1], "replicate"))
    return factors.rule([operand, indices, update_dims], [operand], combiner or "add")


def _batching(batch: Dims, shape: Sequence[int], operand_dims: Sequence[int], indices_dims: Sequence[int]) -> list[Dim]:
    """The operand's dims, of which only those that run along with a dim of the indices are filled in."""
    dims: list[Dim] = [()] * len(shape)
    for d, source in zip(operand_dims, indices_dims, strict=True):
        dims[d] = batch[source]
    return dims


def dynamic_slice(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, (), () -> i k | replicate j k`: dims taken whole pass."""
    del params
    factors = Factors()
    pairs = [_window(factors, *extents) for extents in zip(operands[0].shape, results[0].shape, strict=True)]
    starts = [factors.dims(aval.shape, "replicate") for aval in operands[1:]]
    return factors.rule([[whole for whole, _ in pairs], *starts], [[part for _, part in pairs]])


def dynamic_update_slice(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, i 1, (), () -> i j`: dims that the update covers whole pass, and so do those it has a single element of.

    The device that holds the element writes it. `part_by_part` emits that by hand: left to itself, the compiler drops an
    update that starts past the end, where the whole program moves it to the last place (seen with JAX 0.10.2 and
    0.12.0.1 on every mesh tried). Dims of longer updates must stay whole.
    """
    del params, results
    factors = Factors()
    pairs = [
        (factors.dim(whole), ()) if part == 1 else _window(factors, whole, part)
        for whole, part in zip(operands[0].shape, operands[1].shape, strict=True)
    ]
    starts = [factors.dims(aval.shape, "replicate") for aval in operands[2:]]
    whole = [dim for dim, _ in pairs]
    return factors.rule([whole, [part for _, part in pairs], *starts], [whole])


def _window(factors: Factors, whole: int, part: int) -> tuple[Dim, Dim]:
    """The dims of an array and of a window of it: one factor that passes where the window is the whole extent."""
    if whole == part:
        dim = factors.dim(whole)
        return dim, dim
    return factors.pair(whole, part)
