"""Classes of nodes are those of the program, however often its layers are repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.asked import least_time
from benchmarks.models import deep
from planner.machine.target import resolve
from planner.program.trace import trace
from planner.session import Session


def classes(layers: int, topology: str) -> int:
    """How many decisions a deep program has, its layers written out."""
    model = deep.deep(replace(deep.REAL, layers=layers), batch=64, size="real")
    target = resolve(None, topology)
    request = least_time(target.topology, float(target.topology.chip.hbm_bytes))
    program = trace(model.fn, model.args, donate_argnums=model.donate_argnums)
    found = Session(program=program, target=target, request=request).members
    assert found is not None
    return found.classes.count


@pytest.mark.parametrize("topology", ["v5e:4x4", "v5p:4x4x4"])
def test_more_layers_have_as_many_decisions(topology: str) -> None:
    # What a layer adds to the residual stream reaches the matmuls of all behind it.
    assert classes(12, topology) == classes(16, topology)
