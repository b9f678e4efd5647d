"""The names that the packages export, pinned: adding or dropping one is a decision, and changes this list."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import cost_models
import planner

ROOT = Path(__file__).resolve().parents[1]

PLANNER = [
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
TESTING = [
    "arguments",
    "assert_same_as_single_device",
    "free_wires",
    "meshes",
]
COST_MODELS = [
    "CHIPS",
    "COLLECTIVE_KINDS",
    "OBJECTIVES",
    "Chip",
    "CostModel",
    "CostModelError",
    "EnergyObjective",
    "Link",
    "Measured",
    "Objective",
    "Profile",
    "Roofline",
    "Segment",
    "TimeObjective",
    "Topology",
    "calibrate",
    "engine",
    "flops",
    "is_known",
    "load_profile",
    "objective",
    "parse_topology",
    "profile_path",
    "save_profile",
    "shipped_profile",
    "tpu_passes",
]


def test_planner():
    assert sorted(planner.__all__) == sorted(PLANNER)
    assert all(hasattr(planner, name) for name in PLANNER)


def test_testing():
    assert sorted(planner.testing.__all__) == sorted(TESTING)
    assert all(hasattr(planner.testing, name) for name in TESTING)


def test_cost_models():
    exported = [name for name in COST_MODELS if hasattr(cost_models, name)]
    assert exported == COST_MODELS
    submodules = {
        "energy",
        "errors",
        "fitting",
        "formulas",
        "hardware",
        "measured",
        "network",
        "objectives",
        "primitives",
        "profile",
        "protocol",
        "roofline",
        "topology",
        "work",
    }
    public = {name for name in vars(cost_models) if not name.startswith("_")}
    assert public - submodules == set(COST_MODELS)


def test_version_is_that_of_the_installed_package():
    assert planner.__version__ == importlib.metadata.version("meshwright")


def test_version_is_the_newest_release_of_the_changelog():
    released = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == released[1]


def test_only_public_names_are_listed() -> None:
    assert sorted({*planner.__all__, "__version__"}) == dir(planner)
