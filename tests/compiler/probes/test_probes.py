"""Every pass has a probe or a reason why not, and a sample of the probes finds the compilers as they are modelled."""

from __future__ import annotations

import json

import pytest

from planner.compiler.targets.table import COMPILERS
from tests.compiler.probes.probe import Probe
from tests.compiler.probes.run import AS_MODELLED, NOT_INSTALLED, RESULTS, outcome
from tests.compiler.probes.table import FASTEST, PROBES, UNPROBED

SAMPLE = [probe for probe in PROBES if (probe.of, probe.topology) in FASTEST]


@pytest.mark.parametrize("platform", COMPILERS)
def test_every_pass_of_a_target_has_a_probe_or_a_reason(platform: str) -> None:
    passes = {one.name for one in COMPILERS[platform].passes}
    probed = {probe.of for probe in PROBES if probe.platform == platform}
    assert probed <= passes
    assert passes - probed <= UNPROBED.keys()
    assert not probed & UNPROBED.keys()


def test_the_results_are_those_of_these_probes() -> None:
    found = json.loads(RESULTS.read_text())["probes"]
    assert [(row["pass"], row["target"]) for row in found] == [(probe.of, probe.topology) for probe in PROBES], (
        "run make probes"
    )


def test_the_sample_asks_every_compiler() -> None:
    assert {probe.platform for probe in SAMPLE} == set(COMPILERS)


@pytest.mark.parametrize("probe", SAMPLE, ids=lambda probe: f"{probe.of}-{probe.platform}")
def test_a_compiler_behaves_as_a_pass_says(probe: Probe) -> None:
    found = outcome(probe)
    if found == NOT_INSTALLED:
        pytest.skip(probe.why_not())
    assert found == AS_MODELLED
