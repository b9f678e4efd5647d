"""What is each pass of the compiler model worth? Predictions with each pass switched off, beside the real compiler.

    python -m benchmarks.ablation [--only NAME,NAME] [--topology T,T] [--out FILE.json] [--kept DIR]
    python -m benchmarks.ablation --summary [--out FILE.json]

Every program is planned on a mesh of one axis and on one of two, and compiled once, with no device present. Then the same
decision is priced again with each pass switched off. The error of a prediction is |log(predicted / compiled)| for seconds
and peak, and for collectives the share of the compiled bytes by which the predicted ones differ, by kind and axes. The gain
of a pass is the error without it less the error with it. Passes of emission are left out: they change the program that is
compiled, not its prediction, and their evidence compares compiled programs.

Rows in the file stay, except those made again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ablation_programs import SMALL
from benchmarks.compiled_row import compiled_row
from benchmarks.fidelity import UNLIMITED, bytes_off, planned, promised
from benchmarks.models.base import Model
from benchmarks.stamp import stamp
from benchmarks.suite import PROGRAMS
from cost_models import parse_topology
from planner.compiler.targets.table import COMPILERS, compiler_of
from planner.emit.predict import predict
from planner.errors import PlannerError
from planner.pricing.assignment import Chosen
from planner.verify.aot import lower_request
from planner.verify.kept_reports import KeptReports

RESULTS = Path(__file__).resolve().parent / "results" / "ablation.json"
TOPOLOGIES = ("v5e:4x4", "v5p:4x4x4", "h100:8")
SUITE = (
    "llama 8B",
    "gpt 1.3B",
    "mixtral 8x7B",
    "resnet50",
    "gnn",
    "spectral",
    "mlp",
    "lstm",
    "decode 8B b128",
    "decode 70B b256 int8",
    "gpt unrolled x8",
)
"""Programs of the fidelity suite that plan and compile in seconds, at least one of each kind."""
FIGURES = ("seconds", "peak", "collectives")
LEAST = 1e-3
"""Errors that differ by less are the same."""


def meshes(devices: int) -> tuple[dict[str, int], ...]:
    """The meshes that every program is planned on."""
    return {"x": devices}, {"x": devices // 4, "y": 4}


def errors(predicted: Mapping[str, Any], compiled: Mapping[str, Any]) -> dict[str, float]:
    """How far a prediction is from the compiled program, by figure; what the compiler does not tell is left out."""
    found = {
        name: abs(math.log(predicted[key] / compiled[key]))
        for name, key in (("seconds", "seconds"), ("peak", "peak_bytes"))
        if compiled.get(key) and predicted[key]
    }
    return found | {"collectives": bytes_off({"predicted": predicted, "compiled": compiled})}


def measure(model: Model, topology: str, mesh: Mapping[str, int], kept: KeptReports) -> dict[str, Any]:
    """The errors of the prediction of one plan with the whole model, and without each pass that changes them."""
    plan = planned(model, topology, mesh, UNLIMITED)
    chips = parse_topology(topology)
    report = kept.compiled(lower_request(plan.jit, model.args, mesh_shape=mesh, topology=topology, timeout_s=300.0))
    compiled = compiled_row(report, chips, mesh)
    if "seconds" not in compiled:
        return {"status": f"{report.status}: {report.message[:120]}", "errors": {}, "without": {}}
    whole = errors(promised(plan.predicted), compiled)
    without: dict[str, dict[str, float]] = {}
    for one in compiler_of(chips.chip).passes:
        if one.phase != "emission":
            instance = plan.alternatives.problem_of_program.without(one.name).instance(mesh)
            found = promised(predict(Chosen(instance=instance, choice=plan.decision.choice), chips))
            gains = {name: value - whole[name] for name, value in errors(found, compiled).items()}
            if any(abs(gain) >= LEAST for gain in gains.values()):
                without[one.name] = {name: round(gain, 4) for name, gain in gains.items()}
    return {
        "status": compiled["status"],
        "errors": {name: round(value, 4) for name, value in whole.items()},
        "without": without,
    }


def gains(rows: Sequence[Mapping[str, Any]], platform: str, name: str) -> dict[str, list[float]]:
    """The gains of a pass on a platform by figure, of the plans for which it changes that figure."""
    own = [
        row["without"][name]
        for row in rows
        if name in row["without"] and parse_topology(row["topology"]).chip.platform == platform
    ]
    return {of: [row[of] for row in own if abs(row.get(of, 0.0)) >= LEAST] for of in FIGURES}


def cell(values: Sequence[float]) -> str:
    """The mean gain and the number of plans that a pass changes, in percent."""
    return f"{100 * sum(values) / len(values):+.1f} % ({len(values)})" if values else "-"


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For every pass and platform the mean gain of each figure over the plans that it changes."""
    yield f"{'pass':<32}{'on':<5}" + "".join(f"{name:>18}" for name in FIGURES)
    for platform in ("tpu", "gpu"):
        for one in COMPILERS[platform].passes:
            if one.phase != "emission":
                found = gains(rows, platform, one.name)
                yield f"{one.name:<32}{platform:<5}" + "".join(f"{cell(found[name]):>18}" for name in FIGURES)


def main() -> None:
    """Measures the plans, prints how long each took, and writes them with the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join((*SUITE, *SMALL)), help="programs, separated by commas")
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--again", action="store_true", help="make rows again that are in the file")
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--kept", type=Path, help="folder of finished compiles, read and written")
    options = parser.parse_args()
    kept = KeptReports(options.kept)
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    for topology in () if options.summary else options.topology.split(","):
        for name in options.only.split(","):
            model = SMALL[name]() if name in SMALL else PROGRAMS[name].build(parse_topology(topology))
            for mesh in meshes(parse_topology(topology).num_devices):
                key = {"program": name, "topology": topology, "mesh": mesh}
                old = [row for row in rows if all(row[k] == key[k] for k in key)]
                if old and not options.again:
                    continue
                started = time.perf_counter()
                try:
                    row = key | measure(model, topology, mesh, kept)
                except PlannerError as error:
                    print(f"{name} {topology} {mesh}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                    continue
                print(f"{name} {topology} {mesh}: {time.perf_counter() - started:.0f} s, {row['errors']}", flush=True)
                rows = [r for r in rows if r not in old] + [row]
                options.out.write_text(json.dumps({"stamp": stamp(), "rows": rows}, indent=1) + "\n")
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
