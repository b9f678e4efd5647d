"""Bad input is one error of `planner.errors`, in a sentence: what was wrong, the value got, what to do."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner import errors
from tests.small import NEVER, mlp, mlp_args, mlp_params, train_args, train_step

E = errors

# What was given beside a good call, the error, and words of its message: what was wrong, the value got, what to do.
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a donated position that is none": ({"donate_argnums": 5}, E.ArgumentError, "holds 5.*2 arguments.*use 0 to 1"),
    "a donated position that is no number": ({"donate_argnums": "x"}, E.ArgumentError, "is 'x'; give"),
    "a float as a position": ({"static_argnums": (1.0,)}, E.ArgumentError, r"is \(1.0,\); give the position"),
    "a memory limit below zero": ({"memory_limit": -1}, E.ArgumentError, "is -1; give positive bytes"),
    "a memory limit in words": (
        {"memory_limit": "much"},
        E.ArgumentError,
        "'much' is no size; write a number and a unit",
    ),
    "a memory limit of no number": ({"memory_limit": float("nan")}, E.ArgumentError, "is nan; give"),
    "a memory limit of true": ({"memory_limit": True}, E.ArgumentError, "is True; give"),
    "a mesh beyond the devices": (
        {"mesh": {"a": 16}},
        E.MeshError,
        "{'a': 16} needs 16 devices, but there are 8; make",
    ),
    "a mesh beyond the topology": (
        {"mesh": {"a": 8}, "topology": "v5e:2x2"},
        E.MeshError,
        "{'a': 8} needs 8 devices, but there are 4; make",
    ),
    "a mesh that is none": ({"mesh": "data"}, E.MeshError, "got 'data'; write"),
    "a pin of an unknown axis": (
        {"mesh": {"data": 8}, "pins": {"x": P("model")}},
        E.PinError,
        "x.*names the axis 'model'; use the mesh's axes, 'data'",
    ),
    "a pin that matches nothing": (
        {"pins": {"params/w9": P("x")}},
        E.PinError,
        "'params/w9' matches no tensor; names look like 'params/w[01]'",
    ),
    "a profile that is not there": (
        {"options": planner.Options(check="never", cost_model="measured", profile="/nowhere/profile.json")},
        E.ArgumentError,
        "'/nowhere/profile.json'; run `python -m planner calibrate`",
    ),
    "a static argument without a hash": ({"static_argnums": 0}, E.ArgumentError, "argument 0 is dict.*give a hashable"),
    "a topology beyond the devices": (
        {"topology": "h100:16", "devices": jax.devices()},
        E.MeshError,
        "h100:16 has 16 devices, but only 8 are given.*give",
    ),
    "an objective that is none": ({"objective": "speed"}, E.ArgumentError, "is 'speed'; use one of 'time'"),
    "an unknown topology": ({"topology": "v9:4x4"}, E.MeshError, "'v9:4x4'; a name is CHIP:SHAPE"),
    "devices that are none": ({"devices": ["cpu"]}, E.MeshError, r"\['cpu'\]; give"),
    "options that are none": (
        {"options": {"check": "never"}},
        E.ArgumentError,
        "{'check': 'never'}; give planner.Options",
    ),
    "static and donated": (
        {"static_argnums": 1, "donate_argnums": 1},
        E.ArgumentError,
        "argument 1 is both static and donated; only arrays",
    ),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_keywords(name: str) -> None:
    given, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        planner.plan(mlp, mlp_args(), **{"options": NEVER, **given})
    assert isinstance(caught.value, errors.PlannerError)
    assert type(caught.value) is error


def _raises(params: Any, x: Any) -> Any:
    raise ZeroDivisionError("on purpose")


BAD_CALLS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a branch on values": (
        lambda p, x: x if x.sum() > 0 else -x,
        mlp_args(),
        E.TraceError,
        "could not be traced.*static_argnums",
    ),
    "a function that is none": (None, mlp_args(), E.ArgumentError, "got NoneType; pass the function"),
    "a function that raises": (_raises, mlp_args(), E.TraceError, "_raises could not be traced.*on purpose"),
    "a result that is no array": (lambda p, x: "text", mlp_args(), E.TraceError, "could not be traced"),
    "an argument that is no array": (
        mlp,
        (mlp_params(), "text"),
        E.ArgumentError,
        "argument x is 'text' of type str, not an array; pass",
    ),
    "an array of objects": (mlp, (mlp_params(), np.array(["a"])), E.ArgumentError, "argument x.*<U1.*convert it"),
    "arguments that are no tuple": (mlp, jnp.ones(3), E.ArgumentError, "got ArrayImpl; write plan"),
    "too few arguments": (mlp, (mlp_params(),), E.TraceError, "missing 1 required positional argument"),
}


@pytest.mark.parametrize("name", sorted(BAD_CALLS))
def test_bad_functions_and_arguments(name: str) -> None:
    fn, args, error, words = BAD_CALLS[name]
    with pytest.raises(error, match=re.compile(words, re.DOTALL)) as caught:
        planner.plan(fn, args, options=NEVER)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("affordable_flops", -1),
        ("check", "sometimes"),
        ("cost_model", "guessed"),
        ("max_axes", 4),
        ("profile", 3),
        ("progress", 3),
        ("gap", -1e-3),
        ("gap", 1.0),
        ("seed", "a"),
        ("seed", -1),
        ("workers", 0),
        ("workers", 1.5),
        ("time_limit_s", 0),
        ("time_limit_s", "long"),
        ("while_trips", 0),
        ("while_trips", None),
    ],
)
def test_bad_options(name: str, value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=rf"Options\({name}={value!r}\) is not possible; give "):
        planner.Options(**{name: value})


@pytest.fixture(scope="module")
def plan_of_mlp() -> planner.Plan:
    return planner.plan(mlp, mlp_args(), mesh={"data": 8}, options=NEVER)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p, x: (p, x[:4]), r"argument x was planned as float32\[32, 64\], got float32\[4, 64\]; make a plan"),
        (lambda p, x: (p, x.astype(jnp.bfloat16)), r"got bfloat16\[32, 64\]; make a plan"),
        (lambda p, x: (p, "text"), "got 'text' of type str; give an array"),
        (lambda p, x: (p, 2.0), r"got float32\[\]; make a plan"),
        (lambda p, x: ({}, x), "planned for other arguments: .*make a plan"),
        (lambda p, x: (p,), "planned for 2 arguments, got 1; give"),
    ],
)
def test_arguments_other_than_planned(plan_of_mlp: planner.Plan, change: Any, words: str) -> None:
    args = change(*mlp_args())
    for run in (plan_of_mlp, plan_of_mlp.place):
        with pytest.raises(errors.ArgumentError, match=words):
            run(*args)
    told = plan_of_mlp.verify(*args)
    assert told.numerics.ok is None
    assert re.search(words, told.numerics.reason)


def test_nothing_is_half_applied() -> None:
    state, x = train_args()
    p = planner.plan(train_step, (state, x), mesh={"data": 8}, donate_argnums=0, options=NEVER)
    with pytest.raises(errors.ArgumentError):
        p(state, x[:4])
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_every_error_is_a_planner_error_that_says_when() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and kind is not errors.Offer]
    # The solver is a package of its own, which knows no planner.
    assert all(issubclass(kind, errors.PlannerError | errors.SolverError) and kind.__doc__ for kind in kinds)
    assert errors.InfeasibleError("too big").least_bytes is None
