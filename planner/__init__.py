"""Meshwright: automatic placement of JAX programs on many devices, with evidence."""

from cost_models import Topology as Topology
from planner import errors as errors
from planner import testing as testing
from planner.api import LoadedPlan as LoadedPlan
from planner.api import load as load
from planner.api import op_graph as op_graph
from planner.api import plan as plan
from planner.options import Options as Options
from planner.plan import Plan as Plan
from planner.problem import Problem as Problem
from planner.solve import Solution as Solution
from planner.solve import solve as solve
from planner.user_rules import rule_for as rule_for
from planner.verify import Verification as Verification

__all__ = [
    "LoadedPlan",
    "Options",
    "Plan",
    "Problem",
    "Solution",
    "Topology",
    "Verification",
    "errors",
    "load",
    "op_graph",
    "plan",
    "rule_for",
    "solve",
    "testing",
]
