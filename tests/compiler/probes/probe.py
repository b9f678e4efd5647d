"""Probes: tiny programs whose compilation shows whether a compiler still behaves as a pass of the model says.

A probe compiles its programs with the compiler that is installed, for a topology with no device present, and looks for the
behaviour in what comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from cost_models import parse_topology
from cost_models.hardware import Platform
from planner.compiler.model import PassName
from planner.errors import CompileError
from planner.verify.aot import AotReport, aot_compile, unavailable_reason
from planner.verify.hlo.memory import CompiledMemory
from planner.verify.hlo.text import Computation, Instruction, Module, kind_of, parse_module
from planner.verify.hlo.work import read_products

NO_KERNEL = frozenset(
    ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "copy-start", "copy-done", "iota")
)
"""Opcodes of a schedule that launch nothing, or only bring something to the chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """An argument of a program: its type, and its spec."""

    shape: tuple[int, ...]
    dtype: Any = jnp.bfloat16
    spec: PartitionSpec = field(default_factory=PartitionSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A function, its arguments, and how it is compiled; `devices` are along an axis named "x"."""

    fn: Callable[..., Any]
    args: tuple[Array, ...]
    devices: int = 1
    out: Any = None
    donated: tuple[int, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What a compiler made of a program."""

    report: AotReport

    @cached_property
    def module(self) -> Module:
        """Its computations."""
        return parse_module(self.report.hlo)

    @property
    def entry(self) -> Computation:
        """The schedule of the program."""
        return self.module.computations[self.module.entry]

    @property
    def bodies(self) -> list[Computation]:
        """The schedules of the bodies of its loops."""
        return [
            self.module.computations[one.attribute("body") or ""] for one in self.everything if one.opcode == "while"
        ]

    @property
    def everything(self) -> list[Instruction]:
        """All instructions, those within kernels too."""
        return [one for computation in self.module.computations.values() for one in computation.instructions]

    @property
    def memory(self) -> CompiledMemory:
        """Its bytes per device."""
        assert self.report.memory is not None, self.report.message
        return self.report.memory

    @property
    def flops(self) -> float:
        """The operations of its matmuls."""
        return sum((read_products(self.report.hlo) or {}).values())

    def kernels(self, computation: Computation | None = None) -> list[Instruction]:
        """What a computation launches, by default the entry, collectives left out."""
        return [
            one
            for one in (computation or self.entry).instructions
            if one.opcode not in NO_KERNEL and kind_of(one) is None and not one.opcode.endswith("-done")
        ]

    def within(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instruction, and those of the computations that it calls."""
        yield instruction
        for name in instruction.called:
            for one in self.module.computations[name].instructions:
                yield from self.within(one)

    def holds(self, instruction: Instruction, *opcodes: str) -> bool:
        """Whether instructions of all these opcodes are in a kernel."""
        return {*opcodes} <= {one.opcode for one in self.within(instruction)}

    def count(self, kind: str) -> int:
        """How many collectives of a kind there are."""
        return sum(one.kind == kind for one in self.report.collectives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Programs for a topology, and whether what is compiled of them shows the behaviour of a pass; `shows` says how."""

    of: PassName
    topology: str
    programs: tuple[Program, ...]
    shows: str
    seen: Callable[..., bool]

    @property
    def platform(self) -> Platform:
        """The platform whose compiler it asks."""
        return parse_topology(self.topology).chip.platform

    def why_not(self) -> str:
        """Why its compiler cannot be asked here, or ""."""
        return unavailable_reason("cuda" if self.platform == "gpu" else self.platform)

    def compiled(self) -> tuple[Compiled, ...]:
        """What is compiled of its programs. Raises: CompileError."""
        return tuple(Compiled(report=_compiled(program, self)) for program in self.programs)


def _compiled(program: Program, probe: Probe) -> AotReport:
    jitted = jax.jit(
        program.fn,
        in_shardings=tuple(sharding(program.devices, *one.spec) for one in program.args),
        out_shardings=program.out,
        donate_argnums=program.donated,
    )
    report = aot_compile(
        jitted,
        [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in program.args],
        mesh_shape={"x": program.devices},
        topology=probe.topology,
        platform="cpu" if probe.platform == "cpu" else None,
        mode="full" if probe.platform == "cpu" else "dump",
        compiler_options=program.options,
    )
    if not report.ok:
        raise CompileError(f"{probe.of} on {probe.topology}: {report.status}: {report.message[:300]}")
    return report


def sharding(devices: int, *spec: Any) -> NamedSharding:
    """A spec over so many devices along the axis "x"."""
    return NamedSharding(AbstractMesh((devices,), ("x",), axis_types=(AxisType.Auto,)), PartitionSpec(*spec))


def laid(array: Any, devices: int, *spec: Any) -> Any:
    """An array with a spec over so many devices."""
    return jax.lax.with_sharding_constraint(array, sharding(devices, *spec))


def dims_text(*dims: int) -> str:
    """The dims of an array as HLO writes them."""
    return f"[{','.join(map(str, dims))}]"
