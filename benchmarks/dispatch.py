"""What does running a plan, or a function of `planner.jit`, cost beside a hand-written `jax.jit` with the same shardings?

    python -m benchmarks.dispatch [--rounds N] [--out FILE.json]

A step that updates so many arrays, donated, on eight virtual CPU devices (or on the devices that jax finds, with
JAX_PLATFORMS set). Each round calls, in random order, the hand-written function, a second one like it, which shows what the
clock tells apart, the plan, and the function of `planner.jit`, each five times in a row, with arrays that are in place, and
keeps the median of the five; seconds are until the call returns, and the next begins when all is computed. Told are the
quartiles over rounds, and those of the differences within a round. Both are meant to take 20 microseconds and 2 % more than
the hand-written function at most.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if "JAX_PLATFORMS" not in os.environ:
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np

import planner
from benchmarks.stamp import stamp

RESULTS = Path(__file__).resolve().parent / "results" / "dispatch.json"
ROUNDS = {10: 1000, 200: 300, 1000: 60}
"""Rounds by number of arrays."""
PER_LAYER, IN_A_ROW = 10, 5
WARM = 5
ALLOWED_S, ALLOWED_SHARE = 20e-6, 0.02


def step(state: dict[str, dict[str, jax.Array]]) -> dict[str, dict[str, jax.Array]]:
    """The next state; next to nothing is computed."""
    return jax.tree.map(lambda w: 0.999 * w, state)


def measure(leaves: int, rounds: int) -> dict[str, Any]:
    """The figures for so many arrays."""
    state = {
        f"layer{i}": {f"w{k}": jnp.ones((64,)) for k in range(PER_LAYER)} for i in range(max(leaves // PER_LAYER, 1))
    }
    devices = jax.devices()
    asked: dict[str, Any] = {
        "mesh": {"x": len(devices)},
        "donate_argnums": 0,
        "options": planner.Options(check="never"),
    }
    p = planner.plan(step, (state,), **asked)

    def by_hand() -> Callable[..., Any]:
        return jax.jit(step, in_shardings=p.in_shardings, out_shardings=p.out_shardings, donate_argnums=0)

    calls = {"by hand": by_hand(), "by hand again": by_hand(), "plan": p, "jit": planner.jit(step, **asked)}
    (state,) = p.place(state)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    order = random.Random(0)
    for _ in range(rounds + WARM):
        for name in order.sample(list(calls), len(calls)):
            call, times = calls[name], list[float]()
            for _ in range(IN_A_ROW):
                started = time.perf_counter()
                state = call(state)
                times.append(time.perf_counter() - started)
                jax.block_until_ready(state)
            seconds[name].append(statistics.median(times))
    found = {name: np.asarray(times[WARM:]) for name, times in seconds.items()}
    base = found["by hand"]
    allowed = ALLOWED_S + ALLOWED_SHARE * float(np.median(base))
    more = max(float(np.median(found[name] - base)) for name in ("plan", "jit"))
    return {
        "arrays": leaves,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "rounds": rounds,
        "seconds_quartiles": {name: _quartiles(times) for name, times in found.items()},
        "more_seconds_quartiles": {
            name: _quartiles(times - base) for name, times in found.items() if times is not base
        },
        "allowed_seconds": allowed,
        "within": more <= allowed,
    }


def _quartiles(seconds: Any) -> list[float]:
    return [float(np.quantile(seconds, part)) for part in (0.25, 0.5, 0.75)]


def main() -> None:
    """Measures, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="What does running a plan cost?")
    parser.add_argument("--rounds", type=int, help="as many for every number of arrays")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    names = ("by hand again", "plan", "jit")
    print(
        f"{'arrays':>7}{'by hand':>10}",
        *(f"{name + ': more':>20}{'(quartiles)':>16}" for name in names),
        "allowed  us",
    )
    for leaves, rounds in ROUNDS.items():
        row = measure(leaves, given.rounds or rounds)
        rows.append(row)
        print(f"{leaves:7}{1e6 * row['seconds_quartiles']['by hand'][1]:10.0f}", end="")
        for name in names:
            low, more, high = (1e6 * value for value in row["more_seconds_quartiles"][name])
            print(f"{more:21.1f}{f'({low:.0f} to {high:.0f})':>16}", end="")
        print(f"{1e6 * row['allowed_seconds']:9.1f}", flush=True)
    given.out.write_text(json.dumps({**stamp(), "load_average": os.getloadavg()[0], "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
