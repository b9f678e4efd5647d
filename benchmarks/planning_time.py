"""How long does planning take, where does the time go, and how does it grow with the program?

    python -m benchmarks.planning_time [--only gpt,llama] [--zoo FOLDER] [--topology v5e:4x4] [--out FILE.json]

Plans every program at its real size for a topology without devices, all meshes searched, each in a process of its own: the
seconds of tracing, of making ready (graph, rules, groups, flow), of building the problems of the meshes, of solving them
and of emission, with the processor's seconds beside the clock's, and the peak memory of the process. `--zoo` names a
folder of program files with `build(size)`; those whose packages are missing are told as such.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.models import MODELS
from benchmarks.models.base import Model
from benchmarks.models.gpt import CONFIGS, gpt
from benchmarks.stamp import stamp
from planner.decision import Request
from planner.errors import InfeasibleError
from planner.instance import Instance
from planner.options import Options
from planner.pipeline import Pipeline
from planner.target import resolve
from planner.trace import trace

RESULTS = Path(__file__).resolve().parent / "results" / "planning_time.json"
LIMIT_S = 600.0
"""Wall time after which a program's process is ended."""


def _unrolled(layers: int) -> Model:
    config = replace(CONFIGS["1.3B"], layers=layers)
    return gpt(config, batch=64, scan=False, tied=False, size="real", name=f"gpt unrolled x{layers}")


PROGRAMS: Mapping[str, Callable[[], Model]] = {
    **{name: lambda build=build: build("real") for name, build in MODELS.items() if name != "gpt_unrolled"},
    **{f"gpt unrolled x{layers}": lambda layers=layers: _unrolled(layers) for layers in (2, 8, 30)},
}
"""Programs at their real sizes; the unrolled ones grow to 25,000 equations."""


class _Timed(Pipeline):
    """A pipeline that keeps the seconds its instances took."""

    building = 0.0

    def instance(self, shape: Mapping[str, int]) -> Instance:
        started = time.perf_counter()
        made = super().instance(shape)
        _ = made.node_values
        self.building += time.perf_counter() - started
        return made


def measure(fn: Callable[..., Any], args: tuple[Any, ...], donate: tuple[int, ...], topology: str) -> dict[str, Any]:
    """The seconds and gigabytes of planning one program, and what came of it."""
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Any:
        started = time.perf_counter()
        yield
        seconds[part] = time.perf_counter() - started

    began, processor = time.perf_counter(), time.process_time()
    target = resolve(None, topology)
    request = Request(
        topology=target.topology,
        platform=None,
        objective="time",
        memory_limit=float(target.topology.chip.hbm_bytes),
        pins={},
        cost_model="analytic",
        profile=None,
        while_trips=1.0,
    )
    with timed("trace"):
        program = trace(fn, args, donate_argnums=donate)
    with timed("ready"):
        pipeline = _Timed(program=program, target=target, request=request)
    meshes = pipeline.meshes(None, 3)
    found: dict[str, Any] = {"equations": len(pipeline.graph.ops), "decisions": len(pipeline.model.flow.nodes)}
    with timed("solve"):
        try:
            best = pipeline.search(meshes, limit_bytes=request.memory_limit, options=Options())
        except InfeasibleError as error:
            best = None
            found |= {"status": "infeasible", "least_bytes": error.least_bytes}
    seconds["build"] = pipeline.building
    seconds["solve"] -= pipeline.building
    if best is not None:
        with timed("emit"):
            decision = pipeline.decision(
                best.candidates[0],
                bound=best.bound,
                seconds=seconds["solve"],
                meshes=len(meshes),
                notes=best.notes,
                donate_argnums=donate,
                static_argnums=(),
            )
        found |= {
            "status": decision.certificate.status,
            "gap": decision.certificate.gap,
            "mesh": dict(decision.mesh_shape),
            "predicted_seconds": decision.predicted.seconds,
        }
    return {
        **found,
        "seconds": seconds,
        "wall_seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - processor,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def one(name: str, zoo: Path | None, topology: str) -> dict[str, Any]:
    """The figures of one program, a model or the name of a file of the zoo."""
    if name in PROGRAMS:
        model = PROGRAMS[name]()
        return measure(model.fn, model.args, model.donate_argnums, topology)
    sys.path.insert(0, str(zoo))
    try:
        fn, args = importlib.import_module(name).build(size="real")
    except ImportError as error:
        return {"status": f"not measured: {error}"}
    return measure(fn, tuple(args), (), topology)


def in_child(name: str, zoo: Path | None, topology: str) -> dict[str, Any]:
    """The figures of one program, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.planning_time", "--one", name, "--topology", topology]
    command += ["--zoo", str(zoo)] if zoo else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"status": f"not done in {LIMIT_S:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"status": f"failed: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"}
    return json.loads(lines[-1])


def _line(name: str, found: Mapping[str, Any]) -> str:
    if "seconds" not in found:
        return f"{name:32} {found['status']}"
    parts = "".join(f"{found['seconds'].get(part, 0.0):8.2f}" for part in ("trace", "ready", "build", "solve", "emit"))
    figures = f"{found['wall_seconds']:8.1f}{found['processor_seconds']:8.1f}{found['peak_gigabytes']:6.2f}"
    return f"{name:32}{found['equations']:7}{found['decisions']:7}{parts}{figures}  {found['status']}"


def main() -> None:
    """Measures every program, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="How long does planning take?")
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--one", default="", help="measure one program in this process and print its JSON")
    parser.add_argument("--zoo", type=Path, default=None, help="a folder of program files")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one, given.zoo, given.topology)))
        return
    names = [*PROGRAMS, *(sorted(p.stem for p in given.zoo.glob("[!_]*.py")) if given.zoo else ())]
    if given.only:
        names = [name for name in names if name in given.only.split(",")]
    titles = "".join(f"{title:>8}" for title in ("trace", "ready", "build", "solve", "emit", "wall s", "cpu s"))
    print(f"{'program':32}{'eqns':>7}{'nodes':>7}{titles}{'GB':>6}")
    rows: dict[str, Any] = {}
    for name in names:
        rows[name] = in_child(name, given.zoo, given.topology)
        print(_line(name, rows[name]), flush=True)
        given.out.write_text(json.dumps({**stamp(), "topology": given.topology, "programs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
