"""Exchange: ops that slide a window over split space, emitted as `shard_map`s that fetch their halos themselves.

Convolutions in groups are emitted so too, however they are split.

XLA's partitioner computes some of these wrongly when it is told by constraints alone (output features on an earlier axis
of the mesh than space, kernel gradients on a mesh with further axes), so nothing is left to it: border slices travel by
`ppermute`, every device computes its part, and partial sums are added over the axes that split what is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from planner.emit.by_hand import by_hand, laid_split, moving
from planner.emit.partial_sums import add_partial_sums
from planner.pricing.loop_all_reduce import Axes
from planner.program.graph import Graph, Op, Path
from planner.program.jaxpr.canonicalize.rolls import joined
from planner.program.slots import Slot
from planner.rules.primitives import kinds_where
from planner.rules.sliding import CONVOLUTION, POOLING_GRADIENT, ROLL, Slide, hops, margins

Constraints = Mapping[Slot, tuple[PartitionSpec, ...]]


def exchanges(
    graph: Graph, constraints: Constraints, mesh: Mesh | AbstractMesh
) -> dict[Path, Callable[..., Sequence[Any]]]:
    """For the path of every op whose space is split by the constraints on it: a function that computes its result.

    Of every split convolution in groups as well.
    """
    found: dict[Path, Callable[..., Sequence[Any]]] = {}
    for op in graph.of_kinds(kinds_where(lambda row: row.slides is not None)):
        split = laid_split(graph, op, constraints, mesh.size)
        if by_hand(graph, op, split) == "exchange":
            found[op.path] = _exchanged(op, moving(graph, op, split), split.operands, split.results[0], mesh)
    return found


def _exchanged(
    op: Op, moving: Sequence[Slide], operands: Sequence[Axes], made: Axes, mesh: Mesh | AbstractMesh
) -> Callable[..., Sequence[Any]]:
    sizes = dict(mesh.shape)
    if op.kind == CONVOLUTION:
        local = partial(_convolution, op.params, moving, operands, made, sizes)
    elif op.kind == POOLING_GRADIENT:
        local = partial(_pooling_gradient, op.params, moving, operands, sizes)
    elif op.kind == ROLL:
        local = partial(_roll, op.params, moving, operands, sizes)
    else:
        local = partial(_pooling, op.kind, op.params, moving, operands, sizes)
    split = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=tuple(PartitionSpec(*(axes or None for axes in spec)) for spec in operands),
        out_specs=PartitionSpec(*(axes or None for axes in made)),
    )
    return lambda *arrays: (split(*arrays),)


# ---------------------------------------------------------------- what one device computes


def _convolution(
    params: Mapping[str, Any],
    moving: Sequence[Slide],
    operands: Sequence[Axes],
    made: Axes,
    sizes: Mapping[str, int],
    lhs: Any,
    rhs: Any,
) -> Any:
    """The part of a convolution, partial sums added up: scattered where the result has the axes summed over."""
    lhs_spec, rhs_spec, _ = params["dimension_numbers"]
    padding = list(params["padding"])
    for slide in moving:
        parts = _parts(operands[0][slide.image_dim], sizes)
        (margin,) = margins(CONVOLUTION, slide, parts)
        lhs = _extended(lhs, slide.image_dim, operands[0][slide.image_dim], parts, (margin.left, margin.right), 0)
        reach = slide.reach(parts)
        padding[lhs_spec[2:].index(slide.image_dim)] = (reach.low, reach.high)
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    result = lax.conv_general_dilated(
        lhs,
        rhs,
        params["window_strides"],
        padding,
        params["lhs_dilation"],
        params["rhs_dilation"],
        params["dimension_numbers"],
        feature_group_count=lhs.shape[lhs_spec[1]] // rhs.shape[rhs_spec[1]] if feature_groups > 1 else 1,
        batch_group_count=_local_groups(batch_groups, operands[0][lhs_spec[0]], sizes),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
    )
    summed = [axis for dim in rhs_spec[1:] for axis in operands[1][dim]]
    return add_partial_sums(result, summed, made)


def _local_groups(groups: int, axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    """The groups of a part: they lead their dim, so its axes split them before what is inside them."""
    return max(1, groups // _parts(axes, sizes))


def _pooling(
    kind: str,
    params: Mapping[str, Any],
    moving: Sequence[Slide],
    operands: Sequence[Axes],
    sizes: Mapping[str, int],
    image: Any,
) -> Any:
    fill = _identity(kind, image.dtype)
    padding = list(params["padding"])
    for slide in moving:
        axes = operands[0][slide.image_dim]
        parts = _parts(axes, sizes)
        reach = slide.reach(parts)
        image = _extended(image, slide.image_dim, axes, parts, (reach.left, reach.right), fill)
        image = _cropped(image, slide.image_dim, max(0, -reach.low), max(0, -reach.high))
        padding[slide.image_dim] = (max(0, reach.low), max(0, reach.high))
    primitive = getattr(primitives, f"{kind}_p")
    return primitive.bind(image, **{**params, "padding": tuple(padding)})


def _pooling_gradient(
    params: Mapping[str, Any],
    moving: Sequence[Slide],
    operands: Sequence[Axes],
    sizes: Mapping[str, int],
    source: Any,
    image: Any,
) -> Any:
    """The part of `select_and_scatter_add`: of all windows that touch it, what falls into it."""
    kind = "reduce_window_min" if params["select_prim"].name == "le" else "reduce_window_max"
    fill = _identity(kind, image.dtype)
    padding = list(params["padding"])
    kept: list[tuple[int, int, int, int]] = []
    for slide in moving:
        dim, axes = slide.image_dim, operands[1][slide.image_dim]
        parts, extent = _parts(axes, sizes), image.shape[slide.image_dim]
        windows, reach = slide.scattered(parts)
        source = _extended(source, slide.result_dim, axes, parts, (windows.left, windows.right), 0)
        image = _extended(image, dim, axes, parts, (reach.left, reach.right), fill)
        unused = max(0, -reach.high)
        image = _cropped(image, dim, 0, unused)
        padding[dim] = (0, 0)
        kept.append((dim, reach.left, extent, unused))
    result = primitives.select_and_scatter_add_p.bind(source, image, **{**params, "padding": tuple(padding)})
    for dim, start, extent, unused in kept:
        widths = [(0, unused if d == dim else 0, 0) for d in range(result.ndim)]
        result = lax.pad(result, jnp.zeros((), result.dtype), widths)
        result = lax.slice_in_dim(result, start, start + extent, axis=dim)
    return result


def _roll(
    params: Mapping[str, Any], moving: Sequence[Slide], operands: Sequence[Axes], sizes: Mapping[str, int], x: Any
) -> Any:
    """The part of a roll: what enters it comes from the neighbour before it, or behind it, all around or filled."""
    shift, ((dim, axes),) = params["shift"], [(slide.image_dim, operands[0][slide.image_dim]) for slide in moving]
    parts, extent = _parts(axes, sizes), x.shape[dim]
    if params["fill"] is not None:
        entering = _fetched(x, dim, axes, parts, 1 if shift > 0 else -1, abs(shift), params["fill"])
        return joined(entering, x, entering, shift, dim)
    leaving = (extent - shift, extent) if shift > 0 else (0, -shift)
    pairs = [(i, (i + (1 if shift > 0 else -1)) % parts) for i in range(parts)]
    entering = lax.ppermute(lax.slice_in_dim(x, *leaving, axis=dim), tuple(axes), pairs)
    return joined(entering, x, entering, shift, dim)


# ---------------------------------------------------------------- communication


def _parts(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    product = 1
    for axis in axes:
        product *= sizes[axis]
    return product


def _extended(x: Any, dim: int, axes: Sequence[str], parts: int, widths: tuple[int, int], fill: Any) -> Any:
    """A part with the elements of its neighbours on both sides, `fill` beyond the edges."""
    extent = x.shape[dim]
    before = [_fetched(x, dim, axes, parts, hop + 1, n, fill) for hop, n in enumerate(hops(widths[0], extent, parts))]
    after = [_fetched(x, dim, axes, parts, -hop - 1, n, fill) for hop, n in enumerate(hops(widths[1], extent, parts))]
    x = lax.concatenate([*reversed(before), x, *after], dim) if before or after else x
    missing = [width - sum(hops(width, extent, parts)) for width in widths]
    if not any(missing):
        return x
    config = [(missing[0], missing[1], 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, jnp.asarray(fill, x.dtype), config)


def _fetched(x: Any, dim: int, axes: Sequence[str], parts: int, hop: int, width: int, fill: Any) -> Any:
    """The nearest `width` elements of the part `hop` places before this one (behind it where negative)."""
    extent = x.shape[dim]
    start = extent - width if hop > 0 else 0
    border = lax.slice_in_dim(x, start, start + width, axis=dim)
    pairs = [(i, i + hop) for i in range(parts) if 0 <= i + hop < parts]
    received = lax.ppermute(border, tuple(axes), pairs)
    if not np.any(fill):
        return received
    place = lax.axis_index(tuple(axes))
    inside = (place >= hop) if hop > 0 else (place < parts + hop)
    return jnp.where(inside, received, jnp.asarray(fill, x.dtype))


def _cropped(x: Any, dim: int, low: int, high: int) -> Any:
    return lax.slice_in_dim(x, low, x.shape[dim] - high, axis=dim) if low or high else x


def _identity(kind: str, dtype: Any) -> Any:
    """What a pooling may take in without a difference: 0, or the least or greatest value of the type."""
    if kind == "reduce_window_sum":
        return 0
    if dtype == np.bool_:
        return kind == "reduce_window_min"
    floating = jnp.issubdtype(dtype, np.floating)
    if kind == "reduce_window_max":
        return -np.inf if floating else jnp.iinfo(dtype).min
    return np.inf if floating else jnp.iinfo(dtype).max
