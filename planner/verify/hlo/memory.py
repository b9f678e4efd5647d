"""The memory of a compiled program, and the bytes that it takes and gives back on one device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from planner.errors import ArgumentError
from planner.verify.hlo.text import Module, arrays_of, bytes_of, element_bits


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMemory:
    """Bytes on one device of a compiled program, as its compiler states them.

    `peak_bytes` is the compiler's own peak where it has one, else arguments + outputs - aliased + temporaries. On CPU
    only the argument, output and alias sizes are trustworthy.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int


def memory_of(compiled: Any) -> CompiledMemory:
    """The memory of a `jax.stages.Compiled` (or anything with its `memory_analysis()`).

    Raises: ArgumentError when the backend gives no memory analysis.
    """
    stats = compiled.memory_analysis()
    if stats is None:
        raise ArgumentError(
            f"{type(compiled).__name__} has no memory analysis, got None; pass a program compiled for CPU, GPU or TPU"
        )
    return memory_from_stats(
        {name: getattr(stats, name, 0) for name in (*_STATS, "peak_memory_in_bytes")},
    )


_STATS = ("argument_size_in_bytes", "output_size_in_bytes", "alias_size_in_bytes", "temp_size_in_bytes")


def memory_from_stats(stats: Mapping[str, int]) -> CompiledMemory:
    """The same from the fields of XLA's CompiledMemoryStats by name."""
    argument, output, alias, temp = (int(stats[name]) for name in _STATS)
    peak = int(stats.get("peak_memory_in_bytes") or 0)
    return CompiledMemory(
        argument_bytes=argument,
        output_bytes=output,
        alias_bytes=alias,
        temp_bytes=temp,
        peak_bytes=peak or argument + output - alias + temp,
    )


_POSITION = re.compile(r'op_name="leaves\[(\d+)\]"')


def argument_bytes(module: Module) -> dict[int, float]:
    """The bytes of the arguments of a function of `*leaves` by position, without those that it does not read."""
    entry = module.computations[module.entry]
    found: dict[int, float] = {}
    for instruction in entry.instructions:
        position = _POSITION.search(instruction.attributes)
        if instruction.opcode == "parameter" and position is not None:
            found[int(position[1])] = bytes_of(instruction.shape)
    return found


def result_bytes(module: Module) -> list[float]:
    """The bytes of all results, in order."""
    shape = module.computations[module.entry].root.shape
    return [element_bits(dtype) * prod(dims) / 8 for dtype, dims in arrays_of(shape)]
