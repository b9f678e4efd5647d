"""What a program's checkpoints are makes no difference to what can be saved."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from cost_models import parse_topology
from planner.program.form import Form
from planner.program.jaxpr.remat.rewrite_saved import crossings, program_steps
from planner.program.tracing.trace import trace
from planner.transforms.apply import formed
from planner.transforms.remat_choice import Front
from tests.transforms.checkpoints import ATTENTIONS, CHECKPOINTS, step
from tests.transforms.loops import arguments

CHIP = parse_topology("v5e:4x4").chip
VIEWS = ("reduce_precision", "name", "broadcast_in_dim", "reshape", "squeeze", "optimization_barrier")
"""What checkpoints add, and what may stand in loops or outside."""


@cache
def _with_all_saved(attention: str, checkpoint: str, scanned: bool) -> Counter[str]:
    """How often each kind of op runs where everything is saved."""
    program = trace(step(attention, checkpoint, scanned=scanned), arguments())
    everything = Front(crossings(program), CHIP).everything
    runs = Counter[str]()
    for one in program_steps(formed(program, Form(saved=everything.saved))):
        if one.kind not in VIEWS:
            runs[one.kind] += int(one.runs)
    return runs


@pytest.mark.parametrize("scanned", [True, False], ids=["scanned", "written_out"])
@pytest.mark.parametrize("checkpoint", [name for name in CHECKPOINTS if name != "none"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_with_all_saved_a_program_computes_no_more_than_without_checkpoints(
    attention: str, checkpoint: str, scanned: bool
) -> None:
    expected = _with_all_saved(attention, "none", scanned)
    assert not _with_all_saved(attention, checkpoint, scanned) - expected


def test_what_policies_mark_is_not_computed() -> None:
    """JAX marks what it saves by rounding it to the type that it has."""
    program = trace(step("masked", "dots", scanned=True), arguments())
    everything = Front(crossings(program), CHIP).everything
    assert "reduce_precision" in str(program.jaxpr)
    assert "reduce_precision" not in str(formed(program, Form(saved=everything.saved)).jaxpr)
