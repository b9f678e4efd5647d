"""The textbook cases: planned, compiled for four virtual devices, and held against what is known to be best.

Expectations, machines and the reasons for both are in `textbook`.
"""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Iterable, Mapping

import jax
import pytest

import planner
from cost_models.network import collectives
from planner.verify.hlo.collectives import CompiledCollective, read_collectives
from tests.plans.textbook import ALTERNATIVES, CASES, SCALAR_BYTES, SLOW_FAST, Case, Key


def _id(case: Case) -> str:
    return f"{case.name}-{case.topology.name}"


BY_ID = {_id(case): case for case in CASES}
ALL = [pytest.param(name, marks=[pytest.mark.slow] * case.slow) for name, case in BY_ID.items()]


@functools.cache
def planned(name: str) -> planner.Plan:
    case = BY_ID[name]
    model = case.model("real")
    return planner.plan(
        model.fn,
        model.args,
        devices=jax.devices()[:4],
        topology=case.topology,
        mesh=case.mesh,
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never", inputs=(), remat="as written"),
    )


@functools.cache
def compiled(name: str) -> tuple[CompiledCollective, ...]:
    lowered = planned(name).jit.lower(*BY_ID[name].model("real").args)
    return read_collectives(lowered.compile().as_text(), num_devices=4)


def _summed(items: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    totals: dict[Key, float] = {}
    for key, value in items:
        totals[key] = totals.get(key, 0) + value
    return totals


def compiled_bytes(name: str, mesh: Mapping[str, int]) -> dict[Key, float]:
    return _summed(((c.kind, c.axes(mesh) or ("?",)), c.bytes * (c.trip_count or 1)) for c in compiled(name))


@pytest.mark.parametrize("name", ALL)
def test_the_best_placement_is_found(name: str) -> None:
    plan, case = planned(name), BY_ID[name]
    assert plan.certificate.status == "optimal"
    specs = {leaf.name: spec for leaf, spec in zip(plan.decision.arguments, plan.decision.in_specs, strict=True)}
    for pattern, wanted in case.specs.items():
        matching = fnmatch.filter(specs, pattern)
        assert matching, pattern
        assert {leaf: specs[leaf] for leaf in matching} == dict.fromkeys(matching, wanted)


@pytest.mark.parametrize("name", [param for param in ALL if BY_ID[str(param.values[0])].compiled])
def test_its_collectives_are_compiled(name: str) -> None:
    case = BY_ID[name]
    expected = case.compiled or {}
    counts = _summed(
        ((c.kind, c.axes(case.mesh) or ("?",)), c.trip_count or 1) for c in compiled(name) if c.bytes > SCALAR_BYTES
    )
    assert counts == {key: count for key, (count, _) in expected.items()}, case.reason
    assert compiled_bytes(name, case.mesh) == {key: total for key, (_, total) in expected.items()}, case.reason


@pytest.mark.parametrize("name", ALL)
def test_the_prediction_is_within_one_percent(name: str) -> None:
    predicted = _summed(((c.kind, c.axes), c.bytes * c.count) for c in planned(name).predicted.collectives)
    assert predicted == pytest.approx(compiled_bytes(name, BY_ID[name].mesh), rel=0.01)


@pytest.mark.parametrize(
    "name", [name if name.startswith("mlp") else pytest.param(name, marks=pytest.mark.slow) for name in BY_ID]
)
def test_it_verifies(name: str) -> None:
    verification = planned(name).verify(*BY_ID[name].model("small").args)
    assert verification.numerics.ok, verification
    assert verification.as_promised, verification


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_no_worse_than_plans_made_by_hand(name: str) -> None:
    slow, fast = SLOW_FAST.links((2, 2)) or ()
    links = {("slow",): (slow,), ("fast",): (fast,), ("slow", "fast"): (slow, fast)}
    found = planned(f"{name}-{SLOW_FAST.name}").predicted.communication_seconds
    for plan, summed in ALTERNATIVES[name].items():
        by_hand = sum(count * collectives.seconds("all-reduce", size, links[axes]) for axes, count, size in summed)
        assert found < by_hand, plan
