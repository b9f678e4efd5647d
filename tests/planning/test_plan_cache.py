"""Plans are found again by all that they follow from; what is damaged is told and made again."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner import content_store
from planner.errors import ArgumentError
from planner.planning import plan_cache
from planner.variants import problem_variants
from tests.fork_server import python
from tests.small import assert_same, mlp, mlp_args, shapes, train_args, train_step

ROOT = Path(__file__).resolve().parents[2]
MESH = {"data": 4, "model": 2}


def _options(folder: Path, **more: Any) -> planner.Options:
    return planner.Options(cache=str(folder), **{"check": "never", **more})


def _plan(folder: Path, fn: Any = mlp, args: Any = None, **more: Any) -> planner.Plan:
    return planner.plan(fn, mlp_args() if args is None else args, **{"mesh": MESH, "options": _options(folder), **more})


def test_the_second_plan_is_the_first_without_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(tmp_path, check="auto")
    first = planner.plan(train_step, train_args(), donate_argnums=0, options=options)
    with monkeypatch.context() as patch:
        patch.setattr(problem_variants, "planning_problem", lambda **_: pytest.fail("made ready for a search"))
        second = planner.plan(train_step, train_args(), donate_argnums=0, options=options)
    assert replace(second.decision, checked=()) == replace(first.decision, checked=())
    for before, after in zip(first.checked, second.checked, strict=True):
        assert (after.what, after.ok) == (before.what, before.ok)
        assert after.detail.startswith(before.detail)
        assert ("when the plan was made" in after.detail) == (after.ok is not None)
    state, x = train_args()
    assert_same(second(*jax.tree.map(jnp.copy, (state, x))), train_step(state, x))
    assert second.explain("x") == first.explain("x")
    assert second.verify(state, x).ok


OTHERWISE: dict[str, Callable[[Path], Any]] = {
    "another program": lambda f: _plan(f, lambda params, x: mlp(params, x) * 2),
    "another shape": lambda f: _plan(f, args=(mlp_args()[0], jnp.ones((64, 64)))),
    "shapes only": lambda f: _plan(f, args=shapes(mlp_args())),
    "another mesh": lambda f: _plan(f, mesh={"data": 2, "model": 4}),
    "another topology": lambda f: _plan(f, topology="v5e:2x4"),
    "another objective": lambda f: _plan(f, objective="memory"),
    "another limit": lambda f: _plan(f, memory_limit=1e9),
    "pins": lambda f: _plan(f, pins={"x": P("model")}),
    "donation": lambda f: _plan(f, donate_argnums=1),
    "another seed": lambda f: _plan(f, options=_options(f, seed=1)),
    "other checks": lambda f: _plan(f, options=_options(f, check="auto")),
    "fewer devices": lambda f: _plan(f, mesh={"data": 4}, devices=jax.devices()[:4]),
}


def test_another_question_is_another_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _plan(tmp_path)
    for count, (name, ask) in enumerate(OTHERWISE.items(), start=2):
        ask(tmp_path)
        assert len(list(tmp_path.iterdir())) == count, name
    monkeypatch.setattr(plan_cache, "releases", lambda: ["jax 99"])
    _plan(tmp_path)
    assert len(list(tmp_path.iterdir())) == len(OTHERWISE) + 2, "another release"


def _edited(text: str) -> str:
    record = json.loads(text)
    record["arguments"][3]["spec"] = []
    return json.dumps(record)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "", "is not JSON"),
        (lambda text: text.replace('"mesh"', '"mush"'), "garbles a field"),
        (_edited, "its digest is not that of its content"),
        (None, "it is of another program or another question"),
    ],
    ids=["truncated", "empty", "a field lacks", "edited", "another plan's"],
)
def test_a_damaged_entry_is_told_and_replaced(tmp_path: Path, change: Callable[[str], str] | None, words: str) -> None:
    first = _plan(tmp_path)
    (entry,) = tmp_path.iterdir()
    if change is None:
        planner.plan(mlp, mlp_args(), mesh={"x": 8}, options=planner.Options(check="never")).save(entry)
    else:
        entry.write_text(change(entry.read_text()))
    again = _plan(tmp_path)
    told = [note for note in again.notes if "was not used" in note]
    assert len(told) == 1
    assert words in told[0]
    assert again.in_specs == first.in_specs
    assert not [note for note in _plan(tmp_path).notes if "was not used" in note], "a good one is kept in its place"
    assert list(tmp_path.iterdir()) == [entry]


def test_folders_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"plans cannot be kept in .*give Options\(cache=...\) a folder"):
        _plan(tmp_path / "file")

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(content_store, "write_whole", full)
    assert any("could not be kept" in note and "no space left" in note for note in _plan(tmp_path / "new").notes)


PROGRAM = """
import sys
from pathlib import Path
from tests.planning.test_plan_cache import _plan
from tests.small import assert_same, mlp, mlp_args
for _ in range(3):
    plan = _plan(Path(sys.argv[1]))
    assert not [note for note in plan.notes if "kept" in note], plan.notes
assert_same(plan(*mlp_args()), mlp(*mlp_args()))
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen([*python(), "-c", PROGRAM, str(tmp_path)], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        told = process.communicate()[1]
        assert process.returncode == 0, told[-2000:]
    assert len(list(tmp_path.iterdir())) == 1
