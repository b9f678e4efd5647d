"""Compiles one program for a topology and writes what came of it: the program that `aot` runs in a child process.

Run as `python -P aot_child.py DIRECTORY`. It stands alone (nothing of the planner is imported, so it starts fast and
shadows nothing), reads `request.json` and `program.mlirbc` from the directory and writes `program.hlo` after a finished
compile, and `report.json`. Compilers abort on some programs: then there is no report, and the exit
status tells.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
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
