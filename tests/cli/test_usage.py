"""Usage in a line, suggestions, the version, and errors in the words of the command line."""

from __future__ import annotations

import pytest

from planner.cli.main import main
from planner.cli.planning_options import in_flags


def said(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    with pytest.raises(SystemExit):
        main(words.split())
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("serch x", "did you mean search?"),
        ("search p.py:f --topolgy v5e:2x2", "did you mean --topology?"),
        ("report p.json --frce", "did you mean --force?"),
    ],
)
def test_what_was_meant_is_suggested(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    usage, error = said(words, capsys)[1].splitlines()
    assert usage.startswith("usage: meshwright")
    assert error.endswith(meant)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert said("--version", capsys)[0].startswith("meshwright ")


def test_errors_name_flags() -> None:
    text = "memory_limit is 0.0; see Options(time_limit_s=...) and Options(check='always')"
    assert in_flags(text, ["--memory"]) == "--memory is 0.0; see --time-limit ... and --check always"
    assert in_flags("memory_limit is 0.0", []) == "memory_limit is 0.0"
