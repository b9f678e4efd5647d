"""Whenever what saves plans is killed, files and folders hold what they held or what was to be saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KILLS = 25
"""Of each of four kinds of writers."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals, and no fork")
def test_kills_leave_nothing_half_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tests/plans/killed_worker.py", str(tmp_path), str(KILLS), "0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["wrong"] == []
