"""Modules of HLO text: computations, instructions, and the types of their results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

from planner.errors import ArgumentError

COLLECTIVE_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)

_BITS = {"pred": 8, "token": 0, "opaque": 0, "c64": 64, "c128": 128, "bf16": 16}
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<= ]*)\]")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_END = re.compile(r"\}(, execution_thread=.*)?\s*$")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
OPCODE = re.compile(r"([a-z][\w\-]*)\(")
CALLED = re.compile(
    r"(?:calls=|to_apply=|body=|condition=|true_computation=|false_computation=|called_computations=\{)%?([\w.\-]+)"
)
LAYOUT_OPCODES = ("copy", "bitcast", "transpose", "reshape", "slice", "dynamic-slice", "broadcast", "copy-done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One line of HLO. `shape` and `attributes` are text; `operands` are names, for a constant its literal."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    root: bool

    def attribute(self, key: str) -> str | None:
        """The text of a name- or number-valued attribute, without its `%`; None when it is absent."""
        match = re.search(rf"\b{key}=%?([\w.\-]+)", self.attributes)
        return match[1] if match else None

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations this instruction refers to."""
        names = CALLED.findall(self.attributes)
        branches = re.search(r"branch_computations=\{([^}]*)\}", self.attributes)
        return (*names, *re.findall(r"[\w.\-]+", branches[1] if branches else ""))


@dataclass(frozen=True, kw_only=True)
class Computation:
    """The instructions of one computation, in the order printed (the schedule, where the module is scheduled)."""

    name: str
    instructions: tuple[Instruction, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """The instructions by their names."""
        return {i.name: i for i in self.instructions}

    @cached_property
    def root(self) -> Instruction:
        """The instruction whose value the computation returns."""
        return next((i for i in self.instructions if i.root), self.instructions[-1])

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Instruction, ...]]:
        """For each name, the instructions that read it."""
        readers: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            for name in dict.fromkeys(instruction.operands):
                readers.setdefault(name, []).append(instruction)
        return {name: tuple(users) for name, users in readers.items()}

    @cached_property
    def parameters(self) -> Mapping[int, str]:
        """Names of the parameters by position."""
        return {int(i.operands[0]): i.name for i in self.instructions if i.opcode == "parameter"}


@dataclass(frozen=True, kw_only=True)
class Module:
    """A parsed HLO module: its computations by name, the entry's name, and the lines of each stack frame."""

    entry: str
    computations: Mapping[str, Computation]
    frames: Mapping[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    """By number: its "file:line", and the number of the frame that called it (0 where none did)."""

    def sources(self, instruction: Instruction) -> tuple[str, ...]:
        """The "file:line" an instruction came from outside of JAX, and those of what called it, innermost first."""
        return self.sources_in(instruction.attributes)

    def sources_in(self, attributes: str) -> tuple[str, ...]:
        """The same of an instruction's attributes, as its text or a compiler's message tells them."""
        match = re.search(r'source_file="([^"]*)"(?: source_line=(\d+))?', attributes)
        if match:
            return (f"{match[1]}:{match[2]}" if match[2] else match[1],)
        match = re.search(r"stack_frame_id=(\d+)", attributes)
        found: list[str] = []
        number = int(match[1]) if match else 0
        while number in self.frames and len(found) < len(self.frames):
            line, number = self.frames[number]
            found.append(line)
        return tuple(found)


def parse_module(text: str) -> Module:
    """The computations of an HLO text.

    Raises: ArgumentError when the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry = name = ""
    body: list[Instruction] | None = None
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] = {}
    for line in _whole_lines(text):
        if body is not None:
            if _END.match(line):
                computations[name] = Computation(name=name, instructions=_with_elements(body))
                body = None
            elif match := _INSTRUCTION.match(line):
                body.append(_parse_instruction(match[2], match[3], root=bool(match[1])))
            elif body and line.strip():
                # The metadata of a Pallas kernel goes on over lines, some of which begin with a brace.
                body[-1] = replace(body[-1], attributes=body[-1].attributes + line)
        elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            table = tables.setdefault(line, {})
        elif line[:1].isdigit():
            number, _, rest = line.partition(" ")
            table[int(number)] = rest
        elif not line.startswith("HloModule") and (match := _COMPUTATION.match(line)):
            name, body = match[2], []
            entry = name if match[1] else entry
    if not entry:
        raise ArgumentError(f"no ENTRY computation in the HLO text {text[:60]!r}; pass `compiled.as_text()` whole")
    return Module(entry=entry, computations=_with_calls(computations), frames=_frames(tables))


def _with_calls(computations: Mapping[str, Computation]) -> dict[str, Computation]:
    """The computations, in which a custom call that is made for a collective is a call of its computation.

    libtpu 0.0.52 writes collectives of SparseCores so.
    """
    sending = {name for name, one in computations.items() if any(map(kind_of, one.instructions))}

    def call(instruction: Instruction) -> Instruction:
        custom = instruction.opcode in ("custom-call", "custom-call-start")
        if not custom or sending.isdisjoint(instruction.called):
            return instruction
        return replace(instruction, opcode=instruction.opcode.removeprefix("custom-"))

    return {name: replace(one, instructions=tuple(map(call, one.instructions))) for name, one in computations.items()}


def _whole_lines(text: str) -> Iterator[str]:
    """The lines of an HLO text; an instruction whose attributes are broken into several lines is one.

    The metadata of a Pallas kernel is JSON on lines of its own: `...kernel_metadata={`, the JSON, `}}, metadata=...`.
    """
    unfinished = ""
    for line in text.splitlines():
        if unfinished:
            unfinished += line
            if not line.startswith("}") or line.endswith("={"):
                continue
            line, unfinished = unfinished, ""
        elif line.endswith("={") and line.startswith(" "):
            unfinished = line
            continue
        yield line


def _parse_instruction(name: str, rest: str, *, root: bool) -> Instruction:
    if rest.startswith("("):
        end = closing(rest, 0) + 1
    else:
        end = rest.index(" ")
    shape, rest = rest[:end], rest[end + 1 :]
    match = OPCODE.match(rest)
    if match is None:
        return Instruction(name=name, shape=shape, opcode="", operands=(), attributes=rest, root=root)
    opcode, start = match[1], match.end() - 1
    end = closing(rest, start)
    inner = rest[start + 1 : end]
    if opcode in ("constant", "parameter", "iota"):
        operands = (inner,)
    else:
        operands = tuple(re.findall(r"%([\w.\-]+(?:#\d+)*)", inner)) or tuple(
            part.split()[-1] for part in inner.split(", ") if part and not part.startswith("/*")
        )
    return Instruction(name=name, shape=shape, opcode=opcode, operands=operands, attributes=rest[end + 1 :], root=root)


def _with_elements(body: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The instructions of a computation, elements of tuples taken by instructions of their own, before they are read.

    libtpu 0.0.50 writes `%tuple#1` among the operands where its predecessors have a `get-tuple-element` with index 1.
    """
    if not any("#" in operand for instruction in body for operand in instruction.operands):
        return tuple(body)
    shapes: dict[str, str] = {}
    found: list[Instruction] = []
    for instruction in body:
        for operand in instruction.operands if instruction.opcode != "constant" else ():
            whole, *path = operand.split("#")
            for index in path:
                element = f"{whole}#{index}"
                if element not in shapes:
                    parts = elements_of(shapes.get(whole, ""))
                    if int(index) >= len(parts):
                        raise ArgumentError(
                            f"{operand} is an element of no tuple of the HLO text, {whole} is {shapes.get(whole)!r}; "
                            "report it"
                        )
                    shapes[element] = parts[int(index)]
                    found.append(
                        Instruction(
                            name=element,
                            shape=shapes[element],
                            opcode="get-tuple-element",
                            operands=(whole,),
                            attributes=f", index={index}",
                            root=False,
                        )
                    )
                whole = element
        shapes[instruction.name] = instruction.shape
        found.append(instruction)
    return tuple(found)


def elements_of(shape: str) -> tuple[str, ...]:
    """The texts of the elements of a tuple's shape; none for an array's."""
    if not shape.startswith("("):
        return ()
    parts: list[str] = []
    depth, start = 0, 1
    for position, character in enumerate(shape):
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or depth == 0:
            parts.append(re.sub(r"/\*.*?\*/", "", shape[start:position]).strip())
            start = position + 1
        if depth == 0:
            break
    return tuple(part for part in parts if part)


def closing(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)


def _frames(tables: Mapping[str, Mapping[int, str]]) -> dict[int, tuple[str, int]]:
    files = {number: rest.strip('"') for number, rest in tables.get("FileNames", {}).items()}
    lines: dict[int, str] = {}
    for number, rest in tables.get("FileLocations", {}).items():
        entry = dict(re.findall(r"(\w+)=(\d+)", rest))
        lines[number] = f"{files.get(int(entry['file_name_id']), '')}:{entry.get('line', '0')}"
    frames = {
        number: {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", rest)}
        for number, rest in tables.get("StackFrames", {}).items()
    }
    # Callers are numbered from 1 on where outermost frames have none, 0, but from 2 on where they have 1.
    none = min((frame["parent_frame_id"] for frame in frames.values()), default=0)
    return {
        number: (lines.get(frame["file_location_id"], ""), frame["parent_frame_id"] - none)
        for number, frame in frames.items()
    }


def arrays_of(shape: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The (element type, dims) of every array in the text of a shape, tuples flattened."""
    for dtype, dims in _SHAPE.findall(shape):
        yield dtype, tuple(int(d.strip("<= ")) for d in dims.split(",") if d.strip())


def bytes_of(shape: str) -> float:
    """Bytes of all arrays in the text of a shape, without padding; tokens are 0, 4-bit types half a byte."""
    return sum(element_bits(dtype) * prod(dims) for dtype, dims in arrays_of(shape)) / 8


@lru_cache(maxsize=256)
def element_bits(dtype: str) -> int:
    """Bits of one element of an HLO type (`f8e4m3fn` is 8, `s4` is 4, `pred` is stored as 8)."""
    if dtype in _BITS:
        return _BITS[dtype]
    match = re.match(r"[a-z](\d+)", dtype)
    return int(match[1]) if match else 0


def kind_of(instruction: Instruction) -> str | None:
    """The kind of collective an instruction starts, or None; a `-done` starts nothing."""
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in COLLECTIVE_KINDS else None
