"""How XLA's TPU compiler lays out arguments, as it said of a program that takes one array of each kind (libtpu 0.0.42)."""

from __future__ import annotations

import pytest

from planner.pricing.tpu_tiles import argument_order

BFLOAT16 = {
    (4, 2, 64, 1, 128): (0, 1, 3, 2, 4),
    (4, 2, 64, 2, 128): (0, 1, 2, 3, 4),
    (4, 2, 64, 3, 128): (0, 1, 3, 2, 4),
    (4, 2, 64, 8, 128): (0, 1, 2, 3, 4),
    (4, 2, 64, 12, 128): (0, 1, 3, 2, 4),
    (4, 2, 64, 1, 64): (0, 1, 3, 2, 4),
    (4, 2, 64, 4, 64): (0, 1, 2, 3, 4),
    (4, 2, 1, 256): (0, 2, 1, 3),
    (4, 2, 64, 8): (0, 1, 3, 2),
    (4, 2, 512, 1): (0, 3, 1, 2),
    (80, 8192, 112): (0, 2, 1),
    (80, 8, 8192, 1, 4): (0, 1, 3, 4, 2),
}
INT8 = {
    (4, 2, 64, 1, 128): (0, 1, 3, 2, 4),
    (4, 2, 64, 2, 128): (0, 1, 3, 2, 4),
    (4, 2, 64, 4, 128): (0, 1, 2, 3, 4),
    (4, 2, 1, 256): (1, 2, 0, 3),
}
FLOAT32 = {
    (4, 2, 64, 1, 128): (0, 1, 2, 3, 4),
    (4, 2, 64, 6, 128): (0, 1, 3, 2, 4),
    (4, 2, 512, 1): (0, 1, 3, 2),
}
CASES = [
    (shape, size, order)
    for size, orders in ((2.0, BFLOAT16), (1.0, INT8), (4.0, FLOAT32))
    for shape, order in orders.items()
]


@pytest.mark.parametrize(("shape", "itemsize", "order"), CASES)
def test_arguments_are_laid_out_with_the_least_padding(
    shape: tuple[int, ...], itemsize: float, order: tuple[int, ...]
) -> None:
    assert argument_order(shape, itemsize) == order
