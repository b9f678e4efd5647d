"""Classes of nodes are those of the program, however often its layers are repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.asked import least_time
from benchmarks.models import deep
from pbqp.methods import solve
from planner.machine.target import resolve
from planner.pricing.assignment import Chosen
from planner.pricing.build_instance import state
from planner.problem import Session
from planner.program.tracing.trace import trace


def deep_session(layers: int, topology: str, pins: Mapping[str, P] | None = None) -> Session:
    """That of a deep program, its layers written out."""
    model = deep.deep(replace(deep.REAL, layers=layers), batch=64, size="real")
    target = resolve(None, topology)
    request = least_time(target.topology, float(target.topology.chip.hbm_bytes))
    program = trace(model.fn, model.args, donate_argnums=model.donate_argnums)
    return Session(program=program, target=target, request=replace(request, pins=pins or {}))


def classes(session: Session) -> int:
    """How many decisions are made."""
    found = session.members
    assert found is not None
    return found.classes.count


@pytest.mark.parametrize("topology", ["v5e:4x4", "v5p:4x4x4"])
def test_more_layers_have_as_many_decisions(topology: str) -> None:
    # What a layer adds to the residual stream reaches the matmuls of all behind it.
    assert classes(deep_session(12, topology)) == classes(deep_session(16, topology))


@pytest.mark.parametrize(
    ("pins", "more"),
    [
        ({"params/layers/*/down": P("x", "y")}, False),
        ({"out/0/layers/*/up": P("y")}, False),
        ({"params/layers/3/down": P("x", "y")}, True),
    ],
)
def test_what_is_pinned_alike_shares_its_decisions(pins: Mapping[str, P], more: bool) -> None:
    session, free = deep_session(8, "v5e:4x4", pins), deep_session(8, "v5e:4x4")
    outputs = (
        len(session.output_pins) and 2
    )  # a result that is pinned is a decision: one of the last layer, one of others
    assert (classes(session) > classes(free) + outputs) == more
    shared = session.shared({"x": 4, "y": 4})
    assert shared is not None
    found = solve(shared.problem)
    alone = solve(state(session.model, session._terms({"x": 4, "y": 4})).problem, time_limit=60.0)
    assert found.status == alone.status == "optimal"
    assert found.value == pytest.approx(alone.value, rel=1e-9)
    choice = shared.lift(found.choice or ()).tolist()
    whole = shared.whole()
    assert whole.problem.evaluate(choice) == pytest.approx(alone.value, rel=1e-9)
    chosen = Chosen(instance=whole, choice=tuple(choice))
    assert {chosen.stored(tensor) for tensor in session.tensor_pins} == set(session.tensor_pins.values())
    assert {chosen.returned(position) for position in session.output_pins} == set(session.output_pins.values())
