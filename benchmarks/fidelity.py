"""Is a program compiled as its plan promised? Collectives, peak and seconds, predicted beside those of the real compiler.

Of three judges this is the second: the compiler's schedule, priced with the same rates as the plan. What machines take say
published runs alone (`benchmarks.published`); the compiler's own estimate of cycles is a third (`cost_model="measured"`
with the profiles that come with the package).

    python -m benchmarks.fidelity [--only NAME,NAME] [--topology T,T] [--plans ours,meshes] [--out FILE.json] [--kept DIR]
    python -m benchmarks.fidelity --summary [--out FILE.json]

Every program is planned for every topology: as the planner would (`ours`) and on fixed meshes of one and two axes
(`meshes`), whatever their memory where nothing fits, so that there are good and bad plans to rank. Every plan is compiled
for the topology with no device present. Held against each other are

    bytes      of collectives by kind and axes: the sum of the differences over the sum of the compiled
    peak       bytes of memory per device
    products   operations of products of matrices per device: more are compiled where the compiler computes again
    seconds    of a call: the compiled ones are those of the compiler's schedule (`planner.verify.step_time`)
    fits       whether the peak is below what the chip grants
    tau        Kendall's, per program and topology, over pairs of plans whose compiled seconds differ by more than 5 %

Rows in the file stay, except those made again, so that a run can go on where it was ended; each has the commit that it is
of. With `--again` and a folder of kept compiles only what is planned otherwise than before is compiled.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import planner
from benchmarks.compiled_row import by_kind, compiled_row
from benchmarks.models.base import Model
from benchmarks.stamp import stamp
from benchmarks.suite import PROGRAMS
from cost_models import parse_topology
from planner.errors import InfeasibleError, PlannerError
from planner.explain.repeated_products import products_by_source
from planner.prediction import Predicted
from planner.verify.aot import AotReport, lower_request
from planner.verify.hlo.work import read_products
from planner.verify.kept_reports import KeptReports

RESULTS = Path(__file__).resolve().parent / "results" / "fidelity.json"
TOPOLOGIES = ("v5e:4x4", "v5e:16x16", "v5p:4x4x4")
TIE = 0.05
COMPILE_LIMIT_S = 300.0
UNLIMITED = 1e15
"""Bytes."""


def fixed_meshes(devices: int) -> list[dict[str, int]]:
    """Meshes of one and two axes over all devices: every split for few devices, else those of few and of many rows."""
    splits = [n for n in range(2, devices) if devices % n == 0]
    kept = splits if len(splits) <= 4 else [splits[0], splits[1], splits[len(splits) // 2], splits[-2], splits[-1]]
    return [{"x": devices}, *({"x": n, "y": devices // n} for n in kept)]


def promised(predicted: Predicted) -> dict[str, Any]:
    """What a plan promises."""
    return {
        "seconds": predicted.seconds,
        "compute_seconds": predicted.compute_seconds,
        "communication_seconds": predicted.communication_seconds,
        "peak_bytes": predicted.peak_bytes,
        "collectives": by_kind([(c.kind, c.axes, c.bytes * c.count) for c in predicted.collectives]),
    }


def planned(model: Model, topology: str, mesh: Mapping[str, int] | None, limit: float | None) -> planner.Plan:
    """The plan of a model, unchecked: on a mesh or on the best, within a limit of bytes or the chip's."""
    return planner.plan(
        model.fn,
        model.args,
        topology=topology,
        mesh=mesh,
        memory_limit=limit,
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never"),
    )


def measure(model: Model, topology: str, mesh: Mapping[str, int] | None, kept: KeptReports) -> dict[str, Any]:
    """One plan, on a mesh or on the best that fits, predicted and compiled."""
    started = time.perf_counter()
    try:
        plan = planned(model, topology, mesh, None)
    except InfeasibleError:
        if mesh is None:
            raise
        plan = planned(model, topology, mesh, UNLIMITED)
    shape, ended = plan.decision.mesh_shape, time.perf_counter()
    report = kept.compiled(
        lower_request(plan.jit, model.args, mesh_shape=shape, topology=topology, timeout_s=COMPILE_LIMIT_S)
    )
    return {
        "mesh": dict(shape),
        "plan_seconds": ended - started,
        "predicted": promised(plan.predicted)
        | {"products": sum(products_by_source(plan.alternatives.chosen).values())},
        "compiled": compiled_row(report, parse_topology(topology), shape) | {"products": _products(report, topology)},
    }


def _products(report: AotReport, topology: str) -> float | None:
    """The operations of compiled products; None where nothing was compiled, they are calls of libraries, or some loop's
    trips are not known."""
    known = report.ok and parse_topology(topology).chip.platform != "gpu"
    found = read_products(report.hlo) if known else None
    return None if found is None else sum(found.values())


def bytes_off(row: Mapping[str, Any]) -> float:
    """The share of the compiled bytes of collectives, by kind and axes, by which the predicted ones differ."""
    a, b = row["predicted"]["collectives"], row["compiled"]["collectives"]
    total = sum(b.values())
    apart = sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})
    return apart / total if total else math.inf if apart else 0.0


def off(row: Mapping[str, Any], key: str) -> float:
    """By which share of the compiled a predicted figure differs, with its sign; nan where the compiler gives none."""
    a, b = row["predicted"].get(key), row["compiled"].get(key)
    return a / b - 1 if a and b else math.nan


def tau(rows: Sequence[Mapping[str, Any]]) -> float:
    """Kendall's tau of predicted and compiled seconds over the pairs that differ; nan where none does."""
    seconds = [
        (row["predicted"]["seconds"], row["compiled"]["seconds"]) for row in rows if "seconds" in row["compiled"]
    ]
    signs = [
        math.copysign(1, (a[0] - b[0]) * (a[1] - b[1])) if a[0] != b[0] else 0.0
        for a, b in itertools.combinations(seconds, 2)
        if abs(a[1] - b[1]) > TIE * min(a[1], b[1])
    ]
    return statistics.mean(signs) if signs else math.nan


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The shares of plans that keep their promises, per topology and of all."""
    heads = ("plans", "bytes 5 %", "peak 10 %", "products 2 %")
    heads += ("seconds 10 %", "15 %", "20 %", "fits", "median tau", "tau >= 0.9")
    layout = "{:<12}{:>6}{:>11}{:>11}{:>14}{:>14}{:>7}{:>7}{:>7}{:>12}{:>12}"
    yield layout.format("", *heads)
    for topology in (*dict.fromkeys(row["topology"] for row in rows), "all"):
        own = [row for row in rows if topology in (row["topology"], "all")]
        ok = [row for row in own if row["compiled"]["status"] == "ok"]
        known = [row for row in own if row["compiled"]["peak_bytes"]]
        limit = {row["topology"]: parse_topology(row["topology"]).chip.hbm_bytes for row in own}
        fits = [
            (row["predicted"]["peak_bytes"] <= limit[row["topology"]])
            == (row["compiled"]["status"] == "ok" and row["compiled"]["peak_bytes"] <= limit[row["topology"]])
            for row in known
        ]
        programs = {(row["program"], row["topology"]) for row in ok}
        taus = [tau([row for row in ok if (row["program"], row["topology"]) == key]) for key in programs]
        taus = [value for value in taus if not math.isnan(value)]
        cells = (
            _share([bytes_off(row) <= 0.05 for row in ok]),
            _share([abs(off(row, "peak_bytes")) <= 0.10 for row in known]),
            _share([abs(off(row, "products")) <= 0.02 for row in ok if row["compiled"].get("products")]),
            *(_share([abs(off(row, "seconds")) <= most for row in ok]) for most in (0.10, 0.15, 0.20)),
            _share(fits),
            f"{statistics.median(taus):.2f}" if taus else "-",
            _share([value >= 0.9 for value in taus]),
        )
        yield layout.format(topology, len(own), *cells)


def _share(held: Sequence[bool]) -> str:
    return f"{sum(held) / len(held):.0%}" if held else "-"


def line(row: Mapping[str, Any]) -> str:
    """One plan."""
    a, b = row["predicted"], row["compiled"]
    head = f"{row['program']:<20}{row['topology']:<11}{row['plan']:<10}{'x'.join(map(str, row['mesh'].values())):<9}"
    if "seconds" not in b:
        return f"{head}{b['status']}: {b.get('message', '')[:80]}"
    return (
        f"{head}{1e3 * a['seconds']:>9.1f} {1e3 * b['seconds']:>9.1f} ms {off(row, 'seconds'):>+6.0%}"
        f"  (compute {a['compute_seconds'] / b['compute_seconds'] - 1:>+5.0%}, exposed {1e3 * b['exposed_seconds']:.1f}"
        f" of {1e3 * b['collective_seconds']:.1f}, {1e3 * a['communication_seconds']:.1f} predicted)"
        f"  {a['peak_bytes'] / 1e9:>6.2f} {b['peak_bytes'] / 1e9:>6.2f} GB {off(row, 'peak_bytes'):>+5.0%}"
        f"  products {off(row, 'products'):>+5.1%}"
        f"  collectives off {bytes_off(row):.0%}"
    )


def main() -> None:
    """Compares the plans, prints each as it is made, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs of the suite, separated by commas")
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--plans", default="ours,meshes")
    parser.add_argument("--again", action="store_true", help="make rows again that are in the file")
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--kept", type=Path, help="folder of finished compiles, read and written")
    options = parser.parse_args()
    kept = KeptReports(options.kept)
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    if options.summary:
        for row in rows:
            print(line(row))
    made = stamp()
    for topology in () if options.summary else options.topology.split(","):
        devices = parse_topology(topology).num_devices
        for name in options.only.split(","):
            model = PROGRAMS[name].build(parse_topology(topology))
            cases: list[tuple[str, dict[str, int] | None]] = [("ours", None)] if "ours" in options.plans else []
            cases += [("mesh", mesh) for mesh in fixed_meshes(devices) if "meshes" in options.plans]
            for plan, mesh in cases:
                key = {"program": name, "topology": topology, "plan": plan, "asked": mesh}
                old = [row for row in rows if all(row[k] == key[k] for k in key)]
                if old and not options.again:
                    continue
                try:
                    row = key | measure(model, topology, mesh, kept) | {"commit": made["commit"]}
                except PlannerError as error:
                    print(f"{name} {topology} {plan} {mesh}: {type(error).__name__}: {str(error)[:200]}", flush=True)
                    continue
                rows = [r for r in rows if r not in old] + [row]
                print(line(row), flush=True)
                options.out.parent.mkdir(exist_ok=True)
                options.out.write_text(json.dumps({"stamp": made, "rows": rows}, indent=1) + "\n")
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
