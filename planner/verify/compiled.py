"""Compiled: what the compiler of a target makes of a program, here or, for devices that are not, in a child process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from pbqp.deadline import Deadline
from planner.compiler.emission.options import REMEDIES, remedy_of
from planner.machine.aot_child import Place, place_of
from planner.machine.compile_target import why_not_compiled
from planner.machine.device_topology import whole_of
from planner.machine.target import Target
from planner.program.jaxpr.rewrite import as_traced
from planner.program.tracing.traced import Program
from planner.verify.aot import AotReport, aot_compile, unavailable_reason
from planner.verify.hlo.collectives import read_collectives
from planner.verify.hlo.memory import memory_of


def why_no_compiler(platform: str, topology: str) -> str:
    """Why nothing can be compiled here for a platform and a topology whose devices are not, or ""."""
    return why_not_compiled(topology) or unavailable_reason("cuda" if platform == "gpu" else platform)


def compiled_in_child(
    jitted: Any,
    avals: Sequence[Any],
    target: Target,
    *,
    mesh: Mesh | AbstractMesh,
    mesh_shape: Mapping[str, int],
    limit_s: float,
) -> AotReport:
    """What the compiler of a target makes of a function where nothing can be run; `mesh` is where the target lays it.

    Raises: ArgumentError, CompileError, as `aot_compile` does.
    """
    topology = target.topology.name
    options: dict[str, Any] = {}
    places: list[Place] | None = None
    if isinstance(mesh, Mesh):
        topology, options = whole_of(list(mesh.devices.flat))
        places = [place_of(device) or (device.id,) for device in mesh.devices.flat]
    why_not = why_no_compiler(target.platform, topology)
    if why_not:
        return AotReport(status="unavailable", message=why_not, seconds=0.0)
    return aot_compile(
        jitted,
        avals,
        mesh_shape=mesh_shape,
        topology=topology,
        topology_options=options,
        places=places,
        timeout_s=limit_s,
    )


def compiled_with_own_shardings(
    program: Program,
    in_specs: Sequence[PartitionSpec | None],
    out_specs: Sequence[PartitionSpec | None],
    target: Target,
    *,
    mesh_shape: Mapping[str, int],
    limit_s: float,
) -> AotReport:
    """What the compiler makes of the function as the user wrote it, with these specs alone: it completes what is None.

    `in_specs` are those of the user's arguments. Nothing is laid on what is in between, and the compiler has no options
    but its own. A program that cannot be compiled so has the status "error".
    """
    own = program.parallelism.mesh if program.parallelism is not None else None
    laid = target.jax_mesh(mesh_shape)
    mesh = laid if own is None else own
    flat = as_traced(program)

    def written(*leaves: Any) -> list[Any]:
        return flat(*leaves)

    written.__name__ = written.__qualname__ = program.function_name

    def sharding(spec: PartitionSpec | None) -> NamedSharding | None:
        return None if spec is None else NamedSharding(mesh, spec)

    clock = Deadline.never()
    try:
        jitted = jax.jit(
            written,
            in_shardings=tuple(map(sharding, in_specs)),
            out_shardings=list(map(sharding, out_specs)),
            donate_argnums=tuple(sorted(program.donated)),
        )
        avals = program.in_avals[: len(in_specs)]
        if target.why_not_run:
            return compiled_in_child(jitted, avals, target, mesh=laid, mesh_shape=mesh_shape, limit_s=limit_s)
        lowered: Any = jitted.trace(*avals).lower()
        executable, remedy = _compiled(lowered, target)
        text = executable.as_text()
        return AotReport(
            status="ok",
            message="",
            seconds=clock.elapsed,
            memory=memory_of(executable),
            collectives=read_collectives(text, num_devices=math.prod(mesh_shape.values())),
            remedy=remedy,
            hlo=text,
        )
    except Exception as error:  # whatever the compiler dies of is told, as what is priced stands without it
        seconds = clock.elapsed
        return AotReport(status="error", message=f"{type(error).__name__}: {str(error)[:300]}", seconds=seconds)


def _compiled(lowered: Any, target: Target) -> tuple[Any, str]:
    """A lowered function as it is compiled here, and the entry of `REMEDIES` that this took, "" where none."""
    try:
        return lowered.compile(), ""
    except jax.errors.JaxRuntimeError as error:
        remedy = remedy_of(target.platform, str(error), {})
        if not remedy:
            raise
        return lowered.compile(compiler_options=dict(REMEDIES[remedy].options)), remedy
