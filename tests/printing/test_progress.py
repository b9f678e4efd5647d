"""The bar of planning in IPython, in its terminal and in notebooks, by a stand-in for IPython."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner.printing.progress import shown_in_ipython
from tests.small import NEVER, mlp, mlp_args


@dataclass
class Shell:
    """As much of IPython as the bar needs."""

    kernel: object = None
    called: list[Callable[..., None]] = field(default_factory=list)
    displayed: list[str] = field(default_factory=list)

    @property
    def events(self) -> Any:
        return SimpleNamespace(
            register=lambda name, call: self.called.append(call),
            unregister=lambda name, call: self.called.remove(call),
        )

    def end_cell(self) -> None:
        for call in list(self.called):
            call(None)

    def display(self, data: dict[str, str], **asked: Any) -> Any:
        self.update(data)
        return self

    def update(self, data: dict[str, str], **asked: Any) -> None:
        self.displayed.append(data["text/html"])


def start(monkeypatch: pytest.MonkeyPatch, *, kernel: object) -> Shell:
    shell = Shell(kernel=kernel)
    module = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=shell.display))
    monkeypatch.setitem(sys.modules, "IPython", module)
    return shell


def test_a_notebook_has_a_bar_until_the_cell_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = start(monkeypatch, kernel=object())
    planner.plan(mlp, mlp_args(), topology="cpu:8", options=NEVER)
    assert all("<progress" in shown for shown in shell.displayed)
    assert any('max="' in shown for shown in shell.displayed)
    shell.end_cell()
    assert "<progress" not in shell.displayed[-1]
    assert "optimal" in shell.displayed[-1]
    assert not shell.called


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shell = start(monkeypatch, kernel=None)
    planner.plan(mlp, mlp_args(), topology="cpu:8", options=NEVER)
    assert "━" in capsys.readouterr().err
    shell.end_cell()
    ended = capsys.readouterr().err
    assert ended.endswith("\n")
    assert "━" not in ended


def test_who_wants_none_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = start(monkeypatch, kernel=object())
    planner.plan(mlp, mlp_args(), topology="cpu:8", options=planner.Options(check="never", progress=None))
    assert not shell.displayed


def test_elsewhere_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert shown_in_ipython() is None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert shown_in_ipython() is None
