"""Interiors: arrays of a few elements less than a grid, computed on the whole grid.

Solvers update the inside of a grid (`u.at[1:-1].set(f(u[2:], u[:-2]))`), put its edges together (`jnp.gradient`,
`jnp.pad(u, 1, mode="edge")`) and sum up what `jnp.diff` makes. An interior of 8,190 rows divides no mesh, and a slice keeps
its dim whole on every device. Here such an array is held in a *frame*, an array of the grid's extents: element `i` of the
interior is element `offset + i` of the frame, and what is around it is never read. A slice of a grid is then a roll of
it, elementwise ops work on frames, and what makes a whole grid of an interior again selects elements of its frame.

An equation *closes* an interior that writes it into a grid or reduces it. Its frame is sought backwards from there, so that
rolls bring neighbours straight to where they are needed. The first frame of a result of elementwise ops serves all other
offsets, rolled. Where anything else makes a part of it there is no frame, and the equation stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

from jax import lax

from planner.program.jaxpr.bodies import equations_of, opened, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by, variable
from planner.program.jaxpr.canonicalize.frames import (
    ELEMENTWISE,
    NEUTRAL,
    SLACK,
    Frame,
    Frames,
    Ints,
    constant,
    is_variable,
    selected,
)
from planner.program.jaxpr.canonicalize.inlined import inlined, unread_dropped
from planner.program.jaxpr.canonicalize.rolls import roll_p
from planner.program.jaxpr.variables import all_named

_WRITES: Mapping[str, Callable[[Any, Any], Any]] = {
    "dynamic_update_slice": lambda _, new: new,
    "scatter": lambda _, new: new,
    "scatter-add": lax.add,
    "scatter-max": lax.max,
    "scatter-min": lax.min,
    "scatter-mul": lax.mul,
    "scatter-sub": lax.sub,
}
"""What an equation that writes into an array makes of an old element and a new one."""


def with_interiors(jaxpr: Any) -> Any:
    """The program with interiors computed on whole grids; the same object where it has none that are closed."""
    if not any(_may_close(eqn) for eqn in equations_of(jaxpr)):
        return jaxpr
    flat = inlined(jaxpr)
    closed, names = _closed(opened(flat).eqns)
    if not closed:
        eqns = [with_bodies(eqn, lambda inner, _: with_interiors(inner)) for eqn in opened(jaxpr).eqns]
        same = all(new is old for new, old in zip(eqns, opened(jaxpr).eqns, strict=True))
        return jaxpr if same else with_fields(jaxpr, eqns=eqns)
    outvars = all_named(opened(flat).outvars, names)
    eqns = [with_bodies(eqn, lambda inner, _: with_interiors(inner)) for eqn in _read(closed, outvars)]
    return unread_dropped(with_fields(flat, eqns=eqns, outvars=outvars))


def _may_close(eqn: Any) -> bool:
    """Whether an equation closes an interior, by its shapes."""
    name, whole = eqn.primitive.name, getattr(eqn.outvars[0].aval, "shape", ()) if eqn.outvars else ()
    match name:
        case "pad" | "concatenate":
            parts = [atom.aval.shape for atom in eqn.invars if getattr(atom.aval, "shape", ())]
            return any(_divides_better(n, m) for part in parts for n, m in zip(whole, part, strict=True))
        case "slice":
            return any(_divides_better(n, m) for n, m in zip(whole, eqn.invars[0].aval.shape, strict=True))
        case _ if name in _WRITES:
            return _plain(eqn)
        case _ if name in NEUTRAL:
            shape = eqn.invars[0].aval.shape
            return any(_odd(shape[axis]) for axis in eqn.params["axes"])
        case _:
            return False


def _odd(extent: int) -> bool:
    """Whether an extent may be that of an interior: one or two elements more would divide better."""
    return extent >= SLACK and any(_divides_better(extent + more, extent) for more in (1, 2))


def _divides_better(whole: int, part: int) -> bool:
    """Whether a dim can be split by more devices with a few more elements, or less: by larger powers of two."""
    return part not in (0, whole) and abs(whole - part) <= whole // SLACK and whole & -whole > part & -part


def _read(eqns: Sequence[Any], outvars: Sequence[Any]) -> list[Any]:
    """The equations without those that nobody reads."""
    used, kept = set(filter(is_variable, outvars)), list[Any]()
    for eqn in reversed(eqns):
        if eqn.effects or not used.isdisjoint(eqn.outvars):
            used.update(filter(is_variable, eqn.invars))
            kept.append(eqn)
    return kept[::-1]


def _plain(eqn: Any) -> bool:
    """Whether an equation writes one box into an array, at a position that may be constant."""
    if eqn.primitive.name == "dynamic_update_slice":
        return not any(is_variable(atom) for atom in eqn.invars[2:])
    numbers, rank = eqn.params["dimension_numbers"], len(eqn.invars[0].aval.shape)
    window = tuple(range(rank - len(numbers.inserted_window_dims)))
    return numbers.update_window_dims == window and not numbers.operand_batching_dims and eqn.invars[1].aval.ndim == 1


def _box(eqn: Any, made: Mapping[Any, Any]) -> tuple[Any, Ints, Ints] | None:
    """What a plain equation writes, at which position, and the dims of the array that it lacks; None where that varies."""
    whole, lacking, new = eqn.invars[0].aval.shape, (), eqn.invars[1]
    dims: Sequence[int] = range(len(whole))
    if eqn.primitive.name == "dynamic_update_slice":
        index: Any = [constant(atom, made) for atom in eqn.invars[2:]]
    else:
        numbers, index, new = eqn.params["dimension_numbers"], constant(eqn.invars[1], made), eqn.invars[2]
        dims, lacking = numbers.scatter_dims_to_operand_dims, tuple(numbers.inserted_window_dims)
    if index is None:
        return None
    position = [0] * len(whole)
    for dim, at in zip(dims, index, strict=True):
        position[dim] = int(at)
    size = _with_ones(new.aval.shape, lacking)
    inside = all(0 <= at <= n - m for at, n, m in zip(position, whole, size, strict=True))
    return (new, tuple(position), lacking) if inside else None


def _with_ones(shape: Sequence[int], dims: Sequence[int]) -> Ints:
    """A shape with dims of one element put in."""
    rest = iter(shape)
    return tuple(1 if d in dims else next(rest) for d in range(len(shape) + len(dims)))


def _closed(eqns: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """Equations with frames in the place of interiors, none where no interior is closed; and what results are now.

    Single rows and columns are written otherwise only where something moves along the same dim: elsewhere it costs a pass
    over the array for nothing.
    """
    rolled = {(eqn.outvars[0].aval.shape, eqn.params["dimension"]) for eqn in eqns if eqn.primitive is roll_p}
    found = _Interiors(eqns, rolled)
    ends = found.ends()
    if found.left_rows and not found.frames.rolled <= rolled:
        found = _Interiors(eqns, rolled | found.frames.rolled)
        ends = found.ends()
    return found.written(ends) if ends else ([], {})


class _Interiors:
    """The interiors of a body whose calls are opened; `rolled` are shapes, and the dims along which they are moved."""

    def __init__(self, eqns: Sequence[Any], rolled: set[tuple[Ints, int]]) -> None:
        self.eqns = eqns
        self.rolled = rolled
        self.frames = Frames(eqns)
        self.left_rows = False

    def ends(self) -> dict[int, Frame]:
        """The frames of what equations make that close interiors, by the identity of the equation."""
        found: dict[int, Frame] = {}
        for eqn in self.eqns:
            self.frames.end = eqn
            if _may_close(eqn) and (frame := self._end(eqn)) is not None:
                found[id(eqn)] = self.frames.now[eqn.outvars[0]] = frame
        return found

    def written(self, ends: Mapping[int, Frame]) -> tuple[list[Any], dict[Any, Any]]:
        """The equations with the frames that these are made of; and what results are now."""
        used, places = _all_used(ends.values()), dict[int | None, list[Frame]]()
        for frame in self.frames.all:
            if frame in used:
                places.setdefault(None if frame.place is None else id(frame.place), []).append(frame)
        held = {var: (at, frame) for (var, _), (at, frame) in self.frames.kept.items() if frame in used}
        written = [eqn for frame in places.get(None, ()) for eqn in _written(frame)]
        names: dict[Any, Any] = {}
        for eqn in self.eqns:
            cut = held.get(eqn.outvars[0]) if eqn.outvars else None
            if id(eqn) not in ends and cut is None:
                written.append(eqn.replace(invars=all_named(eqn.invars, names)))
            for frame in places.get(id(eqn), ()):
                written += _written(frame)
            if id(eqn) in ends:
                names[eqn.outvars[0]] = ends[id(eqn)].atom
            elif cut is not None:
                written += _cut_out(eqn.outvars[0], *cut)
        return written, names

    def _end(self, eqn: Any) -> Frame | None:
        name, whole = eqn.primitive.name, eqn.outvars[0].aval.shape
        if name in _WRITES:
            return self._write(eqn)
        if name in NEUTRAL:
            return self._reduction(eqn)
        found = self.frames.of_slice if name == "slice" else self.frames.moved
        return found(eqn, eqn.outvars[0], whole, (0,) * len(whole))

    def _write(self, eqn: Any) -> Frame | None:
        box, operand = _box(eqn, self.frames.made), eqn.invars[0]
        if box is None:
            return None
        new, position, lacking = box
        whole, size = operand.aval.shape, _with_ones(new.aval.shape, lacking)
        cut = [d for d, (n, m) in enumerate(zip(whole, size, strict=True)) if n != m]
        if not cut or not all(size[d] == 1 or _divides_better(whole[d], size[d]) for d in cut):
            return None
        if all(size[d] == 1 for d in cut) and not any((whole, d) in self.rolled for d in cut):
            self.left_rows = True
            return None
        frame = self._of_rank(new, size, lacking, whole, position, eqn)
        if frame is None:
            return None
        combined = _WRITES[eqn.primitive.name]

        def write(old: Any, new: Any) -> Any:
            return selected(whole, position, size, combined(old, new), old)

        return self.frames.new(write, (self.frames.given(operand), frame), eqn, whole, operand.aval.dtype)

    def _of_rank(self, atom: Any, size: Ints, lacking: Ints, whole: Ints, position: Ints, eqn: Any) -> Frame | None:
        """The frame of an atom that may lack dims of one element."""
        if atom.aval.shape == size:
            return self.frames.at(atom, whole, position)
        before = atom
        while is_variable(before) and before in self.frames.made and prod(before.aval.shape) == prod(size):
            step = self.frames.made[before]
            if step.primitive.name not in ("squeeze", "reshape", "broadcast_in_dim"):
                break
            before = step.invars[0]
            if before.aval.shape == size and (frame := self.frames.at(before, whole, position)) is not None:
                return frame
        dims = [d for d in range(len(whole)) if d not in lacking]
        own = self.frames.at(atom, tuple(whole[d] for d in dims), tuple(position[d] for d in dims))
        if own is None:
            return None
        return self.frames.new(lambda x: lax.broadcast_in_dim(x, whole, dims), (own,), eqn, whole, atom.aval.dtype)

    def _reduction(self, eqn: Any) -> Frame | None:
        operand, axes = eqn.invars[0], eqn.params["axes"]
        size = operand.aval.shape
        whole = self._grid(operand)
        if whole is None or any(n != m and d not in axes for d, (n, m) in enumerate(zip(whole, size, strict=True))):
            return None
        frame = self.frames.at(operand, whole, (0,) * len(whole))
        if frame is None:
            return None
        neutral = NEUTRAL[eqn.primitive.name](operand.aval.dtype)

        def reduced(x: Any) -> Any:
            x = selected(whole, (0,) * len(whole), size, x, lax.full_like(x, neutral))
            return eqn.primitive.bind(x, **eqn.params)

        return self.frames.new(reduced, (frame,), eqn, eqn.outvars[0].aval.shape, operand.aval.dtype)

    def _grid(self, atom: Any) -> Ints | None:
        """The extents of the grid that an interior is cut from; None where it is from none, or several."""
        size, seen, open_, found = atom.aval.shape, set[Any](), [atom], set[Ints]()
        while open_:
            var = open_.pop()
            eqn = self.frames.made.get(var) if is_variable(var) else None
            if eqn is None or var in seen:
                continue
            seen.add(var)
            if eqn.primitive.name in ("slice", "split"):
                of = eqn.invars[0].aval.shape
                found.add(tuple(n if _divides_better(n, m) else m for n, m in zip(of, size, strict=True)))
                if found == {size}:
                    found.clear()
                    open_.append(eqn.invars[0])
            elif eqn.primitive.name in ELEMENTWISE:
                open_ += [v for v in eqn.invars if v.aval.shape == size]
        return found.pop() if len(found) == 1 else None


def _all_used(frames: Iterable[Frame]) -> set[Frame]:
    """Frames and all that they are made of."""
    found, open_ = set[Frame](), list(frames)
    while open_:
        frame = open_.pop()
        if frame not in found:
            found.add(frame)
            open_ += frame.operands
    return found


def _written(frame: Frame) -> list[Any]:
    """The equations of a frame, which then has a name."""
    result = variable(frame.shape, frame.dtype)
    operands = [operand.atom for operand in frame.operands]
    eqns, same = equations_by(frame.function, operands, [result], frame.eqn.source_info)
    frame.atom = same.get(result, result)
    return eqns


def _cut_out(interior: Any, offsets: Ints, frame: Frame) -> list[Any]:
    """The equation of an interior as a slice of its frame, for those who read the interior alone."""
    limits = [at + n for at, n in zip(offsets, interior.aval.shape, strict=True)]
    return equations_by(lambda x: lax.slice(x, offsets, limits), [frame.atom], [interior], frame.eqn.source_info)[0]
