"""Solving a planning problem: exactly where that is affordable, with a value and a lower bound always."""

from planner.solve.marginals import min_marginals as min_marginals
from planner.solve.methods import METHODS as METHODS
from planner.solve.methods import solve as solve
from planner.solve.solution import Solution as Solution
