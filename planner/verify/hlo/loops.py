"""How often the loops of compiled programs run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from planner.verify.hlo.text import Computation, Instruction, Module


def trip_count_of(loop: Instruction, parent: Computation, module: Module) -> int | None:
    """How often a `while` runs its body: as the compiler states it, else from its condition; None when neither tells.

    Read from the condition are loops whose carried counter starts at a constant, grows by a constant and is compared
    with a constant (or with a carried value that is one).
    """
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if known:
        return int(known[1])
    condition = module.computations.get(loop.attribute("condition") or "")
    body = module.computations.get(loop.attribute("body") or "")
    initial = parent.by_name.get(loop.operands[0]) if loop.operands else None
    if condition is None or body is None or initial is None:
        return None
    compare = _follow(condition.root.name, condition, module, {})
    if compare is None or compare[0] != "compare":
        return None
    direction, left, right = compare[1], compare[2], compare[3]

    def constant(value: Any) -> int | None:
        if value is not None and value[0] == "carry" and initial.opcode == "tuple":
            value = _follow(initial.operands[value[1]], parent, module, {})
        return value[1] if value is not None and value[0] == "constant" else None

    if left is None or right is None:
        return None
    for counter, limit, test in ((left, right, direction), (right, left, _MIRROR.get(direction, ""))):
        step = _step(counter, body, module)
        start, stop = constant(counter), constant(limit)
        if counter[0] != "carry" or not step or start is None or stop is None:
            continue
        span = (stop - start) * (1 if step > 0 else -1) + (test in ("LE", "GE"))
        if test in ("LT", "LE", "NE") if step > 0 else test in ("GT", "GE", "NE"):
            return max(0, -(-span // abs(step)))
    return None


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
    """What a scalar is: ("constant", n), ("carry", index), ("add", x, y), ("compare", direction, x, y) or None."""
    if name in arguments:
        return arguments[name]
    instruction = computation.by_name.get(name)
    if instruction is None or depth > 32:
        return None

    def operand(position: int) -> Any:
        return _follow(instruction.operands[position], computation, module, arguments, depth + 1)

    match instruction.opcode:
        case "constant":
            literal = re.fullmatch(r"\{?(-?\d+)\}?", instruction.operands[0])
            return ("constant", int(literal[1])) if literal else None
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
        case "add":
            return ("add", operand(0), operand(1))
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
