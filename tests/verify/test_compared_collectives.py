"""Promised and compiled collectives compared: what counts as a difference, what it is called, and what explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planner
from cost_models import parse_topology
from planner.decision import Decision
from planner.prediction import Collective
from planner.verify import differences
from planner.verify.compared_collectives import Collectives, compare_collectives
from planner.verify.hlo.collectives import CompiledCollective

MESH = {"x": 4, "y": 4}
MB = 1e6
LINE = "models/llama.py:126"
OP = "jit(step)/while/body/dot_general"


@cache
def some_decision() -> Decision:
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return planner.plan(
        lambda a, b: a @ b, (shape, shape), topology="v5e:4x4", mesh=MESH, options=planner.Options(check="never")
    ).decision


def decided(promised: Sequence[Collective], *, step_seconds: float = 0.1, topology: str = "v5e:4x4") -> Decision:
    """A decision that promises these collectives."""
    decision = some_decision()
    return replace(
        decision,
        request=replace(decision.request, topology=parse_topology(topology)),
        predicted=replace(decision.predicted, collectives=tuple(promised), seconds=step_seconds),
    )


def promise(kind: str, axes: str, bytes: float, *, count: float = 1.0, source: str = LINE) -> Collective:
    return Collective(
        kind=kind,
        bytes=bytes,
        axes=tuple(axes),
        count=count,
        source=source,
        tensor="w",
        dtype="bfloat16",
        assumed=1.0,
        lifted=(count, 1.0),
    )


def compiled(
    kind: str, axes: str, bytes: float, *, count: int = 1, source: str = LINE, op_name: str = OP, windowed: bool = False
) -> CompiledCollective:
    ids = np.arange(16).reshape(4, 4)
    rows = {"x": ids.T, "y": ids, "xy": ids.reshape(1, 16)}[axes]
    groups = tuple(tuple(map(int, row)) for row in rows)
    if kind == "collective-permute":
        groups = tuple((a, b) for row in groups for a, b in zip(row, row[1:] + row[:1], strict=True))
    return CompiledCollective(
        kind=kind,
        bytes=bytes,
        dtypes=("bf16",),
        group_size=rows.shape[1],
        groups=groups,
        trip_count=count,
        known_trips=count,
        op_name=op_name,
        sources=(f"/home/user/{source}",) if source else (),
        channel_id=1,
        promoted=False,
        name=kind,
        windowed=windowed,
    )


def compared(
    promised: Sequence[Collective],
    found: Sequence[CompiledCollective],
    *,
    scheduled_seconds: float | None = None,
    **asked: Any,
) -> Collectives:
    return compare_collectives(decided(promised, **asked), found, "tpu", scheduled_seconds=scheduled_seconds)


def test_the_same_in_several_pieces_is_no_difference() -> None:
    pieces = [compiled("all-gather", "x", 50 * MB), compiled("all-gather", "x", 25 * MB, count=2, source="a/b.py:1")]
    found = compared([promise("all-gather", "x", 100 * MB)], pieces)
    assert (found.ok, found.differs, found.differences, found.surprises) == (True, False, (), ())
    assert found.by_kind == {("all-gather", ("x",)): (100 * MB, 100 * MB)}


def test_an_all_reduce_for_an_all_gather_is_a_difference_of_the_same_bytes() -> None:
    found = compared([promise("all-gather", "xy", 134 * MB)], [compiled("all-reduce", "xy", 134 * MB)])
    assert found.differs
    assert found.predicted_bytes == found.compiled_bytes
    (difference,) = found.differences
    assert (difference.promised, difference.compiled) == (("all-gather", ("x", "y")), ("all-reduce", ("x", "y")))
    assert difference.compiled_seconds == pytest.approx(2 * difference.promised_seconds, rel=0.01)
    assert found.surprises[0].startswith(f"all-gather over x,y of 134 MB at {LINE} became an all-reduce")
    assert differences.OF_ALL_DEVICES in found.surprises[0]


def test_a_sum_that_the_price_table_knows_of_is_no_difference() -> None:
    """What the program asks for is a scatter; what is promised, and priced, is what the platform's compiler makes of it."""
    own = replace(promise("all-reduce", "xy", 134 * MB), emitted="reduce-scatter")
    found = compared([own], [compiled("all-reduce", "xy", 134 * MB)])
    assert (found.ok, found.differences) == (True, ())
    assert found.predicted_seconds == pytest.approx(found.compiled_seconds)


def test_other_axes_are_a_difference() -> None:
    found = compared([promise("all-gather", "x", 100 * MB)], [compiled("all-gather", "y", 100 * MB)])
    assert (found.ok, found.differs) == (True, True)
    assert {(d.promised, d.compiled) for d in found.differences} == {
        (("all-gather", ("x",)), None),
        (None, ("all-gather", ("y",))),
    }


def test_a_few_kilobytes_are_no_difference() -> None:
    found = compared([], [compiled("all-reduce", "x", 1000.0, count=3)], step_seconds=1e-6)
    assert (found.ok, found.differs, found.surprises) == (True, False, ())


def test_what_takes_little_of_the_step_is_none() -> None:
    """0.5 MB over four devices take some 10 microseconds: nothing of a second, much of a tenth of a millisecond."""
    promised, found = [promise("all-gather", "x", 0.1 * MB)], [compiled("all-reduce", "x", 0.5 * MB)]
    assert not compared(promised, found, step_seconds=1.0).differs
    assert compared(promised, found, step_seconds=1e-4).ok is False


def test_what_costs_a_twentieth_of_the_call_is_a_broken_promise() -> None:
    """An all-reduce in place of an all-gather of 134 MB costs 1.3 ms more."""
    promised, found = [promise("all-gather", "xy", 134 * MB)], [compiled("all-reduce", "xy", 134 * MB)]
    lost = compared(promised, found).lost_seconds
    assert lost == pytest.approx(1.36e-3, rel=0.05)
    tolerable, broken = (compared(promised, found, step_seconds=lost / share) for share in (0.049, 0.051))
    assert (tolerable.ok, tolerable.differs) == (True, True)
    assert (broken.ok, broken.differs) == (False, True)
    assert broken.reason.startswith("a broken promise costs 1.3")
    assert "of the 26" in broken.reason


def test_what_is_compiled_cheaper_than_promised_breaks_no_promise() -> None:
    found = compared(
        [promise("all-reduce", "xy", 134 * MB)], [compiled("all-gather", "xy", 134 * MB)], step_seconds=1e-3
    )
    assert (found.ok, found.differs, found.lost_seconds) == (True, True, 0.0)


def test_what_is_missing_costs_what_the_schedule_takes_more() -> None:
    """Nothing is gathered, and the step is slower: the work is done on every device."""
    promised = [promise("all-gather", "xy", 134 * MB)]
    missing = compared(promised, [], step_seconds=10e-3).missing_seconds
    assert missing == pytest.approx(1.36e-3, rel=0.05)
    for scheduled_seconds, lost in ((None, 0.0), (9e-3, 0.0), (10.1e-3, 0.1e-3), (20e-3, missing)):
        found = compared(promised, [], step_seconds=10e-3, scheduled_seconds=scheduled_seconds)
        assert found.lost_seconds == pytest.approx(lost)
        assert (found.ok, found.differs) == (lost < missing, True)


def test_latency_weighs_too() -> None:
    """A thousand sums of a few bytes are milliseconds."""
    many = [compiled("all-reduce", "x", 64.0, count=1000)]
    assert compared([], many, step_seconds=0.01).ok is False
    assert compared([], many, step_seconds=100.0).ok is True


def test_permutes_in_the_loop_of_a_matmul_are_a_windowed_einsum() -> None:
    steps = [
        compiled("collective-permute", "x", 20 * MB, count=3, windowed=True),
        compiled("collective-permute", "x", 20 * MB),
    ]
    found = compared([promise("reduce-scatter", "x", 80 * MB)], steps)
    assert found.differs
    assert [d.reason for d in found.differences] == [differences.WINDOWS]
    assert "became a collective-permute" in found.surprises[0]


def test_what_was_not_asked_for_is_named_by_its_operation() -> None:
    own = promise("all-gather", "x", 10 * MB)
    found = compared([own], [compiled("all-gather", "x", 10 * MB), compiled("all-gather", "y", 900 * MB, count=32)])
    (difference,) = found.differences
    assert (difference.promised, difference.compiled) == (None, ("all-gather", ("y",)))
    assert (difference.runs, difference.op_name, difference.source) == (32, OP, LINE)
    assert f"900 MB 32 times at {LINE} was not asked for" in found.surprises[0]
    assert "what dot_general reads or makes" in found.surprises[0]


def test_what_was_combined_is_found_by_its_axes() -> None:
    promised = [
        promise("all-gather", "xy", 30 * MB),
        promise("all-gather", "xy", 20 * MB, source="models/llama.py:140"),
    ]
    found = compared(promised, [compiled("all-reduce", "xy", 50 * MB, source="", op_name="")])
    (difference,) = found.differences
    assert (difference.promised_bytes, difference.compiled_bytes, difference.lines) == (50 * MB, 50 * MB, 2)
    assert "and on 1 other line became an all-reduce" in found.surprises[0]


def test_a_promise_that_was_not_compiled_is_a_difference() -> None:
    found = compared([promise("all-to-all", "x", 50 * MB)], [], step_seconds=1e-3)
    assert (found.ok, found.differs) == (True, True)
    assert "was not compiled" in found.surprises[0]


def test_loops_of_unknown_length_count_as_one_pass() -> None:
    loop = replace(promise("all-reduce", "x", 50 * MB, count=7.0), assumed=7.0)
    once = replace(compiled("all-reduce", "x", 50 * MB), trip_count=None)
    found = compared([loop], [once])
    assert not found.differs
    assert "one pass is compared" in found.surprises[0]


def test_on_cpu_bytes_are_compared() -> None:
    """Whatever the wires: those of virtual devices say nothing."""
    decision = decided([promise("all-gather", "x", 10 * MB)], topology="cpu:16", step_seconds=1e6)
    assert not compare_collectives(decision, [compiled("all-gather", "x", 10.9 * MB)], "cpu").differs
    for other in (compiled("all-gather", "x", 12 * MB), compiled("all-reduce", "x", 10 * MB)):
        found = compare_collectives(decision, [other], "cpu")
        assert (found.ok, found.differs) == (True, True), "of a call of days it costs nothing"


def test_a_deep_program_is_compared_as_fast_as_it_is_read() -> None:
    """Thousands of layers' collectives, none as promised, and no pair of each with each."""
    promised = [promise("all-gather", "xy", MB, source=f"a/b.py:{i % 50}") for i in range(20_000)]
    found = compared(promised, [compiled("all-reduce", "xy", MB, source=f"a/b.py:{i % 50}") for i in range(20_000)])
    assert len(found.differences) == 1
