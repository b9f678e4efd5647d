"""Compiles one program for a topology and writes what came of it: the program that `aot` runs in a child process.

Run as `python -P aot_child.py DIRECTORY`. It stands alone (nothing of the planner is imported, so it starts fast and
shadows nothing), reads `request.json` and `program.mlirbc` from the directory and writes `program.hlo` after a finished
compile, and `report.json`. Compilers abort on some programs: then there is no report, and the exit
status tells.

The environment of such a child is that of this process, less what would decide about devices or write. A compile shall
become what it would become in the user's own process, so the flags of XLA and libtpu that are set here hold there, too.
Three kinds are left out: those that dump, as each compile writes its own dump and is ended once that is there
(`--xla_dump_hlo_module_re` of a program that planning knows nothing of would have it wait for the whole compile); the
number of virtual devices; and those of other platforms' compilers, which say nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

MEMORY_FIELDS = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "peak_memory_in_bytes",
)


Place = tuple[int, ...]
"""Where a device is: of a TPU its slice, the three coordinates of its chip, and its core there; of a GPU its number."""


WATCH_SECONDS = 0.5
"""How often a child looks whether its parent is there."""


def place_of(device: Any) -> Place | None:
    """Where a device is, or None where its platform knows no coordinates."""
    coordinates = getattr(device, "coords", None)
    if device.platform != "tpu" or coordinates is None:
        return None
    return (getattr(device, "slice_index", 0), *coordinates, device.core_on_chip)


def devices_of(request: dict[str, Any]) -> list[Any]:
    """The devices to compile for, in the order of the mesh: those at the places asked for, else as they are listed."""
    import jax

    platform, count = request["platform"], math.prod(request["mesh_shape"])
    if platform == "cpu":
        jax.config.update("jax_num_cpu_devices", count)
        return jax.devices("cpu")[:count]
    from jax.experimental import topologies

    name = request["topology"] if platform == "tpu" else "topology"
    devices = list(topologies.get_topology_desc(name, platform, **request["topology_options"]).devices)
    if request["places"]:
        there = {place_of(device) or (device.id,): device for device in devices}
        wanted = [tuple(place) for place in request["places"]]
        missing = [place for place in wanted if place not in there]
        if missing:
            raise ValueError(f"topology {request['topology']} has no device at {missing[0]}")
        return [there[place] for place in wanted]
    if len(devices) != count:
        raise ValueError(f"topology {request['topology']} has {len(devices)} devices, the mesh needs {count}")
    return devices


def compile_program(request: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The record of a finished compile: memory and seconds; the text goes to `program.hlo`."""
    import numpy as np
    from jax.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    devices = devices_of(request)
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(devices)
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[d.id for d in devices]]))
    options.parameter_is_tupled_arguments = request["tuple_arguments"]
    options.env_option_overrides = list(request["compiler_options"].items())
    build = options.executable_build_options
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = request["shardy"]
    build.allow_spmd_sharding_propagation_to_output = request["free_outputs"]
    client = devices[0].client
    # A topology's client can compile only; that of real or virtual devices loads what it compiles.
    build_executable = client.compile_and_load if request["platform"] == "cpu" else client.compile
    started = time.perf_counter()
    with mlir.make_ir_context():
        module = ir.Module.parse((directory / "program.mlirbc").read_bytes())
        executable = build_executable(module, xla_client.DeviceList(tuple(devices)), options)
    seconds = time.perf_counter() - started
    (directory / "program.hlo").write_text(executable.hlo_modules()[0].to_string())
    stats = executable.get_compiled_memory_stats()
    memory = {name: int(getattr(stats, name, 0)) for name in MEMORY_FIELDS}
    return {"ok": True, "seconds": seconds, "memory": memory}


def end_with(parent: int) -> None:
    """Has this process end as soon as its parent does, however that ended: a compile can take minutes and gigabytes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(directory: Path) -> None:
    """Compile as the request says and leave `report.json`, written whole or not at all."""
    end_with(os.getppid())
    request = json.loads((directory / "request.json").read_text())
    try:
        record = compile_program(request, directory)
    except Exception as error:  # the parent sorts out what kind of failure it was
        record = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    unfinished = directory / "report.json.part"
    unfinished.write_text(json.dumps(record))
    unfinished.rename(directory / "report.json")
    # Interpreter shutdown waits for compiler threads and may crash in them; all that matters is on disk.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))


FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables whose words are flags of the compilers."""
_OTHER_PLATFORMS = {"tpu": ("xla_cpu_", "xla_gpu_"), "cuda": ("xla_cpu_", "xla_tpu_"), "cpu": ("xla_gpu_", "xla_tpu_")}
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s"'])+""")
_VERSIONS = {"v5e": "v5litepod"}


def inherited_flags(environment: Mapping[str, str], platform: str) -> dict[str, str]:
    """The flags of an environment that hold for a compile for a platform ("tpu", "cuda" or "cpu"), by variable.

    A variable that names a file in place of flags, as XLA allows, is read. Variables without such flags are left out.
    """
    found = {name: _kept(environment.get(name, ""), platform) for name in FLAGS}
    if platform != "tpu":
        del found["LIBTPU_INIT_ARGS"]
    return {name: flags for name, flags in found.items() if flags}


def _kept(text: str, platform: str) -> str:
    """Those of the flags of a variable that are not left out, see the module."""
    text = text.strip()
    if text and not text.startswith("-"):
        try:
            text = Path(text).read_text()
        except (OSError, UnicodeDecodeError):
            return ""
    kept: list[str] = []
    for word in _WORD.findall(text):
        name = word.lstrip("-").partition("=")[0]
        writes = "dump" in name or name == "xla_force_host_platform_device_count"
        if not writes and not name.startswith(_OTHER_PLATFORMS[platform]):
            kept.append(word)
    return " ".join(kept)


def child_environment(
    environment: Mapping[str, str], flags: Mapping[str, str], *, platform: str, topology: str
) -> dict[str, str]:
    """The environment of a child that compiles for a topology with these `inherited_flags`, and what libtpu wants."""
    version, _, extent = topology.partition(":")
    cores = prod(int(word) for word in re.findall(r"\d+", extent)) if platform == "tpu" else 1
    cores *= 2 if version in ("v4", "v5p", "tpu7x") else 1
    return {
        **{name: value for name, value in environment.items() if name not in FLAGS},
        **flags,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "TF_CPP_MIN_LOG_LEVEL": "1",  # warnings, here and in libtpu: the involuntary rematerialisations are among them
        "TPU_STDERR_LOG_LEVEL": "1",
        "TPU_LOG_DIR": "disabled",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": f"{_VERSIONS.get(version, version)}-{cores}",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
