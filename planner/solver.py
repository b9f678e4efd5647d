"""The solver under the name it had before it became the package `pbqp`; kept for one release."""

from __future__ import annotations

import warnings

from pbqp.methods import solve as solve
from pbqp.problem import Problem as Problem
from pbqp.solution import Solution as Solution

warnings.warn("planner.solver is now the package pbqp", DeprecationWarning, stacklevel=2)
