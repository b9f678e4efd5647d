"""The model files, planned, run on 8 virtual devices and verified: the same numbers, the predicted collectives."""

from __future__ import annotations

import pytest

import planner
from benchmarks.models import MODELS

FAST = ("decode", "lstm", "mlp")
"""Models whose compile takes a few seconds; the others are in the slow tests."""
GAPS = {"gpt_unrolled": 0.01, "unet": 0.01}
"""What is left unproven of those that are not proven optimal: many plans cost nearly the same."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in sorted(MODELS)]
)
def test_model_is_planned_run_and_verified(name: str) -> None:
    model = MODELS[name]("small")
    plan = planner.plan(
        model.fn, model.args, donate_argnums=model.donate_argnums, options=planner.Options(check="never")
    )
    verification = plan.verify(*model.args)
    assert verification.as_promised, str(verification)
    assert plan.replicated == ()
    assert plan.certificate.status == "optimal" or plan.certificate.gap <= GAPS.get(name, 0.0)
    promised, found = verification.collectives.predicted_bytes, verification.collectives.compiled_bytes
    assert abs(promised - found) <= max(4096, 0.1 * found)
    memory = verification.memory
    for part in (memory.arguments, memory.outputs, memory.aliased):
        assert part[0] == part[1], str(verification)
