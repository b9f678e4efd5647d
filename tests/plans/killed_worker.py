"""Kills what saves plans, at random times, and tells what is wrong on disk afterwards, as JSON.

    python tests/plans/killed_worker.py FOLDER KILLS SEED

Every writer is a fork of this process, which has made its plans already and has run no program on a device: it writes, one
kind of thing over and over, until it is killed (SIGKILL, or SIGINT, of which it may clean up). Then everything must be as
one of its writings left it, whole, and what is another's as it was. The next writing leaves nothing unfinished.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import planner
from planner.cli.main import main
from planner.files import PART

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
PROGRAM = """
import jax, jax.numpy as jnp
X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
def one(): return lambda x: x @ x, (X,), {"topology": "v5e:2x2"}
def other(): return lambda x: x @ x + x, (X,), {"topology": "v5e:2x2"}
"""
LONGEST_S = 0.08
"""How long a writer writes at most before it is killed; it is asked to begin anew in less than a tenth of that."""
PATIENCE_S = 2.0
"""How long an interrupted writer may go on."""
OTHERS = {
    "plan.json.bak": "mine",
    f".other.json.00000000{PART}": "another's, unfinished",
    "other/thesis.tex": "all of it",
    f".other.00000000{PART}/a": "another's, unfinished",
}


@dataclass(frozen=True)
class Kind:
    """Something that is written: by `write`, again and again, to `target`, which `wrong` looks at."""

    target: Path
    write: Callable[[int], object]
    wrong: Callable[[], str]


def planned(fn: Callable[..., Any], **options: Any) -> planner.Plan:
    return planner.plan(fn, (X,), topology="v5e:2x2", options=planner.Options(check="never", **options))


def searched(folder: Path, function: str) -> int:
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        asked = ["search", f"{folder / 'program.py'}:{function}", "--check", "never"]
        return main([*asked, "-o", str(folder / "searched.json"), "--cache", str(folder / "cache")])


def kinds(folder: Path) -> dict[str, Kind]:
    """All that is written, by name."""
    functions = [lambda x: x @ x, lambda x: x @ x + x]
    plans = [planned(fn) for fn in functions]
    fronts = [planner.Front(plans[:1], objective="time"), planner.Front([*plans, *plans], objective="time")]
    saved, front, found, kept = (folder / name for name in ("plan.json", "front", "searched.json", "cache"))

    kept.mkdir()

    def one_of_the_plans(path: Path) -> str:
        decision = planner.load(path).decision
        return "" if decision in [plan.decision for plan in plans] else f"{path.name} is none of the plans"

    def wrong_front() -> str:
        told = json.loads((front / "front.json").read_text())
        files = sorted(point["file"] for point in told["plans"])
        there = sorted(path.name for path in front.iterdir())
        if there != sorted([*files, "front.json"]):
            return f"the front has {there}, and tells {files}"
        return next(filter(None, (one_of_the_plans(front / name) for name in files)), "")

    def wrong_search() -> str:
        notes = planner.load(found).decision.notes
        return f"edited: {notes}" if any("changed after" in note for note in notes) else wrong_cache()

    def wrong_cache() -> str:
        notes = [note for fn in functions for note in planned(fn, cache=str(kept)).notes]
        entries = [path for path in kept.iterdir() if not path.name.endswith(PART)]
        for path in entries:
            planner.load(path)
        return next((note for note in notes if "kept" in note), "")

    def forget(round: int) -> None:
        for path in kept.iterdir():
            if round % 3 == 0:
                path.unlink(missing_ok=True)

    def keep(round: int) -> None:
        forget(round)
        planned(functions[round % 2], cache=str(kept))

    def search(round: int) -> None:
        forget(round)
        searched(folder, ("one", "other")[round % 2])

    return {
        "plan": Kind(saved, lambda i: plans[i % 2].save(saved), lambda: one_of_the_plans(saved)),
        "front": Kind(front, lambda i: fronts[i % 2].save(front), wrong_front),
        "cache": Kind(kept, keep, wrong_cache),
        "search": Kind(found, search, wrong_search),
    }


def killed(kind: Kind, seconds: float, number: int) -> None:
    """Writes in a process that gets a signal after so long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.write(writing, b".")
            for i in cycle(range(6)):
                kind.write(i)
        os._exit(0)
    os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    time.sleep(seconds)
    os.kill(child, number)
    patience = time.monotonic() + PATIENCE_S
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        # An interrupt may be lost: Python ignores what is raised while it collects garbage.
        if time.monotonic() > patience:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)


def unfinished(folder: Path) -> list[str]:
    """What was left of our own writings."""
    there = [path.relative_to(folder) for path in folder.rglob(f".*{PART}") if not path.parent.name.endswith(PART)]
    return [str(path) for path in there if not any(str(path) in name for name in OTHERS)]


def wrong(kind: Kind) -> str:
    """What is wrong with what was written, or nothing."""
    try:
        return kind.wrong()
    except (planner.errors.PlannerError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def run(folder: Path, kills: int, seed: int) -> Mapping[str, Any]:
    """What was wrong, kill by kill, and how often something unfinished was left, by kind."""
    (folder / "program.py").write_text(PROGRAM)
    for name, text in OTHERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    chance, found, left = random.Random(seed), [], dict[str, int]()
    for name, kind in kinds(folder).items():
        left[name] = 0
        for i in range(2):
            kind.write(i)
        began = time.monotonic()
        kind.write(0)
        longest = max(LONGEST_S, 2 * (time.monotonic() - began))
        for kill in range(kills):
            number = chance.choice([signal.SIGINT, signal.SIGKILL])
            killed(kind, longest * chance.random(), number)
            left[name] += len(unfinished(folder)) > 0
            told = [wrong(kind), *(f"lost {other}" for other, text in OTHERS.items() if read(folder / other) != text)]
            if len(unfinished(folder)) > 1:
                told.append(f"left {unfinished(folder)}")
            found += [f"{name}, kill {kill} by {number.name}: {words}" for words in told if words]
            for i in range(2):
                kind.write(i)
            if unfinished(folder):
                found.append(f"{name}, kill {kill} by {number.name}: the next left {unfinished(folder)}")
    return {"wrong": found, "left": left}


def read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
