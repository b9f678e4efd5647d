"""A process that waits for another says so."""

from __future__ import annotations

import logging

import jax
import pytest

from planner.errors import ProcessError
from planner.machine import processes
from planner.machine.processes import Processes


class Empty:
    """A store to which nobody else comes."""

    def key_value_increment(self, key: str, by: int) -> int:
        return by

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool) -> None:
        pass

    def blocking_key_value_get_bytes(self, key: str, timeout_ms: int) -> bytes:
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")


def test_who_waits_says_for_whom(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(processes, "ARRIVAL_S", 10.0)
    both = Processes(members=(0, 1), me=0, store=Empty())
    with caplog.at_level(logging.WARNING, "planner"), pytest.raises(ProcessError, match=r"process 1 .* within 10 s"):
        both.gathered(lambda: 1, first=True)
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for process 1, 5 of 10 s",
        "waiting for process 1, 10 of 10 s",
    ]
