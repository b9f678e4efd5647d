"""How often the loops of compiled programs run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.verify.hlo.text import Computation, Instruction, Module

Numbers = npt.NDArray[np.int64]


def trip_count_of(loop: Instruction, parent: Computation, module: Module) -> float | None:
    """How often a `while` runs its body: as the compiler states it, else from its condition; None when neither tells.

    Read from the condition are loops whose carried counter starts at a number, grows by a constant and is compared with a
    number. Where these follow from the counter of a loop around it, as of attention that goes on to the diagonal, it is the
    mean over the trips of that.
    """
    counts = _counts(loop, parent, module)
    if counts is None:
        return None
    mean = float(counts.mean()) if counts.size else 0.0
    return int(mean) if mean == int(mean) else mean


def _counts(loop: Instruction, parent: Computation, module: Module) -> Numbers | None:
    """The trip counts of a loop: one, or one for every trip of a loop around it."""
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if known:
        return np.asarray([int(known[1])], np.int64)
    read = _condition(loop, module)
    if read is None:
        return None
    counter, limit, direction, step = read
    numbers = [_numbers(_initial(value, loop, parent, module), parent, module) for value in (counter, limit)]
    start, stop = numbers
    if start is None or stop is None or len({start.size, stop.size} - {1}) > 1:
        return None
    span = (stop - start) * (1 if step > 0 else -1) + (direction in ("LE", "GE"))
    return np.maximum(0, -(-span // abs(step)))


def _condition(loop: Instruction, module: Module) -> tuple[Any, Any, str, int] | None:
    """The carried counter of a loop, what it is compared with, how, and by how much it grows."""
    condition = module.computations.get(loop.attribute("condition") or "")
    body = module.computations.get(loop.attribute("body") or "")
    if condition is None or body is None:
        return None
    compare = _follow(condition.root.name, condition, module, {})
    if compare is None or compare[0] != "compare" or compare[2] is None or compare[3] is None:
        return None
    direction, left, right = compare[1:]
    for counter, limit, test in ((left, right, direction), (right, left, _MIRROR.get(direction, ""))):
        step = _step(counter, body, module)
        if step and test in (("LT", "LE", "NE") if step > 0 else ("GT", "GE", "NE")):
            return counter, limit, test, step
    return None


def _initial(value: Any, loop: Instruction, parent: Computation, module: Module) -> Any:
    """What a scalar of a condition is, seen from outside of its loop, as that begins."""
    initial = parent.by_name.get(loop.operands[0]) if loop.operands else None
    if value[0] != "carry":
        return value
    return None if initial is None else _element(initial, value[1], parent, module)


def _element(source: Instruction, index: int, computation: Computation, module: Module) -> Any:
    """What an element of a tuple is."""
    if source.opcode == "tuple":
        return _follow(source.operands[index], computation, module, {})
    return ("carry", index) if source.opcode == "parameter" else None


def _numbers(value: Any, computation: Computation, module: Module, depth: int = 0) -> Numbers | None:
    """What a scalar is: one number, or one for every trip of the loop whose body the computation is."""
    if value is None or depth > _DEPTH:
        return None
    if value[0] == "constant":
        return np.asarray([value[1]], np.int64)
    if value[0] in _ARITHMETIC:
        left, right = (_numbers(operand, computation, module, depth + 1) for operand in value[1:])
        if left is None or right is None or len({left.size, right.size} - {1}) > 1:
            return None
        return _ARITHMETIC[value[0]](left, right)
    if value[0] == "element":
        array, index = (_numbers(operand, computation, module, depth + 1) for operand in value[1:])
        inside = array is not None and index is not None and index.min() >= 0 and index.max() < array.size
        return array[index] if array is not None and index is not None and inside else None
    if value[0] == "array":
        return np.asarray(value[1])
    found = _loop_around(computation, module) if value[0] == "carry" else None
    if found is None:
        return None
    loop, outside = found
    read = _condition(loop, module)
    if read is not None and read[0] == value:
        counts, start = (
            _counts(loop, outside, module),
            _numbers(_initial(value, loop, outside, module), outside, module),
        )
        if counts is None or start is None or counts.size > 1 or start.size > 1:
            return None
        return start[0] + read[3] * np.arange(counts[0])
    root = computation.root
    if root.opcode == "tuple" and _follow(root.operands[value[1]], computation, module, {}) == value:
        # What does not change in a loop is what it was before.
        return _numbers(_initial(value, loop, outside, module), outside, module, depth + 1)
    return None


def _loop_around(body: Computation, module: Module) -> tuple[Instruction, Computation] | None:
    """The loop whose body a computation is, and the computation that it stands in."""
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if instruction.opcode == "while" and instruction.attribute("body") == body.name:
                return instruction, computation
    return None


_DEPTH = 32
"""So many steps from one scalar to the next are followed."""
_ARITHMETIC: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = {
    "add": np.add,
    "divide": lambda x, y: np.where(y == 0, 0, np.sign(x) * np.sign(y) * (abs(x) // np.maximum(abs(y), 1))),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "subtract": np.subtract,
}
_MIRROR = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


def _step(counter: Any, body: Computation, module: Module) -> int | None:
    if counter[0] != "carry" or body.root.opcode != "tuple":
        return None
    value = _follow(body.root.operands[counter[1]], body, module, {})
    if value is not None and value[0] == "add" and counter in (value[1], value[2]):
        other = value[2] if value[1] == counter else value[1]
        return other[1] if other is not None and other[0] == "constant" else None
    return None


def _follow(name: str, computation: Computation, module: Module, arguments: Mapping[str, Any], depth: int = 0) -> Any:
    """What a scalar, or an array of numbers, is; None where that is not read.

    One of ("constant", n), ("array", numbers), ("element", array, index), ("carry", index), ("add", x, y) and the like, and
    ("compare", direction, x, y).
    """
    if name in arguments:
        return arguments[name]
    instruction = computation.by_name.get(name)
    if instruction is None or depth > _DEPTH:
        return None

    def operand(position: int) -> Any:
        return _follow(instruction.operands[position], computation, module, arguments, depth + 1)

    match instruction.opcode:
        case "constant":
            text = ",".join(instruction.operands).replace(" ", "")
            literal = re.fullmatch(r"\{?(-?\d+(?:,-?\d+)*)\}?", text)
            found = tuple(map(int, literal[1].split(","))) if literal else ()
            return None if not found else ("constant", found[0]) if len(found) == 1 else ("array", found)
        case "iota":
            extent = re.match(r"s32\[(\d+)\]", instruction.shape)
            return ("array", tuple(range(int(extent[1])))) if extent else None
        case "dynamic-slice" if "dynamic_slice_sizes={1}" in instruction.attributes:
            return ("element", operand(0), operand(1))
        case "get-tuple-element":
            source = computation.by_name.get(instruction.operands[0])
            index = int(instruction.attribute("index") or 0)
            if source is not None and source.opcode == "parameter":
                return ("carry", index)
            if source is not None and source.opcode == "tuple":
                return _follow(source.operands[index], computation, module, arguments, depth + 1)
            return None
        case "copy" | "bitcast" | "convert" | "reshape" | "copy-done" | "copy-start":
            return operand(0)
        case "add" | "divide" | "maximum" | "minimum" | "multiply" | "subtract":
            return (instruction.opcode, operand(0), operand(1))
        case "compare":
            return ("compare", instruction.attribute("direction"), operand(0), operand(1))
        case "fusion" | "call":
            callee = module.computations.get(instruction.called[0])
            if callee is None:
                return None
            inner = {
                callee.parameters[n]: operand(n) for n in range(len(instruction.operands)) if n in callee.parameters
            }
            return _follow(callee.root.name, callee, module, inner, depth + 1)
        case _:
            return None
