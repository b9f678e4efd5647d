"""Are public programs planned as they are, and as well as their codebases place them themselves?

    python -m benchmarks.real_programs [--only NAME,NAME] [--plans keep,free,own,numerics] [--again] [--kept DIR]
    python -m benchmarks.real_programs --summary
    python -m benchmarks.real_programs --markdown

The programs are those of `benchmarks/real`, one module per codebase; what is not installed is named and left out. Nothing
of a program is changed: it is traced in the contexts that its codebase enters, and planned with its annotations kept and
freed (`Options(annotations=...)`). Beside the plans stand the codebase's own shardings, at every one of its remat policies
and meshes that the module lists. All are compiled for the topology with no device present; seconds are those of the
compiler's schedule (`planner.verify.step_time`); kernels that look up a mask count whole in a codebase's own program, and
as the mask leaves them in plans, which flatters these. "numerics" plans the program at a small size for 8 virtual CPU
devices, in both modes, and compares the results with one device.

Codebases disagree about versions, so each has a virtual environment of its own, with JAX, libtpu, cattrs, networkx, numba,
rich and scipy, and this project on PYTHONPATH; run the script in each of them. Rows in the file stay. These work:

    maxtext            Python 3.12: jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1 flax==0.12.8 optax==0.2.8 orbax-checkpoint
                       pydantic omegaconf pathwaysutils aqtp qwix grain tensorboardX sentencepiece drjax chex einops tokamax
                       transformers datasets jinja2 pillow tiktoken sympy ml-goodput-measurement; --no-deps maxtext==0.2.4
    jax_llm_examples   the same JAX with etils; the repository's folder llama3 on PYTHONPATH
    the others         that of maxtext and, all --no-deps, brax==0.14.2 mujoco==3.3.7 mujoco-mjx==3.3.7 trimesh glfw
                       pyopengl ml_collections jaxopt dm-tree; dinosaur-dycore==1.2.1 pint flexcache flexparser platformdirs
                       xarray tree_math scikit-learn joblib threadpoolctl narwhals dask partd locket xarray-tensorstore zarr
                       donfig numcodecs msgspec; diffusers==0.35.2; google-tunix==0.1.7 google-metrax clu wrapt perfetto

Rows go into the file `--out`. With `--kept` only what is lowered otherwise than before is compiled.
Processor seconds of planning are those of this process and its workers, less those that JAX takes to trace the program.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

import planner
from benchmarks.compiled_row import Row, compiled_row
from benchmarks.real.base import Build, RealProgram, shapes
from benchmarks.real.kernels import counted_kernels
from benchmarks.stamp import stamp
from cost_models import parse_topology
from planner.errors import CompileError
from planner.program.tracing.trace import trace
from planner.verify.aot import lower_request
from planner.verify.kept_reports import KeptReports

RESULTS = Path(__file__).resolve().parent / "results" / "real_programs.json"
CODEBASES = ("maxtext", "jax_llm_examples", "brax_ppo", "dinosaur", "diffusers_unet", "tunix_sft")
"""Modules of `benchmarks.real`, each with its `PROGRAMS` and the `PACKAGES` that they import."""
MODES = ("keep", "free")
COMPILE_LIMIT_S = 600.0
DEVICES = 8
"""Virtual CPU devices on which small sizes run."""


def programs() -> Iterator[tuple[str, Build, tuple[str, ...]]]:
    """Every program: its name, its builder, and the packages of its codebase that are not installed."""
    for codebase in CODEBASES:
        module = import_module(f"benchmarks.real.{codebase}")
        absent = tuple(package for package in module.PACKAGES if find_spec(package) is None)
        for name, build in module.PROGRAMS.items():
            yield name, build, absent


def processor_seconds() -> float:
    """Processor seconds of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def compiled(jitted: Any, args: Sequence[Any], topology_name: str, mesh: Mapping[str, int], kept: KeptReports) -> Row:
    """What the topology's compiler makes of a jitted program: fit, seconds of the schedule, peak bytes per device."""
    try:
        with counted_kernels():
            request = lower_request(jitted, args, mesh_shape=mesh, topology=topology_name, timeout_s=COMPILE_LIMIT_S)
        report = kept.compiled(request)
    except CompileError as error:
        return {"status": "error", "message": str(error)[:500]}
    return compiled_row(report, parse_topology(topology_name), mesh)


def planned(program: RealProgram, mode: str, kept: KeptReports) -> Row:
    """The plan of a program, predicted and compiled."""
    with program.context():
        started = processor_seconds()
        trace(program.fn, program.args, donate_argnums=program.donate_argnums)
        traced = processor_seconds()
        options = planner.Options(check="never", annotations=mode)  # type: ignore[arg-type]
        try:
            plan = planner.plan(
                program.fn,
                program.args,
                topology=program.topology,
                donate_argnums=program.donate_argnums,
                options=options,
            )
        except Exception as error:  # a row says so, and the next program has its turn
            return {"status": "not planned", "message": f"{type(error).__name__}: {error}"[:1000]}
        finally:
            spent = processor_seconds() - traced - (traced - started)
        mesh = dict(plan.decision.mesh_shape)
        row: Row = {
            "mesh": mesh,
            "plan_processor_seconds": round(spent, 1),
            "trace_processor_seconds": round(traced - started, 1),
            "predicted_seconds": plan.predicted.seconds,
            "predicted_peak_bytes": plan.predicted.peak_bytes,
            "certificate": plan.certificate.status,
            "guessed": sorted({op.op for op in plan.guessed}),
            "replicated": sorted({op.op for op in plan.replicated}),
            "notes": list(plan.notes),
        }
    return row | compiled(plan.jit, shapes(program.args), program.topology, mesh, kept)


def checked(program: RealProgram, mode: str) -> Row:
    """Whether the plan of a program of small size computes what one device does."""
    options = planner.Options(check="always", annotations=mode)  # type: ignore[arg-type]
    try:
        with program.context():
            plan = planner.plan(
                program.fn,
                program.args,
                devices=jax.devices()[:DEVICES],
                donate_argnums=program.donate_argnums,
                options=options,
            )
    except Exception as error:  # a row says so, and the next program has its turn
        return {"status": "not planned", "message": f"{type(error).__name__}: {error}"[:1000]}
    wrong = [f"{check.what}: {check.detail}" for check in plan.checked if not check.ok]
    row: Row = {"mesh": dict(plan.decision.mesh_shape), "checked": [check.what for check in plan.checked if check.ok]}
    return row | ({"status": "failed", "message": "; ".join(wrong)[:500]} if wrong else {"status": "ok"})


@dataclass(slots=True)
class Table:
    """The rows in the file of results, and the compiles that are kept."""

    out: Path
    rows: list[Row]
    again: bool
    kept: KeptReports

    def has(self, program: str, plan: str) -> bool:
        """Whether a row is there and is not to be made again."""
        return not self.again and any((row["program"], row["plan"]) == (program, plan) for row in self.rows)

    def keep(self, row: Row) -> None:
        """Puts a row in the place of an older one, with the commit that made it, and prints it."""
        stamped = stamp()
        row = row | {"commit": stamped["commit"][:9]}
        old = [r for r in self.rows if (r["program"], r["plan"]) == (row["program"], row["plan"])]
        self.rows = [r for r in self.rows if r not in old] + [row]
        lines = ",\n".join(json.dumps(r) for r in self.rows)
        self.out.write_text(f'{{"stamp": {json.dumps(stamped)},\n"rows": [\n{lines}\n]}}\n')
        print(line(row), flush=True)


def line(row: Row) -> str:
    """A plan in a line."""
    mesh = "x".join(str(size) for size in row.get("mesh", {}).values() if size > 1)
    head = f"{row['program']:<28} {row['plan']:<44} {mesh:<10}"
    if "seconds" not in row:
        return f"{head} {row['status']} {row.get('message', '')[:160]}"
    text = f"{head} {row['status']:<4} {1e3 * row['seconds']:>10.2f} ms {row['peak_bytes'] / 1e9:6.2f} GB"
    if "predicted_seconds" not in row:
        return text
    return (
        f"{text}, predicted {1e3 * row['predicted_seconds']:.2f} ms {row['predicted_peak_bytes'] / 1e9:.2f} GB, "
        f"planned in {row['plan_processor_seconds']:.1f} s"
    )


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line per program and mode: planner / own, planner / best alternative, predicted / compiled seconds and memory."""
    columns = f"{'/own':>6} {'/best':>6} {'seconds':>8} {'memory':>7} {'planned':>8}"
    yield f"{'program':<28} {'mode':<5} {'mesh':<10} {columns} numerics"
    for name in dict.fromkeys(row["program"] for row in rows):
        found = {row["plan"]: row for row in rows if row["program"] == name}
        own = [row for plan, row in found.items() if plan.startswith("own ") and row["status"] == "ok"]
        for mode in MODES:
            row = found.get(mode)
            if row is None:
                continue
            numerics = found.get(f"numerics {mode}", {}).get("status", "not run")
            mesh = "x".join(str(size) for size in row.get("mesh", {}).values() if size > 1)
            head = f"{name:<28} {mode:<5} {mesh:<10}"
            if row["status"] != "ok":
                yield f"{head} {row['status']}: {row.get('message', '')[:100]}; numerics {numerics}"
                continue
            first = next((r for r in own if r["plan"] == "own as configured"), None)
            least = min(own, key=lambda r: r["seconds"], default=None)
            ratios = [f"{row['seconds'] / r['seconds']:.2f}" if r else "-" for r in (first, least)]
            ratios += [
                f"{row['predicted_seconds'] / row['seconds']:.2f}",
                f"{row['predicted_peak_bytes'] / row['peak_bytes']:.2f}",
            ]
            yield (
                f"{head} {ratios[0]:>6} {ratios[1]:>6} {ratios[2]:>8} {ratios[3]:>7} "
                f"{row['plan_processor_seconds']:>6.1f} s {numerics}"
            )


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    """The same as a table of Markdown, with compiled seconds in milliseconds and peaks in gigabytes."""
    yield (
        "| program | topology | annotations | mesh | compiled ms | / own | / best of theirs | predicted / compiled seconds "
        "| peak GB | predicted / compiled peak | planned in processor s | numerics |"
    )
    yield "|---" * 12 + "|"
    for name in dict.fromkeys(row["program"] for row in rows):
        found = {row["plan"]: row for row in rows if row["program"] == name}
        own = {plan: row for plan, row in found.items() if plan.startswith("own ") and row["status"] == "ok"}
        for mode in (mode for mode in MODES if mode in found):
            row, numerics = found[mode], found.get(f"numerics {mode}", {}).get("status", "not run")
            mesh = "x".join(str(size) for size in row.get("mesh", {}).values() if size > 1)
            cells = [name, row["topology"], mode, mesh]
            if row["status"] != "ok":
                yield f"| {' | '.join([*cells, row['status'], *[''] * 6, numerics])} |"
                continue
            best = min(own, key=lambda plan: own[plan]["seconds"], default="")
            first = own.get("own as configured")
            cells += [
                f"{1e3 * row['seconds']:.4g}",
                f"{row['seconds'] / first['seconds']:.2f}" if first else "",
                f"{row['seconds'] / own[best]['seconds']:.2f} ({best.removeprefix('own ')})" if best else "",
                f"{row['predicted_seconds'] / row['seconds']:.2f}",
                f"{row['peak_bytes'] / 1e9:.2f}",
                f"{row['predicted_peak_bytes'] / row['peak_bytes']:.2f}",
                f"{row['plan_processor_seconds']:.1f}",
                numerics,
            ]
            yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Plans and compiles the programs that are installed, prints each row as it is made, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose names start so, separated by commas")
    parser.add_argument("--plans", default="own,keep,free,numerics")
    parser.add_argument("--again", action="store_true", help="make rows again that are in the file")
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--markdown", action="store_true", help="the same as a table of Markdown")
    parser.add_argument("--kept", type=Path, help="folder of finished compiles, read and written")
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES)
    rows = json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    table, plans = Table(given.out, rows, given.again, KeptReports(given.kept)), given.plans.split(",")
    for name, build, absent in () if given.summary or given.markdown else programs():
        if not name.startswith(tuple(given.only.split(","))):
            continue
        if absent:
            print(f"{name:<28} skipped: {', '.join(absent)} is not installed")
            continue
        measure(name, build, table, plans)
    print("\n".join((markdown if given.markdown else summary)(table.rows)))


def measure(name: str, build: Build, table: Table, plans: Sequence[str]) -> None:
    """The rows of a program that are asked for and missing."""
    modes = [mode for mode in MODES if mode in plans and not table.has(name, mode)]
    if modes or "own" in plans:
        measure_real(name, build("real"), table, modes, own="own" in plans)
    for mode in MODES if "numerics" in plans else ():
        if not table.has(name, f"numerics {mode}"):
            table.keep({"program": name, "plan": f"numerics {mode}"} | checked(build("small"), mode))


def measure_real(name: str, program: RealProgram, table: Table, modes: Sequence[str], *, own: bool) -> None:
    """The rows of a program at its real size: its plans, and its own placements where they are missing."""
    of = {"program": name, "topology": program.topology}
    for mode in modes:
        table.keep(of | {"plan": mode, "how": program.notes} | planned(program, mode, table.kept))
    for placed in program.own() if own else ():
        plan = f"own {placed.name}"
        if not table.has(name, plan):
            row = compiled(placed, placed.args, program.topology, placed.mesh, table.kept)
            table.keep(of | {"plan": plan, "mesh": dict(placed.mesh)} | row)


if __name__ == "__main__":
    main()
