"""Meshwright: automatic placement of JAX programs on many devices, with evidence.

In: a function written for one device, and example arguments.
Out: a plan: mesh, specs, a sharded `jax.jit`, and the evidence for them.
Entry: `planner.plan`.

The names are fetched when they are first used, so that importing the package costs nothing beside importing JAX.
"""

from __future__ import annotations

import importlib.metadata
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models import Topology as Topology
    from pbqp.methods import solve as solve
    from pbqp.problem import Problem as Problem
    from pbqp.solution import Solution as Solution
    from planner import errors as errors
    from planner import testing as testing
    from planner.api import audit as audit
    from planner.api import compare as compare
    from planner.api import compare_topologies as compare_topologies
    from planner.api import fallbacks as fallbacks
    from planner.api import load as load
    from planner.api import op_graph as op_graph
    from planner.api import pareto as pareto
    from planner.api import plan as plan
    from planner.api import plan_many as plan_many
    from planner.api import serving as serving
    from planner.calls.jit import jit as jit
    from planner.calls.planned_function import PlannedFunction as PlannedFunction
    from planner.options import Options as Options
    from planner.plans.loaded import LoadedPlan as LoadedPlan
    from planner.plans.plan import Plan as Plan
    from planner.plans.what_if import WhatIf as WhatIf
    from planner.report.comparison import Comparison as Comparison
    from planner.rules.kernels.rule_for import rule_for as rule_for
    from planner.studies.audit import Audit as Audit
    from planner.studies.fallbacks.record import Fallbacks as Fallbacks
    from planner.studies.joint import Programs as Programs
    from planner.studies.pareto import Front as Front
    from planner.studies.serving import Serving as Serving
    from planner.studies.topology_table import TopologyComparison as TopologyComparison
    from planner.verify.verification import Verification as Verification

    __version__: str

_NAMES: dict[str, tuple[str, ...]] = {
    "cost_models": ("Topology",),
    "pbqp.methods": ("solve",),
    "pbqp.problem": ("Problem",),
    "pbqp.solution": ("Solution",),
    "planner.api": (
        "audit",
        "compare",
        "compare_topologies",
        "fallbacks",
        "load",
        "op_graph",
        "pareto",
        "plan",
        "plan_many",
        "serving",
    ),
    "planner.calls.jit": ("jit",),
    "planner.calls.planned_function": ("PlannedFunction",),
    "planner.options": ("Options",),
    "planner.plans.loaded": ("LoadedPlan",),
    "planner.plans.plan": ("Plan",),
    "planner.plans.what_if": ("WhatIf",),
    "planner.report.comparison": ("Comparison",),
    "planner.rules.kernels.rule_for": ("rule_for",),
    "planner.studies.audit": ("Audit",),
    "planner.studies.fallbacks.record": ("Fallbacks",),
    "planner.studies.joint": ("Programs",),
    "planner.studies.pareto": ("Front",),
    "planner.studies.serving": ("Serving",),
    "planner.studies.topology_table": ("TopologyComparison",),
    "planner.verify.verification": ("Verification",),
}
"""The public names by the module that defines them."""
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("errors", "testing")
"""The public modules."""
_DISTRIBUTION = "meshwright"
"""The name under which the package is installed; its metadata has the version of `pyproject.toml`."""

__all__ = [
    "Audit",
    "Comparison",
    "Fallbacks",
    "Front",
    "LoadedPlan",
    "Options",
    "Plan",
    "PlannedFunction",
    "Problem",
    "Programs",
    "Serving",
    "Solution",
    "Topology",
    "TopologyComparison",
    "Verification",
    "WhatIf",
    "audit",
    "compare",
    "compare_topologies",
    "errors",
    "fallbacks",
    "jit",
    "load",
    "op_graph",
    "pareto",
    "plan",
    "plan_many",
    "rule_for",
    "serving",
    "solve",
    "testing",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it."""
    if name == "__version__":
        return importlib.metadata.version(_DISTRIBUTION)
    if name in _MODULES:
        return import_module(f"planner.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_HOME[name]), name))


def __dir__() -> list[str]:
    return sorted((*__all__, "__version__"))
