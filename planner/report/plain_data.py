"""Plans and their reports as plain data for other programs: what they print, array by array, in bytes and seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.plan_file.codec import as_json
from planner.program.graph import type_text
from planner.program.tracing.traced import Leaf
from planner.report.plan_report import PlanReport
from planner.report.rows import bytes_on_device

LEFT_OUT = (
    "function_name",
    "mesh_shape",
    "choice",
    "constraints",
    "arguments",
    "results",
    "in_specs",
    "out_specs",
    "request",
    "compiler_options",
    "in_tree",
    "jax_version",
)
"""Fields of a decision that say nothing to others, or have another name here."""


def decision_data(decision: Decision) -> dict[str, Any]:
    """A decision as JSON can hold it; specs are lists of the axes of every dim, bytes those on one device."""
    request, certificate = decision.request, decision.certificate
    plain = {name: as_json(getattr(decision, name)) for name in decision.__dataclass_fields__ if name not in LEFT_OUT}
    return {
        "function": decision.function_name,
        "mesh": dict(decision.mesh_shape),
        **plain,
        "objective": request.objective,
        "memory_limit_bytes": request.memory_limit if request.memory_limit < math.inf else None,
        "certificate": {**as_json(certificate), "gap": certificate.gap, "status": certificate.status},
        "arguments": _leaves(decision, decision.arguments, decision.in_specs),
        "results": _leaves(decision, decision.results, decision.out_specs),
    }


def report_data(report: PlanReport) -> dict[str, Any]:
    """All that the page of a plan shows as JSON can hold it; the decision is under "plan"."""
    own = {field.name: as_json(getattr(report, field.name)) for field in fields(report) if field.name != "decision"}
    return {"plan": decision_data(report.decision), **own, "has_program": report.memory is not None}


def _leaves(decision: Decision, leaves: Sequence[Leaf], specs: Sequence[PartitionSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": leaf.name,
            "type": type_text(leaf.aval),
            "spec": as_json(spec),
            "bytes": bytes_on_device(leaf, spec, decision.mesh_shape),
        }
        for leaf, spec in zip(leaves, specs, strict=True)
    ]
