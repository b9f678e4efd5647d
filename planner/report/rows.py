"""Rows: the leaves of a pytree, those that are alike folded into one, so that a plan of 200 leaves fits a screen.

Two folds, each of leaves of equal type and spec only:
 1. names that differ in their numbers: `layer_0/kernel`, `layer_1/kernel` -> `layer_{0,1}/kernel`;
 2. a name that ends as an earlier one does, as those of an optimizer's moments do: `state/opt/mu/w/kernel` joins
    `state/params/w/kernel`, and the row says that `state/opt/mu` goes with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jax.sharding import PartitionSpec

from planner.folded import fold_numbers
from planner.program.graph import type_text
from planner.program.spec_entries import axes_of_entry, parts_over
from planner.program.tracing.traced import Leaf

_NUMBERS = re.compile(r"\{[\d.,]+\}|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Leaves of one type and spec. `bytes` are those of all of them on one device, `also` the roots folded in.

    `first` is the name of the first of them.
    """

    name: str
    first: str
    type: str
    shape: tuple[int, ...]
    spec: PartitionSpec
    bytes: float
    count: int
    also: tuple[str, ...]


def rows_of(leaves: Sequence[Leaf], specs: Sequence[PartitionSpec], mesh_shape: Mapping[str, int]) -> list[TableRow]:
    """The rows of some leaves, in the order of their first leaf."""
    rows = [
        TableRow(
            name=leaf.name,
            first=leaf.name,
            type=type_text(leaf.aval),
            shape=leaf.aval.shape,
            spec=spec,
            bytes=bytes_on_device(leaf, spec, mesh_shape),
            count=1,
            also=(),
        )
        for leaf, spec in zip(leaves, specs, strict=True)
    ]
    return _fold_moments(_fold_layers(rows))


def returned_as_taken(
    arguments: Sequence[Leaf],
    in_specs: Sequence[PartitionSpec],
    results: Sequence[Leaf],
    out_specs: Sequence[PartitionSpec],
) -> dict[int, int]:
    """Result position -> argument position, for results of the type, spec and path (but for its root) of an argument.

    The longest common path wins; every argument goes to one result.
    """
    by_type: dict[tuple[str, PartitionSpec], list[int]] = {}
    for position, (leaf, spec) in enumerate(zip(arguments, in_specs, strict=True)):
        by_type.setdefault((type_text(leaf.aval), spec), []).append(position)
    found: dict[int, int] = {}
    for position, (leaf, spec) in enumerate(zip(results, out_specs, strict=True)):
        free = by_type.get((type_text(leaf.aval), spec), [])
        common = {i: _common_end(leaf.name, arguments[i].name) for i in free}
        best = max(free, key=lambda i: common[i], default=None)
        if best is not None and common[best]:
            found[position] = best
            free.remove(best)
    return found


def split_into(spec: PartitionSpec, mesh_shape: Mapping[str, int]) -> int:
    """Into how many parts a spec cuts a tensor."""
    return math.prod(parts_over(axes_of_entry(entry), mesh_shape) for entry in spec)


def bytes_on_device(leaf: Leaf, spec: PartitionSpec, mesh_shape: Mapping[str, int]) -> float:
    """The bytes of an array on one device."""
    return leaf.aval.bytes / split_into(spec, mesh_shape)


def _common_end(a: str, b: str) -> int:
    """The number of path components at the end that two names share."""
    count = 0
    for x, y in zip(reversed(a.split("/")), reversed(b.split("/")), strict=False):
        if x != y:
            break
        count += 1
    return count


def _fold_layers(rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows joined whose names differ in their numbers."""
    return [
        replace(
            rows[members[0]],
            name=name,
            bytes=sum(rows[i].bytes for i in members),
            count=sum(rows[i].count for i in members),
        )
        for name, members in fold_numbers([row.name for row in rows], [(row.type, row.spec) for row in rows])
    ]


def _fold_moments(rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows with those joined that mirror an earlier one, of the same type and the longest common end of a name."""
    found: list[TableRow] = []
    by_end: dict[tuple[str, str], int] = {}
    for row in rows:
        parts = row.name.split("/")
        ends = ["/".join(parts[start:]) for start in range(1, len(parts))]
        end = next((end for end in ends if (end, row.type) in by_end), None)
        if end is not None:
            at = by_end[end, row.type]
            first, prefix = found[at], row.name[: -len(end) - 1]
            if first.spec == row.spec and _mirrors(first.name[: -len(end) - 1], prefix, end):
                found[at] = replace(
                    first, bytes=first.bytes + row.bytes, count=first.count + row.count, also=(*first.also, prefix)
                )
                continue
        for end in ends:
            by_end.setdefault((end, row.type), len(found))
        found.append(row)
    return found


def _mirrors(prefix: str, other: str, end: str) -> bool:
    """Whether two trees of leaves are the same but for what they begin with, as parameters and their moments are.

    Two parts of a module are not, such as the kernels of a query and of a key, nor are two layers. Whole arguments are, and
    else what ends in more than a module's own parameter.
    """
    deep = len(end.removesuffix("/value").split("/")) > 1
    return ("/" not in prefix or deep) and _NUMBERS.sub("#", prefix) != _NUMBERS.sub("#", other)
