"""The row of a compile in a benchmark's results."""

from __future__ import annotations

import pytest

from benchmarks.compiled_row import by_kind, compiled_row
from cost_models import parse_topology
from planner.verify.aot import AotReport
from planner.verify.hlo.memory import CompiledMemory

CHIP = parse_topology("v5e:4x4")
HLO = "HloModule m, is_scheduled=true\n\nENTRY main {\n  ROOT %x = f32[8]{0:T(128)} parameter(0)\n}\n"


def _memory(peak: int) -> CompiledMemory:
    return CompiledMemory(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=peak, peak_bytes=peak)


def test_what_does_not_compile_has_its_message_and_needed_bytes() -> None:
    report = AotReport(status="oom", message="Ran out of memory", seconds=1.25, needed_bytes=2e10)
    row = compiled_row(report, CHIP, {"x": 16})
    assert row == {"status": "oom", "compile_seconds": 1.2, "message": "Ran out of memory", "peak_bytes": 2e10}


@pytest.mark.parametrize(("peak", "status"), [(10**9, "ok"), (10**11, "oom")])
def test_a_peak_over_the_chip_is_out_of_memory(peak: int, status: str) -> None:
    row = compiled_row(AotReport(status="ok", message="", seconds=1.0, memory=_memory(peak), hlo=HLO), CHIP, {"x": 16})
    assert (row["status"], row["peak_bytes"]) == (status, peak)


def test_bytes_of_one_kind_over_the_same_axes_are_added() -> None:
    found = by_kind([("all-gather", ("x",), 2.0), ("all-gather", ("x",), 3.0), ("all-gather", ("x", "y"), 1.0)])
    assert found == {"all-gather x": 5.0, "all-gather x,y": 1.0}
