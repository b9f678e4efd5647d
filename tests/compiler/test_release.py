"""Plans say when the compiler at hand is not the one that the compiler model was read off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import planner
from cost_models import parse_topology
from planner.compiler import release as compiler_release
from planner.compiler import release_notes as notes
from planner.compiler.model import CompilerModel
from planner.compiler.release import installed_release, is_from, is_read_off
from planner.compiler.release_notes import PROBED, release_notes
from planner.compiler.targets.table import compiler_of
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


def compiler(topology: str) -> CompilerModel:
    """The compiler model of a topology's chip, as it is installed."""
    return compiler_of(parse_topology(topology).chip)


def test_there_is_no_note_of_the_release_that_the_passes_were_read_off(installed: dict[str, str]) -> None:
    installed |= {"libtpu": "0.0.42.1", "jax-cuda13-plugin": "0.10.2"}
    assert release_notes(compiler("v5e:2x4")) == release_notes(compiler("h100:8")) == ()


def test_there_is_no_note_where_no_compiler_is_installed(installed: dict[str, str]) -> None:
    assert not installed
    assert installed_release("tpu") is None
    assert release_notes(compiler("v5e:2x4")) == ()


def test_another_release_is_noted_with_the_passes_that_were_not_read_off_it(
    installed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed["libtpu"] = "0.0.50"
    monkeypatch.setattr(notes, "PROBED", {})
    model = compiler("v5e:2x4")
    (note,) = release_notes(model)
    others = [one for one in model.passes if "libtpu 0.0.50" not in one.evidence.releases]
    start = f"{len(others)} of {len(model.passes)} passes of the compiler model were read off libtpu 0.0.42, and"
    assert note.startswith(start)
    assert "the compiler here is libtpu 0.0.50: " in note


def test_a_probed_release_is_noted_with_what_has_changed(installed: dict[str, str]) -> None:
    installed["libtpu"] = "0.0.50.1"
    (note,) = release_notes(compiler("v5e:2x4"))
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


def test_a_later_release_is_from_another_by_its_numbers() -> None:
    assert is_from("libtpu 0.0.50.1", "libtpu 0.0.50")
    assert is_from("libtpu 0.0.100.dev2+nightly", "libtpu 0.0.50")
    assert not is_from("libtpu 0.0.42.1", "libtpu 0.0.50")


@pytest.mark.parametrize(
    ("release", "new"), [("0.0.42.1", False), ("0.0.48", False), ("0.0.50.1", True), ("0.0.61", True), (None, True)]
)
def test_a_compiler_has_the_passes_of_its_release(installed: dict[str, str], release: str | None, new: bool) -> None:
    installed |= {} if release is None else {"libtpu": release}
    assert compiler("v5e:2x4").runs("separate-results") is new
    assert compiler("v5e:2x4").runs("masked-ragged-sums") is not new
    assert compiler("v5e:2x4").runs("tiling")


def test_a_plan_has_the_note_of_its_own_target(installed: dict[str, str]) -> None:
    installed |= {"libtpu": "0.0.48", "jaxlib": "0.10.2"}
    for topology, told in (("cpu:8", 0), ("v5e:2x4", 1)):
        plan = planner.plan(mlp, mlp_args(), topology=topology, mesh={"x": 8}, options=NEVER)
        assert sum("the compiler here is libtpu 0.0.48" in note for note in plan.notes) == told
