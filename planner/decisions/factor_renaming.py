"""Factor names: the factors of one group in those of another that sees the same tensor."""

from __future__ import annotations

from collections.abc import Sequence

from planner.rules.rule import Dims

Names = dict[int, tuple[int, ...]]
"""The factors of one group by those of another."""


def names_between(seen: Dims, own: Dims) -> Names:
    """The factors of a group by those of another, from the dims of one tensor in both: `seen` in the other, `own` in it.

    Of a product of factors that the other side sees as one it is the leading one that is split first.
    """
    names: Names = {}
    for one, other in zip(seen, own, strict=True):
        if len(one) == len(other):
            names.update({a: (b,) for a, b in zip(one, other, strict=True)})
        elif one and other:
            names[one[0]] = other
            names.update(dict.fromkeys(one[1:], ()))
    return names


def covers(names: Names, dims: Dims, shape: Sequence[int]) -> bool:
    """Whether the names tell how every dim of a tensor is split."""
    return all(extent == 1 or all(f in names for f in dim) for extent, dim in zip(shape, dims, strict=True))


def renamed(names: Names, dims: Dims) -> Dims:
    """Dims in the factors of another group."""
    return tuple([tuple([f for factor in dim for f in names.get(factor, ())]) for dim in dims])
