"""Do plans depend on the checkpoints of a program? They should not: what is saved is the planner's choice.

    python -m benchmarks.invariance [--only NAME,NAME] [--topology T,T] [--policies P,P] [--compiled] [--out FILE.json]
    python -m benchmarks.invariance --summary [--out FILE.json]

Each program is written with its layers scanned or one after the other, and with every kind of checkpoint around them
(`benchmarks.models.checkpoints`), at sizes where memory is too short to save everything. Each is planned as users do; a row
says what the plan promises and what its form is. `--compiled` also compiles the plans for the topology, with no device
present, and tells the seconds of the compiler's schedule. Rows in the file stay, so that a run can go on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import planner
from benchmarks.compiled_row import Row
from benchmarks.models import deep, gpt, llama, sparse, t5, unet, vit
from benchmarks.models.base import Model
from benchmarks.models.checkpoints import ALL_POLICIES, Policy, with_policy
from benchmarks.plan_quality import UNCHECKED, compiled
from benchmarks.stamp import stamp
from cost_models import Topology, parse_topology
from planner.errors import PlannerError

RESULTS = Path(__file__).resolve().parent / "results" / "invariance.json"
TOPOLOGIES = ("v5e:4x4", "v5p:4x4x4")


def _sequences(topology: Topology) -> int:
    """How many sequences a chip gets: of more memory more."""
    return max(1, round(topology.chip.hbm_bytes / 16e9))


def _llama(topology: Topology, *, scan: bool) -> Model:
    config = replace(llama.CONFIGS["8B"], layers=8, query_block=512, scan=scan)
    return llama.llama(config, batch=topology.num_devices * _sequences(topology), size="real")


def _gpt(topology: Topology, *, scan: bool) -> Model:
    config = replace(gpt.CONFIGS["1.3B"], layers=8)
    return gpt.gpt(config, batch=16 * topology.num_devices * _sequences(topology), scan=scan, size="real")


def _deep(topology: Topology) -> Model:
    batch = 32 * topology.num_devices * _sequences(topology)
    return deep.deep(replace(deep.REAL, layers=16), batch=batch, size="real")


def _sparse(topology: Topology) -> Model:
    config = replace(sparse.CONFIGS["8x7B"], layers=4)
    return sparse.sparse(config, batch=topology.num_devices * _sequences(topology), size="real")


def _t5(topology: Topology) -> Model:
    return t5.t5(t5.LARGE, batch=64 * topology.num_devices * _sequences(topology), size="real")


def _vit(topology: Topology) -> Model:
    return vit.vit(replace(vit.LARGE, layers=8), batch=256 * topology.num_devices * _sequences(topology), size="real")


def _unet(topology: Topology) -> Model:
    config = replace(unet.REAL, remat=True)
    return unet.unet(config, batch=64 * topology.num_devices * _sequences(topology), size="real")


PROGRAMS: Mapping[str, tuple[str, Callable[[Topology], Model]]] = {
    "llama, scanned": ("llama", lambda topology: _llama(topology, scan=True)),
    "llama, written out": ("llama", lambda topology: _llama(topology, scan=False)),
    "gpt, scanned": ("gpt", lambda topology: _gpt(topology, scan=True)),
    "gpt, written out": ("gpt", lambda topology: _gpt(topology, scan=False)),
    "mixtral": ("mixtral", _sparse),
    "t5": ("t5", _t5),
    "deep": ("deep", _deep),
    "vit": ("vit", _vit),
    "unet": ("unet", _unet),
}
"""By name which program it is, of those that are written in several ways, and how it is built for a topology."""
IN_GROUPS = ("llama, scanned", "mixtral", "t5")
"""Programs whose layers are scanned where groups of them can be checkpoints."""


def policies_of(name: str) -> Sequence[Policy]:
    """How the layers of a program may be written."""
    return [policy for policy in ALL_POLICIES if policy != "groups" or name in IN_GROUPS]


def measured(model: Model, topology: Topology, *, compile_too: bool) -> Row:
    """What the plan of a model promises, and what became of it in the compiler."""
    started = time.process_time()
    options = replace(UNCHECKED, workers=1)
    try:
        plan = planner.plan(
            model.fn, model.args, topology=topology.name, donate_argnums=model.donate_argnums, options=options
        )
    except PlannerError as error:
        return {"status": f"{type(error).__name__}: {error}"[:300]}
    row: Row = {
        "processor_seconds": round(time.process_time() - started, 1),
        "mesh": dict(plan.decision.mesh_shape),
        "predicted_seconds": plan.predicted.seconds,
        "bound": plan.certificate.lower_bound,
        "peak_bytes": plan.predicted.peak_bytes,
        "flops": plan.predicted.flops,
        "form": asdict(plan.decision.form),
        "notes": [note for note in plan.decision.notes if note.startswith("recomputation")],
    }
    if compile_too:
        row["compiled"] = compiled(plan.jit, model, topology, plan.decision.mesh_shape, None)
    return row


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A table: a line per program and topology, with the least and the greatest seconds over all ways to write it."""
    yield "| program | topology | ways | predicted, ms | spread | farthest | compiled, ms | spread |"
    yield "|" + "---|" * 8
    for program, topology in dict.fromkeys((row["program"], row["topology"]) for row in rows):
        own = [row for row in rows if (row["program"], row["topology"]) == (program, topology)]
        predicted = {row["way"]: row["predicted_seconds"] for row in own if "predicted_seconds" in row}
        schedules = {row["way"]: row["compiled"].get("seconds") for row in own if "compiled" in row}
        yield (
            f"| {program} | {topology} | {len(own)} | {_range(predicted)} | {_farthest(predicted)} "
            f"| {_range({way: s for way, s in schedules.items() if s})} |"
        )


def _range(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return "- | -"
    least, most = min(seconds.values()), max(seconds.values())
    return f"{1e3 * least:.1f} to {1e3 * most:.1f} | {100 * (most / least - 1):.1f} %"


def _farthest(seconds: Mapping[str, float]) -> str:
    return max(seconds, key=lambda way: seconds[way]) if seconds else "-"


def main() -> None:
    """Plans every program in every way, prints each row as it is made, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of programs, separated by semicolons")
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--policies", default="", help="policies, separated by commas")
    parser.add_argument("--compiled", action="store_true", help="compile the plans too")
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: list[Row] = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    for topology in () if given.summary else map(parse_topology, given.topology.split(",")):
        for name, (program, build) in PROGRAMS.items():
            if given.only and name not in given.only.split(";"):
                continue
            model = build(topology)
            for policy in policies_of(name):
                key = {"program": program, "topology": topology.name, "way": f"{name}: {policy}"}
                known = any(key.items() <= row.items() and ("compiled" in row or not given.compiled) for row in rows)
                if known or (given.policies and policy not in given.policies.split(",")):
                    continue
                row = key | measured(with_policy(model, policy), topology, compile_too=given.compiled)
                rows = [other for other in rows if not key.items() <= other.items()] + [row]
                print(_line(row), flush=True)
                given.out.parent.mkdir(exist_ok=True)
                given.out.write_text(json.dumps({"stamp": stamp(), "rows": rows}, indent=1) + "\n")
    print("\n".join(summary(rows)))


def _line(row: Row) -> str:
    start = f"{row['topology']:10} {row['way']:52}"
    if "predicted_seconds" not in row:
        return f"{start} {row['status']}"
    schedule = row.get("compiled", {}).get("seconds")
    after = f" compiled {1e3 * schedule:8.1f}" if schedule else ""
    form = row["form"]
    return (
        f"{start} {1e3 * row['predicted_seconds']:8.1f} ms{after} {row['peak_bytes'] / 1e9:5.1f} GB "
        f"{row['flops'] / 1e12:7.2f} TFLOP {form['microbatches']:3} parts {'x'.join(map(str, row['mesh'].values()))} "
        f"{row['processor_seconds']} s"
    )


if __name__ == "__main__":
    main()
