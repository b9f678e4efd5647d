"""What the body of a Pallas kernel does at the steps of its grid: where it looks, what it depends on, what it computes.

Integers that follow from the place in the grid alone are *tables*: arrays with a dim for each axis of the grid, of extent 1
where they do not depend on it. Index maps are tables, and so are most conditions (`pl.when(i == 0)`); all else is unknown.
A table that becomes part of what is computed (a mask, a condition, an offset within a block) gives its axes a *period*: as
many steps on, the kernel does the same again, and with a period of the whole axis never.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import body_of, opened, structure_of
from planner.program.jaxpr.pallas.grid_tables import (
    MOST_POINTS,
    SCALAR_STEPS,
    Table,
    bodies_of,
    is_all,
    is_integer,
    is_whole_number,
    looked_up,
    period_of,
    trips_of,
)


class BlockAccess(NamedTuple):
    """Where a kernel reads or writes one of its arrays: for each dim the number of the block, and the block's extent.

    `array` counts scalars that are fetched first, then operands, then results. A block number is None where it follows from
    data. In a dim of `elements` the number is that of the first element, not of a block. `fetched`: by the block mapping,
    from memory; else the kernel looks up an element of what it holds whole.
    """

    array: int
    numbers: tuple[Table | None, ...]
    blocks: tuple[int, ...]
    elements: tuple[bool, ...]
    fetched: bool


class CountedStep(NamedTuple):
    """An equation of a kernel's body and how often it runs over the whole grid."""

    kind: str
    operands: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    dtype: str
    params: Mapping[str, Any]
    times: float


@dataclass(frozen=True)
class Touch:
    """A kernel's own variable is read, written as a whole (`whole`), or left to the bodies of a branch or loop.

    `number` is the position of the variable among those of the kernel. `taken` is the table of a branch, None where it is
    not known.
    """

    number: int = -1
    whole: bool = False
    taken: Table | None = None
    bodies: tuple[tuple[Touch, ...], ...] = ()
    is_loop: bool = False


class Ref(NamedTuple):
    number: int
    shape: tuple[int, ...]
    held_whole: bool


@dataclass
class Walk:
    """What is gathered while the bodies of a kernel are walked."""

    grid: tuple[int, ...]
    program_axes: tuple[int, ...]
    dynamic: frozenset[int]
    scalars: Mapping[int, Table] = field(default_factory=dict[int, Table])
    periods: dict[int, int] = field(default_factory=dict[int, int])
    accesses: list[BlockAccess] = field(default_factory=list[BlockAccess])
    counted: list[CountedStep] = field(default_factory=list[CountedStep])
    unknown_trips: bool = False
    used: set[int] = field(default_factory=set[int])
    """The variables that something reads, by identity."""

    # ------------------------------------------------------------ tables

    def constant(self, value: Any) -> Table:
        return np.full((1,) * len(self.grid), value)

    def place(self, axis: int) -> Table | None:
        if axis in self.dynamic:
            return None
        shape = [1] * len(self.grid)
        shape[axis] = self.grid[axis]
        return np.arange(self.grid[axis], dtype=np.int64).reshape(shape)

    def dropped(self, value: Any) -> None:
        """A table becomes part of what is computed."""
        if isinstance(value, np.ndarray):
            for axis, extent in enumerate(value.shape):
                if extent > 1:
                    self.periods[axis] = math.lcm(self.periods.get(axis, 1), period_of(value, axis))

    # ------------------------------------------------------------ walking

    def walk(self, jaxpr: Any, env: dict[Any, Any], where: Any, times: float) -> tuple[list[Any], list[Touch]]:
        """The values that a body returns, and how it touches the kernel's variables.

        `where` says for every place in the grid whether a step comes here, `times` how often.
        """
        touches: list[Touch] = []
        body = opened(jaxpr)
        self.used |= {id(atom) for eqn in body.eqns for atom in eqn.invars} | set(map(id, body.outvars))

        def read(atom: Any) -> Any:
            if not isinstance(atom, jex_core.Literal):
                return env.get(atom)
            return self.constant(int(atom.val)) if is_whole_number(atom) else None

        for eqn in body.eqns:
            values = [read(atom) for atom in eqn.invars]
            made = self._step(eqn, values, where, times, touches)
            for var, value in zip(eqn.outvars, made or [None] * len(eqn.outvars), strict=True):
                env[var] = value
        return [read(atom) for atom in body.outvars], touches

    def _step(
        self, eqn: Any, values: Sequence[Any], where: Any, times: float, touches: list[Touch]
    ) -> Sequence[Any] | None:
        name, structure = eqn.primitive.name, structure_of(eqn)
        if name == "program_id":
            return [self.place(self.program_axes[eqn.params["axis"]])]
        if name == "num_programs":
            self.dropped(self.place(self.program_axes[eqn.params["axis"]]))
            return None
        tables = [value for value in values if isinstance(value, np.ndarray)]
        known = name in SCALAR_STEPS and len(tables) == len(values) and is_integer(eqn.outvars[0], name)
        if known and math.prod(np.broadcast_shapes(*(table.shape for table in tables))) <= MOST_POINTS:
            return [SCALAR_STEPS[name](eqn.params, *tables)]
        if name in ("get", "swap", "addupdate"):
            made = self._state(eqn, values, touches)
            self._count(eqn, where, times)
            return None if made is None else [made]
        elif name == "cond":
            return self._cond(eqn, values, where, times, touches)
        elif name == "while":
            return self._while(eqn, values, where, times, touches)
        elif name == "scan":
            return self._scan(eqn, values, where, times, touches)
        elif structure is not None:
            inner = body_of(eqn, structure.bodies[0])
            taken = values if structure.takes is None else [values[i] for i in structure.takes]
            made, inside = self.walk(inner, dict(zip(opened(inner).invars, taken, strict=True)), where, times)
            touches += inside
            return made
        else:
            self._other(eqn, values, where, times, touches)
        self._count(eqn, where, times)
        return None

    def _other(self, eqn: Any, values: Sequence[Any], where: Any, times: float, touches: list[Touch]) -> None:
        """A step of which nothing is known: it may read whatever it is given."""
        for value in values:
            self.dropped(value)
            if isinstance(value, Ref):
                touches.append(Touch(number=value.number))
                self._looked_up(value, None)
        for inner in bodies_of(eqn):
            # What it hands to its bodies is not known either.
            _, inside = self.walk(inner, {}, where, times)
            touches.append(Touch(bodies=(tuple(inside),), is_loop=True))

    def _count(self, eqn: Any, where: Any, times: float) -> None:
        if not any(True for _ in bodies_of(eqn)):
            avals = [[v.aval for v in side if hasattr(v.aval, "shape")] for side in (eqn.invars, eqn.outvars)]
            dtypes = [str(aval.dtype) for side in avals for aval in side if hasattr(aval, "dtype")]
            operands, results = (tuple(tuple(aval.shape) for aval in side) for side in avals)
            run = self.steps * times * float(np.mean(where))
            self.counted.append(
                CountedStep(eqn.primitive.name, operands, results, (dtypes or [""])[0], eqn.params, run)
            )

    @property
    def steps(self) -> float:
        return float(np.prod(self.grid, dtype=np.float64))

    # ------------------------------------------------------------ arrays

    def _state(self, eqn: Any, values: Sequence[Any], touches: list[Touch]) -> Table | None:
        """Notes how a variable is read or written; the table that is read, of scalars that are known."""
        reads = eqn.primitive.name == "get"
        first = 1 if reads else 2
        ref, rest = values[0], list(values[first:])
        indexers = jax.tree.unflatten(eqn.params["tree"], list(range(first, first + len(rest))))
        if not reads:
            self.dropped(values[1])
        if not isinstance(ref, Ref):
            for value in rest:
                self.dropped(value)
            return None
        whole = eqn.primitive.name == "swap" and all(is_all(indexer, ref.shape) for indexer in indexers)
        if not whole or id(eqn.outvars[0]) in self.used:
            # Of what is written in part the rest stays: what it was is still needed.
            touches.append(Touch(number=ref.number))
        if whole:
            touches.append(Touch(number=ref.number, whole=True))
        numbers = looked_up(indexers, values) if reads and ref.held_whole else None
        if numbers is None:
            for value in rest:
                self.dropped(value)
        if ref.held_whole:
            self._looked_up(ref, numbers)
        if ref.number not in self.scalars or numbers is None or any(number is None for number in numbers):
            return None
        known = self.scalars[ref.number]
        limits = zip(numbers, known.shape, strict=True)
        # What a kernel reads beyond its scalars it does not use.
        return known[tuple(np.clip(number, 0, extent - 1) for number, extent in limits if number is not None)]

    def _looked_up(self, ref: Ref, numbers: Sequence[Table | None] | None) -> None:
        """An element of an array that the kernel holds whole is read; without numbers, any of it."""
        if ref.held_whole:
            places = tuple(numbers) if numbers is not None else (self.constant(0),) * len(ref.shape)
            blocks = (1,) * len(ref.shape) if numbers is not None else ref.shape
            self.accesses.append(BlockAccess(ref.number, places, blocks, (False,) * len(ref.shape), False))

    # ------------------------------------------------------------ branches and loops

    def _cond(
        self, eqn: Any, values: Sequence[Any], where: Any, times: float, touches: list[Touch]
    ) -> Sequence[Any] | None:
        chosen, branches = values[0], eqn.params["branches"]
        table = chosen if isinstance(chosen, np.ndarray) else None
        self.dropped(chosen)
        bodies: list[tuple[Touch, ...]] = []
        for number, branch in enumerate(branches):
            # A branch whose condition follows from data counts as taken.
            here = where if table is None else where * (np.clip(table, 0, len(branches) - 1) == number)
            made, inside = self.walk(branch, dict(zip(opened(branch).invars, values[1:], strict=True)), here, times)
            for value in made:
                self.dropped(value)
            bodies.append(tuple(inside))
        touches.append(Touch(taken=table, bodies=tuple(bodies)))
        return None

    def _scan(
        self, eqn: Any, values: Sequence[Any], where: Any, times: float, touches: list[Touch]
    ) -> Sequence[Any] | None:
        structure = structure_of(eqn)
        assert structure is not None
        self._loop(
            body_of(eqn, structure.bodies[0]), values, structure.num_consts, where, times * structure.length, touches
        )
        return None

    def _while(
        self, eqn: Any, values: Sequence[Any], where: Any, times: float, touches: list[Touch]
    ) -> Sequence[Any] | None:
        structure = structure_of(eqn)
        assert structure is not None
        tests = structure.cond_consts
        trips = trips_of(eqn, structure, values, self.constant)
        self.unknown_trips |= trips is None
        run = 1.0 if trips is None else np.maximum(trips, 0)
        for value in values[:tests]:
            self.dropped(value)
        body = body_of(eqn, structure.bodies[1])
        self._loop(body, values[tests:], structure.num_consts, where * run, times, touches)
        return None

    def _loop(
        self, body: Any, values: Sequence[Any], consts: int, where: Any, times: float, touches: list[Touch]
    ) -> None:
        """The body of a loop: what does not change in it is known there, carries and slices are not."""
        for value in values[consts:]:
            self.dropped(value)
        held = [*values[:consts], *(v if isinstance(v, Ref) else None for v in values[consts:])]
        made, inside = self.walk(body, dict(zip(opened(body).invars, held, strict=True)), where, times)
        for value in made:
            self.dropped(value)
        touches.append(Touch(bodies=(tuple(inside),), is_loop=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class GridReading:
    """What a kernel does at the steps of its grid, see the module.

    `grid` has the extents of its axes, 1 for the `dynamic` ones, which the first operands say; `scalars` and `operands` are
    where operands and results begin among the arrays that `BlockAccess` numbers. `periods` has, by axis, after how many
    steps it computes the same of its blocks again: 1 if not named. `parallel` are the axes whose steps its author lets run
    in any order, `scratch` the variables, as `Touch` numbers them, that are memory of the kernel's own.
    """

    grid: tuple[int, ...]
    dynamic: int
    scalars: int
    operands: int
    periods: Mapping[int, int]
    parallel: frozenset[int]
    accesses: tuple[BlockAccess, ...]
    counted: tuple[CountedStep, ...]
    touches: tuple[Touch, ...]
    scratch: tuple[int, ...]
    unknown_trips: bool


def grid_reading(params: Mapping[str, Any], known: Mapping[int, Table] = MappingProxyType({})) -> GridReading:
    """The reading of a `pallas_call` with these params, where some of the scalars that are fetched first are `known`.

    Raises: AttributeError, KeyError where they are of another form.
    """
    mapping, jaxpr = params["grid_mapping"], params["jaxpr"]
    fixed = [isinstance(extent, int) for extent in mapping.grid]
    grid = tuple(extent if is_fixed else 1 for extent, is_fixed in zip(mapping.grid, fixed, strict=True))
    vmapped = tuple(mapping.vmapped_dims)
    body = Walk(
        grid=grid,
        program_axes=tuple(axis for axis in range(len(grid)) if axis not in vmapped),
        dynamic=frozenset(axis for axis, is_fixed in enumerate(fixed) if not is_fixed),
        scalars=known,
    )
    scalars, blocks = mapping.num_index_operands, mapping.block_mappings
    shapes = [tuple(aval.shape) for aval in mapping.index_map_avals[len(grid) :]]
    refs = [Ref(number, shape, True) for number, shape in enumerate(shapes)]
    for number, block in enumerate(blocks, scalars):
        axes = [body.place(axis) for axis in range(len(grid))]
        maps = opened(block.index_map_jaxpr)
        given = dict(zip(maps.invars, [*axes, *refs[:scalars]], strict=True))
        numbers, _ = body.walk(block.index_map_jaxpr, given, 0.0, 0.0)
        extents = tuple(int(getattr(size, "block_size", 1)) for size in block.block_shape)
        modes = [type(size).__name__ for size in block.block_shape]
        places = tuple(
            table if isinstance(table, np.ndarray) and mode in ("Blocked", "Squeezed", "Element") else None
            for table, mode in zip(numbers, modes, strict=True)
        )
        body.accesses.append(BlockAccess(number, places, extents, tuple(mode == "Element" for mode in modes), True))
        shape = tuple(block.array_aval.shape)
        # The variable has the dims of the array where none is squeezed out.
        held = extents == shape and "Squeezed" not in modes and number < scalars + mapping.num_inputs
        refs.append(Ref(number, shape if held else tuple(opened(jaxpr).invars[number].aval.shape), held))
    body.counted.clear()
    variables = opened(jaxpr).invars
    for number, var in enumerate(variables[len(refs) :], len(refs)):
        refs.append(Ref(number, tuple(var.aval.shape), False))
    _, touches = body.walk(jaxpr, dict(zip(variables, refs, strict=True)), 1.0, 1.0)
    semantics = getattr(params["compiler_params"], "dimension_semantics", None) or ()
    own = [str(getattr(each, "value", each)).lower() for each in semantics]
    parallel = {body.program_axes[n] for n, word in enumerate(own) if word == "parallel" and n < len(body.program_axes)}
    return GridReading(
        grid=grid,
        dynamic=len(body.dynamic),
        scalars=scalars,
        operands=scalars + mapping.num_inputs,
        periods=body.periods,
        parallel=frozenset(parallel | set(vmapped)),
        accesses=tuple(body.accesses),
        counted=tuple(body.counted),
        touches=tuple(touches),
        scratch=tuple(range(scalars + len(blocks), len(variables))),
        unknown_trips=body.unknown_trips or bool(body.dynamic),
    )
