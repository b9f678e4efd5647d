"""Collectives that the compiler moves in float32 though the program says 16 bits."""

from __future__ import annotations

from planner.verify.hlo.text import LAYOUT_OPCODES, Computation, Instruction, Module, kind_of


def promoted(instruction: Instruction, computation: Computation, module: Module, depth: int = 0) -> bool:
    """Whether a float32 collective stands for one of a 16-bit type.

    So it is where the reducer was promoted by name, where every operand is a widened 16-bit value, or where every use
    of the result narrows it at once.
    """
    reducer = instruction.attribute("to_apply")
    if reducer is not None:
        return "promoted" in reducer
    sources = [computation.by_name.get(name) for name in instruction.operands]
    if depth > 16 or any(s is None or not s.shape.lstrip("(").startswith("f32[") for s in sources):
        return False
    if all(_widened(source.name, computation, module, depth) for source in sources if source is not None):
        return True
    return _narrowed(instruction.name, computation, module, depth)


def _widened(name: str, computation: Computation, module: Module, depth: int) -> bool:
    instruction = computation.by_name.get(name)
    if instruction is None or depth > 16:
        return False
    if instruction.opcode == "convert":
        source = computation.by_name.get(instruction.operands[0])
        return source is not None and source.shape.startswith(("bf16[", "f16["))
    if instruction.opcode in LAYOUT_OPCODES:
        return _widened(instruction.operands[0], computation, module, depth + 1)
    if instruction.opcode == "fusion":
        callee = module.computations[instruction.called[0]]
        return _widened(callee.root.name, callee, module, depth + 1)
    return kind_of(instruction) is not None and promoted(instruction, computation, module, depth + 1)


def _narrowed(name: str, computation: Computation, module: Module, depth: int) -> bool:
    users = computation.consumers.get(name, ())
    if not users or depth > 16 or computation.by_name[name].root:
        return False
    for user in users:
        if user.opcode == "convert":
            narrow = user.shape.startswith(("bf16[", "f16["))
        elif user.opcode in (*LAYOUT_OPCODES, "get-tuple-element"):
            narrow = _narrowed(user.name, computation, module, depth + 1)
        elif user.opcode == "fusion":
            callee = module.computations[user.called[0]]
            positions = [n for n, operand in enumerate(user.operands) if operand == name]
            narrow = all(_narrowed(callee.parameters[n], callee, module, depth + 1) for n in positions)
        else:
            narrow = False
        if not narrow:
            return False
    return True
