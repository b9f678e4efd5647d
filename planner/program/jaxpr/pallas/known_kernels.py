"""Kernels whose steps depend on one another, known by name, and called anew on smaller arrays by tracing them again.

The paged attention for TPUs fetches the pages of the next example or head while it computes one, so no part of its grid
stands alone; but the function that calls it may be called for fewer of them. What a call was made with is read from the
call, and taken to be read right only where tracing the function with it gives the very same call.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np

from planner.program.jaxpr.bodies import equations_of, opened
from planner.program.jaxpr.pallas.grid_splits import GridSplit
from planner.program.jaxpr.pallas.grid_tables import bodies_of

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
