"""Arguments that could be donated are told with what that saves; those that could not are not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.errors import InfeasibleError
from planner.program.fed_back import donatable
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from tests.small import NEVER

WIDE = 256
WEIGHT = jax.ShapeDtypeStruct((WIDE, WIDE), jnp.float32)
STATE = {"w": WEIGHT, "m": WEIGHT}
BATCH = jax.ShapeDtypeStruct((8, WIDE), jnp.float32)


def step(state: Any, rate: float, batch: Any) -> tuple[Any, Any]:
    def loss(w: Any) -> Any:
        return jnp.mean((batch @ w) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    moment = 0.9 * state["m"] + gradient
    return {"w": state["w"] - rate * moment, "m": moment}, value


def _plan(donate: tuple[int, ...] = (), *, fn: Any = step, memory_limit: float | None = None) -> planner.Plan:
    return planner.plan(
        fn,
        (STATE, 0.1, BATCH),
        mesh={"x": 8},
        static_argnums=1,
        donate_argnums=donate,
        memory_limit=memory_limit,
        options=NEVER,
    )


def _advice(plan: planner.Plan) -> list[str]:
    return [note for note in plan.notes if note.startswith("donate ")]


def test_a_state_that_is_fed_back_is_advised_with_its_bytes() -> None:
    plan, donated = _plan(), _plan((0,))
    (note,) = _advice(plan)
    assert note.startswith("donate state (donate_argnums=(0,)) if it is not used after the call")
    saved = plan.predicted.output_bytes - (donated.predicted.output_bytes - donated.predicted.alias_bytes)
    assert f"up to {saved / 1e3:.3g} kB" in note.replace("KB", "kB")
    assert not _advice(donated)


def test_what_has_no_result_of_its_type_is_not_advised() -> None:
    plan = _plan(fn=lambda state, rate, batch: ({"w": step(state, rate, batch)[0]["w"]}, 0.0))
    assert not _advice(plan)


def test_an_array_is_paired_with_a_result_of_its_type_once() -> None:
    program = trace(lambda x, y: (x + y, x.sum()), (BATCH, BATCH))
    found = donatable(program, build_graph(program).feeds)
    assert [(one.name, dict(one.leaves), one.fed_back) for one in found] == [("x", {0: 0}, False)]


def test_the_error_that_nothing_fits_says_what_to_donate() -> None:
    with pytest.raises(InfeasibleError, match=r"donate state \(donate_argnums=\(0,\)\)"):
        _plan(memory_limit=1e4)
    with pytest.raises(InfeasibleError) as told:
        _plan((0,), memory_limit=1e4)
    assert "donate" not in str(told.value)
