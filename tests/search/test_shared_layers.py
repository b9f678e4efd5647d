"""Classes of nodes are those of the program, however often its layers are repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.models import deep, llama
from benchmarks.models.base import Model
from benchmarks.problems import least_time
from pbqp.methods import solve
from planner.machine.target import resolve
from planner.pricing.assignment import Chosen
from planner.pricing.build_instance import state
from planner.program.tracing.trace import trace
from planner.search.problem import PlanningProblem, planning_problem, terms_of
from planner.search.shared_layers import SharedInstance


def deep_problem(layers: int, topology: str, pins: Mapping[str, P] | None = None) -> PlanningProblem:
    """That of a deep program, its layers written out."""
    return problem_of(deep.deep(replace(deep.REAL, layers=layers), batch=64, size="real"), topology, pins)


def problem_of(model: Model, topology: str, pins: Mapping[str, P] | None = None) -> PlanningProblem:
    """That of a program, for the least time."""
    target = resolve(None, topology)
    request = least_time(target.topology, float(target.topology.chip.hbm_bytes))
    program = trace(model.fn, model.args, donate_argnums=model.donate_argnums)
    return planning_problem(program=program, target=target, request=replace(request, pins=pins or {}))


@cache
def free_problem(layers: int, topology: str) -> PlanningProblem:
    """One without pins, which several tests hold others against."""
    return deep_problem(layers, topology)


def classes(planning: PlanningProblem) -> int:
    """How many decisions are made."""
    found = planning.analysis.members
    assert found is not None
    return found.classes.count


@pytest.mark.parametrize("topology", ["v5e:4x4", pytest.param("v5p:4x4x4", marks=pytest.mark.slow)])
def test_more_layers_have_as_many_decisions(topology: str) -> None:
    # What a layer adds to the residual stream reaches the matmuls of all behind it.
    assert classes(free_problem(12, topology)) == classes(free_problem(14, topology))


def test_layers_with_loops_have_as_many_decisions_however_many_there_are() -> None:
    """What other layers hold around the loop of one, such as gradients, is not counted with what the loop reads."""
    counts: list[int] = []
    for layers in (6, 8):
        config = replace(llama.CONFIGS["8B"], layers=layers, scan=False, query_block=512)
        counts.append(classes(problem_of(llama.llama(config, batch=256, size="real"), "v5e:16x16")))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("pins", "more"),
    [
        ({"params/layers/*/down": P("x", "y")}, False),
        ({"out/0/layers/*/up": P("y")}, False),
        ({"params/layers/3/down": P("x", "y")}, True),
    ],
)
def test_what_is_pinned_alike_shares_its_decisions(pins: Mapping[str, P], more: bool) -> None:
    planning, free = deep_problem(8, "v5e:4x4", pins), free_problem(8, "v5e:4x4")
    analysis = planning.analysis
    # A result that is pinned is a decision: one of the first layer, beside whose arrays on the chip are no earlier ones,
    # one of the last, and one of the others.
    outputs = len(analysis.output_pins) and 3
    assert (classes(planning) > classes(free) + outputs) == more
    shared = planning.state(planning.mesh({"x": 4, "y": 4}))
    assert isinstance(shared, SharedInstance)
    found = solve(shared.problem)
    alone = solve(state(planning.model, terms_of(planning, planning.mesh({"x": 4, "y": 4}))).problem, time_limit=60.0)
    assert found.status == alone.status == "optimal"
    assert found.value == pytest.approx(alone.value, rel=1e-9)
    choice = shared.lift(found.choice or ()).tolist()
    whole = shared.whole()
    assert whole.problem.evaluate(choice) == pytest.approx(alone.value, rel=1e-9)
    chosen = Chosen(instance=whole, choice=tuple(choice))
    assert {chosen.stored(tensor) for tensor in analysis.tensor_pins} == set(analysis.tensor_pins.values())
    assert {chosen.returned(position) for position in analysis.output_pins} == set(analysis.output_pins.values())
