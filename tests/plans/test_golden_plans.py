"""Plans are the golden ones: a change of the code that changes a plan says so (`make golden`)."""

from __future__ import annotations

import json

import jax
import pytest

from benchmarks.same_plans import GOLDEN_PLANS, differences, golden_path, golden_plan


@pytest.mark.parametrize(("name", "topology"), GOLDEN_PLANS, ids=str)
def test_a_plan_is_the_golden_one(name: str, topology: str) -> None:
    golden = json.loads(golden_path(name, topology).read_text())
    if golden["jax"] != jax.__version__:
        pytest.skip(f"the golden plans are those of programs traced by JAX {golden['jax']}")
    found = differences(golden, golden_plan(name, topology))
    assert not found, "if the plan is meant to change, run make golden and say why it is better:\n" + "\n".join(found)


def test_differences_are_listed_by_their_place() -> None:
    assert differences({"mesh": {"x": 4}, "notes": []}, {"mesh": {"x": 8}, "notes": []}) == ["/mesh/x: 4 -> 8"]
