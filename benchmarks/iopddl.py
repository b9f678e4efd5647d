"""How close does the solver come to the records of the ASPLOS 2025 IOPDDL contest, in the contest's own time?

    python benchmarks/iopddl.py [FOLDER] [--only B,G] [--scale 1.0]

Solves every instance found in FOLDER (default `../shared/iopddl` beside the repository) within the contest's time
limit, reading included, prints a table, and writes `benchmarks/results/iopddl.json`. The first use on a machine compiles
the inner loops for some seconds, which count as well.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from subprocess import run
from typing import Any

from pbqp.methods import solve
from pbqp.problem import Problem

ROOT = Path(__file__).resolve().parent.parent
CONTEST_SECONDS = {"A": 60, "B": 60, "G": 120, "K": 180, "M": 180, "S": 240, "U": 300, "V": 300}
"""Time limits of the contest, in seconds, by instance."""
MARGIN = 1.0
"""Seconds left for ending."""
NO_ANSWER = 1e15
"""Costs from here on stand for no valid answer in the records."""


def records(folder: Path) -> dict[str, dict[str, float]]:
    """For each instance, the best team's and XLA's cost; missing where there was no valid answer."""
    best: dict[str, dict[str, float]] = {}
    with (folder / "records.csv").open() as file:
        for line in csv.DictReader(file):
            team = (line.pop("TEAM #") or "").strip()
            for instance, text in line.items():
                value = float(text) if text else NO_ANSWER
                if value < NO_ANSWER:
                    key = "xla" if team == "XLA" else "team"
                    entry = best.setdefault(instance.strip(), {})
                    entry[key] = min(value, entry.get(key, value))
    return best


def measure(path: Path, instance: str, known: dict[str, float], scale: float) -> dict[str, Any]:
    """One line of the table: what was found within the instance's time limit, beside the records."""
    started = time.perf_counter()
    problem = Problem.from_iopddl(path)
    read = time.perf_counter() - started
    limit = CONTEST_SECONDS.get(instance, 60) * scale
    solution = solve(problem, time_limit=limit - read - MARGIN)
    checked = solution.choice is not None and not problem.violations(solution.choice)
    return {
        "instance": instance,
        "nodes": len(problem.node_costs),
        "edges": len(problem.edges),
        "rows": len(problem.rows),
        "limit_seconds": limit,
        "read_seconds": read,
        "seconds": solution.seconds,
        "wall_seconds": time.perf_counter() - started,
        "status": solution.status,
        "valid": checked,
        "value": solution.value if checked else None,
        "bound": solution.bound,
        "best_team": known.get("team"),
        "xla": known.get("xla"),
        "ratio_to_best_team": solution.value / known["team"] if checked and "team" in known else None,
        "detail": dict(solution.detail),
    }


def main() -> None:
    """Runs the instances and prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT.parent / "shared" / "iopddl")
    parser.add_argument("--only", default="", help="letters of the instances to run, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the contest's time limits")
    options = parser.parse_args()
    known = records(options.folder)
    wanted = {letter for letter in options.only.split(",") if letter}
    lines: list[dict[str, Any]] = []
    print(f"{'':2}{'status':>10}{'value':>18}{'bound':>18}{'best team':>18}{'XLA':>18}{'ratio':>9}{'seconds':>9}")
    for path in sorted(options.folder.glob("*.json.gz")):
        instance = path.name.removesuffix(".json.gz")[-1]
        if wanted and instance not in wanted:
            continue
        line = measure(path, instance, known.get(instance, {}), options.scale)
        lines.append(line)
        cells = [line["value"], line["bound"], line["best_team"], line["xla"]]
        numbers = "".join(f"{'-' if cell is None else format(cell, ',.0f'):>18}" for cell in cells)
        ratio = line["ratio_to_best_team"]
        print(
            f"{instance:2}{line['status']:>10}{numbers}{'-' if ratio is None else format(ratio, '.4f'):>9}"
            f"{line['wall_seconds']:>9.1f}",
            flush=True,
        )
    commit = run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    stamp = {
        "machine": platform.machine(),
        "processor": platform.processor(),
        "python": platform.python_version(),
        "numba": version("numba"),
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "commit": commit,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    target = ROOT / "benchmarks" / "results" / "iopddl.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"stamp": stamp, "instances": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
