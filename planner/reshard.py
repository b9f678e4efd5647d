"""Resharding: the collectives that take a tensor from one spec to another, priced and as steps to emit.

A spec is a row of locations: for every mesh axis the dim it splits, or -1. Several axes on one dim are in mesh order,
major first. A reshard from S to T, of a tensor that may also hold partial sums over the axes R, is

    1. reduce     reduce-scatter over R if T splits one dim by all of R, else all-reduce over R
    2. slice      axes that only T has, laid minor on their dim (no communication)
    3. permute    where an axis that leaves a dim is not the minor one there
    4. all-to-all axes that move from one dim to another, one per pair of dims
    5. permute    where the order of the axes on a dim is not yet T's
    6. all-gather axes that only S has, dim by dim

the order in which Shardy lowers a reshard (https://openxla.org/shardy: all-slice, all-to-all, collective-permute,
all-gather), with bytes smallest when they move. `reshard_values` prices all pairs at once; `reshard_steps` lists the
steps of one pair; both follow the same sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.mesh import Mesh

Locations = npt.NDArray[np.int8]
Layout = tuple[tuple[int, ...], ...]
"""The axes of every dim, major first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a reshard: the collective (None for a slice), its axes as a bit set, its bytes and the layout after.

    `bytes` is the larger of the local operand and result.
    """

    kind: str | None
    mask: int
    bytes: float
    layout: Layout


def local_bytes(locations: Locations, sizes: Sequence[int], whole_bytes: float) -> npt.NDArray[np.float64]:
    """Bytes per device of a tensor in each spec of `locations` (shape (n, axes)); returns shape (n,)."""
    factors = np.where(locations >= 0, np.asarray(sizes, dtype=np.float64), 1.0)
    return whole_bytes / np.prod(factors, axis=1)


def reshard_values(
    mesh: Mesh,
    source: Locations,
    partial: npt.NDArray[np.bool_],
    target: Locations,
    *,
    rank: int,
    whole_bytes: float,
    seconds: bool = False,
) -> npt.NDArray[np.float64]:
    """The value of every reshard from `source[i]` (partial over `partial[i]`) to `target[j]`: shape (n, m).

    Parameters: locations of shapes (n, axes), (n, axes) and (m, axes); `rank` and `whole_bytes` of the tensor; `seconds`
    prices in seconds instead of the mesh's objective.
    """
    fixed = mesh.fixed_seconds if seconds else mesh.fixed
    per_byte = mesh.seconds_per_byte if seconds else mesh.per_byte
    axes = len(mesh.sizes)
    shape = (len(source), len(target))
    s = [source[:, a][:, None] for a in range(axes)]
    t = [target[:, a][None, :] for a in range(axes)]
    p = [partial[:, a][:, None] for a in range(axes)]
    start = np.broadcast_to(local_bytes(source, mesh.sizes, whole_bytes)[:, None], shape)

    partial_mask = sum((p[a].astype(np.int64) << a for a in range(axes)), np.zeros((len(source), 1), np.int64))
    scattered = np.zeros(shape, np.int64)
    scatter_dim = np.full(shape, -1, np.int64)
    one_dim = np.ones(shape, np.bool_)
    for a in range(axes):
        here = p[a] & (t[a] >= 0)
        scattered |= here.astype(np.int64) << a
        one_dim &= ~here | (scatter_dim < 0) | (scatter_dim == t[a])
        scatter_dim = np.where(here, t[a], scatter_dim)
    scatter = (scattered == partial_mask) & one_dim
    reduce_mask = np.broadcast_to(partial_mask, shape)
    total = np.where(
        scatter,
        fixed["reduce-scatter"][reduce_mask] + per_byte["reduce-scatter"][reduce_mask] * start,
        fixed["all-reduce"][reduce_mask] + per_byte["all-reduce"][reduce_mask] * start,
    )

    new = [(s[a] < 0) & (t[a] >= 0) for a in range(axes)]
    moved = [(s[a] >= 0) & (t[a] >= 0) & (s[a] != t[a]) for a in range(axes)]
    gone = [(s[a] >= 0) & (t[a] < 0) for a in range(axes)]
    stays = [(s[a] >= 0) & (s[a] == t[a]) for a in range(axes)]
    size = start.copy()
    for a in range(axes):
        size = np.where(new[a], size / mesh.sizes[a], size)

    for mask in _permutes(s, t, new, moved, gone, stays, rank, shape):
        total = total + fixed["collective-permute"][mask] + per_byte["collective-permute"][mask] * size
    for origin in range(rank):
        for goal in range(rank):
            mask = np.zeros(shape, np.int64)
            for a in range(axes):
                mask |= (moved[a] & (s[a] == origin) & (t[a] == goal)).astype(np.int64) << a
            if mask.any():
                total = total + fixed["all-to-all"][mask] + per_byte["all-to-all"][mask] * size
    for dim in range(rank):
        mask = np.zeros(shape, np.int64)
        for a in range(axes):
            here = gone[a] & (s[a] == dim)
            mask |= here.astype(np.int64) << a
            size = np.where(here, size * mesh.sizes[a], size)
        total = total + fixed["all-gather"][mask] + per_byte["all-gather"][mask] * size
    return total


def _permutes(
    s: list[Locations],
    t: list[Locations],
    new: list[npt.NDArray[np.bool_]],
    moved: list[npt.NDArray[np.bool_]],
    gone: list[npt.NDArray[np.bool_]],
    stays: list[npt.NDArray[np.bool_]],
    rank: int,
    shape: tuple[int, int],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The axes permuted before (one that moves away is not minor) and after the all-to-alls (order not T's), as bit sets.

    A permute reorders whole dims: its axes are all those of the dims whose order changes.
    """
    axes = range(len(s))
    before = np.zeros(shape, np.int64)
    after = np.zeros(shape, np.int64)
    for dim in range(rank):
        at_first = [((s[a] == dim) | (new[a] & (t[a] == dim))) for a in axes]
        at_last = [((t[a] == dim) | (gone[a] & (s[a] == dim))) for a in axes]
        stuck_now = np.zeros(shape, np.bool_)
        stuck_late = np.zeros(shape, np.bool_)
        for a in axes:
            for c in axes:
                if a == c:
                    continue
                # c, minor to a on the dim that a leaves: it was there in mesh order behind a, or was sliced in.
                behind = (s[c] == dim) if c > a else np.zeros(shape, np.bool_)
                stuck = (stays[c] & behind) | (new[c] & (t[c] == dim))
                stuck_now |= moved[a] & (s[a] == dim) & (stuck | (gone[c] & behind))
                # A gathered axis only has to be minor at the end: the second permute can take care of it.
                stuck_late |= gone[a] & (s[a] == dim) & (stuck | (moved[c] & (t[c] == dim)))
                # Two axes that end here in the wrong order: first come those that stay, then new, then moved by dim.
                if c < a:
                    same = (t[a] == dim) & (t[c] == dim)
                    later = moved[a] & moved[c] & (s[a] < s[c])
                    stuck_late |= same & ((stays[a] & (new[c] | moved[c])) | (new[a] & moved[c]) | later)
        for a in axes:
            before |= (stuck_now & at_first[a]).astype(np.int64) << a
            after |= (stuck_late & at_last[a]).astype(np.int64) << a
    return before, after


def reshard_steps(
    mesh: Mesh, source: Sequence[int], partial: Sequence[bool], target: Sequence[int], *, rank: int, whole_bytes: float
) -> list[Step]:
    """The steps of one reshard, in order; see the module for the sequence."""
    axes = range(len(mesh.sizes))
    layout: list[list[int]] = [[a for a in axes if source[a] == dim] for dim in range(rank)]
    size = whole_bytes / float(np.prod([mesh.sizes[a] for a in axes if source[a] >= 0] or [1]))
    steps: list[Step] = []

    def snapshot() -> Layout:
        return tuple(tuple(dim) for dim in layout)

    reduced = sum(1 << a for a in axes if partial[a])
    if reduced:
        dims = {target[a] for a in axes if partial[a]}
        scatter = len(dims) == 1 and -1 not in dims
        arriving = [a for a in axes if partial[a] and scatter]
        for a in arriving:
            layout[target[a]].append(a)
        steps.append(
            Step(kind="reduce-scatter" if scatter else "all-reduce", mask=reduced, bytes=size, layout=snapshot())
        )
        for a in arriving:
            size /= mesh.sizes[a]
    sliced = 0
    for a in axes:
        if source[a] < 0 <= target[a] and a not in layout[target[a]]:
            layout[target[a]].append(a)
            size /= mesh.sizes[a]
            sliced |= 1 << a
    layout = [[a for a in dim if source[a] >= 0] + sorted(a for a in dim if source[a] < 0) for dim in layout]
    if sliced:
        steps.append(Step(kind=None, mask=sliced, bytes=0, layout=snapshot()))

    moved = [a for a in axes if source[a] >= 0 and target[a] >= 0 and source[a] != target[a]]
    wanted = [sorted(dim, key=lambda a, d=d: a in moved and source[a] == d) for d, dim in enumerate(layout)]
    if any(_stuck(dim, moved, source, d) for d, dim in enumerate(layout)):
        mask = _changed(layout, wanted)
        layout = wanted
        steps.append(Step(kind="collective-permute", mask=mask, bytes=size, layout=snapshot()))
    for origin, goal in sorted({(source[a], target[a]) for a in moved}):
        together = [a for a in moved if (source[a], target[a]) == (origin, goal)]
        layout[origin] = [a for a in layout[origin] if a not in together]
        layout[goal].extend(together)
        steps.append(Step(kind="all-to-all", mask=sum(1 << a for a in together), bytes=size, layout=snapshot()))
    gone = [a for a in axes if source[a] >= 0 > target[a]]
    ordered = [sorted(a for a in dim if a not in gone) + [a for a in dim if a in gone] for dim in layout]
    if ordered != layout:
        mask = _changed(layout, ordered)
        layout = ordered
        steps.append(Step(kind="collective-permute", mask=mask, bytes=size, layout=snapshot()))
    for dim in layout:
        leaving = [a for a in dim if a in gone]
        if leaving:
            for a in leaving:
                dim.remove(a)
                size *= mesh.sizes[a]
            steps.append(Step(kind="all-gather", mask=sum(1 << a for a in leaving), bytes=size, layout=snapshot()))
    return steps


def _changed(old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> int:
    """The axes of the dims whose order differs, as a bit set."""
    return sum(1 << a for before, after in zip(old, new, strict=True) if list(before) != list(after) for a in after)


def _stuck(dim: Sequence[int], moved: Sequence[int], source: Sequence[int], index: int) -> bool:
    """Whether an axis that moves away from this dim has one behind it that neither moves nor is gathered."""
    leaving = [a in moved and source[a] == index for a in dim]
    first = leaving.index(True) if True in leaving else len(dim)
    return not all(leaving[first:])
