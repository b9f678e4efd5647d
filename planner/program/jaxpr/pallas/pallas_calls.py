"""Pallas kernels: by what they may be split, and how one is called on smaller arrays."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import jax.numpy as jnp

from planner.program.jaxpr.pallas.grid_reading import GridReading, grid_reading
from planner.program.jaxpr.pallas.grid_splits import GridSplit, grid_splits
from planner.program.jaxpr.pallas.known_kernels import KnownKernel, known_kernel

READ_FORMS = 256
"""Readings of so many kernels are kept: the layers of a program call a few, time and again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PallasCall:
    """A `pallas_call` equation's params, read; `reading` is None where they are of a form that is not known."""

    params: Mapping[str, Any]
    reading: GridReading | None

    @cached_property
    def _avals(self) -> list[Any]:
        mapping = self.params["grid_mapping"]
        scalars = mapping.index_map_avals[len(mapping.grid) :]
        return [*scalars, *(block.array_aval for block in mapping.block_mappings)]

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its arrays: scalars that are fetched first, operands, results."""
        return tuple(tuple(aval.shape) for aval in self._avals)

    @property
    def bounds(self) -> int:
        """How many operands say how large the grid is."""
        return self.params["grid_mapping"].num_dynamic_grid_bounds

    @property
    def results(self) -> int:
        """How many results it has."""
        return len(self.params["out_avals"])

    @cached_property
    def moved_bytes(self) -> float:
        """The bytes that go between memory and the chip: a block each time that its number may have changed.

        The last axis of a grid changes first, so a block is fetched anew for every step of the innermost axis on which it
        depends and of those around it; one that follows from data for every step.
        """
        assert self.reading is not None
        grid, moved = self.reading.grid, 0.0
        for access in self.reading.accesses:
            if access.fetched:
                axes = [
                    axis for table in access.numbers if table is not None for axis, n in enumerate(table.shape) if n > 1
                ]
                last = len(grid) - 1 if any(table is None for table in access.numbers) else max(axes, default=-1)
                size = math.prod(access.blocks) * self._avals[access.array].dtype.itemsize
                moved += size * math.prod(grid[: last + 1])
        return moved

    @cached_property
    def known(self) -> KnownKernel | None:
        """The kernel, where it is one that its grid does not tell of."""
        reading = self.reading
        if reading is None or self._apart or reading.dynamic:
            return None
        return known_kernel(self.params, self._avals[: reading.operands])

    @cached_property
    def splits(self) -> tuple[GridSplit, ...]:
        """The axes of its grid by which it may be split."""
        return self._apart if self.known is None else self.known.splits

    @cached_property
    def _apart(self) -> tuple[GridSplit, ...]:
        """The axes of its grid whose parts stand alone."""
        reading, params = self.reading, self.params
        if reading is None or params["mesh"] is not None:
            return ()
        if getattr(params["compiler_params"], "collective_id", None) is not None:
            return ()  # it speaks with other devices
        aliases = [(given, reading.operands + made) for given, made in params["input_output_aliases"]]
        found = grid_splits(reading, self.shapes, aliases)
        return tuple(split for split in found if any(array < reading.operands for array in split.dims))

    @cached_property
    def looked_up(self) -> frozenset[int]:
        """The arrays of which the kernel holds all: its variables have the shapes of the whole."""
        accesses = () if self.reading is None else self.reading.accesses
        return frozenset(access.array for access in accesses if not access.fetched)

    def parts(self, shapes: Sequence[tuple[int, ...]]) -> dict[int, int]:
        """Into how many parts each axis is split where scalars and operands have these shapes."""
        found: dict[int, int] = {}
        for split in self.splits:
            array, dim = next(iter(split.dims.items()))
            found[split.axis] = self.shapes[array][dim] // shapes[array][dim]
        return found

    def local_shape(self, array: int, parts: Mapping[int, int]) -> tuple[int, ...]:
        """The shape of a part of an array."""
        shape = list(self.shapes[array])
        for split in self.splits:
            if array in split.dims:
                shape[split.dims[array]] //= parts[split.axis]
        return tuple(shape)

    def estimated(self, flops: float, moved_bytes: float) -> PallasCall:
        """The call with an estimate of its work where its author gives none: compilers schedule by it."""
        if self.params["cost_estimate"] is not None:
            return self
        # The class has no public name that is there without importing Pallas, which a program without kernels need not.
        estimate = sys.modules[type(self.params["grid_mapping"]).__module__].CostEstimate
        work = estimate(flops=int(flops), transcendentals=0, bytes_accessed=int(moved_bytes))
        return replace(self, params={**self.params, "cost_estimate": work})

    def smaller(self, primitive: Any, operands: Sequence[Any]) -> list[Any]:
        """The results of the kernel on parts of its operands, or on all of them."""
        reading, params = self.reading, self.params
        if reading is None:
            return primitive.bind(*operands, **params)
        bounds, arrays = list(operands[: reading.dynamic]), list(operands[reading.dynamic :])
        parts = self.parts([jnp.shape(array) for array in arrays])
        if all(count == 1 for count in parts.values()):
            return primitive.bind(*operands, **params)
        if self.known is not None:
            local = self.known.params_of([jnp.shape(array) for array in arrays])
            return primitive.bind(*operands, **{**local, "interpret": params["interpret"]})
        mapping = params["grid_mapping"]
        grid = tuple(
            extent // parts[axis] if parts.get(axis, 1) > 1 else extent for axis, extent in enumerate(mapping.grid)
        )
        blocks = list(mapping.block_mappings)
        for array in range(reading.scalars, len(self.shapes)):
            if array not in self.looked_up:
                at = array - reading.scalars
                local = blocks[at].array_aval.update(shape=self.local_shape(array, parts))
                blocks[at] = blocks[at].replace(array_aval=local)
        for array in self.looked_up:
            # What is looked up is small; the places of the other parts are not looked at.
            rest = zip(self.shapes[array], jnp.shape(arrays[array]), strict=True)
            arrays[array] = jnp.pad(arrays[array], [(0, whole - here) for whole, here in rest])
        made = [
            aval.update(shape=self.local_shape(reading.operands + number, parts))
            for number, aval in enumerate(params["out_avals"])
        ]
        changed: dict[str, Any] = {
            "grid_mapping": mapping.replace(grid=grid, block_mappings=tuple(blocks)),
            "out_avals": tuple(made),
        }
        if params["cost_estimate"] is not None:
            changed["cost_estimate"] = _share(params["cost_estimate"], parts)
        return primitive.bind(*bounds, *arrays, **{**params, **changed})


def _share(estimate: Any, parts: Mapping[int, int]) -> Any:
    """What a part takes of what a whole kernel does."""
    count = math.prod(parts.values())
    kept = ("flops", "transcendentals", "bytes_accessed")
    return replace(estimate, **{name: getattr(estimate, name) // count for name in kept})


def pallas_call_of(params: Mapping[str, Any]) -> PallasCall:
    """The reading of a `pallas_call` with these params."""
    try:
        return _read(_Key(params))
    except TypeError:  # a param that cannot be hashed
        return _read.__wrapped__(_Key(params))


class _Key:
    """Params that are equal where all that they hold is."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params, self.items = params, frozenset(params.items())

    def __hash__(self) -> int:
        return hash(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.items == other.items


@lru_cache(maxsize=READ_FORMS)
def _read(key: _Key) -> PallasCall:
    try:
        reading = grid_reading(key.params)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, AssertionError):
        # Kernels are written in a language that changes between releases of JAX. What is not understood stays whole.
        reading = None
    return PallasCall(params=key.params, reading=reading)
