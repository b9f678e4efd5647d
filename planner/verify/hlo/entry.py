"""What a compiled program takes and gives back: bytes of its arguments and results on one device."""

from __future__ import annotations

import re
from math import prod

from planner.verify.hlo.text import Module, arrays_of, bytes_of, element_bits

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
