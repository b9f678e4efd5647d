"""The largest batch that fits is found: which batches are tried, and in what order; no compiler."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hand_plans import HandPlan
from benchmarks.hand_plans.kinds import FSDP, HSDP
from benchmarks.memory_frontier import Rows, batch_axes, batches, largest, smallest_hands, summary
from cost_models import parse_topology


@given(
    most=st.integers(-1, 12), start=st.integers(0, 5000), tried=st.lists(st.integers(1, 4096), min_size=1, unique=True)
)
def test_the_largest_is_found_from_any_start(most: int, start: int, tried: list[int]) -> None:
    tried = sorted(tried)
    limit = tried[min(most, len(tried) - 1)] if most >= 0 else 0
    asked: list[int] = []

    def fits(batch: int) -> bool:
        asked.append(batch)
        return batch <= limit

    assert largest(tried, fits, start) == (limit or None)
    assert len(asked) == len(set(asked))


def test_batches_are_those_that_a_plan_can_split() -> None:
    found = batches(64, 32, 512)
    assert found[0] == 32
    assert found[-1] == 512
    assert all(batch % 32 == 0 for batch in found)
    assert {64, 96, 128, 160, 192, 224, 256} <= set(found)


def test_hand_plans_are_taken_by_their_peak() -> None:
    fsdp, hsdp = HandPlan(kind=FSDP, mesh={"data": 16}), HandPlan(kind=HSDP, mesh={"data": 4, "model": 4})
    assert (batch_axes(fsdp), batch_axes(hsdp)) == (16, 16)
    rows = [
        {"plan": fsdp.name, "peak_bytes": 2e9},
        {"plan": hsdp.name, "peak_bytes": 1e9},
        {"plan": "ours", "peak_bytes": 1e8},
        {"plan": "unknown", "status": "error"},
    ]
    assert smallest_hands(rows, {hand.name: hand for hand in (fsdp, hsdp)}) == [hsdp, fsdp]


def test_rows_are_kept_and_summed_up(tmp_path: Path) -> None:
    out, topology = tmp_path / "rows.json", parse_topology("v5e:4x4")
    rows = Rows(out)

    def row(plan: str, batch: int, **more: object) -> None:
        rows.row(topology, plan, batch, lambda: {"status": "ok", "seconds": 1e-3 * batch, "peak_bytes": 1e9, **more})

    row("fsdp, as written", 16, policy="as written")
    row("fsdp, as written", 32, policy="as written")
    row("ours", 64)
    again = Rows(out)
    assert again.row(topology, "ours", 64, dict)["batch"] == 64
    table = "\n".join(summary(again.rows))
    assert "| fsdp, as written | 32 | 1.00 | 1.00 | 1.0 |" in table
    assert "| ours | 64 | 2.00 | 1.00 | 1.0 |" in table
