"""Plan files with anything changed in them: they are refused in a sentence, or are what they say and say that they changed.

A fixed sample in the fast tests; `make fuzz` runs 10,000.
"""

from __future__ import annotations

import json
import random
import string
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.decision import Decision
from planner.errors import PlanFileError
from planner.plan_file.record import decision_of, record_of
from planner.plan_file.store import EDITED, UNSURE, read_saved
from tests.small import NEVER, train_args, train_step

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, 1e-320, float("inf"),
    float("nan"), "", "x", "data", "model", "None", "\ud800", "\x00", "a" * 10_000, "{}", [], {}, [[]], [None], [0], ["x"],
    [["data"]], [["data", "data"]], [["model"], ["data"]], {"a": 1}, {"x": 8}, {"data": 8}, {"list": ["*"]}, "*",
    {"namedtuple": ["os", "terminal_size"], "items": ["*", "*"]}, "cpu:8", "cpu:2", "v5e:4x4", "cpu:99999999999999999999",
)  # fmt: skip
NAMES = ("x", "mesh", "spec", "digest", "form", "refined", "seconds")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a value."""
    held = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in held:
        yield (*path, key)
        yield from _places(inner, (*path, key))


def _other(record: Any, chance: random.Random) -> str:
    """A value replaced, removed, moved, renamed or scaled."""
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        places = list(_places(record))
        if not places:
            break
        *path, key = chance.choice(places)
        holder = record
        for step in path:
            holder = holder[step]
        how = chance.randrange(6)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[chance.choice(NAMES)] = holder.pop(key)
        elif how == 2 and isinstance(holder[key], (int, float)):
            holder[key] = chance.choice(
                (holder[key] * 2, holder[key] + 1, -holder[key], float(holder[key]), str(holder[key]))
            )
        elif how == 3:
            *other, last = chance.choice(places)
            source = record
            try:
                for step in other:
                    source = source[step]
                holder[key] = json.loads(json.dumps(source[last]))
            except (KeyError, IndexError, TypeError):
                pass
        elif how == 4 and isinstance(holder, list):
            holder.insert(key, json.loads(json.dumps(holder[key])))
        else:
            holder[key] = chance.choice(VALUES)
    return json.dumps(record)


def _deep(record: Any, chance: random.Random) -> str:
    """A value within many lists or objects."""
    key, depth = chance.choice(list(record)), chance.choice((150, 900, 3000, 100_000))
    start, end = chance.choice((("[", "]"), ('{"a":', "}"), ('{"list":[', "]}")))
    text = json.dumps({**record, key: "HERE"})
    return text.replace('"HERE"', start * depth + '"*"' + end * depth)


def _letters(record: Any, chance: random.Random) -> str:
    """Letters of the text replaced, removed or repeated, or the text cut off."""
    text = json.dumps(record)
    for _ in range(chance.choice((1, 1, 3, 20))):
        at, length = chance.randrange(len(text)), chance.choice((1, 1, 2, 50))
        new = chance.choice(
            ("", text[at : at + length] * 2, "".join(chance.choices(string.printable, k=length)), "9" * 5000)
        )
        text = text[:at] + new + text[at + length :]
    return text[: chance.randrange(len(text))] if chance.random() < 0.1 else text


def _twice(record: Any, chance: random.Random) -> str:
    """A field twice, with two values."""
    text, key = json.dumps(record), chance.choice(list(record))
    return text[:-1] + f", {json.dumps(key)}: {json.dumps(chance.choice(VALUES))}}}"


MUTATIONS: tuple[Callable[[Any, random.Random], str], ...] = (
    _other,
    _other,
    _other,
    _other,
    _letters,
    _letters,
    _deep,
    _twice,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Decision]:
    """The text of a plan file, and the decision in it."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    made = planner.plan(train_step, train_args(), mesh={"data": 4, "model": 2}, donate_argnums=0, options=NEVER)
    made.save(path)
    return path.read_text(), made.decision


def _check(text: str, original: Decision, path: Path) -> bool:
    """Whether a text is taken for a plan, which it then says."""
    modules = set(sys.modules)
    # Files have bytes: half a surrogate pair can only come as an escape.
    path.write_text(text, encoding="utf-8", errors="replace")
    try:
        loaded = planner.load(path)
    except PlanFileError as error:
        told = str(error)
    else:
        told = ""
    if told:
        assert len(told) < 500, "an error is a sentence"
        return False
    decision = loaded.decision
    assert set(sys.modules) == modules, "a file imports nothing"
    assert str(loaded).encode()
    record = json.loads(path.read_text(encoding="utf-8"))
    record.pop("digest", None)
    told = record_of(decision_of(record))
    record = _completed(record, told)
    assert json.dumps(told, sort_keys=True) == json.dumps(record, sort_keys=True), "it is read as what it says"
    if not {EDITED, UNSURE} & set(decision.notes):
        took = replace(decision.certificate, solve_seconds=original.certificate.solve_seconds)
        assert replace(decision, certificate=took) == original
        assert list(decision.mesh_shape) == list(original.mesh_shape)
    return True


def _completed(record: Any, told: Any) -> Any:
    """What a file says, with what it is read as of the fields that files of earlier planners lack."""
    if isinstance(record, list) and isinstance(told, list) and len(record) == len(told):
        return [_completed(value, its) for value, its in zip(record, told, strict=True)]
    if not isinstance(record, dict) or not isinstance(told, dict):
        return record
    return {**told, **{name: _completed(value, told.get(name)) for name, value in record.items()}}


def _run(count: int, seed: int, saved: tuple[str, Decision], folder: Path) -> int:
    text, original = saved
    chance, taken = random.Random(seed), 0
    for _ in range(count):
        taken += _check(chance.choice(MUTATIONS)(json.loads(text), chance), original, folder / "plan.json")
    return taken


def test_the_file_itself_is_taken(saved: tuple[str, Decision], tmp_path: Path) -> None:
    assert _check(saved[0], saved[1], tmp_path / "plan.json")
    assert read_saved(saved[0], "it").decision == saved[1]


def test_some_mutated_files(saved: tuple[str, Decision], tmp_path: Path) -> None:
    assert 0 < _run(250, 0, saved, tmp_path) < 125, "some edits are none that matters"


@pytest.mark.slow
def test_ten_thousand_mutated_files(saved: tuple[str, Decision], tmp_path: Path) -> None:
    _run(10_000, random.SystemRandom().randrange(2**32), saved, tmp_path)
