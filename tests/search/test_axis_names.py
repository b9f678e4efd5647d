"""The axes of a searched mesh have the names that a user gives them, and nothing else changes by that."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.cli import values
from planner.errors import MeshError, PinError

ARGS = (jnp.ones((64, 64)), jnp.ones((64, 64)))
QUICK = planner.Options(check="never")


def planned(**more: Any) -> planner.Plan:
    return planner.plan(lambda w, x: jnp.sin(x @ w) @ w, ARGS, topology="v5e:2x2", options=QUICK, **more)


@pytest.mark.parametrize("names", [("data",), ("data", "model"), ["z", "y", "x"]])
def test_names_are_given_in_order(names: Any) -> None:
    default, named = planned(), planned(axis_names=names)
    assert tuple(named.mesh.axis_names) == tuple(names)[: len(named.mesh.axis_names)]
    if len(names) >= len(default.mesh.axis_names):
        renaming = dict(zip(default.mesh.axis_names, names, strict=False))
        words = str(default.in_specs)
        for old in renaming:
            words = words.replace(f"'{old}'", f"<{old}>")
        for old, new in renaming.items():
            words = words.replace(f"<{old}>", f"'{new}'")
        assert str(named.in_specs) == words
        assert named.certificate.value == default.certificate.value


def test_pins_name_them() -> None:
    plan = planned(axis_names=("data", "model"), pins={"x": P("data"), "w": P(None, "model")})
    assert plan.in_specs == (P(None, "model"), P("data"))
    with pytest.raises(PinError, match=r"up to 1 of data; .*axis_names"):
        planned(axis_names=("data",), pins={"x": P("model")})


def test_side_effects_in_order_get_the_first() -> None:
    def fn(x: Any) -> Any:
        jax.debug.print("{}", x.sum(), ordered=True)
        return x

    plan = planner.plan(fn, ARGS[:1], topology="v5e:2x2", axis_names=("data", "model"), options=QUICK)
    assert dict(plan.mesh.shape) == {"data": 1}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((), "0 names"),
        (("a", "b", "c", "d"), "4 names"),
        (("a", "a"), "'a' twice"),
        ("data", "not a tuple of names"),
        (("a", 1), "not a tuple of names"),
        (("", "b"), "not a tuple of names"),
    ],
)
def test_what_are_no_names_is_told(names: Any, told: str) -> None:
    with pytest.raises(MeshError, match=f"axis_names .*{told}.*'data', 'model'"):
        planned(axis_names=names)


def test_a_given_mesh_has_its_names() -> None:
    with pytest.raises(MeshError, match="leave axis_names out"):
        planned(axis_names=("data", "model"), mesh={"x": 2, "y": 2})


def test_the_command_line_takes_them() -> None:
    assert values.parse_names("data, model") == ("data", "model")
