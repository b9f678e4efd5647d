"""Plans say when the compiler at hand is not the one that the compiler model was read off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import planner
from planner.compiler import release as compiler_release
from planner.compiler import release_notes as notes
from planner.compiler.release import installed_release, is_read_off
from planner.compiler.release_notes import PROBED, release_notes
from planner.compiler.targets.table import GPU, TPU
from tests.small import NEVER, mlp, mlp_args

NEWEST = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "probes_newest_jax.json"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The releases of compilers that are installed, by package."""
    found: dict[str, str] = {}

    def version(package: str) -> str:
        if package not in found:
            raise PackageNotFoundError(package)
        return found[package]

    monkeypatch.setattr(compiler_release, "version", version)
    installed_release.cache_clear()
    yield found
    installed_release.cache_clear()


def test_there_is_no_note_of_the_release_that_the_passes_were_read_off(installed: dict[str, str]) -> None:
    installed |= {"libtpu": "0.0.42.1", "jax-cuda13-plugin": "0.10.2"}
    assert release_notes(TPU) == release_notes(GPU) == ()


def test_there_is_no_note_where_no_compiler_is_installed(installed: dict[str, str]) -> None:
    assert not installed
    assert installed_release("tpu") is None
    assert release_notes(TPU) == ()


def test_another_release_is_noted_with_the_passes_that_were_not_read_off_it(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed["libtpu"] = "0.0.50"
    monkeypatch.setattr(notes, "PROBED", {})
    (note,) = release_notes(TPU)
    count = len(TPU.passes)
    assert note.startswith(f"{count - 1} of {count} passes of the compiler model were read off libtpu 0.0.42, and")
    assert "the compiler here is libtpu 0.0.50: " in note


def test_a_probed_release_is_noted_with_what_has_changed(installed: dict[str, str]) -> None:
    installed["libtpu"] = "0.0.50.1"
    (note,) = release_notes(TPU)
    assert "not what libtpu 0.0.50.1 does (" in note
    outcomes = json.loads(NEWEST.read_text())["probes"]
    changed = {
        probe["pass"] for probe in outcomes if probe["outcome"].startswith("changed") and "libtpu" in probe["release"]
    }
    assert changed == PROBED["libtpu 0.0.50"]
    assert all(name in note for name in changed)


def test_a_patch_release_is_the_release_and_a_longer_number_is_not() -> None:
    assert is_read_off("libtpu 0.0.42.1", ("libtpu 0.0.42",))
    assert not is_read_off("libtpu 0.0.4", ("libtpu 0.0.42",))
    assert not is_read_off("jaxlib 0.10.20", ("jaxlib 0.10.2",))


def test_a_plan_has_the_note_of_its_own_target(installed: dict[str, str]) -> None:
    installed |= {"libtpu": "0.0.48", "jaxlib": "0.10.2"}
    for topology, told in (("cpu:8", 0), ("v5e:2x4", 1)):
        plan = planner.plan(mlp, mlp_args(), topology=topology, mesh={"x": 8}, options=NEVER)
        assert sum("the compiler here is libtpu 0.0.48" in note for note in plan.notes) == told
