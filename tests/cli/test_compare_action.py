"""The action that comments on pull requests, run in a repository of its own with a stand-in for GitHub's command."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import planner
from tests.fork_server import python
from tests.pages import ROOT
from tests.small import NEVER, mlp, mlp_args

ACTION = ROOT / ".github" / "actions" / "compare-plans" / "action.yml"


def steps() -> list[str]:
    """The scripts of the action."""
    blocks = re.findall(r"^      run: \|\n((?:        .*\n|\n)+)", ACTION.read_text(), re.MULTILINE)
    return [re.sub(r"^ {8}", "", block, flags=re.MULTILINE) for block in blocks]


def git(folder: Path, *given: str) -> str:
    said = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *said, *given], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone whose plan is another than that of the commit before."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "--quiet")
    for mesh in ({"x": 8}, {"x": 4}):
        planner.plan(mlp, mlp_args(), topology="cpu:8", mesh=mesh, options=NEVER).save(origin / "plan.json")
        git(origin, "add", "plan.json")
        git(origin, "commit", "--quiet", "-m", "Plan")
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    return tmp_path / "clone"


def comment(repository: Path, plan: str) -> str | None:
    """What the action comments."""
    temp = repository.parent / "temp"
    for command, script in {
        "gh": 'cp "${@: -1}" "$RUNNER_TEMP/commented"; echo "$@" > "$RUNNER_TEMP/asked"',
        "meshwright/bin/meshwright": f'exec {" ".join(python())} -m planner "$@"',
    }.items():
        path = temp / command
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{script}\n")
        path.chmod(0o755)
    environment = {**os.environ, "RUNNER_TEMP": str(temp), "PATH": f"{temp}{os.pathsep}{os.environ['PATH']}"}
    environment |= {
        "PLAN": plan,
        "BASE": git(repository, "rev-parse", "HEAD~1"),
        "NUMBER": "7",
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run(["bash", "-eo", "pipefail", "-c", steps()[1]], cwd=repository, env=environment, check=True)
    commented = temp / "commented"
    return commented.read_text() if commented.exists() else None


@pytest.mark.sample
def test_a_changed_plan_is_commented(repository: Path) -> None:
    text = comment(repository, "plan.json")
    assert text is not None
    assert text.startswith("### Plan `plan.json`: A is the base branch")
    assert "time of a call" in text
    assert text.endswith("```\n")


@pytest.mark.sample
def test_a_new_plan_is_not(repository: Path) -> None:
    assert comment(repository, "other.json") is None
