"""Lines of tables are told apart alike, whether their codes are looked up or sorted."""

from __future__ import annotations

import numpy as np
import pytest

from pbqp.vectors import FEW_CODES, distinct_lines


@pytest.mark.parametrize(("count", "width", "most"), [(0, 3, 2), (4, 0, 2), (40, 3, 4), (40, 6, 5), (40, 30, 9)])
def test_distinct_lines_are_those_that_numpy_finds(count: int, width: int, most: int) -> None:
    lines = np.random.default_rng(0).integers(-1, most, (count, width)).astype(np.int8)
    rows, of = distinct_lines(lines)
    assert (rows[of] == lines).all()
    assert len(rows) == len({line.tobytes() for line in lines})
    assert rows.tolist() == sorted(rows.tolist())


def test_tables_of_one_content_and_other_shapes_are_distinguished() -> None:
    assert FEW_CODES >= 2
    assert [len(distinct_lines(np.zeros(shape, np.int8))[1]) for shape in ((2, 3), (3, 2), (6, 1))] == [2, 3, 6]
