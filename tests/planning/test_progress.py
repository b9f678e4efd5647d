"""What planning tells while it is at work: every phase, and at the end the plan that is handed over."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.options import Progress, telling
from planner.units import quantity
from planner.verify.verification import Collectives, Memory, Numerics, Verification
from tests.small import mlp, mlp_args


def progress_of(fn: Any, args: Any, *, options: dict[str, Any], **keywords: Any) -> tuple[planner.Plan, list[Progress]]:
    told: list[Progress] = []
    plan = planner.plan(fn, args, options=planner.Options(progress=told.append, **options), **keywords)
    return plan, told


def test_every_phase_is_told_and_the_last_line_is_the_plan() -> None:
    plan, told = progress_of(mlp, mlp_args(), options={})
    doing = [seen.doing for seen in told if seen.doing]
    value = f"{quantity(plan.certificate.value, 's')}, {plan.certificate.status}"
    assert doing[:2] == ["tracing mlp", "modelling the program"]
    assert doing[2].startswith("checking the plan on ")
    assert doing[2].endswith(value)
    assert doing[3:] == [doing[2].removeprefix("checking ")]
    assert [seen.seconds for seen in told] == sorted(seen.seconds for seen in told)
    assert str(told[0]).endswith(" s of 120 s)")


def test_a_rejected_plan_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = planner.Plan.verify

    def verify(self: planner.Plan, *args: Any, **asked: Any) -> Verification:
        if dict(self.mesh.shape) != {"x": 8}:
            return real(self, *args, **asked)
        reason = "the plan does not compile"
        numerics, memory = Numerics(ok=None, reason=reason), Memory(ok=None, reason=reason)
        return Verification(numerics=numerics, collectives=Collectives(ok=False, reason=reason), memory=memory)

    monkeypatch.setattr(planner.Plan, "verify", verify)
    _, told = progress_of(mlp, mlp_args(), options={})
    assert any("x=8" in seen.doing and "does not compile" in seen.doing for seen in told)


def test_what_another_search_found_is_not_told_as_the_best_of_this_one() -> None:
    seen = Progress(tried=11, total=11, mesh={"x": 8}, below=0.069)
    assert str(seen) == "mesh 11/11 x=8: no plan below 69 ms yet (0.0 s)"
    found = dataclasses.replace(seen, incumbent=0.0689, bound=0.06)
    assert str(found) == "mesh 11/11 x=8: best 68.9 ms, bound 60 ms (0.0 s)"


def test_stages_within_a_stage_are_told_with_both_names() -> None:
    told: list[Progress] = []
    inner = telling(telling(planner.Options(progress=told.append), "one"), "two")
    assert inner.progress is not None
    inner.progress(Progress(doing="three"))
    assert str(told[0]) == "one: two: three (0.0 s)"


def deep_step(params: list[jax.Array], x: jax.Array) -> Any:
    def loss(params: list[jax.Array]) -> jax.Array:
        y = x
        for w in params:
            y = jnp.tanh(y @ w)
        return y.mean()

    return jax.tree.map(lambda w, g: w - g, params, jax.grad(loss)(params))


def test_no_other_form_is_searched_after_the_time_limit() -> None:
    args = ([jax.ShapeDtypeStruct((512, 512), jnp.float32)] * 4, jax.ShapeDtypeStruct((4096, 512), jnp.float32))
    keywords = {"topology": "v5e:2x2", "memory_limit": 12e6, "donate_argnums": 0}
    stages = {
        limit: {seen.stage for seen in progress_of(deep_step, args, options=options, **keywords)[1] if not seen.doing}
        for limit in (1e-6, 60.0)
        for options in ({"check": "never", "time_limit_s": limit},)
    }
    assert stages[1e-6] < stages[60.0]
