"""Rules in Shardy's terms: factors by name, of which a dim may hold less than its extent; and those of users' kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax.numpy as jnp
from jax.experimental.custom_partitioning import BATCHING, SdyShardingRule
from jax.experimental.custom_partitioning import custom_partitioning as Partitioned
from jax.interpreters import mlir
from jax.sharding import AbstractMesh
from jaxlib.mlir import ir

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Dim, Kind, Rule

Names = Sequence[Sequence[str]]
"""The names of the factors of every dim of one array, major first."""


def named_rule(
    operands: Sequence[Names],
    results: Sequence[Names],
    shapes: Sequence[Sequence[int]],
    sizes: Mapping[str, int],
    kinds: Mapping[str, Kind],
) -> Rule:
    """The rule that names say; `shapes` are the extents of operands and results, `sizes` and `kinds` those of factors.

    Where the factors of a dim do not multiply to its extent, it is what leads before the last, and a rest that stays
    whole, as do the factors that are left out of it, wherever they occur.
    """
    arrays = (*operands, *results)
    kept = dict(kinds)
    for names, shape in zip(arrays, shapes, strict=True):
        for dim, extent in zip(names, shape, strict=True):
            kept.update(dict.fromkeys(dim[len(_sound(dim, extent, sizes)) :], "replicate"))
    factors = Factors()
    made = {name: factors.dim(extent, kept.get(name, "pass")) for name, extent in sizes.items()}

    def dim_of(dim: Sequence[str], extent: int) -> Dim:
        sound = _sound(dim, extent, sizes)
        rest = extent // prod(sizes[name] for name in sound) if extent else 0
        last = factors.dim(rest, "replicate") if len(sound) < len(dim) else ()
        return (*(factor for name in sound for factor in made[name]), *last)

    dims = [
        [dim_of(dim, extent) for dim, extent in zip(names, shape, strict=True)]
        for names, shape in zip(arrays, shapes, strict=True)
    ]
    return factors.rule(dims[: len(operands)], dims[len(operands) :])


def _sound(dim: Sequence[str], extent: int, sizes: Mapping[str, int]) -> Sequence[str]:
    """The leading factors of a dim that its extent is a multiple of; all of them where they multiply to it."""
    if prod(sizes[name] for name in dim) == extent:
        return dim
    leading = dim[:-1]
    return leading if leading and extent % prod(sizes[name] for name in leading) == 0 else ()


def custom_partitioning(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """The rule that a kernel's author gave `jax.experimental.custom_partitioning`. Raises: ValueError where none."""
    given = params["sharding_rule"]
    if isinstance(given, Callable):
        given = _called(given, operands, results, params["static_args"])
    if not isinstance(given, SdyShardingRule):
        raise ValueError("no sharding rule that can be read without a mesh")
    shapes = [aval.shape for aval in (*operands, *results)]
    names = [
        _expanded(mapping, len(shape))
        for mapping, shape in zip((*given.operand_mappings, *given.result_mappings), shapes, strict=True)
    ]
    sizes: dict[str, int] = dict(given.factor_sizes)
    for array, shape in zip(names, shapes, strict=True):
        for dim, extent in zip(array, shape, strict=True):
            if len(dim) == 1:
                # Shardy takes the smallest, too, where a factor stands for dims of different extents.
                sizes[dim[0]] = min(extent, sizes.get(dim[0], extent))
    kinds: dict[str, Kind] = dict.fromkeys(given.reduction_factors, "reduce")
    kinds.update(dict.fromkeys((*given.need_replication_factors, *given.permutation_factors), "replicate"))
    count = len(given.operand_mappings)
    return named_rule(names[:count], names[count:], shapes, sizes, kinds)


def _expanded(mapping: Sequence[Any], rank: int) -> list[list[str]]:
    """The names of the factors of every dim of one array, with those that an ellipsis stands for."""
    dims = list(mapping)
    leading: list[list[str]] = []
    if dims and isinstance(dims[0], str) and dims[0].startswith(BATCHING):
        group = dims.pop(0)
        leading = [[f"{group}_{i}"] for i in range(rank - len(dims))]
    return leading + [[dim] if isinstance(dim, str) else list(dim) for dim in dims]


def _called(function: Any, operands: Sequence[Aval], results: Sequence[Aval], static: Sequence[Any]) -> Any:
    """What a function that makes the rule says of these arrays. Raises: ValueError where it fails without a mesh."""
    with mlir.make_ir_context(), ir.Location.unknown():
        types = [
            [ir.RankedTensorType.get(aval.shape, mlir.dtype_to_ir_type(jnp.dtype(aval.dtype))) for aval in side]
            for side in (operands, results)
        ]
        try:
            made = function(*static, AbstractMesh((), ()), *types)
        except Exception as error:
            raise ValueError("the sharding rule needs a mesh") from error
    rule, sizes = made if isinstance(made, (tuple, list)) and len(made) == 2 else (made, {})
    if not isinstance(rule, str):
        return rule
    parser = Partitioned(lambda: None)
    parser.def_partition(None, sharding_rule=rule, **sizes)
    return parser.sharding_rule
