"""What the body of a Pallas kernel does at the steps of its grid: where it looks, what it depends on, what it computes.

Integers that follow from the place in the grid alone are *tables*: arrays with a dim for each axis of the grid, of extent 1
where they do not depend on it. Index maps are tables, and so are most conditions (`pl.when(i == 0)`); all else is unknown.
A table that becomes part of what is computed (a mask, a condition, an offset within a block) gives its axes a *period*: as
many steps on, the kernel does the same again, and with a period of the whole axis never.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.program.jaxpr.bodies import opened
from planner.program.jaxpr.pallas.grid_walk import Access, Counted, Ref, Touch, Walk


@dataclass(frozen=True, kw_only=True, eq=False)
class GridReading:
    """What a kernel does at the steps of its grid, see the module.

    `grid` has the extents of its axes, 1 for the `dynamic` ones, which the first operands say; `scalars` and `operands` are
    where operands and results begin among the arrays that `Access` numbers. `periods` has, by axis, after how many steps it
    computes the same of its blocks again: 1 if not named. `parallel` are the axes whose steps its author lets run in any
    order, `scratch` the variables, as `Touch` numbers them, that are memory of the kernel's own.
    """

    grid: tuple[int, ...]
    dynamic: int
    scalars: int
    operands: int
    periods: Mapping[int, int]
    parallel: frozenset[int]
    accesses: tuple[Access, ...]
    counted: tuple[Counted, ...]
    touches: tuple[Touch, ...]
    scratch: tuple[int, ...]
    unknown_trips: bool


def grid_reading(params: Mapping[str, Any]) -> GridReading:
    """The reading of a `pallas_call` with these params. Raises: AttributeError, KeyError where they are of another form."""
    mapping, jaxpr = params["grid_mapping"], params["jaxpr"]
    fixed = [isinstance(extent, int) for extent in mapping.grid]
    grid = tuple(extent if known else 1 for extent, known in zip(mapping.grid, fixed, strict=True))
    vmapped = tuple(mapping.vmapped_dims)
    body = Walk(
        grid=grid,
        program_axes=tuple(axis for axis in range(len(grid)) if axis not in vmapped),
        dynamic=frozenset(axis for axis, known in enumerate(fixed) if not known),
    )
    scalars, blocks = mapping.num_index_operands, mapping.block_mappings
    shapes = [tuple(aval.shape) for aval in mapping.index_map_avals[len(grid) :]]
    refs = [Ref(number, shape, True) for number, shape in enumerate(shapes)]
    for number, block in enumerate(blocks, scalars):
        places = [body.place(axis) for axis in range(len(grid))]
        maps = opened(block.index_map_jaxpr)
        given = dict(zip(maps.invars, [*places, *refs[:scalars]], strict=True))
        numbers, _ = body.walk(block.index_map_jaxpr, given, 0.0, 0.0)
        extents = tuple(int(getattr(size, "block_size", 1)) for size in block.block_shape)
        modes = [type(size).__name__ for size in block.block_shape]
        known = tuple(
            table if isinstance(table, np.ndarray) and mode in ("Blocked", "Squeezed", "Element") else None
            for table, mode in zip(numbers, modes, strict=True)
        )
        body.accesses.append(Access(number, known, extents, tuple(mode == "Element" for mode in modes), True))
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
