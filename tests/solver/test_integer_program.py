"""The integer program of a network: choices that nothing goes with, and networks that leave none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.solver.exact import ilp
from planner.solver.exact.ilp import IntegerProgram
from planner.solver.network.network import Network
from planner.solver.problem import Array, Edge, Problem


def _network(costs: Array) -> Network:
    nodes = tuple(np.zeros(size) for size in costs.shape)
    return Network.of(Problem(name="two nodes", node_costs=nodes, edges=(Edge(nodes=(0, 1), costs=costs),)))


@pytest.mark.parametrize("upper", [math.inf, 10.0])
@pytest.mark.parametrize("by_row", [True, False])
def test_a_choice_that_nothing_goes_with_is_not_taken(upper: float, by_row: bool) -> None:
    costs = np.array([[math.inf, math.inf], [3.0, 2.0]])
    result = IntegerProgram(_network(costs if by_row else costs.T), None, upper).solve(10.0, upper)
    assert result.choice == {0: 1, 1: 1}
    assert result.bound == pytest.approx(2.0)
    assert result.ended


@pytest.mark.parametrize("upper", [math.inf, 10.0])
def test_a_network_of_which_no_choice_is_possible_costs_infinitely_much(upper: float) -> None:
    result = IntegerProgram(_network(np.full((2, 2), math.inf)), None, upper).solve(10.0, upper)
    assert result.choice is None
    assert result.bound == math.inf


def test_the_size_is_known_before_matrices_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        raise RuntimeError("matrices were made of a program that is only counted")

    monkeypatch.setattr(ilp, "_sparse", refused)
    program = IntegerProgram(_network(np.array([[0.0, math.inf], [1.0, 9.0]])), None, 5.0)
    assert program.size == 2 + 2 + 3, "two choices a node, and the pairs that are not forbidden"
    with pytest.raises(RuntimeError, match="matrices"):
        program.solve(1.0)
