"""Draws planning time against equations, devices and axes, from the committed measurements.

python -m benchmarks.plot_planning_time [--results FILE.json] [--out FILE.svg]        (needs matplotlib: the extra `viz`)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.planning_time import RESULTS

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "planning_time.svg"
MARKS = {2: "o", 3: "^"}
"""By the most axes of a mesh."""


def _equations(axes: Axes, cases: list[dict[str, Any]]) -> None:
    """Seconds by equations, beside what JAX alone takes to trace the program."""
    for count, mark in MARKS.items():
        chosen = [case for case in cases if case["axes"] == count]
        axes.plot(
            [case["equations"] for case in chosen],
            [case["processor_seconds"] for case in chosen],
            mark,
            alpha=0.7,
            label=f"meshes of up to {count} axes",
        )
    axes.plot(
        [case["equations"] for case in cases],
        [case["jax_alone_seconds"]["processor"] for case in cases],
        "x",
        color="gray",
        alpha=0.7,
        label="tracing by JAX alone",
    )
    axes.set(xscale="log", yscale="log", xlabel="equations", ylabel="processor seconds")
    axes.legend()


def _devices(axes: Axes, cases: list[dict[str, Any]]) -> None:
    """Seconds by devices, one line per program and number of axes."""
    programs = sorted({(case["program"], case["axes"]) for case in cases})
    for program, count in programs:
        chosen = sorted(
            (case["devices"], case["processor_seconds"])
            for case in cases
            if (case["program"], case["axes"]) == (program, count)
        )
        if len({devices for devices, _ in chosen}) > 1:
            axes.plot(*zip(*chosen, strict=True), f"{MARKS[count]}-", alpha=0.7, label=f"{program}, {count} axes")
    axes.set(xscale="log", yscale="log", xlabel="devices", ylabel="processor seconds")
    axes.legend()


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description="Draw the planning times.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    cases = [case for case in json.loads(given.results.read_text())["cases"] if "seconds" in case]
    # One file for one set of figures: no random ids, no date.
    mpl.rcParams["svg.hashsalt"] = "planning time"
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    _equations(left, cases)
    _devices(right, cases)
    figure.savefig(given.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
