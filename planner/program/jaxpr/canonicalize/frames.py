"""Frames: arrays of the extents of a grid that hold smaller arrays, so that what is computed of these can be split.

Element `i` of the smaller array is element `offset + i` of its frame, along each dim; what is around it is never read. A
slice of a grid is a roll of it, elementwise ops work on frames, and arrays that are put together are selected from theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax import lax

from planner.program.jaxpr.canonicalize.rolls import roll

SLACK = 8
"""A frame has at most an eighth of elements along a dim that are not those of the array that it holds."""

_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp complex conj convert_element_type
    copy cos cosh div eq erf erf_inv erfc exp exp2 expm1 floor ge gt imag integer_pow is_finite le lgamma log
    log1p logistic lt max min mul ne neg nextafter not or pow real rem round rsqrt select_n sign sin sinh sqrt
    square sub tan tanh xor
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
NEUTRAL: Mapping[str, Callable[[Any], Any]] = {
    "reduce_and": lambda _: True,
    "reduce_max": lambda dtype: -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min,
    "reduce_min": lambda dtype: jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max,
    "reduce_or": lambda _: False,
    "reduce_prod": lambda _: 1,
    "reduce_sum": lambda _: 0,
}
"""The element that a reduction of a type may read without another result."""
_MOVES = frozenset(
    (
        "broadcast_in_dim",
        "concatenate",
        "gather",
        "pad",
        "reshape",
        "slice",
        "split",
        "squeeze",
        "stack",
        "transpose",
        "unstack",
    )
)


Ints = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Frame:
    """What `function` makes of operands.

    It is written behind the equation `place` (None: in front of all) with the source line of `eqn`, and then named `atom`.
    """

    function: Callable[..., Any]
    operands: tuple[Frame, ...]
    place: Any
    eqn: Any
    shape: Ints
    dtype: Any
    atom: Any = None


class Frames:
    """Frames of the variables of a body whose calls are opened.

    The first frame of what an equation computes serves all other offsets, rolled.
    """

    def __init__(self, eqns: Sequence[Any]) -> None:
        self.made = {var: eqn for eqn in eqns for var in eqn.outvars}
        self.all: list[Frame] = []
        """In an order in which they can be written."""
        self.kept: dict[tuple[Any, Ints], tuple[Ints, Frame]] = {}
        self.now: dict[Any, Frame] = {}
        """Frames of variables that are written otherwise now."""
        self.rolled: set[tuple[Ints, int]] = set()
        """Shapes that are rolled, and along which dim."""
        self.end: Any = None
        """The equation that a frame is sought for, which lends its source line to what is in front of all."""

    def new(self, function: Callable[..., Any], operands: Sequence[Frame], eqn: Any, shape: Ints, dtype: Any) -> Frame:
        frame = Frame(function, tuple(operands), eqn, self.end if eqn is None else eqn, shape, dtype)
        self.all.append(frame)
        return frame

    def given(self, atom: Any) -> Frame:
        """An atom of the program as it is, or what it is now."""
        if is_variable(atom) and atom in self.now:
            return self.now[atom]
        return Frame(lambda x: x, (), None, None, atom.aval.shape, atom.aval.dtype, atom)

    def at(self, atom: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """A frame of these extents that holds an atom at these offsets, as far as it lies inside; None where none is known.

        An atom that has all extents is rolled.
        """
        shape, eqn = atom.aval.shape, self.made.get(atom) if is_variable(atom) else None
        if shape == whole or eqn is None:
            return self._as_it_is(atom, whole, offsets)
        if eqn.primitive.name in _MOVES:
            return self.moved(eqn, atom, whole, offsets) or self._as_it_is(atom, whole, offsets)
        if (kept := self.kept.get((atom, whole))) is not None:
            return self._rolled(kept[1], [to - at for at, to in zip(kept[0], offsets, strict=True)], eqn)
        frame = self._computed(eqn, atom, whole, offsets)
        if frame is None:
            return self._as_it_is(atom, whole, offsets)
        if all(0 <= at <= n - m for at, n, m in zip(offsets, whole, shape, strict=True)):
            self.kept[atom, whole] = offsets, frame
        return frame

    def _as_it_is(self, atom: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """A frame of an atom that has all extents, or one element."""
        shape, eqn = atom.aval.shape, self.made.get(atom) if is_variable(atom) else None
        if shape == whole and not any(offsets):
            return self.given(atom)
        if any(m not in (1, n) for n, m in zip(whole, shape, strict=True)) or not is_variable(atom):
            return None
        shifts = [0 if m != n else at for at, n, m in zip(offsets, whole, shape, strict=True)]
        frame = self._rolled(self.given(atom), shifts, eqn)
        if frame is None or shape == whole:
            return frame
        dims = range(len(whole))
        return self.new(lambda x: lax.broadcast_in_dim(x, whole, dims), (frame,), eqn, whole, atom.aval.dtype)

    def _rolled(self, frame: Frame, shifts: Sequence[int], eqn: Any) -> Frame | None:
        moves: list[tuple[int, int]] = []
        for dim, (shift, n) in enumerate(zip(shifts, frame.shape, strict=True)):
            if not n:
                return frame
            near = (shift + n // 2) % n - n // 2
            if abs(near) > n // SLACK:
                return None
            moves += [(near, dim)] if near else []
        self.rolled.update((frame.shape, dim) for _, dim in moves)

        def rolled(x: Any) -> Any:
            for shift, dim in moves:
                x = roll(x, shift, dim)
            return x

        return self.new(rolled, (frame,), eqn, frame.shape, frame.dtype) if moves else frame

    def _computed(self, eqn: Any, result: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """The frame of what an elementwise op makes, or a reduction along other dims."""
        name, operands, shape, dtype = eqn.primitive.name, list[Frame](), whole, result.aval.dtype
        if name in NEUTRAL:
            axes, of = eqn.params["axes"], eqn.invars[0].aval.shape
            extents, at = iter(whole), iter(offsets)
            inner = [(n, 0) if d in axes else (next(extents), next(at)) for d, n in enumerate(of)]
            whole, offsets = tuple(n for n, _ in inner), tuple(at for _, at in inner)
        elif name not in ELEMENTWISE:
            return None
        for atom in eqn.invars:
            frame = self.at(atom, whole, offsets) if atom.aval.shape else self.given(atom)
            if frame is None:
                return None
            operands.append(frame)
        return self.new(lambda *xs: eqn.primitive.bind(*xs, **eqn.params), operands, eqn, shape, dtype)

    def moved(self, eqn: Any, result: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """The frame of what an equation makes that moves elements."""
        match eqn.primitive.name:
            case "slice" | "split" | "gather":
                return self._slice(eqn, result, whole, offsets)
            case "pad":
                return self._pad(eqn, whole, offsets)
            case "concatenate":
                return self._concatenation(eqn, whole, offsets)
            case "broadcast_in_dim":
                return self._broadcast(eqn, whole, offsets)
            case "stack":
                return self._stacked(eqn, eqn.params["axis"], whole, offsets)
            case "unstack":
                return self._unstacked(eqn, result, whole, offsets)
            case "transpose":
                return self._transposed(eqn, whole, offsets)
            case _:
                return self._reshaped(eqn, result, whole, offsets)

    def of_slice(self, eqn: Any, result: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """The frame of a slice that is that of its operand elsewhere."""
        operand, starts = eqn.invars[0], self._starts(eqn, result)
        if starts is None or not _near(operand.aval.shape, whole):
            return None
        return self.at(operand, whole, tuple(at - start for at, start in zip(offsets, starts, strict=True)))

    def _starts(self, eqn: Any, result: Any) -> Ints | None:
        """Where a slice begins in its operand; None where it leaves out elements or that is not known."""
        params = eqn.params
        match eqn.primitive.name:
            case "split":
                before = sum(params["sizes"][: eqn.outvars.index(result)])
                return tuple(before if d == params["axis"] else 0 for d in range(len(result.aval.shape)))
            case "gather":
                return _corner(eqn, self.made)
            case _:
                strides = params["strides"] or ()
                return None if any(by != 1 for by in strides) else tuple(map(int, params["start_indices"]))

    def _slice(self, eqn: Any, result: Any, whole: Ints, offsets: Ints) -> Frame | None:
        framed, starts, operand = self.of_slice(eqn, result, whole, offsets), self._starts(eqn, result), eqn.invars[0]
        if framed is not None or starts is None:
            return framed
        # A slice along dims that no grid has, such as the one of all fields.
        of, size = operand.aval.shape, result.aval.shape
        cut = [d for d, (n, m) in enumerate(zip(of, size, strict=True)) if n != m and whole[d] == m and not offsets[d]]
        if not cut:
            return None
        extents = tuple(of[d] if d in cut else n for d, n in enumerate(whole))
        moved = tuple(0 if d in cut else at - starts[d] for d, at in enumerate(offsets))
        frame = self.at(operand, extents, moved)
        if frame is None:
            return None
        low = [starts[d] if d in cut else 0 for d in range(len(of))]
        high = [at + n for at, n in zip(low, whole, strict=True)]
        return self.new(lambda x: lax.slice(x, low, high), (frame,), eqn, whole, result.aval.dtype)

    def _pad(self, eqn: Any, whole: Ints, offsets: Ints) -> Frame | None:
        operand, number = eqn.invars
        config = [(int(low), int(high), int(inner)) for low, high, inner in eqn.params["padding_config"]]
        size, result = operand.aval.shape, eqn.outvars[0].aval.shape
        if any(inner for _, _, inner in config):
            return None
        # Dims that no grid has, such as the one of all fields, are padded as they are.
        plain = [
            d for d, m in enumerate(size) if not _near((m,), (whole[d],)) and result[d] == whole[d] and not offsets[d]
        ]
        extents = tuple(size[d] if d in plain else n for d, n in enumerate(whole))
        position = tuple(0 if d in plain else at + config[d][0] for d, at in enumerate(offsets))
        frame = self.at(operand, extents, position)
        if frame is None:
            return None

        def padded(x: Any, fill: Any) -> Any:
            x = selected(extents, position, size, x, lax.broadcast(fill, extents))
            around = [config[d] if d in plain else (0, 0, 0) for d in range(len(whole))]
            return lax.pad(x, fill, around) if plain else x

        return self.new(padded, (frame, self.given(number)), eqn, whole, operand.aval.dtype)

    def _concatenation(self, eqn: Any, whole: Ints, offsets: Ints) -> Frame | None:
        dim, at = eqn.params["dimension"], 0
        frames, places = list[Frame](), list[tuple[Ints, Ints]]()
        sizes = [atom.aval.shape for atom in eqn.invars]
        if whole[dim] == sum(size[dim] for size in sizes) and max(size[dim] for size in sizes) * 2 <= whole[dim]:
            return self._put_side_by_side(eqn, whole, offsets)
        for atom, size in zip(eqn.invars, sizes, strict=True):
            position = tuple(n + at if d == dim else n for d, n in enumerate(offsets))
            at += size[dim]
            if position[dim] >= whole[dim] or position[dim] + size[dim] <= 0:
                continue
            frame = self.at(atom, whole, position)
            if frame is None:
                return None
            frames.append(frame)
            places.append((position, size))

        def joined(*parts: Any) -> Any:
            found = parts[0]
            for part, (position, size) in zip(parts[1:], places[1:], strict=True):
                only = tuple(position[d] if d == dim else 0 for d in range(len(whole)))
                extents = tuple(size[d] if d == dim else n for d, n in enumerate(whole))
                found = selected(whole, only, extents, part, found)
            return found

        return self.new(joined, frames, eqn, whole, eqn.outvars[0].aval.dtype) if frames else None

    def _stacked(self, eqn: Any, axis: int, whole: Ints, offsets: Ints) -> Frame | None:
        """What is stacked along a dim that no grid has."""
        if whole[axis] != len(eqn.invars) or offsets[axis]:
            return None
        inner = tuple(zip(whole, offsets, strict=True))
        inner = inner[:axis] + inner[axis + 1 :]
        frames = [self.at(atom, tuple(n for n, _ in inner), tuple(at for _, at in inner)) for atom in eqn.invars]
        found = [frame for frame in frames if frame is not None]
        if len(found) < len(frames):
            return None
        return self.new(lambda *parts: jnp.stack(parts, axis), found, eqn, whole, eqn.outvars[0].aval.dtype)

    def _unstacked(self, eqn: Any, result: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """One of several along a dim that no grid has."""
        axis, number, several = eqn.params["axis"], eqn.outvars.index(result), len(eqn.outvars)
        extents = (*whole[:axis], several, *whole[axis:])
        frame = self.at(eqn.invars[0], extents, (*offsets[:axis], 0, *offsets[axis:]))
        if frame is None:
            return None
        function: Callable[..., Any] = lambda x: lax.index_in_dim(x, number, axis, keepdims=False)  # noqa: E731
        return self.new(function, (frame,), eqn, whole, result.aval.dtype)

    def _put_side_by_side(self, eqn: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """What is put together along a dim that no grid has, such as that of all fields."""
        dim, frames = eqn.params["dimension"], list[Frame]()
        for atom in () if offsets[dim] else eqn.invars:
            extents = tuple(atom.aval.shape[dim] if d == dim else n for d, n in enumerate(whole))
            frame = self.at(atom, extents, offsets)
            if frame is None:
                return None
            frames.append(frame)
        function: Callable[..., Any] = lambda *parts: lax.concatenate(parts, dim)  # noqa: E731
        return self.new(function, frames, eqn, whole, eqn.outvars[0].aval.dtype) if frames else None

    def _broadcast(self, eqn: Any, whole: Ints, offsets: Ints) -> Frame | None:
        operand, dims = eqn.invars[0], eqn.params["broadcast_dimensions"]
        result = eqn.outvars[0].aval
        if not operand.aval.shape:
            inner: Frame | None = self.given(operand)
        else:
            stretched = [m == 1 and result.shape[d] != 1 for m, d in zip(operand.aval.shape, dims, strict=True)]
            extents = tuple(1 if one else whole[d] for one, d in zip(stretched, dims, strict=True))
            inner = self.at(
                operand, extents, tuple(0 if one else offsets[d] for one, d in zip(stretched, dims, strict=True))
            )
        if inner is None:
            return None
        return self.new(lambda x: lax.broadcast_in_dim(x, whole, dims), (inner,), eqn, whole, result.dtype)

    def _transposed(self, eqn: Any, whole: Ints, offsets: Ints) -> Frame | None:
        order = eqn.params["permutation"]
        extents = tuple(whole[order.index(d)] for d in range(len(order)))
        frame = self.at(eqn.invars[0], extents, tuple(offsets[order.index(d)] for d in range(len(order))))
        if frame is None:
            return None
        return self.new(lambda x: lax.transpose(x, order), (frame,), eqn, whole, eqn.outvars[0].aval.dtype)

    def _reshaped(self, eqn: Any, result: Any, whole: Ints, offsets: Ints) -> Frame | None:
        """The frame of an array from which dims of one element are dropped, or to which such are added."""
        operand, size = eqn.invars[0], result.aval.shape
        of = operand.aval.shape
        if [n for n in of if n != 1] != [n for n in size if n != 1]:
            return None
        before = self.made.get(operand)
        if before is not None and before.primitive.name == "broadcast_in_dim" and before.invars[0].aval.shape == size:
            return self.at(before.invars[0], whole, offsets)
        inner = iter([(n, at) for n, at, m in zip(whole, offsets, size, strict=True) if m != 1])
        if any(m == 1 and n != 1 for n, m in zip(whole, size, strict=True)):
            return None
        extents = [(1, 0) if m == 1 else next(inner) for m in of]
        frame = self.at(operand, tuple(n for n, _ in extents), tuple(at for _, at in extents))
        if frame is None:
            return None
        return self.new(lambda x: lax.reshape(x, whole), (frame,), eqn, whole, result.aval.dtype)


def _near(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether an array may be held in a frame: along each dim it has about as many elements."""
    return all(abs(n - m) <= n // SLACK or m == 1 for n, m in zip(whole, shape, strict=True))


def is_variable(atom: Any) -> bool:
    return not isinstance(atom, jex_core.Literal)


def _corner(eqn: Any, made: Mapping[Any, Any]) -> Ints | None:
    """Where a gather that takes one box of its operand, as a slice would, begins; None of others."""
    numbers, operand = eqn.params["dimension_numbers"], eqn.invars[0].aval
    index = constant(eqn.invars[1], made) if eqn.invars[1].aval.ndim == 1 else None
    if index is None or numbers.collapsed_slice_dims or numbers.operand_batching_dims:
        return None
    corner = [0] * operand.ndim
    for dim, at in zip(numbers.start_index_map, index, strict=True):
        corner[dim] = int(at)
    sizes = eqn.params["slice_sizes"]
    inside = all(0 <= at <= n - size for at, n, size in zip(corner, operand.shape, sizes, strict=True))
    return tuple(corner) if inside and eqn.outvars[0].aval.shape == tuple(sizes) else None


def constant(atom: Any, made: Mapping[Any, Any]) -> Any:
    """The value of an atom that is made of literals; None of others."""
    if not is_variable(atom):
        return np.asarray(atom.val)
    eqn = made.get(atom)
    if eqn is None or eqn.primitive.name not in ("broadcast_in_dim", "concatenate", "convert_element_type"):
        return None
    parts = [constant(operand, made) for operand in eqn.invars]
    if any(part is None for part in parts):
        return None
    if eqn.primitive.name == "concatenate":
        return np.concatenate(parts, eqn.params["dimension"])
    return np.broadcast_to(parts[0], atom.aval.shape) if parts[0].ndim == 0 else None


def _inside(whole: Ints, position: Ints, size: Ints) -> Any:
    """Which elements of a frame are those of an interior of some size at a position; None where all are."""
    bounds: list[Any] = []
    for dim, (n, at, m) in enumerate(zip(whole, position, size, strict=True)):
        index = lax.broadcasted_iota(np.dtype("int32"), whole, dim)
        if at > 0:
            bounds.append(lax.ge(index, lax.full_like(index, at)))
        if at + m < n:
            bounds.append(lax.lt(index, lax.full_like(index, at + m)))
    return reduce(lax.bitwise_and, bounds) if bounds else None


def selected(whole: Ints, position: Ints, size: Ints, inner: Any, outer: Any) -> Any:
    """The interior's elements of one array, and those around it of another."""
    inside = _inside(whole, position, size)
    return inner if inside is None else lax.select(inside, inner, outer)
