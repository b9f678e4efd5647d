"""What host memory gains: a train step of Llama 70B on v5e:16x16, planned without it and with it, by libtpu's schedule.

    python -m benchmarks.host_memory [--out FILE.json]

Of 256 sequences of 8,192 tokens, attention in blocks of 32 queries. Schedules are priced at several rates of the link to
the host.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import planner
from benchmarks.models.llama import CONFIGS, llama
from benchmarks.stamp import stamp
from cost_models import parse_topology
from planner.verify.aot import lower_request, run_request
from planner.verify.step_time import step_time

RESULTS = Path(__file__).resolve().parent / "results" / "host_memory.json"
TOPOLOGY = "v5e:16x16"
LINKS = (4e9, 8e9, 15e9)
"""Bytes per second of the link from a chip to its host, each way."""


def row(offload: Any) -> dict[str, Any]:
    """One plan, as promised and as compiled."""
    model, topology = llama(replace(CONFIGS["70B"], query_block=32), batch=256, size="real"), parse_topology(TOPOLOGY)
    processor = time.process_time()
    plan = planner.plan(
        model.fn,
        model.args,
        topology=TOPOLOGY,
        donate_argnums=model.donate_argnums,
        options=planner.Options(offload=offload, check="never"),
    )
    processor = time.process_time() - processor
    predicted, mesh = plan.predicted, plan.decision.mesh_shape
    report = run_request(lower_request(plan.jit, model.args, mesh_shape=mesh, topology=TOPOLOGY))
    found: dict[str, Any] = {
        "offload": offload,
        "planning_processor_seconds": processor,
        "mesh": dict(mesh),
        "microbatches": plan.decision.form.microbatches,
        "seconds": predicted.seconds,
        "peak_bytes": predicted.peak_bytes,
        "offloaded_bytes": predicted.offloaded_bytes,
        "status": report.status,
    }
    if report.memory is None:
        return found | {"message": report.message[:300]}
    schedules: dict[str, float] = {}
    for link in LINKS:
        chip = replace(topology.chip, host_link_bytes_per_s=link)
        schedules[f"{link / 1e9:g} GB/s"] = step_time(report.hlo, replace(topology, chip=chip), mesh).seconds
    return found | {"compiled_peak_bytes": report.memory.peak_bytes, "schedule_seconds": schedules}


def main() -> None:
    """Measures, prints the rows and writes the JSON."""
    parser = argparse.ArgumentParser(description="What does host memory gain?")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = [row("never"), row("auto")]
    for one in rows:
        print(json.dumps(one), flush=True)
    given.out.write_text(json.dumps({**stamp(), "topology": TOPOLOGY, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
