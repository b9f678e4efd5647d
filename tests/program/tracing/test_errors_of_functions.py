"""Errors of the user's function: told in its own names and lines, without the planner's frames."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planner
from planner.errors import PlannerError, TraceError

X = jnp.ones((8, 8))
OWN = str(Path(planner.__file__).parent)


def steered(params: Any, flag: Any) -> Any:
    if params["on"] > 0:
        return flag
    return flag


def converted(params: Any, x: Any) -> Any:
    return np.asarray(x)


def counted(params: Any, x: Any) -> Any:
    return x[range(x[0, 0].astype(int))]


def misses(params: Any, x: Any) -> Any:
    return x + params["absent"]


def mismatched(params: Any, x: Any) -> Any:
    return jnp.dot(x, jnp.ones((3, 7)))


class Model:
    def __call__(self, params: Any, x: Any) -> Any:
        return x if x.sum() > 0 else -x


def error_of(fn: Callable[..., Any], **keywords: Any) -> TraceError:
    with pytest.raises(TraceError) as raised:
        planner.plan(fn, ({"on": 1.0}, X), mesh={"x": 8}, options=planner.Options(check="never"), **keywords)
    return raised.value


def line_of(fn: Callable[..., Any], offset: int) -> str:
    return f"{__file__}:{inspect.getsourcelines(fn)[1] + offset}"


@pytest.mark.parametrize(
    ("fn", "named", "argument"),
    [
        (steered, "steered", "params['on']"),
        (converted, "converted", "x"),
        (counted, "counted", "x"),
        (jax.jit(steered), "steered", "params['on']"),
        (partial(steered), "steered", "params['on']"),
        (Model(), "__call__", "x"),
    ],
)
def test_a_value_that_is_missing_is_told_as_by_jax(fn: Any, named: str, argument: str) -> None:
    text = str(error_of(fn))
    assert f"while tracing the function {named} at {__file__}:" in text
    assert f"the value of the argument {argument}." in text
    assert "static_argnames" in text
    assert OWN not in text
    assert "copies" not in text


@pytest.mark.parametrize(("fn", "what"), [(misses, "KeyError: 'absent'"), (mismatched, "TypeError: dot_general")])
def test_another_error_has_its_line_and_no_hint_at_static_arguments(fn: Callable[..., Any], what: str) -> None:
    text = str(error_of(fn))
    assert f"{line_of(fn, 1)}: {what}" in text
    assert "static" not in text


def test_the_planners_frames_are_left_out() -> None:
    error = error_of(misses)
    shown = "".join(traceback.format_exception(error))
    assert f'"{OWN}' not in shown
    assert 'x + params["absent"]' in shown
    assert "JAX_TRACEBACK_FILTERING=off" in shown
    with pytest.raises(PlannerError) as raised:
        planner.load("none.json")
    assert f'"{OWN}' not in "".join(traceback.format_exception(raised.value))


def test_all_frames_are_shown_on_demand() -> None:
    filtering = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    try:
        assert f'"{OWN}' in "".join(traceback.format_exception(error_of(misses)))
    finally:
        jax.config.update("jax_traceback_filtering", filtering)
