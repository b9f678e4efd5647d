"""The collectives of a compiled program, those among them that move in float32 what the program has in 16 bits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.verify.hlo.groups import ReplicaGroups, axes_of, chain_length, groups_of, permute_axes
from planner.verify.hlo.loops import trip_count_of
from planner.verify.hlo.text import (
    LAYOUT_OPCODES,
    Computation,
    Instruction,
    Module,
    arrays_of,
    bytes_of,
    kind_of,
    parse_module,
)

WINDOWED = "windowed_dot_general"
"""In the names of the bodies of loops that XLA's partitioner makes of a matmul (`spmd/dot_handler.cc`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCollective:
    """One collective of a compiled program, as one device sees it.

    `bytes` is the larger of its local operand and result, once; `trip_count` how often it runs per call (None where a
    loop around it has no bound that can be read) and `known_trips` the same with such loops counted as one pass;
    `promoted` whether the compiler moves a wider type than the program asked for (XLA's CPU backend computes bfloat16
    in float32). `groups` of a permute are its pairs and its `group_size` is the length of its longest chain. `windowed`:
    it runs in a loop that the compiler made of a matmul and the collective beside it. `sources` are the "file:line" it came
    from outside of JAX and those of what called it, innermost first, as far as the compiler was told.
    """

    kind: str
    bytes: float
    dtypes: tuple[str, ...]
    group_size: int
    groups: ReplicaGroups
    trip_count: int | None
    known_trips: int
    op_name: str
    sources: tuple[str, ...]
    channel_id: int | None
    promoted: bool
    name: str
    windowed: bool = False

    @property
    def source(self) -> str:
        """The "file:line" of the innermost code outside of JAX, or ""."""
        return self.sources[0] if self.sources else ""

    @property
    def logical_bytes(self) -> float:
        """Bytes in the type the program asked for: half of `bytes` where the compiler promoted it."""
        return self.bytes / 2 if self.promoted else self.bytes

    def axes(self, mesh_shape: Mapping[str, int]) -> tuple[str, ...] | None:
        """The mesh axes it runs over, None when its groups are those of no set of axes."""
        if self.kind == "collective-permute":
            return permute_axes(self.groups, tuple(mesh_shape.values()), tuple(mesh_shape))
        return axes_of(self.groups, tuple(mesh_shape.values()), tuple(mesh_shape))


def read_collectives(hlo_text: str, *, num_devices: int) -> tuple[CompiledCollective, ...]:
    """The collectives of an optimized HLO text, in program order, loop bodies and called computations included.

    A start/done pair is one collective; TPU's `async_collective_fusion` copies of one are one; an `all-reduce-scatter`
    fusion is a reduce-scatter; those of every branch of a conditional are there. Collectives over groups of one device
    are left out.
    Parameters: `num_devices`, partitions of the program. Raises: ArgumentError when the text is not an HLO module.
    """
    module, found = parse_module(hlo_text), list[CompiledCollective]()
    echoes: list[CompiledCollective] = []

    def visit(
        computation: Computation,
        trips: float,
        known: bool,
        fused: str,
        caller: Instruction | None,
        windowed: bool = False,
    ) -> None:
        windowed = windowed or WINDOWED in computation.name
        echo = fused.startswith("async_collective_fusion") or _has_target(computation, "AsyncCollectiveDone")
        for instruction in computation.instructions:
            if kind_of(instruction):
                collective = describe_collectives(instruction, computation, module, num_devices)
                if collective is not None and not collective.op_name and caller is not None:
                    collective = replace(collective, op_name=_op_name(caller), sources=module.sources(caller))
                if collective is not None:
                    kind = "reduce-scatter" if "all-reduce-scatter" in fused else collective.kind
                    (echoes if echo else found).append(
                        replace(
                            collective,
                            kind=kind,
                            trip_count=round(trips) if known else None,
                            known_trips=round(trips),
                            windowed=windowed,
                        )
                    )
            match instruction.opcode:
                case "while":
                    count = trip_count_of(instruction, computation, module)
                    inner, clear = trips * (1 if count is None else count), known and count is not None
                    body = module.computations[instruction.attribute("body") or ""]
                    visit(body, inner, clear, fused, instruction, windowed)
                case "call" | "conditional" | "fusion" | "async-start" | "call-start":
                    for name in instruction.called:
                        inside = name if instruction.opcode == "fusion" else fused
                        visit(module.computations[name], trips, known, inside, instruction, windowed)
                case _:
                    pass

    visit(module.computations[module.entry], 1, True, "", None)
    # A copy inside an asynchronous fusion counts only where its start was not seen. It may stand in an inner loop, whose
    # passes the transfer goes on beside: of several copies the one that runs the least often is the transfer itself.
    seen = {(c.kind, c.channel_id, c.bytes) for c in found}
    for collective in sorted(echoes, key=lambda c: (c.trip_count is None, c.trip_count or 0)):
        key = (collective.kind, collective.channel_id, collective.bytes)
        if key not in seen:
            seen.add(key)
            found.append(collective)
    return tuple(found)


def _op_name(instruction: Instruction) -> str:
    match = re.search(r'op_name="([^"]*)"', instruction.attributes)
    return match[1] if match else ""


def _has_target(computation: Computation, target: str) -> bool:
    return any(i.opcode == "custom-call" and f'"{target}"' in i.attributes for i in computation.instructions)


def describe_collectives(
    instruction: Instruction, computation: Computation, module: Module, num_devices: int
) -> CompiledCollective | None:
    """The collective an instruction is, once per run of its computation; None when its groups have one device."""
    kind = kind_of(instruction) or instruction.opcode
    groups = groups_of(instruction, num_devices)
    size = chain_length(groups) if kind == "collective-permute" else max(map(len, groups), default=1)
    if size <= 1:
        return None
    sources = [computation.by_name[name] for name in instruction.operands if name in computation.by_name]
    if kind in ("ragged-all-to-all", "collective-permute"):
        # Beside the data these take offsets, or the buffer they write into.
        many = (
            kind == "collective-permute" and instruction.shape.startswith("(") and "slice" not in instruction.attributes
        )
        plain = not instruction.opcode.endswith("-start")
        sources = sources if many and plain and len(sources) > 1 else sources[:1]
    operand_bytes = sum(bytes_of(source.shape) for source in sources)
    moved = operand_bytes * (size if kind == "all-gather" else 1)
    if not instruction.opcode.endswith("-start"):
        moved = max(moved, bytes_of(instruction.shape))
    channel = instruction.attribute("channel_id")
    return CompiledCollective(
        kind=kind,
        bytes=moved,
        dtypes=tuple(dict.fromkeys(dtype for source in sources for dtype, _ in arrays_of(source.shape))),
        group_size=size,
        groups=groups,
        trip_count=1,
        known_trips=1,
        op_name=_op_name(instruction),
        sources=module.sources(instruction),
        channel_id=int(channel) if channel else None,
        promoted=promoted(instruction, computation, module),
        name=instruction.name,
    )


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
