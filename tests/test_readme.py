"""The worked example of the README runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.slow
def test_the_worked_example_runs(tmp_path):
    section = README.read_text().split("## A worked example")[1]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    path = tmp_path / "example.py"
    path.write_text(found[1])
    environment = {**os.environ, "PYTHONPATH": str(README.parent)}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Plan of train_step for cpu:8" in done.stdout
    assert "numerics: ok" in done.stdout
    assert (tmp_path / "plan.json").exists()
