"""What is printed of a plan is text, wherever Python runs."""

from __future__ import annotations

import pytest
import rich.console

from planner.report.text_table import table_of, text_of


def test_in_a_notebook_text_is_returned_and_not_displayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert text_of(["hello", table_of("|>a", [("x", "1")])]).splitlines() == ["hello", "   a", "x  1"]
