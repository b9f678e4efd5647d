"""What is printed of a plan reads the same wherever Python runs."""

from __future__ import annotations

import io
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
import rich.console
from hypothesis import given

from planner.decision import Certificate
from planner.printing.parts import Part, table_of
from planner.printing.printed import Printed
from planner.printing.text import WIDTH, broken, text_of
from planner.report.comparison import Comparison
from planner.studies.audit import Audit
from planner.studies.joint import Programs
from planner.studies.pareto import Front
from planner.studies.topology_table import TopologyComparison
from planner.verify.verification import Verification

NAME = "params/layers/0/attention/query/kernel"


@dataclass(frozen=True, slots=True)
class Record(Printed):
    """Some parts."""

    parts: tuple[Part, ...]

    def _parts(self) -> list[Part]:
        return list(self.parts)


RECORD = Record(("checks", table_of("|verdict|>bytes", [(NAME, "FAILED", "1 GB"), ("[a] <b> :smile:", "ok")])))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, *, columns: int = 100, no_color: bool = False) -> str:
    """The record on a terminal."""
    for name, value in {"COLUMNS": str(columns), "LINES": "40", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    RECORD.show(terminal)
    return terminal.getvalue()


def test_in_a_notebook_text_is_returned_and_not_displayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert text_of(["hello", table_of("|>a", [("x", "1")])]).splitlines() == ["hello", "   a", "x  1"]


def test_what_failed_is_red_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1;31mFAILED\x1b[0m" in shown(monkeypatch)


def test_there_are_no_colours_where_nobody_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[31" not in shown(monkeypatch, no_color=True)
    assert "\x1b[1;31" not in shown(monkeypatch, no_color=True)


def test_a_file_has_no_colours_and_the_width_of_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    file = io.StringIO()
    RECORD.show(file)
    assert file.getvalue() == f"{RECORD}\n"
    assert "\x1b" not in str(RECORD)
    assert NAME in str(RECORD)


def test_long_names_break_behind_slashes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, columns=40, no_color=True)
    lines = [line.split()[0] for line in text.splitlines() if line.startswith(("params", "attention", "query"))]
    assert len(lines) > 1
    assert all(line.endswith("/") for line in lines[:-1])


@given(st.text(alphabet="ab/ ", max_size=60), st.integers(1, 20))
def test_breaking_lines_loses_nothing_but_spaces(line: str, width: int) -> None:
    lines = broken(line, width)
    assert all(len(each) <= width for each in lines)
    assert "".join(lines).replace(" ", "") == line.replace(" ", "")


def test_html_escapes_text_and_marks_what_failed() -> None:
    html = RECORD._repr_html_()
    assert "[a] &lt;b&gt; :smile:" in html
    assert "params/<wbr>layers/<wbr>" in html
    assert html.count("<strong") == 1
    assert '<td style="text-align:right;white-space:pre-wrap">1 GB</td>' in html


@pytest.mark.parametrize("record", [Audit, Certificate, Comparison, Front, Programs, TopologyComparison, Verification])
def test_records_are_shown_everywhere(record: type) -> None:
    assert issubclass(record, Printed)


def test_a_certificate_says_how_far_from_optimal_a_plan_can_be() -> None:
    certificate = Certificate(value=2.0, lower_bound=1.5, unit="seconds", solve_seconds=0.1, meshes=3)
    assert str(certificate).splitlines()[0] == "within 25 %"
    assert "1.5 seconds" in certificate._repr_html_()


def test_ipython_gets_the_text() -> None:
    assert RECORD._repr_mimebundle_(include=None, exclude=None) == {"text/plain": str(RECORD)}


def test_a_line_is_never_longer_than_the_width() -> None:
    assert max(map(len, text_of(["word " * 100, table_of("|", [("a/" * 100, "b" * 300)])]).splitlines())) <= WIDTH
