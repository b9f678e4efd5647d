"""A fixed sample of JAX's own primitive cases, planned, run sharded and compared; `conformance` runs them all."""

from __future__ import annotations

import pytest

from tests.conformance import conformance_case

CHUNKS = 12
LEAST = 400


@pytest.mark.filterwarnings("ignore")  # what the cases themselves warn of: casts, overflows, complex parts dropped
@pytest.mark.sample
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_cases_compute_the_same_sharded(chunk: int) -> None:
    outcomes = [conformance_case.run(name) for name in conformance_case.sample()[chunk::CHUNKS]]
    bad = [f"{o.status}: {o.name} on {o.mesh}: {o.reason}" for o in outcomes if o.status not in ("ok", "rejected")]
    assert not bad, "\n".join(bad)
    split = sum(o.placed in ("ours", "shardy") for o in outcomes)
    assert split > len(outcomes) / 2, "most cases have something to split"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.sample
@pytest.mark.parametrize(("objective", "first"), [("energy", 0), ("memory", 1)])
def test_cases_are_planned_for_every_objective(objective: str, first: int) -> None:
    """Every sixth case: what they share with plans for time is tested above."""
    outcomes = [conformance_case.only_plan(name, objective) for name in conformance_case.sample()[first::6]]
    bad = [f"{o.status}: {o.name}: {o.reason}" for o in outcomes if o.status not in ("ok", "rejected")]
    assert not bad, "\n".join(bad)


def test_the_sample_has_every_group() -> None:
    cases, chosen = conformance_case.harnesses(), conformance_case.sample()
    assert len(chosen) == len(set(chosen)) >= LEAST
    assert {cases[name].group_name for name in chosen} == {h.group_name for h in cases.values()}


def test_a_wrong_result_is_seen() -> None:
    assert conformance_case.differences([1.0, 2.0], [1.0, 2.0]) == []
    assert len(conformance_case.differences([1.0, 2.0], [1.0, 2.1])) == 1
    assert len(conformance_case.differences([1.0], [1.0, 2.0])) == 1
