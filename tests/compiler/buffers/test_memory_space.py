"""Which arrays get a place on the chip beside others."""

from __future__ import annotations

from planner.compiler.buffers.memory_space import SHARES, Candidate, shares_on_chip

ROW = 64.0


def _shares(*candidates: tuple[int, int, float, float], usable: float = 7 / 8) -> list[float]:
    found = shares_on_chip((Candidate(n, *of) for n, of in enumerate(candidates)), usable)
    return [found[n] for n in range(len(candidates))]


def test_an_array_alone_gets_half_of_the_chip() -> None:
    assert _shares((0, 3, ROW, 2.0)) == [SHARES[-1]] == [1 / 2]


def test_of_two_that_are_there_at_once_the_one_read_more_often_gets_its_place() -> None:
    """Seven eighths are given: two of three eighths fit."""
    assert _shares((0, 1, ROW, 2.0), (1, 3, ROW, 4.0)) == [3 / 8, 1 / 2]


def test_those_that_follow_each_other_share_a_place() -> None:
    assert _shares((0, 1, ROW, 2.0), (2, 3, ROW, 4.0)) == [1 / 2, 1 / 2]


def test_half_of_its_size_fits_beside_an_array() -> None:
    assert _shares((0, 3, ROW, 2.0), (1, 2, ROW / 2, 2.0)) == [1 / 2, 1 / 2]
    assert _shares((0, 3, ROW, 2.0), (1, 2, ROW / 2, 2.0), (2, 2, ROW / 2, 1.0))[2] == 3 / 16


def test_it_does_not_where_kernels_work_in_more_of_the_chip() -> None:
    """At half of the chip it would be alone there, but at a quarter the other takes the rest."""
    assert _shares((0, 3, ROW, 2.0), (1, 2, ROW / 2, 2.0), usable=0.74) == [1 / 2, 3 / 16]


def test_what_is_too_large_for_the_chip_takes_no_place_from_others() -> None:
    """At half of the chip it would be eight times as large as the other."""
    assert _shares((0, 3, 8 * ROW, 9.0), (1, 2, ROW, 1.0)) == [1 / 2, 1 / 2]


def test_identical_layers_have_the_same_shares() -> None:
    """Each array is there with the next; not every other one has a place then."""
    first, *rest = _shares(*((n, n + 1, ROW, 2.0) for n in range(9)))
    assert first == 1 / 2
    assert set(rest) == {3 / 8}


def test_of_equal_gains_the_earlier_has_its_place_in_whatever_order_they_come() -> None:
    two = [Candidate(0, 0, 6, ROW, 2.0), Candidate(1, 3, 6, ROW, 2.0)]
    assert shares_on_chip(two, 7 / 8) == shares_on_chip(two[::-1], 7 / 8) == {0: 1 / 2, 1: 3 / 8}
