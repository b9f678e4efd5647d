"""How long does planning take for programs of public libraries at their real sizes, and what comes out?

    python -m benchmarks.zoo_programs [--only gpt2,vit] [--zoo DIR] [--topology v5e:4x4] [--out FILE.json]

The programs are those of `../shared/zoo` beside the project (each file states the packages it needs); what is not there
is said and left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

import planner
from benchmarks.stamp import stamp
from planner.errors import InfeasibleError, PlannerError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "zoo_programs.json"
NO_LIMIT = 1e15
"""Bytes per device for programs that do not fit the chips: what planning takes is still measured."""
COLUMNS = ("program", "seconds", "equations", "mesh", "predicted ms", "peak GB", "status")


def missing(path: Path) -> list[str]:
    """The packages a program's file states and that are not installed."""
    stated = next((line for line in path.read_text().splitlines() if line.startswith("PACKAGES")), "")
    absent: list[str] = []
    for word in stated.split('"')[1::2]:
        package = word.split("==")[0]
        try:
            version(package)
        except PackageNotFoundError:
            absent.append(package)
    return absent


def equations(jaxpr: Any) -> int:
    """The equations of a jaxpr, those of the jaxprs inside included."""
    count = 0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        inner = [value for value in jax.tree.leaves(list(equation.params.values())) if _is_jaxpr(value)]
        count += 1 + sum(map(equations, inner))
    return count


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, (Jaxpr, ClosedJaxpr))


def measure(name: str, topology: str) -> dict[str, Any]:
    """Seconds of building and planning a program of real size, and the figures of the plan."""
    started = time.perf_counter()
    fn, args = importlib.import_module(name).build(size="real")
    built = time.perf_counter()
    needed: float | None = None
    try:
        plan = planner.plan(fn, args, topology=topology)
    except InfeasibleError as error:
        needed = error.least_bytes
        built = time.perf_counter()
        plan = planner.plan(fn, args, topology=topology, memory_limit=NO_LIMIT)
    planned = time.perf_counter()
    certificate = plan.certificate
    return {
        "program": name,
        "build_seconds": built - started,
        "plan_seconds": planned - built,
        "solve_seconds": certificate.solve_seconds,
        "equations": equations(jax.make_jaxpr(fn)(*args)),
        "mesh": dict(plan.mesh.shape),
        "predicted_seconds": plan.predicted.seconds,
        "peak_bytes": plan.predicted.peak_bytes,
        "collective_bytes": sum(c.bytes * c.count for c in plan.predicted.collectives),
        "value": certificate.value,
        "lower_bound": certificate.lower_bound,
        "gap": certificate.gap,
        "status": certificate.status,
        "least_bytes_that_would_do": needed,
        "replicated": sorted({op.op for op in plan.replicated}),
    }


def row(found: dict[str, Any]) -> str:
    """A line of the table."""
    mesh = "x".join(str(size) for size in found["mesh"].values())
    return (
        f"{found['program']:32} {found['plan_seconds']:8.1f} {found['equations']:9} {mesh:8} "
        f"{1e3 * found['predicted_seconds']:12.2f} {found['peak_bytes'] / 1e9:8.2f}  {found['status']}"
        + (", does not fit" if found["least_bytes_that_would_do"] else "")
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose names start so, separated by commas")
    parser.add_argument("--zoo", type=Path, default=ROOT.parent / "shared" / "zoo")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if not options.zoo.is_dir():
        print(f"skipped: {options.zoo} is not present")
        return
    sys.path.insert(0, str(options.zoo))
    wanted = tuple(word for word in options.only.split(",") if word)
    record: dict[str, Any] = {"stamp": stamp(), "topology": options.topology, "programs": [], "skipped": {}}
    print(
        f"{COLUMNS[0]:32} {COLUMNS[1]:>8} {COLUMNS[2]:>9} {COLUMNS[3]:8} {COLUMNS[4]:>12} {COLUMNS[5]:>8}  {COLUMNS[6]}"
    )
    for path in sorted(options.zoo.glob("[!_]*.py")):
        if wanted and not path.stem.startswith(wanted):
            continue
        absent = missing(path)
        if absent:
            record["skipped"][path.stem] = f"needs {', '.join(absent)}"
            print(f"{path.stem:32} skipped: needs {', '.join(absent)}")
            continue
        try:
            found = measure(path.stem, options.topology)
        except PlannerError as error:
            record["skipped"][path.stem] = f"{type(error).__name__}: {error}"
            print(f"{path.stem:32} failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        record["programs"].append(found)
        print(row(found), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
