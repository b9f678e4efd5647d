"""How long does planning take, where does the time go, and how does it grow with program, devices and axes?

    python -m benchmarks.planning_time [--only NAME,NAME] [--topology T,T] [--axes 2,3] [--workers 1,2,4] [--chosen]
        [--zoo FOLDER] [--out FILE.json]

Plans every program at its real size for a topology without devices, all meshes of up to two and of up to three axes
searched under the chip's memory limit, each in a process of its own (what large problems need compiled, the first of them
on a machine compiles, ten seconds; run a case twice to leave that out). Told are the seconds of tracing, of making ready
(graph, rules, groups, flow), of the search over meshes and of emission, with the processor's seconds (those of all workers)
beside the clock's and the peak memory of the process and of its largest worker; and the seconds that JAX alone takes to
trace the program, which are no part of the planner's. `--workers` runs every case with each of these numbers of workers.
`--chosen` measures only the cases in which what is saved and the number of microbatches are chosen too, as `planner.plan`
does by default; other rows of the file stay. `--zoo` names a folder of program files with `build(size)`; those whose
packages are missing are told.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax

import planner
from benchmarks.models import MODELS, deep, diffusion, gpt, llama, long_skips, mesh_graph, resnet, sparse, two_tower
from benchmarks.models.base import Model
from benchmarks.problems import least_time, modelled_problem
from benchmarks.stamp import stamp
from planner.errors import InfeasibleError
from planner.machine.target import Target, resolve
from planner.options import Options
from planner.plans.finalize import decide
from planner.program.tracing.trace import trace
from planner.search.mesh_search import SearchOptions, search
from planner.search.offered_meshes import offered_meshes

RESULTS = Path(__file__).resolve().parent / "results" / "planning_time.json"
LIMIT_S = 600.0
"""Wall time after which a program's process is ended."""
TIME_LIMIT_S = 300.0
"""The time limit of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program, planned for a topology over all meshes of up to so many axes, by so many workers; None: by default.

    What is saved for the backward pass and the number of microbatches are as written, or `chosen` too, as by default.
    """

    program: str
    topology: str
    axes: int
    workers: int | None = None
    chosen: bool = False


def _llama(name: str, *, batch: int | None = None, scan: bool = True) -> Callable[[int], Model]:
    config = replace(llama.CONFIGS[name], query_block=512, scan=scan)
    return lambda devices: llama.llama(config, batch=batch or devices, size="real")


def _gpt(
    name: str, *, layers: int | None = None, batch: int | None = None, scan: bool = True
) -> Callable[[int], Model]:
    config = replace(gpt.CONFIGS[name], layers=layers or gpt.CONFIGS[name].layers)
    return lambda devices: gpt.gpt(config, batch=batch or devices, scan=scan, tied=scan, size="real")


def _deep(layers: int) -> Callable[[int], Model]:
    config = replace(deep.REAL, layers=layers)
    return lambda devices: deep.deep(config, batch=64, size="real")


def _model(name: str) -> Callable[[int], Model]:
    return lambda devices: MODELS[name]("real")


PROGRAMS: Mapping[str, Callable[[int], Model]] = {
    "llama 8B": _llama("8B"),
    "llama 70B": _llama("70B"),
    "llama 405B": _llama("405B"),
    "llama 405B 32 rows": _llama("405B", batch=32),
    "llama 8B unrolled": _llama("8B", scan=False),
    "mixtral 8x7B": lambda devices: sparse.build("real", config="8x7B", batch=devices),
    "deepseek-like 708B": lambda devices: sparse.build("real", config="V3", batch=devices),
    "gpt 1.3B": _gpt("1.3B"),
    "gpt 175B": _gpt("175B"),
    **{f"gpt unrolled x{layers}": _gpt("1.3B", layers=layers, batch=64, scan=False) for layers in (2, 8, 30)},
    **{f"gpt deep x{layers}": _deep(layers) for layers in (16, 128, 1024)},
    "diffusion U-Net": lambda devices: diffusion.build("real"),
    "two towers": lambda devices: two_tower.two_tower(two_tower.LARGE, batch=16 * devices, size="real"),
    "long skips": lambda devices: long_skips.long_skips(long_skips.HUGE, batch=16 * devices, size="real"),
    "mesh graph": lambda devices: mesh_graph.build("real"),
    "wide resnet 13B": lambda devices: resnet.resnet(resnet.CONFIGS["13B"], batch=devices, size="real"),
    **{name: _model(name) for name in MODELS if name not in ("deep", "gpt", "gpt_unrolled", "llama", "sparse")},
}
"""Programs at their real sizes by the number of devices, of which most get one sequence each; the deepest has about 350,000
equations."""

CASES = (
    *(Case(program="llama 8B", topology=t, axes=n) for t in ("v5e:4x4", "v5e:16x16", "v5p:16x16x16") for n in (2, 3)),
    *(Case(program=p, topology="v5p:8x8x4", axes=n) for p in ("llama 70B", "llama 405B") for n in (2, 3)),
    Case(program="llama 405B 32 rows", topology="v5p:8x8x4", axes=3),
    Case(program="llama 70B", topology="v5e:16x16", axes=2),
    Case(program="llama 405B", topology="v5p:16x16x16", axes=3),
    *(Case(program="llama 8B unrolled", topology="v5e:16x16", axes=n) for n in (2, 3)),
    *(Case(program="mixtral 8x7B", topology="v5e:16x16", axes=n) for n in (2, 3)),
    *(Case(program="deepseek-like 708B", topology="v5p:8x8x4", axes=n) for n in (2, 3)),
    Case(program="deepseek-like 708B", topology="v5p:16x16x16", axes=3),
    *(Case(program="gpt 175B", topology="v5p:8x8x4", axes=n) for n in (2, 3)),
    *(
        Case(program=p, topology="v5e:4x4", axes=3)
        for p in PROGRAMS
        if p.startswith(("gpt 1.3B", "gpt unrolled", "gpt deep"))
    ),
    Case(program="wide resnet 13B", topology="v5p:8x8x4", axes=2),
    Case(program="wide resnet 13B", topology="v5e:16x16", axes=3),
    Case(program="diffusion U-Net", topology="v5e:4x4", axes=3),
    *(Case(program="diffusion U-Net", topology="v5e:16x16", axes=n) for n in (2, 3)),
    *(
        Case(program=p, topology=t, axes=3)
        for p in ("two towers", "long skips", "mesh graph")
        for t in ("v5e:4x4", "v5e:16x16", "v5p:16x16x16")
    ),
    *(Case(program=p, topology="v5e:4x4", axes=3) for p in MODELS if p in PROGRAMS),
    *(
        Case(program=p, topology=t, axes=3, chosen=True)
        for p, t in (
            ("llama 8B", "v5e:16x16"),
            ("llama 8B", "v5p:4x4x4"),
            ("llama 8B unrolled", "v5p:4x4x4"),
            ("llama 8B unrolled", "v5e:16x16"),
            ("llama 70B", "v5p:8x8x4"),
            ("mixtral 8x7B", "v5e:16x16"),
            ("gpt 1.3B", "v5e:4x4"),
            ("gpt 175B", "v5p:8x8x4"),
            ("gpt deep x16", "v5e:4x4"),
            ("diffusion U-Net", "v5e:4x4"),
            ("bert", "v5e:4x4"),
        )
    ),
)
"""What is measured: 16, 256 and 4,096 chips."""


def _processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(of.ru_utime + of.ru_stime for of in used)


def _used(began: float, processor: float) -> dict[str, float]:
    """Seconds since planning began, at these times of the clock and the processor, and the most gigabytes held."""
    return {
        "wall_seconds": time.perf_counter() - began,
        "processor_seconds": _processor_seconds() - processor,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "peak_gigabytes_of_a_worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6,
    }


def measure(
    fn: Callable[..., Any], args: tuple[Any, ...], donate: tuple[int, ...], target: Target, case: Case
) -> dict[str, Any]:
    """The seconds and gigabytes of planning one program, and what came of it."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Generator[None]:
        started = time.perf_counter()
        yield
        seconds[part] = time.perf_counter() - started

    began, processor = time.perf_counter(), _processor_seconds()
    request = least_time(target.topology, float(target.topology.chip.hbm_bytes))
    with timed("trace"):
        program = trace(fn, args, donate_argnums=donate)
    with timed("ready"):
        problem = modelled_problem(program, target, request)
    meshes = offered_meshes(program, target, request, None, case.axes)
    options = Options(time_limit_s=TIME_LIMIT_S, workers=case.workers)
    found: dict[str, Any] = {
        "devices": target.count,
        "equations": len(problem.graph.ops),
        "decisions": len(problem.model.flow.nodes),
        "meshes": len(meshes),
    }
    with timed("search"):
        try:
            best = search(meshes, problem, SearchOptions(limit_bytes=request.memory_limit, options=options))
        except InfeasibleError as error:
            best = None
            found |= {"status": "infeasible", "least_bytes": error.least_bytes}
    if best is not None:
        with timed("emit"):
            decision = decide(
                problem,
                best.candidates[0],
                bound=best.bound,
                seconds=seconds["search"],
                meshes=len(meshes),
                notes=best.notes,
            )
        found |= {
            "status": decision.certificate.status,
            "gap": decision.certificate.gap,
            "value": decision.certificate.value,
            "mesh": dict(decision.mesh_shape),
            "peak_bytes_of_plan": decision.predicted.peak_bytes,
            "choice": hashlib.sha256(repr(best.candidates[0].choice).encode()).hexdigest()[:12],
        }
    found |= {"seconds": seconds, **_used(began, processor)}
    # Last, so that nothing the planner's tracing needs is known to JAX already; a function of its own is traced anew.
    started, processor = time.perf_counter(), time.process_time()
    jax.jit(lambda *given: fn(*given)).trace(*args)
    alone = {"wall": time.perf_counter() - started, "processor": time.process_time() - processor}
    return {**found, "jax_alone_seconds": alone}


def measure_chosen(model: Model, case: Case) -> dict[str, Any]:
    """The seconds and gigabytes of planning one program as users do, in the form that is best, and what came of it."""
    options = Options(check="never", time_limit_s=TIME_LIMIT_S, workers=case.workers)
    began, processor = time.perf_counter(), _processor_seconds()
    found: dict[str, Any] = {"status": "infeasible"}
    with suppress(InfeasibleError):
        plan = planner.plan(
            model.fn, model.args, topology=case.topology, donate_argnums=model.donate_argnums, options=options
        )
        found = {
            "status": plan.certificate.status,
            "gap": plan.certificate.gap,
            "value": plan.certificate.value,
            "mesh": dict(plan.mesh.shape),
            "peak_bytes_of_plan": plan.predicted.peak_bytes,
            "microbatches": plan.decision.form.microbatches,
        }
    return found | _used(began, processor)


def one(case: Case, zoo: Path | None) -> dict[str, Any]:
    """The figures of one program, of `PROGRAMS` or the name of a file of the zoo."""
    target = resolve(None, case.topology)
    if case.program in PROGRAMS:
        model = PROGRAMS[case.program](target.count)
        if case.chosen:
            return measure_chosen(model, case)
        return measure(model.fn, model.args, model.donate_argnums, target, case)
    sys.path.insert(0, str(zoo))
    try:
        fn, args = importlib.import_module(case.program).build(size="real")
    except ImportError as error:
        return {"status": f"not measured: {error}"}
    return measure(fn, tuple(args), (), target, case)


def in_child(case: Case, zoo: Path | None) -> dict[str, Any]:
    """The figures of one program, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.planning_time", "--one", json.dumps(asdict(case))]
    command += ["--zoo", str(zoo)] if zoo else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"status": f"not done in {LIMIT_S:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"status": f"failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"}
    return json.loads(lines[-1])


COLUMNS = ("trace", "ready", "search", "emit")


def _line(case: Case, found: Mapping[str, Any]) -> str:
    name = f"{case.program:22}{case.topology:>14}{case.axes:3}{case.workers or '':>3}"
    if case.chosen and "wall_seconds" in found:
        details = f"{found.get('microbatches', '')} microbatches {found.get('mesh', '')}"
        figures = f"{found['wall_seconds']:8.1f}{found['processor_seconds']:8.1f}"
        return f"{name} chosen too{figures} {found['status']} {found.get('gap', 0.0):.1e} {details}"
    if "seconds" not in found:
        return f"{name} {found['status']}"
    parts = "".join(f"{found['seconds'].get(part, 0.0):8.2f}" for part in COLUMNS)
    figures = (
        f"{found['wall_seconds']:8.1f}{found['processor_seconds']:8.1f}{found['jax_alone_seconds']['processor']:8.1f}"
    )
    details = f"{found['peak_gigabytes']:6.2f} {found['status']} {found.get('gap', 0.0):.1e} {found.get('mesh', '')}"
    return f"{name}{found['equations']:8}{found['decisions']:7}{found['meshes']:5}{parts}{figures}{details}"


def main() -> None:
    """Measures every program, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="How long does planning take?")
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--topology", default="", help="topologies, separated by commas; default those of each program")
    parser.add_argument(
        "--axes", default="", help="most axes of a mesh, separated by commas; default those of each program"
    )
    parser.add_argument(
        "--workers", default="", help="numbers of workers, separated by commas; default what cores allow"
    )
    parser.add_argument("--chosen", action="store_true", help="only cases in which the form is chosen too; others stay")
    parser.add_argument("--one", default="", help="measure one case (JSON) in this process and print its JSON")
    parser.add_argument("--zoo", type=Path, default=None, help="a folder of program files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(Case(**json.loads(given.one)), given.zoo)))
        return
    zoo = sorted(path.stem for path in given.zoo.glob("[!_]*.py")) if given.zoo else []
    cases = [*CASES, *(Case(program=name, topology="v5e:4x4", axes=3) for name in zoo)]
    only, topologies, axes = (
        given_text.split(",") if given_text else [] for given_text in (given.only, given.topology, given.axes)
    )
    cases = [
        case
        for case in cases
        if (not only or case.program in only)
        and (not topologies or case.topology in topologies)
        and (not axes or str(case.axes) in axes)
        and (case.chosen or not given.chosen)
    ]
    counts = [int(count) for count in given.workers.split(",")] if given.workers else [None]
    cases = [replace(case, workers=count) for case in cases for count in counts]
    titles = "".join(f"{title:>8}" for title in (*COLUMNS, "wall s", "cpu s", "jax cpu"))
    print(f"{'program':22}{'topology':>14}{'ax':>3}{'w':>3}{'eqns':>8}{'nodes':>7}{'mesh':>5}{titles}{'GB':>6}")
    kept: dict[str, Any] = json.loads(given.out.read_text()) if given.chosen and given.out.exists() else {}
    rows: list[dict[str, Any]] = [row for row in kept.get("cases", ()) if not row.get("chosen")]
    for case in cases:
        rows.append({**asdict(case), **in_child(case, given.zoo), **({"made": stamp()} if kept else {})})
        print(_line(case, rows[-1]), flush=True)
        given.out.write_text(json.dumps({**(kept or stamp()), "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
