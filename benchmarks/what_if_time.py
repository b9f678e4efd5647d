"""How long does `plan.what_if` take for Llama-3-8B, where the plan is in memory?

    python -m benchmarks.what_if_time [--topology NAME] [--out FILE.json]

The train step is planned once. Then specs, meshes and a memory limit are priced, the first time with the plan's problem to
be stated, as in a notebook. Told are seconds by the clock and of the processor, which does not count what else the machine
does, and what would change.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from jax.sharding import PartitionSpec as P

import planner
from benchmarks.stamp import stamp
from benchmarks.suite import PROGRAMS
from cost_models import parse_topology

RESULTS = Path(__file__).resolve().parent / "results" / "what_if_time.json"
PROGRAM = "llama 8B"
GIVEN: dict[str, dict[str, Any]] = {
    "the first": {"pins": {"params/layers/wq": P(None, "x")}},
    "one weight": {"pins": {"params/layers/down": P(None, "x")}},
    "all weights whole": {"pins": {"params/*": P()}},
    "mesh 64 x 4": {"mesh": {"x": 64, "y": 4}},
    "mesh 8 x 8 x 4": {"mesh": {"x": 8, "y": 8, "z": 4}},
    "10 GB": {"memory_limit": 10e9},
}


def main() -> None:
    """Measures, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="How long does plan.what_if take?")
    parser.add_argument("--topology", default="v5e:16x16")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    model = PROGRAMS[PROGRAM].build(parse_topology(given.topology))
    plan = planner.plan(
        model.fn,
        model.args,
        topology=given.topology,
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never"),
    )
    rows: list[dict[str, Any]] = []
    print(f"{'':20}{'clock':>8}{'processor':>11}{'step':>9}{'peak':>9}")
    for name, asked in GIVEN.items():
        clock, processor = time.perf_counter(), time.process_time()
        found = plan.what_if(**asked)
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        predicted = found.decision.predicted
        rows.append(
            {
                "name": name,
                "clock_seconds": clock,
                "processor_seconds": processor,
                "step_seconds": predicted.seconds,
                "peak_bytes": predicted.peak_bytes,
                "fits": found.fits,
                "proven": found.proven,
            }
        )
        figures = f"{clock:8.2f}{processor:11.2f}{predicted.seconds:9.3g}{predicted.peak_bytes / 1e9:9.3g}"
        print(f"{name:20}{figures}  {'' if found.fits else 'does not fit'}", flush=True)
    facts = {**stamp(), "program": PROGRAM, "topology": given.topology, "step_seconds": plan.predicted.seconds}
    given.out.write_text(json.dumps({**facts, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
