"""The figures of a plan as a flat dict, as trackers of experiments take it (Weights & Biases, TensorBoard)."""

from __future__ import annotations

import math
from dataclasses import fields

from planner.decision import Decision
from planner.prediction import Predicted


def flat_summary(decision: Decision) -> dict[str, float | str]:
    """Numbers and texts by name, those of one kind under a common beginning: "mesh/x", "collectives/all-gather/bytes".

    Seconds, bytes and the like are per device and call.
    """
    predicted, certificate = decision.predicted, decision.certificate
    found: dict[str, float | str] = {
        "function": decision.function_name,
        "topology": decision.topology,
        "objective": decision.request.objective,
        "status": certificate.status,
        "devices": math.prod(decision.mesh_shape.values()),
        "microbatches": decision.form.microbatches,
        **{f"mesh/{axis}": size for axis, size in decision.mesh_shape.items()},
    }
    figures = {field.name: getattr(predicted, field.name) for field in fields(Predicted)}
    found |= {name: value for name, value in figures.items() if isinstance(value, (int, float))}
    if predicted.seconds_range is not None:
        found |= dict(zip(("seconds_least", "seconds_most"), predicted.seconds_range, strict=True))
    for one in predicted.collectives:
        for name, value in {"runs": one.count, "bytes": one.count * one.bytes}.items():
            key = f"collectives/{one.kind}/{name}"
            found[key] = float(found.get(key, 0.0)) + value
    return found | {
        "memory_limit_bytes": decision.request.memory_limit,
        "value": certificate.value,
        "lower_bound": certificate.lower_bound,
        "gap": certificate.gap,
        "solve_seconds": certificate.solve_seconds,
        "failed_checks": sum(check.ok is False for check in decision.checked),
    }
