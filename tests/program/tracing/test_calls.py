"""Arguments by keyword, and marks by name: what `jax.jit` accepts, planned, called, saved, bound."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from planner.program.tracing.call import call_of, marked

NEVER = planner.Options(check="never")
MESH = {"x": 8}
W, X = jnp.arange(64.0).reshape(8, 8) / 64, jnp.ones((8, 8))


def step(w: Any, x: Any, scale: Any = 2.0, *, mode: str = "sum", bias: Any = None) -> Any:
    result = scale * (x @ w) + (0 if bias is None else bias)
    return result.sum() if mode == "sum" else result


def last(a: Any, middle: float = 3.0, end: Any = 1.0) -> Any:
    return a * middle + end


def test_a_plan_is_called_as_the_function_is() -> None:
    plan = planner.plan(step, (W, X), mesh=MESH, options=NEVER)
    assert plan(W, x=X) == plan(x=X, w=W) == plan(W, X)
    assert len(plan.place(W, x=X)) == 2
    for args, kwargs, problem in (
        ((W,), {}, r"planned for 2 arguments, got 1"),
        ((W,), {"y": X}, r"'x' not given; 'y' given, and not planned for"),
        ((W, X), {"x": X}, r"'x' given, and not planned for or given twice"),
        ((W, X), {"mode": "sum"}, r"'mode' given, and not planned for"),
    ):
        with pytest.raises(ArgumentError, match=problem):
            plan(*args, **kwargs)


@pytest.mark.parametrize("marks", [{"static_argnames": "mode"}, {"static_argnames": ("mode", "scale")}])
def test_arguments_by_keyword_alone_are_planned(marks: dict[str, Any], tmp_path: Path) -> None:
    given = {"mode": "all", "bias": X}
    plan = planner.plan(step, (W,), example_kwargs={"x": X, **given}, mesh=MESH, options=NEVER, **marks)
    wanted = step(W, X, **given)
    np.testing.assert_allclose(plan(W, X, **given), wanted, rtol=1e-5)
    np.testing.assert_allclose(plan(W, x=X, **given), wanted, rtol=1e-5)  # the second call takes the short way
    np.testing.assert_allclose(plan.jit(W, X, **given), wanted, rtol=1e-5)
    assert plan.jit.lower(W, X, **given).as_text()
    assert len(plan.in_specs) == 4
    assert plan.in_specs[3] is None  # mode, after bias
    assert plan.verify(W, X, reference=step, **given).numerics.ok
    with pytest.raises(ArgumentError, match="static argument 3 was planned as 'all', got 'sum'"):
        plan(W, X, mode="sum", bias=X)
    with pytest.raises(ArgumentError, match="4 are given by position"):
        plan(W, X, X, "all")
    with pytest.raises(ArgumentError, match="'bias' not given"):
        plan(W, X, mode="all")
    plan.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(step, (W, X), example_kwargs=given)
    np.testing.assert_allclose(bound(W, X, **given), wanted, rtol=1e-5)


def test_a_saved_plan_of_keywords_is_bound_without_arguments(tmp_path: Path) -> None:
    plan = planner.plan(step, (W, X), example_kwargs={"bias": X}, mesh=MESH, pins={"bias": P("x")}, options=NEVER)
    plan.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(step)
    assert bound.in_specs == plan.in_specs
    np.testing.assert_allclose(bound(W, X, bias=X), step(W, X, bias=X), rtol=1e-5)


def test_an_argument_after_one_left_at_its_default_is_by_keyword() -> None:
    plan = planner.plan(last, (X,), example_kwargs={"end": X}, mesh=MESH, options=NEVER)
    np.testing.assert_array_equal(plan(X, end=X), last(X, end=X))
    with pytest.raises(ArgumentError, match="2 are given by position"):
        plan(X, X)


def both(state: Any, x: Any, *, cache: Any) -> Any:
    return state + x, cache + 1


@pytest.mark.parametrize(
    "marks",
    [
        {"donate_argnames": ("state", "cache")},
        {"donate_argnums": 0, "donate_argnames": "cache"},
    ],
)
def test_what_is_donated_by_name_is_consumed(marks: dict[str, Any]) -> None:
    plan = planner.plan(both, (X, X), example_kwargs={"cache": X}, mesh=MESH, options=NEVER, **marks)
    assert plan.decision.donate_argnums == (0, 2)
    state, x, cache = plan.place(X, X, cache=X)
    plan(state, x, cache=cache)
    assert (state.is_deleted(), x.is_deleted(), cache.is_deleted()) == (True, False, True)


def test_marks_of_a_jitted_function_hold_for_keywords() -> None:
    jitted = jax.jit(step, static_argnames=("mode",), donate_argnames=("bias",))
    plan = planner.plan(jitted, (W, X), example_kwargs={"mode": "all", "bias": X + 1}, mesh=MESH, options=NEVER)
    assert plan.decision.static_argnums == (3,)
    assert plan.decision.donate_argnums == (2,)
    np.testing.assert_allclose(plan(W, X, mode="all", bias=X + 1), step(W, X, mode="all", bias=X + 1), rtol=1e-5)


def test_positions_and_names_are_inferred_from_one_another() -> None:
    call = call_of(step, (W,), {"x": X, "mode": "sum"})
    assert (call.parameters, call.keywords) == (("w", "x", "mode"), ("mode",))
    assert marked(call, "static", 1) == marked(call, "static", (), "x") == (1,)
    assert marked(call, "static", (), ("mode", "scale")) == (2,)
    assert marked(call, "static", 2) == ()  # scale, at its default
    assert marked(call, "donate", -1) == (1,)
    of_partial = call_of(partial(step, W), (), {"mode": "sum", "x": X})
    assert (of_partial.parameters, of_partial.keywords) == (("x", "mode"), ("mode",))
    gathered = call_of(lambda **kwargs: kwargs, (), {"b": X, "a": W})
    assert gathered.keywords == ("a", "b")
    assert marked(gathered, "static", (), ("a", "c")) == (0,)


@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        ({"static_argnames": "mod"}, r"static_argnames holds 'mod', and step has no argument of that name; use 'mode'"),
        ({"static_argnames": 3}, r"static_argnames is 3; give the name"),
        ({"donate_argnums": "x"}, r"donate_argnums is 'x'; give the position"),
        ({"donate_argnums": 9}, r"donate_argnums holds 9, but there are 2 arguments"),
        ({"donate_argnames": "w", "static_argnums": 0}, r"argument 0 is both static and donated"),
        ({"example_kwargs": {"y": X}}, r"step cannot be called with 2 .* keywords y: got an unexpected keyword"),
        ({"example_kwargs": {"x": X}}, r"multiple values for argument 'x'"),
        ({"example_kwargs": 3}, r"example_kwargs is 3; give a mapping"),
    ],
)
def test_wrong_marks_are_told(marks: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        planner.plan(step, (W, X), mesh=MESH, options=NEVER, **marks)


def test_a_plan_of_keywords_is_checked_before_it_is_handed_over() -> None:
    plan = planner.plan(step, (W, X), example_kwargs={"bias": X}, mesh=MESH)
    assert [check.ok for check in plan.checked] == [True] * len(plan.checked)


def test_several_programs_have_keywords_of_their_own() -> None:
    made = planner.plan_many(
        {"all": (step, (W, X), {"example_kwargs": {"mode": "all"}, "static_argnames": "mode"}), "sum": (step, (W, X))},
        mesh=MESH,
        options=NEVER,
    )
    np.testing.assert_allclose(made["all"](W, X, mode="all"), step(W, X, mode="all"), rtol=1e-5)


def test_what_a_plan_could_be_otherwise_has_a_short_repr() -> None:
    plan = planner.plan(step, (W, X), mesh=MESH, options=NEVER)
    assert repr(plan.alternatives) == "<Alternatives to the plan of step on {'x': 8}>"


def test_a_plan_says_that_its_function_was_run_where_that_prints() -> None:
    def printing(x: Any) -> Any:
        jax.debug.print("sum {}", x.sum())
        return x + 1

    ran = planner.plan(printing, (X,), mesh=MESH)
    assert any("was run to check the plan" in note for note in ran.notes)
    not_run = planner.plan(printing, (X,), mesh=MESH, options=NEVER)
    assert not any("was run" in note for note in not_run.notes)
