"""Pallas kernels: by what they may be split, and how one is called on smaller arrays.

Some kernels whose steps depend on one another are known by name, and called on smaller arrays by tracing them again. The
paged attention for TPUs fetches the pages of the next example or head while it computes one, so no part of its grid
stands alone; but the function that calls it may be called for fewer of them. What a call was made with is read from the
call, and taken to be read right only where tracing the function with it gives the very same call.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from planner.program.jaxpr.bodies import equations_of, opened
from planner.program.jaxpr.pallas.grid_reading import GridReading, grid_reading
from planner.program.jaxpr.pallas.grid_splits import GridSplit, grid_splits
from planner.program.jaxpr.pallas.grid_tables import bodies_of, fetches

PAGED = "jax.experimental.pallas.ops.tpu.paged_attention.paged_attention_kernel"


@dataclass(frozen=True, kw_only=True)
class KnownKernel:
    """A known kernel: by what it may be split, its params for arrays of smaller shapes, and its work at the most."""

    splits: tuple[GridSplit, ...]
    params_of: Callable[[Sequence[tuple[int, ...]]], Mapping[str, Any]]
    flops: float
    moved_bytes: float


def known_kernel(params: Mapping[str, Any], operands: Sequence[Any]) -> KnownKernel | None:
    """The known kernel that a `pallas_call` with these params calls, its operands of these avals; None where it is none."""
    name = str(getattr(opened(params["jaxpr"]).debug_info, "func_src_info", "")).split(" ")[0]
    if name in ("paged_flash_attention_kernel", "paged_flash_attention_kernel_inline_seq_dim") and len(operands) == 7:
        return _paged_attention(params, operands, inline=name.endswith("inline_seq_dim"))
    return None


def _paged_attention(params: Mapping[str, Any], operands: Sequence[Any], *, inline: bool) -> KnownKernel | None:
    # Whoever calls it has imported it.
    function = getattr(sys.modules.get(PAGED), "paged_attention", None)
    if function is None:
        return None
    pages = params["grid_mapping"].scratch_avals[0].shape[1]
    cores = params["grid_mapping"].grid[0]
    modes = (None,) if cores == 1 else ("batch", "kv_head")

    def called(shapes: Sequence[tuple[int, ...]], **how: Any) -> Mapping[str, Any] | None:
        lengths, page_indices, q, keys = (shapes[i] for i in (0, 1, 4, 5))
        arrays = [
            (*q[:2], q[-1]),
            keys,
            keys,
            lengths,
            (*lengths, page_indices[0] // lengths[0]),
        ]
        dtypes = [operands[i].dtype for i in (4, 5, 6, 0, 1)]
        structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(arrays, dtypes, strict=True)]
        made = partial(function, pages_per_compute_block=pages, inline_seq_dim=inline, **how)
        found = [eqn.params for eqn in equations_of(jax.make_jaxpr(made)(*structs)) if "grid_mapping" in eqn.params]
        return found[0] if len(found) == 1 else None

    whole = [tuple(aval.shape) for aval in operands]
    numbers = sorted(set(_numbers(params["jaxpr"])))
    guesses: list[dict[str, Any]] = [{}]
    guesses += [{"attn_logits_soft_cap": number} for number in numbers if number > 0]
    guesses += [{"mask_value": number} for number in numbers if number < 0]
    for how, mode in itertools.product(guesses, modes):
        given = {**how, "megacore_mode": mode}
        again = called(whole, **given)
        if again is not None and _is_same(again, params):
            break
    else:
        return None
    (examples,), keys, q = whole[0], whole[5], whole[4]
    at_once = [cores if mode == each else 1 for each in ("batch", "kv_head")]
    outputs = {7: 0, 8: 0, 9: 0}
    batch = {0: 0, 1: 0, 4: 0, **outputs}
    heads = {4: 1, 5: 0, 6: 0, **dict.fromkeys(outputs, 1)}
    splits = [
        GridSplit(axis=axis, parts=extent // cores_of, stride=cores_of, dims=dims)
        for axis, extent, cores_of, dims in ((1, examples, at_once[0], batch), (2, keys[0], at_once[1], heads))
    ]
    # All pages of all examples, though their lengths may ask for fewer.
    elements = whole[1][0] * math.prod(keys[2:])
    return KnownKernel(
        splits=tuple(split for split in splits if split.parts > 1),
        params_of=lambda shapes: called(shapes, **given) or params,
        flops=4.0 * elements * q[1],
        moved_bytes=2.0 * elements * keys[0] * operands[5].dtype.itemsize,
    )


def _numbers(jaxpr: Any) -> Iterator[float]:
    """The numbers that a body's equations have among their operands, those of its own bodies included."""
    for eqn in opened(jaxpr).eqns:
        for atom in eqn.invars:
            value = np.asarray(atom.val if isinstance(atom, jex_core.Literal) else 0)
            if value.dtype.kind == "f" and not value.ndim and np.isfinite(value):
                yield float(value)
        for body in bodies_of(eqn):
            yield from _numbers(body)


def _is_same(mine: Mapping[str, Any], its: Mapping[str, Any]) -> bool:
    """Whether two calls are of one kernel with one grid."""

    def text(params: Mapping[str, Any]) -> list[str]:
        mapping = params["grid_mapping"]
        blocks = [(block.block_shape, block.index_map_jaxpr, block.array_aval) for block in mapping.block_mappings]
        return list(map(str, (params["jaxpr"], mapping.grid, mapping.scratch_avals, *blocks, params["out_avals"])))

    return text(mine) == text(its)


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
        """The bytes that go between memory and the chip: a block each time that its number changes.

        A block whose number follows from data is fetched for every step.
        """
        assert self.reading is not None
        grid = self.reading.grid
        fetched = (access for access in self.reading.accesses if access.fetched)
        sizes = ((access, self._avals[access.array].dtype.itemsize) for access in fetched)
        return sum(math.prod(access.blocks) * size * fetches(access.numbers, grid) for access, size in sizes)

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

    def estimated(self, flops: float, exponentials: float, moved_bytes: float) -> PallasCall:
        """The call with an estimate of its work where its author gives none: compilers schedule by it.

        `flops` are all of its operations; the estimate says of the `exponentials` among them that they are such.
        """
        if self.params["cost_estimate"] is not None:
            return self
        # The class has no public name that is there without importing Pallas, which a program without kernels need not.
        estimate = sys.modules[type(self.params["grid_mapping"]).__module__].CostEstimate
        others, counted = int(flops) - int(exponentials), int(exponentials)
        work = estimate(flops=others, transcendentals=counted, bytes_accessed=int(moved_bytes))
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
