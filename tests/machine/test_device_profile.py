"""Which profile prices a plan: the given one, the one that was measured here, the one that comes with the package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import planner
from cost_models import parse_topology, save_profile, shipped_profile
from planner.errors import ArgumentError
from planner.machine.device_profile import default_profile, measured_model

POD = parse_topology("v5e:16x16")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without profiles."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def test_what_was_measured_goes_before_what_comes_with_the_package(home: Path) -> None:
    shipped = shipped_profile("v5e")
    assert shipped is not None
    assert measured_model(None, POD, "v5e").profile == shipped
    mine = replace(shipped, machine="mine")
    save_profile(mine, default_profile("tpu", "v5e", POD.num_devices))
    assert measured_model(None, POD, "v5e").profile == mine
    save_profile(replace(mine, machine="given"), home / "given.json")
    assert measured_model(str(home / "given.json"), POD, "v5e").profile.machine == "given"


def test_no_profile_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="there is no profile"):
        measured_model(None, parse_topology("cpu:8"), "cpu")


def test_a_plan_says_whose_prices_it_has() -> None:
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.bfloat16)
    options = planner.Options(check="never", cost_model="measured")
    plan = planner.plan(lambda a, b: a @ b, (x, x), topology="v5e:2x4", options=options)
    assert any(note.startswith("prices are of a profile of 16 x v5e: schedules of jax") for note in plan.notes)
