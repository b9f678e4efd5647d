"""A kernel run on the local parts of its arguments: what JAX's custom partitioning asks of one with a factor rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from jax import lax
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule
from jax.sharding import NamedSharding, PartitionSpec

from planner.factors import Combiner, Dim, Kind, Rule

COMBINE: Mapping[Combiner, Callable[..., Any]] = {
    "add": lax.psum,
    "and": lambda x, axes: lax.pmin(x.astype("int8"), axes).astype(x.dtype),
    "max": lax.pmax,
    "min": lax.pmin,
    "or": lambda x, axes: lax.pmax(x.astype("int8"), axes).astype(x.dtype),
}
"""How partial results become whole ones, over mesh axes."""


def sharding_rule(rule: Rule) -> SdyShardingRule:
    """The rule in the form that JAX takes, where every dim has a factor."""
    extra = iter(range(sum(not dim for dims in (*rule.operands, *rule.results) for dim in dims)))
    own: set[int] = set()

    def name(factor: int) -> str:
        return f"f{factor}"

    def mapping(dims: Sequence[Dim]) -> ArrayMapping:
        own.update(dim[0] for dim in dims if len(dim) == 1)
        return ArrayMapping(
            *(
                CompoundFactor(*map(name, dim)) if len(dim) > 1 else name(dim[0]) if dim else f"one{next(extra)}"
                for dim in dims
            )
        )

    def of(*kinds: Kind) -> tuple[str, ...]:
        return tuple(name(factor) for factor, kind in enumerate(rule.kinds) if kind in kinds)

    operands, results = tuple(map(mapping, rule.operands)), tuple(map(mapping, rule.results))
    sizes = {name(factor): size for factor, size in enumerate(rule.sizes) if factor not in own}
    return SdyShardingRule(
        operands,
        results,
        reduction_factors=of("reduce"),
        need_replication_factors=of("replicate", "permute"),
        permutation_factors=(),
        **sizes,
    )


def partition(rule: Rule, flat: Callable[..., list[Any]]) -> Callable[..., Any]:
    """The callback with which JAX asks for the local function and the shardings it works on."""

    def answer(mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        views = [*zip(rule.results, results, strict=True), *zip(rule.operands, operands, strict=True)]
        axes = _axes(rule, [(dims, array.sharding.spec) for dims, array in views], mesh.shape)
        summed = tuple(axis for factor, kind in enumerate(rule.kinds) if kind == "reduce" for axis in axes[factor])

        def local(*values: Any) -> list[Any]:
            made = flat(*values)
            return [COMBINE[rule.combiner](value, summed) for value in made] if summed else made

        def lies(dims: Sequence[Dim]) -> NamedSharding:
            entries = [tuple(axis for factor in dim for axis in axes[factor]) or None for dim in dims]
            return NamedSharding(mesh, PartitionSpec(*entries))

        return mesh, local, [lies(dims) for dims in rule.results], tuple(lies(dims) for dims in rule.operands)

    return answer


def _axes(
    rule: Rule, views: Sequence[tuple[Sequence[Dim], PartitionSpec]], sizes: Mapping[str, int]
) -> list[tuple[str, ...]]:
    """The mesh axes that split each factor, taken from how the arrays lie; of demands that conflict the first counts."""
    axes: list[tuple[str, ...]] = [()] * len(rule.sizes)
    used: set[str] = set()

    def left(factor: int) -> int:
        parts = 1
        for axis in axes[factor]:
            parts *= sizes[axis]
        return rule.sizes[factor] // parts

    for dims, spec in views:
        for dim, entry in zip(dims, spec, strict=False):
            names = (entry,) if isinstance(entry, str) else tuple(entry or ())
            for factor in dim:
                if axes[factor] or rule.kinds[factor] not in ("pass", "reduce"):
                    break
                while names and names[0] not in used and left(factor) % sizes[names[0]] == 0:
                    axes[factor] += (names[0],)
                    used.add(names[0])
                    names = names[1:]
                if left(factor) > 1:
                    break
    # The minor factor of a dim can only be split once the major ones are split up.
    changed = True
    while changed:
        changed = False
        for dims, _ in views:
            for dim in dims:
                for major, minor in pairwise(dim):
                    if axes[minor] and left(major) > 1:
                        axes[minor], changed = (), True
    return axes
