"""Windows: which variables of a program show other ones moved along their dims, through slices and paddings.

What shifts an array is written in several ways: a slice of the array with a border of zeros, or with its other end put
before it; two slices put together; a slice with zeros put behind it; and in gradients sums of paddings, cut. All of them
make windows: element i along a dim is element `start + i` of the source where it is shown, and a number elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

MOST_TERMS = 64
"""Of a sum of more windows nothing is taken down."""


class Span(NamedTuple):
    """A window along one dim of so many elements: where it starts in its source, and which of its elements show it.

    Elements beyond the ends of the source, if shown, are those of its other end.
    """

    start: int
    size: int
    low: int
    high: int

    def cut(self, start: int, size: int) -> Span:
        """A part of the window, or one that begins before it or ends behind it, which shows nothing more."""
        low = min(max(0, self.low - start), size)
        return Span(self.start + start, size, low, max(low, min(size, self.high - start)))

    @property
    def whole(self) -> bool:
        """Whether all of its elements show the source."""
        return self.low == 0 and self.high == self.size

    def around(self, extent: int) -> bool:
        """Whether it shows elements of a source of this extent beyond its ends."""
        return self.low < self.high and (self.start + self.low < 0 or self.start + self.high > extent)


@dataclass(frozen=True, slots=True)
class Window:
    """A window of a variable: the number `fill` stands where nothing of it is shown (None: all is)."""

    source: Any
    spans: tuple[Span, ...]
    fill: float | None = None


class Move(NamedTuple):
    """A shift along a dim: with `fill` that number enters, else the other end of the array."""

    dimension: int
    shift: int
    fill: float | None


@dataclass
class Windows:
    """The windows that variables are sums of, as equations are taken down in their order."""

    of: dict[Any, tuple[Window, ...]] = field(default_factory=dict[Any, tuple[Window, ...]])
    numbers: dict[Any, float] = field(default_factory=dict[Any, float])
    """Variables whose elements are all one number."""

    def take_down(self, eqn: Any) -> None:
        """Takes down what an equation makes; nothing where it is none of windows."""
        match eqn.primitive.name:
            case "convert_element_type" | "broadcast_in_dim":
                number = self.number(eqn.invars[0])
                if number is not None:
                    self.numbers[eqn.outvars[0]] = number
            case "slice" if all(stride == 1 for stride in eqn.params["strides"] or ()):
                starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
                cuts = [(int(a), int(b) - int(a)) for a, b in zip(starts, limits, strict=True)]
                self._put(eqn.outvars[0], self._cut(self._windows(eqn.invars[0]), cuts))
            case "split":
                self._split(eqn)
            case "pad":
                self._pad(eqn)
            case "concatenate":
                self._concatenate(eqn)
            case "add_any":
                self._add(eqn)
            case _:
                pass

    def moves(self, variable: Any) -> list[tuple[Any, tuple[Move, ...]]] | None:
        """What a variable is the sum of: sources of its shape, moved. None where it is another or all stay in place."""
        found = [(window.source, _moves(window)) for window in self.of.get(variable, ())]
        if any(moves is None or source.aval.shape != variable.aval.shape for source, moves in found):
            return None
        return [(source, moves or ()) for source, moves in found] if any(moves for _, moves in found) else None

    def _windows(self, atom: Any) -> tuple[Window, ...]:
        if isinstance(atom, jex_core.Literal) or not getattr(atom.aval, "shape", ()) or not atom.aval.size:
            return ()
        return self.of.get(atom) or (Window(atom, tuple(Span(0, n, 0, n) for n in atom.aval.shape)),)

    def number(self, atom: Any) -> float | None:
        """The number that all elements are, of a variable of the program or of a literal; None where that is not known."""
        if not isinstance(atom, jex_core.Literal):
            return self.numbers.get(atom)
        value = np.asarray(atom.val)
        real = jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
        return float(value) if value.ndim == 0 and real else None

    def _put(self, variable: Any, windows: tuple[Window, ...]) -> None:
        if windows and len(windows) <= MOST_TERMS and variable.aval.size and not isinstance(variable, jex_core.DropVar):
            self.of[variable] = windows

    def _cut(self, windows: Sequence[Window], cuts: Sequence[tuple[int, int]]) -> tuple[Window, ...]:
        return tuple(
            replace(w, spans=tuple(span.cut(*cut) for span, cut in zip(w.spans, cuts, strict=True))) for w in windows
        )

    def _split(self, eqn: Any) -> None:
        at, axis = 0, eqn.params["axis"]
        for variable, size in zip(eqn.outvars, eqn.params["sizes"], strict=True):
            shape = eqn.invars[0].aval.shape
            cuts = [(at, int(size)) if d == axis else (0, n) for d, n in enumerate(shape)]
            self._put(variable, self._cut(self._windows(eqn.invars[0]), cuts))
            at += int(size)

    def _pad(self, eqn: Any) -> None:
        config = [tuple(map(int, entry)) for entry in eqn.params["padding_config"]]
        number, windows = self.number(eqn.invars[1]), self._windows(eqn.invars[0])
        if any(inner for _, _, inner in config):
            return
        shape, added = eqn.outvars[0].aval.shape, [d for d, (low, high, _) in enumerate(config) if low > 0 or high > 0]
        if added and not _may_fill(windows, number, added):
            return
        cuts = [(-low, n) for (low, _, _), n in zip(config, shape, strict=True)]
        filled = [replace(w, fill=number) for w in windows] if added else windows
        self._put(eqn.outvars[0], self._cut(filled, cuts))

    def _concatenate(self, eqn: Any) -> None:
        dim, operands = eqn.params["dimension"], list(eqn.invars)
        sizes = [operand.aval.shape[dim] for operand in operands]
        number: float | None = None
        ends = [0, 0]
        for end, position in ((0, 0), (1, -1)):
            found = self.number(operands[position])
            if found is not None and len(operands) > 1 and number in (None, found):
                number, ends[end] = found, sizes.pop(position)
                operands.pop(position)
        parts = [self._windows(operand) for operand in operands]
        if any(len(part) != 1 for part in parts):
            return
        window = _joined([part[0] for part in parts], dim)
        if window is None or (number is not None and not _may_fill((window,), number, [dim])):
            return
        size = sum(sizes)
        cuts = [
            (-ends[0], ends[0] + size + ends[1]) if d == dim else (0, span.size) for d, span in enumerate(window.spans)
        ]
        filled = window if number is None else replace(window, fill=number)
        self._put(eqn.outvars[0], self._cut((filled,), cuts))

    def _add(self, eqn: Any) -> None:
        sides = [self._windows(atom) for atom in eqn.invars]
        known = [atom for atom in eqn.invars if not isinstance(atom, jex_core.Literal) and atom in self.of]
        windows = tuple(window for side in sides for window in side)
        if not all(sides) or not known or any(w.fill not in (None, 0.0) for w in windows):
            return
        self._put(eqn.outvars[0], _side_by_side(windows))


def _may_fill(windows: Sequence[Window], number: float | None, dims: Sequence[int]) -> bool:
    """Whether windows may have a border of a number along dims: they are filled with it, and only one is if not with 0."""
    if number is None or (number and len(windows) > 1):
        return False
    around = any(w.spans[dim].around(w.source.aval.shape[dim]) for w in windows for dim in dims)
    return not around and all(w.fill in (None, number) for w in windows)


def _joined(windows: Sequence[Window], dim: int) -> Window | None:
    """The window that several put together along a dim are; None where they do not follow one another in one source."""
    first, extent = windows[0], windows[0].source.aval.shape[dim]
    others = [span for d, span in enumerate(first.spans) if d != dim]
    at = first.spans[dim].start
    for window in windows if len(windows) > 1 else ():
        span = window.spans[dim]
        alike = window.source is first.source and window.fill == first.fill
        if not alike or [s for d, s in enumerate(window.spans) if d != dim] != others or not span.whole:
            return None
        if (span.start - at) % extent:
            return None
        at += span.size
    if len(windows) == 1:
        return first
    start, size = first.spans[dim].start, at - first.spans[dim].start
    spans = tuple(Span(start, size, 0, size) if d == dim else span for d, span in enumerate(first.spans))
    return replace(first, spans=spans)


def _side_by_side(windows: Sequence[Window]) -> tuple[Window, ...]:
    """The terms of a sum: parts of one window that show the source side by side are one."""
    found: list[Window] = []
    for window in windows:
        if any(span.low >= span.high for span in window.spans):
            continue
        while (pair := _beside(found, window)) is not None:
            beside, window = pair
            found.remove(beside)
        found.append(window)
    return tuple(found) or tuple(windows[:1])


def _beside(windows: Sequence[Window], window: Window) -> tuple[Window, Window] | None:
    """The first of some windows that makes one with another, and that one."""
    merged = ((other, _merged(other, window)) for other in windows)
    return next(((other, both) for other, both in merged if both is not None), None)


def _merged(one: Window, other: Window) -> Window | None:
    """The window that shows what either of two does; None where that is none, or both show the same."""
    apart = [d for d, (a, b) in enumerate(zip(one.spans, other.spans, strict=True)) if a != b]
    if one.source is not other.source or len(apart) != 1:
        return None
    dim = apart[0]
    a, b = sorted((one.spans[dim], other.spans[dim]), key=lambda span: span.low)
    if a.size != b.size or a.high != b.low or (a.start - b.start) % one.source.aval.shape[dim]:
        return None
    return replace(one, spans=(*one.spans[:dim], Span(a.start, a.size, a.low, b.high), *one.spans[dim + 1 :]))


def _moves(window: Window) -> tuple[Move, ...] | None:
    """By what a window of its source's shape moves it; None where it is no such window."""
    found: list[Move] = []
    for dim, (span, extent) in enumerate(zip(window.spans, window.source.aval.shape, strict=True)):
        if span.size != extent:
            return None
        start = span.start
        if span.whole:
            start %= extent
            up = extent - start
            if start:
                found.append(Move(dim, up if 2 * up <= extent else -start, None))
        elif abs(start) < extent and (span.low, span.high) == (max(0, -start), min(extent, extent - start)):
            found.append(Move(dim, -start, window.fill))
        else:
            return None
    return tuple(found)
