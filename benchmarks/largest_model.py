"""How large a model fits? Dense transformers of ever more layers, trained with AdamW, one sequence of 4,096 per chip.

    python -m benchmarks.largest_model [--topology T,T] [--out FILE.json]

The layers are those of Llama 3 8B, attention in blocks of 32 queries. Each number of layers is planned without hosts, and
with them: as users do on TPUs, by name on GPUs. The largest whose step fits by the compiler of the topology is found by
doubling and halving among multiples of `STEP` layers, taken as if what fits did so for fewer layers. Nothing is run.
Rows of other topologies stay in the file, each topology with the stamp of its own.
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
from planner.errors import PlannerError
from planner.verify.aot import lower_request, run_request
from planner.verify.step_time import step_time

RESULTS = Path(__file__).resolve().parent / "results" / "largest_model.json"
TOPOLOGIES = ("v5e:4x4", "v5p:4x4x4", "h100:8")
STEP = 16
"""Numbers of layers are multiples of it."""


def row(topology_name: str, layers: int, offload: Any) -> dict[str, Any]:
    """One number of layers, as planned and as compiled."""
    topology = parse_topology(topology_name)
    config = replace(CONFIGS["8B"], layers=layers, sequence=4096, query_block=32)
    model = llama(config, batch=topology.num_devices, size="real")
    processor = time.process_time()
    found: dict[str, Any] = {"topology": topology_name, "layers": layers, "parameters": config.parameters}
    try:
        plan = planner.plan(
            model.fn,
            model.args,
            topology=topology_name,
            donate_argnums=model.donate_argnums,
            options=planner.Options(offload=offload, check="never"),
        )
    except PlannerError as error:
        return found | {"status": "not planned", "message": str(error)[:200]}
    predicted, mesh = plan.predicted, plan.decision.mesh_shape
    report = run_request(lower_request(plan.jit, model.args, mesh_shape=mesh, topology=topology_name))
    found |= {
        "status": report.status,
        "planning_processor_seconds": time.process_time() - processor,
        "mesh": dict(mesh),
        "microbatches": plan.decision.form.microbatches,
        "on_hosts": sorted({plan.decision.arguments[i].name.split("/")[0] for i in plan.decision.form.hosted}),
        "seconds": predicted.seconds,
        "peak_bytes": predicted.peak_bytes,
        "host_bytes": predicted.offloaded_bytes,
    }
    if report.memory is None:
        return found | {"message": report.message[:200]}
    seconds = step_time(report.hlo, topology, mesh).seconds
    return found | {"compiled_peak_bytes": report.memory.peak_bytes, "schedule_seconds": seconds}


def largest(topology: str, offload: Any) -> list[dict[str, Any]]:
    """The rows tried for one topology, up to the largest that fits."""
    tried: dict[int, dict[str, Any]] = {}

    def fits(steps: int) -> bool:
        if steps not in tried:
            tried[steps] = row(topology, STEP * steps, offload)
            print(json.dumps(tried[steps]), flush=True)
        return tried[steps]["status"] == "ok"

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return [tried[steps] for steps in sorted(tried)]


def main() -> None:
    """Measures, prints the rows and writes the JSON."""
    parser = argparse.ArgumentParser(description="How large a model fits?")
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.out.read_text())["found"] if given.out.exists() else {}
    for topology in given.topology.split(","):
        named = {"opt_state/*": "host", "params/*": "host"} if topology.startswith("h") else "auto"
        rows = {"never": largest(topology, "never"), "hosts": largest(topology, named)}
        found[topology] = {"stamp": stamp(), **rows}
        given.out.write_text(json.dumps({"found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
