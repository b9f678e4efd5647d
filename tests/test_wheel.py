"""What is built of the sources works by itself: every file that the packages read is in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("planner", "cost_models", "pbqp", "pyproject.toml", "README.md", "LICENSE")
USED = """
import planner, jax, pathlib
print(pathlib.Path(planner.__file__).parent.parent)
arg = (jax.ShapeDtypeStruct((256, 256), "float32"),) * 2
fn = lambda a, b: a @ b
measured = planner.Options(cost_model="measured", check="never")
print((plan := planner.plan(fn, arg, topology="v5e:2x2", options=measured)).notes, plan._repr_html_())
print(planner.plan(fn, arg, topology="h100:8", options=planner.Options(check="never")).mesh)
"""
"""What reads the files that are no Python."""


def _run(*command: str, cwd: Path, path: str = "") -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _files(root: Path, package: str) -> set[Path]:
    files = [path for path in (root / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {path.relative_to(root) for path in files}


@pytest.mark.sample
def test_a_built_wheel_works_where_the_sources_are_not(tmp_path: Path) -> None:
    sources, site = tmp_path / "sources", tmp_path / "site"
    sources.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", "built", ".", cwd=sources)
    [wheel] = (sources / "built").glob("*.whl")
    _run(*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel), cwd=tmp_path)
    for package in ("planner", "cost_models", "pbqp"):
        assert _files(ROOT, package) <= _files(site, package)
    said = _run(sys.executable, "-c", USED, cwd=tmp_path, path=str(site))
    assert said.startswith(str(site))
    assert "profile" in said
    assert "<table>" in said
