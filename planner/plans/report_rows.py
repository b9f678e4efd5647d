"""Rows: the leaves of a pytree, those that are alike folded into one, so that a plan of 200 leaves fits a screen.

Two folds, each of leaves of equal type and spec only:
 1. a name that ends in all but the root of an earlier one, as an optimizer's moments do: `opt/mu/w/kernel` joins
    `params/w/kernel`, and the row says that `opt/mu` goes with it;
 2. names that differ in one number: `layer_0/kernel`, `layer_1/kernel` -> `layer_{0,1}/kernel`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jax.sharding import PartitionSpec

from planner.program.graph import type_words
from planner.program.spec_entries import axes_of_entry, parts_over
from planner.program.traced import Leaf


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Leaves of one type and spec. `bytes` are those of all of them on one device, `also` the roots folded in."""

    name: str
    type: str
    spec: PartitionSpec
    bytes: float
    count: int
    also: tuple[str, ...]


def rows_of(leaves: Sequence[Leaf], specs: Sequence[PartitionSpec], mesh_shape: Mapping[str, int]) -> list[TableRow]:
    """The rows of some leaves, in the order of their first leaf."""
    rows = [
        TableRow(
            name=leaf.name,
            type=type_words(leaf.aval),
            spec=spec,
            bytes=leaf.aval.bytes / split_into(spec, mesh_shape),
            count=1,
            also=(),
        )
        for leaf, spec in zip(leaves, specs, strict=True)
    ]
    return _fold_numbers(_fold_moments(rows))


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
        by_type.setdefault((type_words(leaf.aval), spec), []).append(position)
    found: dict[int, int] = {}
    for position, (leaf, spec) in enumerate(zip(results, out_specs, strict=True)):
        free = by_type.get((type_words(leaf.aval), spec), [])
        common = {i: _common_end(leaf.name, arguments[i].name) for i in free}
        best = max(free, key=lambda i: common[i], default=None)
        if best is not None and common[best]:
            found[position] = best
            free.remove(best)
    return found


def roots(names: Sequence[str]) -> list[str]:
    """The first path components of some names, each once, in order."""
    return list(dict.fromkeys(name.split("/")[0] for name in names))


def split_into(spec: PartitionSpec, mesh_shape: Mapping[str, int]) -> int:
    """Into how many parts a spec cuts a tensor."""
    return math.prod(parts_over(axes_of_entry(entry), mesh_shape) for entry in spec)


def _common_end(a: str, b: str) -> int:
    """The number of path components at the end that two names share."""
    count = 0
    for x, y in zip(reversed(a.split("/")), reversed(b.split("/")), strict=False):
        if x != y:
            break
        count += 1
    return count


def _fold_numbers(rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows joined whose names differ in one number and that have the same companions."""
    pieces = [tuple(re.split(r"(\d+)", row.name)) for row in rows]
    current = [(piece, row) for piece, row in zip(pieces, rows, strict=True)]
    for position in range(1, max((len(piece) for piece in pieces), default=0), 2):
        groups: dict[object, list[tuple[tuple[str, ...], TableRow]]] = {}
        for piece, row in current:
            rest = piece[:position] + piece[position + 1 :]
            groups.setdefault((len(piece) > position, rest, row.type, row.spec, row.also), []).append((piece, row))
        current = []
        for members in groups.values():
            piece, row = members[0]
            if len(members) > 1:
                numbers = sorted({int(other[position]) for other, _ in members})
                piece = (*piece[:position], "{" + _ranges(numbers) + "}", *piece[position + 1 :])
            joined = [other for _, other in members]
            total = sum(other.bytes for other in joined)
            current.append((piece, replace(row, bytes=total, count=sum(other.count for other in joined))))
    return [replace(row, name="".join(piece)) for piece, row in current]


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] as "0..2,5"."""
    words: list[str] = []
    start = numbers[0]
    for here, following in zip(numbers, [*numbers[1:], None], strict=True):
        if following != here + 1:
            words.append(
                str(start) if start == here else f"{start},{here}" if here == start + 1 else f"{start}..{here}"
            )
            start = following if following is not None else here
    return ",".join(words)


def _fold_moments(rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows with those joined whose name ends in all but the root of an earlier row's name."""
    found: list[TableRow] = []
    by_tail: dict[tuple[str, str, PartitionSpec], int] = {}
    for row in rows:
        parts = row.name.split("/")
        tails = ["/".join(parts[start:]) for start in range(1, len(parts)) if not "".join(parts[start:]).isdigit()]
        into = next((tail for tail in tails if (tail, row.type, row.spec) in by_tail), None)
        if into is not None:
            at = by_tail[into, row.type, row.spec]
            root = row.name[: -len(into) - 1]
            first = found[at]
            found[at] = replace(
                first, bytes=first.bytes + row.bytes, count=first.count + row.count, also=(*first.also, root)
            )
            continue
        if tails:
            by_tail[tails[0], row.type, row.spec] = len(found)
        found.append(row)
    return found
