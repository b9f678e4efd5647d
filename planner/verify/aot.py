"""Compiling for a topology with no device present, in a child process that may die without harm.

The parent lowers the jitted function to StableHLO and hands its bytecode, with the compile options `jax.jit` would use,
to `aot_child`, which compiles it through the compile-only client of a topology (`libtpu` for TPU) or for virtual CPU
devices. What comes back is a report: fits, does not fit, refused, crashed or too slow. The lowering is the very one
`jax.jit` would compile, so donation, random keys, loops and constraints need no special care.

How to write the jitted function: mesh axes in the order of `mesh_shape`, over an abstract mesh,

    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
    jitted = jax.jit(fn, in_shardings=..., out_shardings=..., donate_argnums=...)   # NamedSharding(mesh, spec)
    aot_compile(jitted, abstract_args, mesh_shape=dict(zip(names, sizes)), topology="v5e:4x4")

with `jax.ShapeDtypeStruct`s as arguments and `with_sharding_constraint(x, NamedSharding(mesh, spec))` inside, loop
bodies included. At least one argument or result must name the mesh (`P()` will do): constraints inside are not enough
for JAX to know how many devices an abstract mesh stands for. A concrete mesh of as many devices of any platform lowers
the same; only its device order is ignored: the positions of the mesh lie where `device_mesh` puts them for a plan.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal, ParamSpec

import jax

from pbqp.deadline import Deadline
from planner.compiler.emission.options import REMEDIES, remedy_of
from planner.errors import ArgumentError, CompileError
from planner.machine import aot_child
from planner.machine.aot_child import Place, child_environment, inherited_flags
from planner.machine.compile_target import CompileTarget, compile_target
from planner.program.mesh_axes import NO_DEVICES
from planner.verify.hlo.collectives import CompiledCollective, read_collectives
from planner.verify.hlo.memory import CompiledMemory, memory_from_stats

CompileStatus = Literal["ok", "oom", "error", "crash", "timeout", "unavailable"]
Mode = Literal["dump", "full"]
Platform = Literal["tpu", "cpu", "cuda"]
P = ParamSpec("P")

_POLL_SECONDS = 0.05
_SCHEDULED = {"tpu": "*.after_optimizations_after_buffer_assignment.txt", "cuda": "*gpu_after_optimizations.txt"}
_OPTIMIZED = "*after_optimizations.txt"
_MEMORY_REPORT = "*after_optimizations-memory-usage-report.txt"
_TUPLED_ARGUMENTS = 2000  # jax._src.dispatch.should_tuple_args: TPU programs with more arguments take them as a tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class AotRequest:
    """A program to compile and what for.

    `program` is StableHLO bytecode; `free_outputs[i]` leaves a sharding open; `places` are those of the devices in the
    order of the mesh, none where a topology's devices are taken as they are listed; `capacity_bytes` is the memory of a
    device where the compiler does not say by itself that a program does not fit; `inherited` are the flags of this process
    that hold for its compile (`child_environment.inherited_flags`).
    """

    program: bytes = field(repr=False)
    num_arguments: int
    free_outputs: tuple[bool, ...]
    mesh_shape: Mapping[str, int]
    topology: str
    platform: Platform = "tpu"
    mode: Mode = "dump"
    timeout_s: float = 300.0
    topology_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    compiler_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    places: tuple[Place, ...] = ()
    capacity_bytes: float | None = None
    inherited: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class AotReport:
    """What became of a compile.

    `status` is "ok"; "oom" where the program does not fit, as the compiler says or, of a GPU, as its peak shows;
    "error" where the compiler refused the program; "crash" where it died (`signal` says of what); "timeout";
    "unavailable" where no compiler for the platform is installed. `message` is the compiler's. `memory` and
    `collectives` are those of one device; of an "oom", `memory` is None and `needed_bytes` what would be needed; of a
    CPU it is never said. `hlo` is the scheduled HLO text, which `hlo.schedule` prices. `rematerialized` are the
    compiler's "involuntary full rematerialization" warnings. `remedy` is the entry of
    `compiler.emission.options.REMEDIES` with whose options it was compiled, "" where the request was enough. `seconds`
    is the wall time of the child, or of both.
    """

    status: CompileStatus
    message: str
    seconds: float
    signal: int | None = None
    memory: CompiledMemory | None = None
    needed_bytes: float | None = None
    collectives: tuple[CompiledCollective, ...] = ()
    rematerialized: tuple[str, ...] = ()
    remedy: str = ""
    hlo: str = field(default="", repr=False)

    @property
    def ok(self) -> bool:
        """Whether the program compiled and fits."""
        return self.status == "ok"


def lower_request(
    jitted: Any,
    abstract_args: Sequence[Any],
    *,
    mesh_shape: Mapping[str, int],
    topology: str,
    platform: Platform | None = None,
    mode: Mode = "dump",
    timeout_s: float = 300.0,
    compiler_options: Mapping[str, Any] | None = None,
    topology_options: Mapping[str, Any] | None = None,
    places: Sequence[Place] | None = None,
) -> AotRequest:
    """A jitted function lowered for the compiler of `topology`, but not yet compiled; it may be run later or elsewhere.

    Parameters: `jitted` and `abstract_args` as the module's docstring says; `mesh_shape`, axis sizes in mesh order;
    `topology`, "v5e:4x4", "h100:4x8" and the like (of a GPU that is not in the table "1x<nodes>x<GPUs per node>");
    `platform`, that of the topology's chip unless the program shall be compiled for virtual CPU devices; `mode`, "full",
    or "dump" to stop once the schedule and the buffers are known (seconds instead of minutes; no `estimated_cycles` in
    a TPU's text; on CPU it means "full"); `compiler_options`, XLA flags without dashes, beside those that the jitted
    function has itself; `topology_options`, what `jax.experimental.topologies.get_topology_desc` takes besides, such as
    `{"target_config": TEXT}` of a GPU that is not in the table; `places`, those of the devices of the mesh, default
    where a plan lays it.
    Raises: ArgumentError when mesh, program and topology do not belong together; CompileError when lowering fails.
    """
    if mode not in ("dump", "full") or platform not in ("tpu", "cpu", "cuda", None):
        raise ArgumentError(f"mode {mode!r} on platform {platform!r}; use 'dump' or 'full' on 'tpu', 'cpu' or 'cuda'")
    sizes = tuple(mesh_shape.values())
    target = (
        CompileTarget(platform="cpu", topology=topology)
        if platform == "cpu"
        else compile_target(topology, sizes, topology_options, places)
    )
    if platform not in (target.platform, None):
        raise ArgumentError(f"topology {topology} is not one of platform {platform!r}; leave the platform out")
    lowered = _lowered(jitted, abstract_args, target.platform, mesh_shape)
    own: tuple[tuple[str, Any], ...] = lowered._lowering._compiler_options_kvs
    module = lowered.compiler_ir("stablehlo")
    partitions = int(module.operation.attributes["mhlo.num_partitions"].value)
    if partitions != prod(mesh_shape.values()):
        raise ArgumentError(
            f"the program is for {partitions} devices, but mesh_shape {dict(mesh_shape)} has "
            f"{prod(mesh_shape.values())}; put a sharding over that mesh on the function's arguments or results"
        )
    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    results = main.attributes.get("res_attrs", ())
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return AotRequest(
        program=bytecode.getvalue(),
        num_arguments=len(main.regions[0].blocks[0].arguments),
        free_outputs=tuple("sdy.sharding" not in r and "mhlo.sharding" not in r for r in results),
        mesh_shape=dict(mesh_shape),
        topology=target.topology,
        platform=target.platform,
        mode=mode if target.platform != "cpu" else "full",
        timeout_s=timeout_s,
        topology_options=target.options,
        compiler_options={**target.compiler_options, **dict(own), **(compiler_options or {})},
        places=target.places,
        capacity_bytes=target.capacity_bytes,
        inherited=inherited_flags(os.environ, target.platform),
    )


def _lowered(jitted: Any, abstract_args: Sequence[Any], platform: str, mesh_shape: Mapping[str, int]) -> Any:
    try:
        # The devices of a mesh that the caller has set are not those of the topology.
        with jax.set_mesh(NO_DEVICES):
            return jitted.trace(*abstract_args).lower(lowering_platforms=(platform,))
    except Exception as error:
        raise CompileError(
            f"lowering for {platform} failed with {type(error).__name__}: {error}; give shardings over one "
            f"AbstractMesh of {dict(mesh_shape)} and ShapeDtypeStruct arguments"
        ) from error


def _run_at_once(
    lower: Callable[P, AotRequest],
) -> Callable[P, AotReport]:
    return lambda *args, **options: run_request(lower(*args, **options))


aot_compile = _run_at_once(lower_request)
"""What the compiler of a topology makes of a jitted function, from a child process. Parameters as of `lower_request`."""


def unavailable_reason(platform: str) -> str:
    """Why nothing can be compiled for a platform here, or "" where it can."""
    if platform == "tpu" and importlib.util.find_spec("libtpu") is None:
        return f"libtpu is not installed; pip install the version that jax {jax.__version__} pins in its `tpu` extra"
    if platform == "cuda" and not any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13)):
        return f"no CUDA plugin is installed; pip install jax-cuda12-plugin=={jax.__version__} (no GPU or driver is needed)"
    return ""


def flags_note(platform: str) -> str:
    """That compiles for a platform have the flags of this process, or "" where it has none."""
    flags = inherited_flags(os.environ, "cuda" if platform == "gpu" else platform)
    flags_text = "; ".join(f"{name}={value}" for name, value in flags.items())
    return (
        f"compiled with the flags that are set here, {flags_text}: the promises hold where they are set, too"
        if flags_text
        else ""
    )


def run_request(request: AotRequest, *, stopped: Callable[[], bool] = lambda: False) -> AotReport:
    """The report on a request, compiled in a child process that is ended at the latest after `timeout_s`.

    It is ended, too, as soon as `stopped` says so, and then counts as one that took too long. A compile that ends in an
    error with a known remedy is tried once more with that, and both count for `timeout_s`.
    """
    report = _run_once(request, stopped)
    if report.status not in ("error", "crash", "oom"):
        return report
    options = {name: str(value) for name, value in request.compiler_options.items()}
    error = remedy_of("gpu" if request.platform == "cuda" else request.platform, report.message, options)
    left = request.timeout_s - report.seconds
    if not error or left <= 0 or stopped():
        return report
    helped = {**request.compiler_options, **REMEDIES[error].options}
    again = _run_once(replace(request, compiler_options=helped, timeout_s=left), stopped)
    if again.status in ("error", "crash") or again.status == report.status:
        return report
    return replace(again, seconds=report.seconds + again.seconds, remedy=error)


def _run_once(request: AotRequest, stopped: Callable[[], bool]) -> AotReport:
    """The report on a request, with no other try."""
    reason = unavailable_reason(request.platform)
    if reason:
        return AotReport(status="unavailable", message=reason, seconds=0.0)
    with tempfile.TemporaryDirectory(prefix="aot-") as name:
        directory = Path(name)
        dump = directory / "dump"
        options = dict(request.compiler_options)
        if request.platform != "cpu":
            options |= {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True}
        (directory / "program.mlirbc").write_bytes(request.program)
        (directory / "request.json").write_text(
            json.dumps(
                {
                    "platform": request.platform,
                    "topology": request.topology,
                    "topology_options": dict(request.topology_options),
                    "mesh_shape": list(request.mesh_shape.values()),
                    "places": request.places,
                    "free_outputs": list(request.free_outputs),
                    "tuple_arguments": request.platform == "tpu" and request.num_arguments > _TUPLED_ARGUMENTS,
                    "shardy": bool(jax.config.jax_use_shardy_partitioner),  # pyright: ignore
                    "compiler_options": options,
                }
            )
        )
        clock = Deadline.never()
        code = _run_child(request, directory, dump, stopped)
        return _read_report(request, directory, dump, code, clock.elapsed)


def _run_child(request: AotRequest, directory: Path, dump: Path, stopped: Callable[[], bool]) -> int | None:
    """The child's exit status; 0 also where it was ended with all that is wanted on disk; None after a timeout."""
    child = Path(aot_child.__file__)
    with (directory / "stderr").open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-P", str(child), str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=stderr,
            stderr=stderr,
            env=child_environment(os.environ, request.inherited, platform=request.platform, topology=request.topology),
        )
        deadline = Deadline.after(request.timeout_s)
        try:
            while not deadline.passed and not stopped():
                try:
                    return process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    if request.mode == "dump" and dumped_memory(dump) and scheduled_text(dump, request.platform):
                        return 0
            return None
        finally:
            process.kill()
            process.wait()


def scheduled_text(dump: Path, platform: Platform) -> str:
    """The scheduled HLO of a dump, or "" while it is not all written."""
    return _whole_text(dump, _SCHEDULED[platform])


def _whole_text(dump: Path, pattern: str) -> str:
    """The longest text of a dump, or "" while it is not all written: the entry is last, and ends in a line of its own."""
    for path in sorted(dump.glob(pattern), key=lambda p: p.stat().st_size, reverse=True):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8))
            if file.read().rstrip().endswith(b"\n}") and "\nENTRY " in (text := path.read_text()):
                return text
    return ""


def _read_report(request: AotRequest, directory: Path, dump: Path, code: int | None, seconds: float) -> AotReport:
    log = (directory / "stderr").read_text(errors="replace")
    involuntary = tuple(dict.fromkeys(re.findall(r"Involuntary full rematerialization.*", log)))
    report = partial(AotReport, seconds=seconds, rematerialized=involuntary)
    if code is None:
        message = f"the compiler was stopped after {request.timeout_s:g} s; allow more with timeout_s"
        return report(status="timeout", message=message)
    path = directory / "report.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    text = scheduled_text(dump, request.platform) if request.mode == "dump" and not record else ""
    if not record and not text:
        number = -code if code < 0 else None
        died = f"signal {signal.Signals(number).name}" if number else f"exit status {code}"
        fatal = next((line for line in log.splitlines() if "Check failed" in line or line.startswith("F")), "")
        message = f"the compiler died of {died}: {fatal or log[-500:].strip()}"
        return report(status="crash", message=message, signal=number)
    if record and not record["ok"]:
        error = record["error"]
        status = "oom" if _is_out_of_memory(error) else "error"
        return report(status=status, message=error, needed_bytes=_needed_bytes(error))
    # libtpu 0.0.50 gives no text of large programs, and dumps them before it is sure that they fit.
    text = text or (directory / "program.hlo").read_text() or _whole_text(dump, _OPTIMIZED)
    memory = dumped_memory(dump) or (memory_from_stats(record["memory"]) if record else None)
    excess = _excess(memory, request.capacity_bytes)
    return report(
        status="oom" if excess else "ok",
        message=excess,
        memory=None if excess else memory,
        needed_bytes=float(memory.peak_bytes) if memory is not None and excess else None,
        collectives=read_collectives(text, num_devices=prod(request.mesh_shape.values())),
        hlo=text,
    )


def _excess(memory: CompiledMemory | None, capacity_bytes: float | None) -> str:
    """That a program needs more than a device has, or ""."""
    if memory is None or capacity_bytes is None or memory.peak_bytes <= capacity_bytes:
        return ""
    return f"the program needs {memory.peak_bytes:.4g} bytes per device, of which there are {capacity_bytes:.4g}"


def _is_out_of_memory(error: str) -> bool:
    return "RESOURCE_EXHAUSTED" in error or "exceeds available" in error or "Ran out of memory" in error


def _needed_bytes(error: str) -> float | None:
    match = re.search(r"\(([\d.]+)([KMGT]?)\) exceeds available", error)
    match = match or re.search(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm", error)
    return float(match[1]) * 1024 ** " KMGT".index(match[2] or " ") if match else None


def dumped_memory(dump: Path) -> CompiledMemory | None:
    """The HBM bytes in an `xla_dump_to` folder of a compile; None where the buffer assignment is not there.

    The peak is the total of memory space 0, arguments included: what the TPU compiler compares with the chip's HBM and a
    GPU's runtime allocates. (The `peak_memory_in_bytes` of a finished compile for TPU counts the on-chip VMEM too.)
    """
    reports = sorted(dump.glob(_MEMORY_REPORT), key=lambda p: p.stat().st_size)
    buffers = sorted(dump.glob("*after_optimizations-buffer-assignment.txt"), key=lambda p: p.stat().st_size)
    if not reports or not buffers:
        return None
    total = re.search(r"\(color=0\)\nTotal bytes: (\d+)", reports[-1].read_text())
    if total is None:
        return None
    sums = {"argument": 0, "output": 0, "alias": 0, "temp": 0}
    for line in buffers[-1].read_text().splitlines():
        match = re.match(r"allocation \d+: size (\d+),(.*)", line)
        if match is None or " color " in match[2]:
            continue
        size, rest = int(match[1]), match[2]
        parameter, live_out = " parameter " in rest, "maybe-live-out" in rest
        sums["argument"] += size * parameter
        sums["output"] += size * live_out
        sums["alias"] += size * (parameter and live_out)
        sums["temp"] += size * ("preallocated-temp" in rest)
    return CompiledMemory(
        argument_bytes=sums["argument"],
        output_bytes=sums["output"],
        alias_bytes=sums["alias"],
        temp_bytes=sums["temp"],
        peak_bytes=int(total[1]),
    )
