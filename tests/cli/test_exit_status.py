"""The exit status of a search: what the checks of its plans came to, verified again or not; the compiler is scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main
from planner.planning import checks
from planner.verify import compiled, step_time
from tests.planning.test_candidates import Compiler, report

PROGRAM = """
import jax
from tests.planning.test_candidates import WIDE, step

def large():
    return step, (WIDE, WIDE, WIDE)
"""
BROKEN, DEARER, AS_PROMISED = 1e13, 4.15e8, 0.0
"""Bytes gathered over all devices that were not promised: those of minutes, of a few hundredths of a call, and none."""


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command to search a plan for devices that are not here."""
    monkeypatch.setattr(checks, "AFFORDABLE_OPERATIONS", 10_000)
    monkeypatch.setattr(compiled, "unavailable_reason", lambda platform: "")
    (tmp_path / "large_program.py").write_text(PROGRAM)
    return ["search", f"{tmp_path / 'large_program.py'}:large", "--topology", "v5e:2x4", "--mesh", "x=8"]


@pytest.mark.parametrize("more", [[], ["--verify"]], ids=["searched", "verified"])
@pytest.mark.parametrize(
    ("gathered", "verdict", "code"), [(BROKEN, "FAILED", 1), (DEARER, "differs", 0), (AS_PROMISED, "differs", 0)]
)
def test_only_what_fails_is_an_exit_status(
    search: list[str],
    gathered: float,
    verdict: str,
    code: int,
    more: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiler = Compiler([report(gathered=gathered, seconds=0.2)])
    monkeypatch.setattr(compiled, "aot_compile", compiler.compile)
    monkeypatch.setattr(step_time, "step_time", compiler.step_time)
    assert main([*search, *more]) == code
    printed = capsys.readouterr().out
    shown = printed[printed.index("\nchecks\n") :]
    assert f"collectives  {verdict}" in shown
    assert ("a broken promise costs" in shown) == (verdict == "FAILED")
    assert ("FAILED" in shown) == (code == 1)
