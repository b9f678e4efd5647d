"""How long does a plan take that was kept on disk, beside the search for it?

    python -m benchmarks.plan_cache [--rounds N] [--out FILE.json]

Every program is planned with `Options(cache=FOLDER)` in a process of its own, first with an empty folder, then again. Told
are the seconds of `planner.plan` alone, JAX's tracing and the checks included, loading the planner not, as medians over
rounds. A plan that was kept is meant to take under a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import planner
from benchmarks.models import MODELS
from benchmarks.stamp import stamp
from benchmarks.suite import PROGRAMS
from cost_models import parse_topology

RESULTS = Path(__file__).resolve().parent / "results" / "plan_cache.json"
CASES = (
    ("mlp", "small", "cpu:8"),
    ("gpt", "small", "v5e:4x4"),
    ("unet", "real", "v5e:4x4"),
    ("llama 8B", "", "v5e:16x16"),
)
"""Programs of `MODELS` at a size, or of the suite; those on "cpu:8" run and are checked, the others are planned only."""


def seconds_of(name: str, size: str, topology: str, folder: str) -> float:
    """The seconds of one plan in this process."""
    model = MODELS[name](size) if size else PROGRAMS[name].build(parse_topology(topology))
    check = "auto" if topology.startswith("cpu") else "never"
    plan = planner.plan  # which loads the planner
    started = time.perf_counter()
    plan(
        model.fn,
        model.args,
        topology=None if topology.startswith("cpu") else topology,
        donate_argnums=model.donate_argnums,
        options=planner.Options(cache=folder, check=check),
    )
    return time.perf_counter() - started


def _in_child(*case: str) -> float:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.plan_cache", "--one", *case],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="How long does a plan take that was kept on disk?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=4, metavar=("NAME", "SIZE", "TOPOLOGY", "FOLDER"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.one:
        print(seconds_of(*given.one))
        return
    rows: list[dict[str, Any]] = []
    print(f"{'program':12}{'topology':>10}{'first s':>9}{'again s':>9}{'share':>8}")
    for case in CASES:
        first, again = list[float](), list[float]()
        for _ in range(given.rounds):
            with TemporaryDirectory() as folder:
                first.append(_in_child(*case, folder))
                again.append(_in_child(*case, folder))
        share = statistics.median(a / f for a, f in zip(again, first, strict=True))
        rows.append(
            {"program": case[0], "size": case[1], "topology": case[2], "first": first, "again": again, "share": share}
        )
        medians = statistics.median(first), statistics.median(again)
        print(f"{case[0]:12}{case[2]:>10}{medians[0]:9.2f}{medians[1]:9.2f}{share:8.3f}", flush=True)
    given.out.write_text(json.dumps({**stamp(), "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
