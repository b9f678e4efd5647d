"""Objects told apart by identity: arrays that many edges share are looked at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def numbered(objects: Iterable[T]) -> tuple[list[T], list[int]]:
    """The distinct objects in the order they are met, and for every one given its number among them."""
    distinct: list[T] = []
    number_of: dict[int, int] = {}
    numbers: list[int] = []
    for given in objects:
        number = number_of.setdefault(id(given), len(distinct))
        if number == len(distinct):
            distinct.append(given)
        numbers.append(number)
    return distinct, numbers
