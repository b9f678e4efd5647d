"""The collectives and the memory of a compiled program, read from XLA's optimized HLO text.

The text is that of `compiled.as_text()` or of an `xla_dump_to` file, for CPU, GPU or TPU. Its grammar is not documented
by XLA; what is relied on here is: one instruction per line (`%name = shape opcode(operands), attributes`), computations
opened by a line that ends in `{` and closed by `}`, and these attributes: `replica_groups`, `source_target_pairs`,
`channel_id`, `calls`, `to_apply`, `body`, `condition`, `branch_computations`, `metadata`, `backend_config`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from math import prod
from typing import Any

import numpy as np

from planner.errors import ArgumentError

Groups = tuple[tuple[int, ...], ...]
"""Groups of partition ids that communicate; for a permute, its (source, target) pairs."""

KINDS = (
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
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_OPCODE = re.compile(r"([a-z][\w\-]*)\(")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_LAYOUT_OPCODES = ("copy", "bitcast", "transpose", "reshape", "slice", "dynamic-slice", "broadcast", "copy-done")


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
        names = _CALLED.findall(self.attributes)
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
    frames: Mapping[int, str] = field(default_factory=dict[int, str])

    def source(self, instruction: Instruction) -> str:
        """The user's "file:line" an instruction came from, or ""."""
        match = re.search(r'source_file="([^"]*)"(?: source_line=(\d+))?', instruction.attributes)
        if match:
            return f"{match[1]}:{match[2]}" if match[2] else match[1]
        match = re.search(r"stack_frame_id=(\d+)", instruction.attributes)
        return self.frames.get(int(match[1]), "") if match else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCollective:
    """One collective of a compiled program, as one device sees it.

    `bytes` is the larger of its local operand and result, once; `trip_count` how often it runs per call (None where a
    loop around it has no bound that can be read) and `known_trips` the same with such loops counted as one pass;
    `promoted` whether the compiler moves a wider type than the program asked for (XLA's CPU backend computes bfloat16
    in float32). `groups` of a permute are its pairs and its `group_size` is the length of its longest chain.
    """

    kind: str
    bytes: float
    dtypes: tuple[str, ...]
    group_size: int
    groups: Groups
    trip_count: int | None
    known_trips: int
    op_name: str
    source: str
    channel_id: int | None
    promoted: bool
    name: str

    @property
    def logical_bytes(self) -> float:
        """Bytes in the type the program asked for: half of `bytes` where the compiler promoted it."""
        return self.bytes / 2 if self.promoted else self.bytes

    def axes(self, mesh_shape: Mapping[str, int]) -> tuple[str, ...] | None:
        """The mesh axes it runs over, None when its groups are those of no set of axes."""
        if self.kind == "collective-permute":
            return permute_axes(self.groups, tuple(mesh_shape.values()), tuple(mesh_shape))
        return axes_of(self.groups, tuple(mesh_shape.values()), tuple(mesh_shape))


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


# ---------------------------------------------------------------------------------------------------------- the text


def parse_module(text: str) -> Module:
    """The computations of an HLO text.

    Raises: ArgumentError when the text has no entry computation.
    """
    computations: dict[str, Computation] = {}
    entry = name = ""
    body: list[Instruction] | None = None
    tables: dict[str, dict[int, str]] = {}
    table: dict[int, str] = {}
    for line in text.splitlines():
        if body is not None:
            if line.startswith("}"):
                computations[name] = Computation(name=name, instructions=tuple(body))
                body = None
            elif match := _INSTRUCTION.match(line):
                body.append(_parse_instruction(match[2], match[3], root=bool(match[1])))
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
    return Module(entry=entry, computations=computations, frames=_frames(tables))


def _parse_instruction(name: str, rest: str, *, root: bool) -> Instruction:
    if rest.startswith("("):
        end = _closing(rest, 0) + 1
    else:
        end = rest.index(" ")
    shape, rest = rest[:end], rest[end + 1 :]
    match = _OPCODE.match(rest)
    if match is None:
        return Instruction(name=name, shape=shape, opcode="", operands=(), attributes=rest, root=root)
    opcode, start = match[1], match.end() - 1
    end = _closing(rest, start)
    inner = rest[start + 1 : end]
    if opcode in ("constant", "parameter", "iota"):
        operands = (inner,)
    else:
        operands = tuple(re.findall(r"%([\w.\-]+)", inner)) or tuple(
            part.split()[-1] for part in inner.split(", ") if part and not part.startswith("/*")
        )
    return Instruction(name=name, shape=shape, opcode=opcode, operands=operands, attributes=rest[end + 1 :], root=root)


def _closing(text: str, start: int) -> int:
    depth = 0
    for match in re.compile(r"[()]").finditer(text, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(text)


def _frames(tables: Mapping[str, Mapping[int, str]]) -> dict[int, str]:
    files = {number: rest.strip('"') for number, rest in tables.get("FileNames", {}).items()}
    lines: dict[int, str] = {}
    for number, rest in tables.get("FileLocations", {}).items():
        entry = dict(re.findall(r"(\w+)=(\d+)", rest))
        lines[number] = f"{files.get(int(entry['file_name_id']), '')}:{entry.get('line', '0')}"
    locations: dict[int, str] = {}
    for number, rest in tables.get("StackFrames", {}).items():
        locations[number] = lines.get(int(re.findall(r"file_location_id=(\d+)", rest)[0]), "")
    return locations


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


# -------------------------------------------------------------------------------------------------------- the groups


def groups_of(instruction: Instruction, num_devices: int) -> Groups:
    """The groups of partitions of a collective instruction, from any of XLA's syntaxes, for one replica.

    Known are `{{0,1},{2,3}}`, `{}` (all), `[2,4]<=[4,2]T(1,0)` (iota) and `mesh['a'=4,'b'=2] {'a'}` (named axes).
    Raises: ArgumentError for another syntax.
    """
    attributes = instruction.attributes
    pairs = re.search(r"source_target_pairs=(\{\{.*?\}\}|\{\})", attributes)
    if pairs:
        return _groups(pairs[1], num_devices)
    match = re.search(
        r"replica_groups=(\{\{.*?\}\}|\{\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?"
        r"|mesh\[[^\]]*\](?:, device_ids=\([^{]*\))? *\{[^}]*\})",
        attributes,
    )
    if match is None:
        if "replica_groups=" in attributes:
            start = attributes.index("replica_groups=")
            raise ArgumentError(f"unknown syntax of replica groups, got {attributes[start : start + 80]!r}; report it")
        return (tuple(range(num_devices)),)
    groups = _groups(match[1], num_devices)
    base = instruction.opcode.removesuffix("-start").removesuffix("-done")
    over_partitions = base in ("all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast")
    channel = instruction.attribute("channel_id") is not None
    if channel and not over_partitions and "use_global_device_ids=true" not in attributes and groups:
        # Groups then name replicas, of which there is one: every partition takes part.
        return (tuple(range(num_devices)),)
    return groups


@lru_cache(maxsize=1024)
def _groups(text: str, num_devices: int) -> Groups:
    if text == "{}":
        return (tuple(range(num_devices)),)
    if text.startswith("{"):
        return tuple(tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", text))
    if text.startswith("["):
        shape, _, source = text.partition("<=")
        return _rows(_iota(source).reshape(_ints(shape)))
    match = re.match(r"mesh\[([^\]]*)\](?:, device_ids=\((.*)\))? *\{([^}]*)\}", text)
    if match is None:
        raise ArgumentError(f"unknown syntax of replica groups, got {text[:80]!r}; report it")
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
    devices = np.arange(num_devices)
    if match[2]:
        devices = _iota(match[2]) if match[2].startswith("[") else np.array(_ints(match[2]))
    wanted = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", match[3])
    ]
    # Each mesh axis is cut where a wanted part of it begins and ends.
    dims: list[int] = []
    chosen: dict[tuple[str, int], int] = {}
    for name, size in sizes.items():
        cuts = sorted({1, size, *(c for n, b, s in wanted if n == name for c in (b, b * s))})
        for low, high in pairwise(cuts):
            chosen[(name, low)] = len(dims)
            dims.append(high // low)
    last = [
        position
        for name, before, size in wanted
        for (axis, low), position in chosen.items()
        if axis == name and before <= low < before * size
    ]
    first = [d for d in range(len(dims)) if d not in last]
    return _rows(devices.reshape(dims).transpose(first + last).reshape(-1, prod(dims[d] for d in last)))


def _ints(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", text)]


def _iota(text: str) -> np.ndarray[Any, Any]:
    dims, _, order = text.partition("T")
    array = np.arange(prod(_ints(dims))).reshape(_ints(dims))
    return (array.transpose(_ints(order)) if order else array).reshape(-1)


def _rows(array: np.ndarray[Any, Any]) -> Groups:
    return tuple(tuple(map(int, row)) for row in array.tolist())


@lru_cache(maxsize=1024)
def axes_of(groups: Groups, mesh_shape: tuple[int, ...], axis_names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The mesh axes whose devices the groups bring together, in mesh order; None when it is no set of axes.

    Partition ids number the mesh in row-major order. Axes of size 1 are never part of the answer. The order of devices
    inside a group is ignored.
    """
    found = frozenset(map(frozenset, groups))
    size = len(groups[0]) if groups else 1
    axes = [a for a, extent in enumerate(mesh_shape) if extent > 1]
    devices = np.arange(prod(mesh_shape)).reshape(mesh_shape)
    for count in range(len(axes) + 1):
        for subset in combinations(axes, count):
            if prod(mesh_shape[a] for a in subset) != size:
                continue
            order = [a for a in range(len(mesh_shape)) if a not in subset] + list(subset)
            if frozenset(map(frozenset, devices.transpose(order).reshape(-1, size).tolist())) == found:
                return tuple(axis_names[a] for a in subset)
    return None


@lru_cache(maxsize=1024)
def permute_axes(pairs: Groups, mesh_shape: tuple[int, ...], axis_names: tuple[str, ...]) -> tuple[str, ...]:
    """The mesh axes along which some (source, target) pair differs, in mesh order."""
    if not pairs:
        return ()
    source, target = (np.stack(np.unravel_index([p[side] for p in pairs], mesh_shape)) for side in (0, 1))
    return tuple(name for name, moved in zip(axis_names, (source != target).any(axis=1), strict=True) if moved)


def _chain_length(pairs: Groups) -> int:
    following = {source: target for source, target in pairs if source != target}
    longest, seen = 1, set[int]()
    starts = [s for s in following if s not in set(following.values())] + list(following)
    for start in starts:
        length, device = 1, start
        while device in following and device not in seen:
            seen.add(device)
            device = following[device]
            length += device != start
        longest = max(longest, length)
    return longest


# ---------------------------------------------------------------------------------------------------------- the loops


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


# ---------------------------------------------------------------------------------------------------- the collectives


def read_collectives(hlo_text: str, *, num_devices: int) -> tuple[CompiledCollective, ...]:
    """The collectives of an optimized HLO text, in program order, loop bodies and called computations included.

    A start/done pair is one collective; TPU's `async_collective_fusion` copies of one are one; an `all-reduce-scatter`
    fusion is a reduce-scatter; those of every branch of a conditional are there. Collectives over groups of one device
    are left out.
    Parameters: `num_devices`, partitions of the program. Raises: ArgumentError when the text is not an HLO module.
    """
    return collectives_of(parse_module(hlo_text), num_devices=num_devices)


def collectives_of(module: Module, *, num_devices: int) -> tuple[CompiledCollective, ...]:
    """The same of a parsed module."""
    found: list[CompiledCollective] = []
    echoes: list[CompiledCollective] = []

    def visit(computation: Computation, trips: int, known: bool, fused: str, caller: Instruction | None) -> None:
        echo = fused.startswith("async_collective_fusion") or _has_target(computation, "AsyncCollectiveDone")
        for instruction in computation.instructions:
            if kind_of(instruction):
                collective = describe(instruction, computation, module, num_devices)
                if collective is not None and not collective.op_name and caller is not None:
                    collective = replace(collective, op_name=_op_name(caller), source=module.source(caller))
                if collective is not None:
                    kind = "reduce-scatter" if "all-reduce-scatter" in fused else collective.kind
                    (echoes if echo else found).append(
                        replace(collective, kind=kind, trip_count=trips if known else None, known_trips=trips)
                    )
            match instruction.opcode:
                case "while":
                    count = trip_count_of(instruction, computation, module)
                    inner, clear = trips * (1 if count is None else count), known and count is not None
                    visit(module.computations[instruction.attribute("body") or ""], inner, clear, fused, instruction)
                case "call" | "conditional" | "fusion" | "async-start" | "call-start":
                    for name in instruction.called:
                        inside = name if instruction.opcode == "fusion" else fused
                        visit(module.computations[name], trips, known, inside, instruction)
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


def kind_of(instruction: Instruction) -> str | None:
    """The kind of collective an instruction starts, or None; a `-done` starts nothing."""
    kind = instruction.opcode.removesuffix("-start")
    return kind if kind in KINDS else None


def describe(
    instruction: Instruction, computation: Computation, module: Module, num_devices: int
) -> CompiledCollective | None:
    """The collective an instruction is, once per run of its computation; None when its groups have one device."""
    kind = kind_of(instruction) or instruction.opcode
    groups = groups_of(instruction, num_devices)
    size = _chain_length(groups) if kind == "collective-permute" else max(map(len, groups), default=1)
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
        source=module.source(instruction),
        channel_id=int(channel) if channel else None,
        promoted=_promoted(instruction, computation, module),
        name=instruction.name,
    )


# ------------------------------------------------------------------------------------------------- promoted to float32


def _promoted(instruction: Instruction, computation: Computation, module: Module, depth: int = 0) -> bool:
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
    if instruction.opcode in _LAYOUT_OPCODES:
        return _widened(instruction.operands[0], computation, module, depth + 1)
    if instruction.opcode == "fusion":
        callee = module.computations[instruction.called[0]]
        return _widened(callee.root.name, callee, module, depth + 1)
    return kind_of(instruction) is not None and _promoted(instruction, computation, module, depth + 1)


def _narrowed(name: str, computation: Computation, module: Module, depth: int) -> bool:
    users = computation.consumers.get(name, ())
    if not users or depth > 16 or computation.by_name[name].root:
        return False
    for user in users:
        if user.opcode == "convert":
            narrow = user.shape.startswith(("bf16[", "f16["))
        elif user.opcode in (*_LAYOUT_OPCODES, "get-tuple-element"):
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
