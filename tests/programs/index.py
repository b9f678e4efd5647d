"""Ops of random programs that address elements by index, or order them: gather, scatter, dynamic slices, sorts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs.builder import Array, Builder, Do, Op, Pool, Unfit, filled, is_plain, is_real, places, rank, twin

MODES = ("clip", "fill", "promise_in_bounds")


def _take(b: Builder, do: Do, pool: Pool) -> Any:
    """Rows of a table: by indices of the pool where there are some, else by indices made here."""
    table = b.pick(pool, do.a, rank(1, 3))
    indices = b.find(pool, do.b, lambda v: v.dtype == jnp.int32 and v.ndim <= 2) if do.c % 2 else None
    axis = (0, table.ndim - 1)[do.d % 2]
    if indices is None:
        indices = places(((8,), (4, 8))[do.b % 2], table.shape[axis], do.c)
    return jnp.take(table, indices % table.shape[axis], axis=axis, mode=("clip", "fill")[do.c % 2])


def _along(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(1, 3, is_plain))
    axis = do.b % x.ndim
    shape = [*x.shape[:axis], (2, 4)[do.c % 2], *x.shape[axis + 1 :]]
    return jnp.take_along_axis(x, places(shape, x.shape[axis], do.d), axis=axis)


def _axes(dice: random.Random, x: Array) -> tuple[int, list[int], list[int], list[int]]:
    """Of `x` as a table: a batching dim (-1 for none), the dims indexed, their windows, and which of them collapse."""
    dims = list(range(x.ndim))
    batching = dice.choice(dims) if x.ndim >= 2 and dice.random() < 0.4 else -1
    free = [d for d in dims if d != batching]
    indexed = sorted(dice.sample(free, dice.randint(1, min(2, len(free)))))
    window = [1 if dice.random() < 0.7 else max(1, x.shape[d] // 2) for d in indexed]
    collapsed = [d for d, size in zip(indexed, window, strict=True) if size == 1 and dice.random() < 0.7]
    return batching, indexed, window, collapsed


def _starts(b: Builder, do: Do, pool: Pool, shape: Sequence[int], extents: Sequence[int], beyond: int) -> Array:
    """Start indices of shape `(*shape, len(extents))`; up to `beyond` outside on either side, or of the pool."""
    columns: list[Array] = []
    for i, extent in enumerate(extents):
        given = b.find(pool, do.d, lambda v: v.dtype == jnp.int32 and v.shape == tuple(shape)) if do.c % 2 else None
        wide = extent + 2 * beyond
        made = places(shape, wide, do.c + i) if given is None else given % wide
        columns.append(made - beyond)
    return jnp.stack(columns, axis=-1)


def _gather(b: Builder, do: Do, pool: Pool) -> Any:
    """A gather in any of its forms: several indexed dims, windows, collapsed and batching dims, results in any order."""
    x = b.pick(pool, do.a, rank(1, 4, is_plain))
    dice = do.dice()
    batching, indexed, window, collapsed = _axes(dice, x)
    lists = [(4,), (8,), (2, 4)][dice.randrange(3)]
    lists = (x.shape[batching], *lists[:1]) if batching >= 0 else lists
    mode = dice.choice(MODES)
    extents = [x.shape[d] - w + 1 for d, w in zip(indexed, window, strict=True)]
    starts = _starts(b, do, pool, lists, extents, 0 if mode == "promise_in_bounds" else 2)
    sizes = [window[indexed.index(d)] if d in indexed else x.shape[d] for d in range(x.ndim)]
    if batching >= 0:
        sizes[batching] = 1
    kept = x.ndim - len(collapsed) - (batching >= 0)
    total = kept + len(lists)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(sorted(dice.sample(range(total), kept))),
        collapsed_slice_dims=tuple(collapsed),
        start_index_map=tuple(indexed),
        operand_batching_dims=(batching,) if batching >= 0 else (),
        start_indices_batching_dims=(0,) if batching >= 0 else (),
    )
    return lax.gather(x, starts, numbers, tuple(sizes), mode=mode)


def _scatter(b: Builder, do: Do, pool: Pool) -> Any:
    """Adds rows of the pool to those of a value, or takes the greater ones."""
    x = b.pick(pool, do.a, rank(1, 3))
    y = b.pick(pool, do.b, lambda v: v.dtype == x.dtype and v.ndim == x.ndim and v.shape[1:] == x.shape[1:])
    place = x.at[places(y.shape[:1], x.shape[0], do.c)]
    return place.max(y) if do.d % 3 == 2 and not b.differentiated else place.add(y)


def _scatter_any(b: Builder, do: Do, pool: Pool) -> Any:
    """A scatter in any of its forms; what overwrites or multiplies addresses every place at most once."""
    x = b.pick(pool, do.a, rank(1, 4, is_real))
    dice = do.dice()
    batching, indexed, window, inserted = _axes(dice, x)
    kind = dice.choice(("add", "add", "mul", "min", "max", "set"))
    once = kind in ("set", "mul")
    if once:
        indexed, window = indexed[:1], window[:1]
        inserted = [d for d in inserted if d in indexed]
    if b.differentiated and kind in ("min", "max", "mul"):
        raise Unfit
    extents = [x.shape[d] - w + 1 for d, w in zip(indexed, window, strict=True)]
    lists = (dice.choice((4, 8)),)
    lists = (x.shape[batching], *lists) if batching >= 0 else lists
    if once:
        # The windows of one list of places must not meet.
        count = max(1, x.shape[indexed[0]] // window[0])
        lists = (*lists[:-1], min(lists[-1], count))
        order = (jnp.arange(lists[-1], dtype=jnp.int32) + do.c) % count * window[0]
        starts = jnp.broadcast_to(order, lists)[..., None]
    else:
        starts = _starts(b, do, pool, lists, extents, 2)
    sizes = [window[indexed.index(d)] if d in indexed else x.shape[d] for d in range(x.ndim)]
    kept = [d for d in range(x.ndim) if d not in inserted and d != batching]
    total = len(kept) + len(lists)
    windows = sorted(dice.sample(range(total), len(kept)))
    shape, rest = [0] * total, iter(lists)
    for i in range(total):
        shape[i] = sizes[kept[windows.index(i)]] if i in windows else next(rest)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=tuple(windows),
        inserted_window_dims=tuple(inserted),
        scatter_dims_to_operand_dims=tuple(indexed),
        operand_batching_dims=(batching,) if batching >= 0 else (),
        scatter_indices_batching_dims=(0,) if batching >= 0 else (),
    )
    if int(np.prod(shape)) > 4096:
        raise Unfit
    source = b.pick(pool, do.b, lambda v: v.dtype == x.dtype)
    updates = source if source.shape == tuple(shape) else filled(source, shape, do.c)
    functions = {
        "add": lax.scatter_add,
        "mul": lax.scatter_mul,
        "min": lax.scatter_min,
        "max": lax.scatter_max,
        "set": lax.scatter,
    }
    mode = dice.choice(("clip", "drop")) if not once else "drop"
    return functions[kind](
        x,
        starts,
        updates,
        numbers,
        mode=lax.GatherScatterMode.from_any(mode),
        unique_indices=once and dice.random() < 0.5,
    )


def _rows(b: Builder, do: Do, pool: Pool) -> Any:
    """A vmapped lookup or update: every row by its own index, of the pool where there is one."""
    x = b.pick(pool, do.a, rank(2, 3, is_real))
    index = b.find(pool, do.b, lambda v: v.dtype == jnp.int32 and v.shape == x.shape[:1])
    if index is None:
        index = places(x.shape[:1], x.shape[1], do.b)
    index = index % x.shape[1]
    if do.c % 4 == 0:
        return jax.vmap(lambda row, i: row[i])(x, index)
    if do.c % 4 == 1:
        return jax.vmap(lambda row, i: row.at[i].add(row[0]))(x, index)
    if do.c % 4 == 2:
        return jax.vmap(lambda row, i: lax.dynamic_update_index_in_dim(row, row[0], i, 0))(x, index)
    return jax.vmap(lambda row, i: lax.dynamic_slice_in_dim(row, i, max(1, row.shape[0] // 2)))(x, index)


def _start(b: Builder, do: Do, pool: Pool, x: Array) -> Array | int:
    """A start index: a number that may lie outside, or one computed."""
    computed = b.find(pool, do.c, lambda v: v.dtype == jnp.int32 and v.ndim == 0) if do.c % 2 else None
    if computed is not None:
        return computed % 16 - 4
    return jnp.argmax(x.ravel()[:4]) if do.d % 3 == 1 and is_real(x) else do.d - 2


def _dynamic_slice(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(1, kind=is_plain))
    axis = do.b % x.ndim
    width = max(1, x.shape[axis] // (2, 2, x.shape[axis])[do.c % 3])
    sizes = [width if d == axis else extent for d, extent in enumerate(x.shape)]
    starts = [_start(b, do, pool, x) if d == axis else jnp.int32(0) for d in range(x.ndim)]
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


def _dynamic_update(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(1, kind=is_real))
    axis, width = do.b % x.ndim, (1, 2)[do.c % 2]
    update = lax.slice_in_dim(x, 0, min(width, x.shape[axis]), axis=axis)
    update = jnp.sin(update) if jnp.issubdtype(x.dtype, jnp.floating) else update + jnp.asarray(1, x.dtype)
    starts = [_start(b, do, pool, x) if d == axis else jnp.int32(0) for d in range(x.ndim)]
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


def _sort(b: Builder, do: Do, pool: Pool) -> Any:
    """A sort of one value, or of several by one or two of them."""
    x = b.pick(pool, do.a, rank(1, kind=is_real))
    d = do.b % x.ndim
    if do.c % 3 == 0:
        return lax.sort(x, dimension=d)
    place = lax.broadcasted_iota(jnp.int32, x.shape, d)
    if do.c % 3 == 1:
        return lax.sort((x, place), dimension=d, num_keys=1, is_stable=True)
    y = b.pick(pool, do.d, lambda v: is_real(v) and v.shape == x.shape)
    return lax.sort((x, y, place), dimension=d, num_keys=2, is_stable=True)


def _top_k(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, lambda v: rank(1, kind=is_real)(v) and v.shape[-1] >= 2)
    return lax.top_k(x, 2 if do.b % 2 == 0 else x.shape[-1])


def _one_hot(b: Builder, do: Do, pool: Pool) -> Any:
    x = b.pick(pool, do.a, rank(0, 3, lambda v: v.dtype in (jnp.int32, jnp.uint8)))
    classes = (8, 16, 6)[do.b % 3]
    return jax.nn.one_hot(x % classes, classes, dtype=("float32", "bfloat16", "int32")[do.c % 3])


def _search(b: Builder, do: Do, pool: Pool) -> Any:
    """Where the elements of one vector belong in another, or how many fall into each bin."""
    if do.c % 2:
        x = b.pick(pool, do.a, lambda v: v.ndim == 1 and v.dtype == jnp.int32)
        return jnp.bincount(x % 8, length=8)
    x = b.pick(pool, do.a, rank(1, 1))
    y = b.pick(pool, do.b, lambda v: v.dtype == x.dtype and v.ndim <= 2)
    return jnp.searchsorted(jnp.sort(x), y, method=("scan_unrolled", "sort", "compare_all")[do.d % 3])


def _permute(b: Builder, do: Do, pool: Pool) -> Any:
    """Elements in the order of another value, and back."""
    x = b.pick(pool, do.a, rank(1, 3, is_real))
    y = b.pick(pool, do.b, twin(x))
    order = jnp.argsort(y, axis=do.c % x.ndim, stable=True)
    return jnp.take_along_axis(x, order if do.d % 2 else jnp.argsort(order, axis=do.c % x.ndim), axis=do.c % x.ndim)


INDEX: Mapping[str, Op] = {
    "along": _along,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update": _dynamic_update,
    "gather": _gather,
    "one_hot": _one_hot,
    "permute": _permute,
    "rows": _rows,
    "scatter": _scatter,
    "scatter_any": _scatter_any,
    "search": _search,
    "sort": _sort,
    "take": _take,
    "top_k": _top_k,
}
