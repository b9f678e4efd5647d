"""Are the plans the same as before? For a change of the code that must not change what is planned.

    python -m benchmarks.same_plans record FOLDER [--only NAME,NAME] [--topology T,T] [--zoo FOLDER]
    python -m benchmarks.same_plans compare BEFORE AFTER
    python -m benchmarks.same_plans golden

`record` plans every program of `benchmarks/models`, the textbook cases and the programs of public libraries in
`../shared/zoo` (those whose packages are installed; the others are told) for every topology, and writes each plan's file,
or the sentence that says why there is none, into FOLDER; what is there already is kept, so that a run can go on where it
was ended. `compare` says what differs; its exit code is 1 if anything does. Only how long the search took may differ.
`golden` writes what is compared in the fast tests into the repository: of two programs on two targets the fields of their
plans that are the same on every machine.

It uses the public API alone, so that it runs on any commit: run it there with the project's folder first on the path.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import planner
from benchmarks.models import MODELS, TEXTBOOK
from benchmarks.zoo_programs import missing
from planner.errors import PlannerError

ROOT = Path(__file__).resolve().parent.parent
TOPOLOGIES = ("cpu:8", "v5e:4x4", "v5p:4x4x4", "h100:8", "h100:4x8")
GOLDEN = ROOT / "tests" / "plans" / "golden"
GOLDEN_PLANS = tuple((name, topology) for name in ("mlp", "decode") for topology in ("v5e:4x4", "h100:8"))
"""The programs and topologies of the golden plans in the repository: those that are planned in a second."""
DIGITS = 4
"""Digits of the figures of golden plans: sums may be rounded otherwise on another machine."""
TIME_LIMIT_S = 600.0
"""Far more than a search takes here: a search that the clock ends may find another plan the next time."""
Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
"""A function, its arguments, and which of them are donated."""


def programs(zoo: Path) -> dict[str, Callable[[str], Program]]:
    """How to build each program for a topology: small for CPUs, else at its real size."""
    found: dict[str, Callable[[str], Program]] = {}
    for name, build in MODELS.items():
        found[name] = partial(_model, build)
    for name, build in TEXTBOOK.items():
        found[f"textbook_{name}"] = partial(_model, build)
    for path in sorted(zoo.glob("[!_]*.py")):
        if absent := missing(path):
            print(f"{path.stem}: left out, needs {', '.join(absent)}", flush=True)
        else:
            found[f"zoo_{path.stem}"] = partial(_library, path.stem)
    return found


def _size(topology: str) -> Any:
    return "small" if topology.startswith("cpu") else "real"


def _model(build: Callable[[Any], Any], topology: str) -> Program:
    model = build(_size(topology))
    return model.fn, model.args, model.donate_argnums


def _library(module: str, topology: str) -> Program:
    fn, args = importlib.import_module(module).build(size=_size(topology))
    return fn, args, ()


def record(build: Callable[[str], Program], topology: str) -> Mapping[str, Any]:
    """What the file of the plan holds, less the seconds of the search; or why there is no plan."""
    fn, args, donated = build(topology)
    options = planner.Options(check="never", time_limit_s=TIME_LIMIT_S)
    try:
        plan = planner.plan(fn, args, topology=topology, donate_argnums=donated, options=options)
    except PlannerError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        found = json.loads((Path(folder) / "plan.json").read_text())
    del found["certificate"]["solve_seconds"]
    return found


def stable(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What is the same on every machine of what the file of a plan holds."""
    predicted, certificate = plan["predicted"], plan["certificate"]
    moved = Counter[str]()
    for one in predicted["collectives"]:
        moved[f"{one['kind']} {','.join(one['axes'])}"] += one["bytes"] * one["count"]
    figures = {
        "value": certificate["value"],
        "lower_bound": certificate["lower_bound"],
        **{name: number for name, number in predicted.items() if isinstance(number, int | float)},
        **moved,
    }
    return {
        "jax": plan["jax"],
        "mesh": plan["mesh"],
        "form": plan["form"],
        "arguments": {leaf["name"]: _spec_text(leaf["spec"]) for leaf in plan["arguments"]},
        "results": {leaf["name"]: _spec_text(leaf["spec"]) for leaf in plan["results"]},
        "constraints": dict(Counter(", ".join(map(_spec_text, one["specs"])) for one in plan["constraints"])),
        "figures": {name: float(f"{number:.{DIGITS}g}") for name, number in figures.items()},
    }


def _spec_text(spec: Sequence[Sequence[str]]) -> str:
    """The axes that split each dim."""
    return f"({' '.join('+'.join(axes) or '-' for axes in spec)})"


def golden_path(name: str, topology: str) -> Path:
    """The file of a golden plan."""
    return GOLDEN / f"{name}@{topology.replace(':', '-')}.json"


def golden_plan(name: str, topology: str) -> dict[str, Any]:
    """A golden plan as it is made now."""
    return stable(record(partial(_model, MODELS[name]), topology))


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two records differ, as paths of keys with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        return [d for key in keys for d in differences(before.get(key), after.get(key), f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}/{i}")]
    return [] if before == after else [f"{path}: {str(before)[:100]} -> {str(after)[:100]}"]


def compare(before: Path, after: Path) -> int:
    """How many plans differ between two folders; those that are in one only are told and not counted."""
    old, new = ({path.name for path in folder.glob("*.json")} for folder in (before, after))
    for name in sorted(old ^ new):
        print(f"{name}: only in {before if name in old else after}")
    different = 0
    for name in sorted(old & new):
        found = differences(*(json.loads((folder / name).read_text()) for folder in (before, after)))
        different += bool(found)
        if found:
            print(f"{name}: {len(found)} differences")
            print("\n".join(f"  {text}" for text in found[:8]))
    print(f"{len(old & new)} plans compared, {different} differ")
    return different


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", default="", help="programs whose names start so, separated by commas")
    recording.add_argument("--topology", default=",".join(TOPOLOGIES))
    recording.add_argument("--zoo", type=Path, default=ROOT.parent / "shared" / "zoo")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    commands.add_parser("golden")
    options = parser.parse_args(arguments)
    if options.command == "golden":
        for name, topology in GOLDEN_PLANS:
            text = json.dumps(golden_plan(name, topology), indent=1, sort_keys=True)
            golden_path(name, topology).write_text(text + "\n")
        return
    if options.command == "compare":
        sys.exit(1 if compare(options.before, options.after) else 0)
    sys.path.insert(0, str(options.zoo))
    options.folder.mkdir(parents=True, exist_ok=True)
    wanted = tuple(word for word in options.only.split(",") if word)
    for name, build in programs(options.zoo).items():
        for topology in options.topology.split(","):
            path = options.folder / f"{name}@{topology.replace(':', '-')}.json"
            if path.exists() or (wanted and not name.startswith(wanted)):
                continue
            started = time.perf_counter()
            found = record(build, topology)
            path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
            what = found.get("error", found.get("mesh"))
            print(f"{name} for {topology}: {time.perf_counter() - started:.1f} s, {str(what)[:120]}", flush=True)


if __name__ == "__main__":
    main()
