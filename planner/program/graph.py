"""The op graph: flat, in program order, each op knowing its region, trip count and source line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

Path = tuple[int | str, ...]
"""Where an equation stands: equation indices alternating with names of sub-programs, from the outermost inwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aval:
    """Shape and element type of an array; `itemsize` in bytes of a device's memory.

    That is 0 for values that occupy nothing there, such as tokens and arrays in the memory of the host, which take
    `host_itemsize` bytes there.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: float
    host_itemsize: float = 0.0
    size: int = field(init=False, repr=False, compare=False)
    """Number of elements."""
    bytes: float = field(init=False, repr=False, compare=False)
    """Bytes of the whole array."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", math.prod(self.shape))
        object.__setattr__(self, "bytes", self.size * self.itemsize)

    @property
    def host_bytes(self) -> float:
        """Bytes of the whole array in the memory of hosts."""
        return self.size * self.host_itemsize


SHORT_DTYPES = {"bfloat16": "bf16", "float": "f", "uint": "u", "int": "i", "complex": "c"}
"""Prefixes of dtypes and how jaxprs print them."""


def type_text(aval: Aval) -> str:
    """A type as jaxprs print it: `f32[4, 64]`."""
    dtype = aval.dtype
    for prefix, short in SHORT_DTYPES.items():
        if dtype.startswith(prefix):
            dtype = short + dtype[len(prefix) :]
            break
    return f"{dtype}{list(aval.shape)}"


class Tensor(NamedTuple):
    """One array of the program. `producer` is an op id, or None for arguments and constants."""

    id: int
    aval: Aval
    producer: int | None
    name: str
    kind: Literal["argument", "constant", "intermediate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A body of a loop or branch. `trips` is the product of the lengths of the loops around it, its own included.

    `assumed` is the part of that product that nothing says: the lengths of loops that end when some value does. `copies`
    is how often a body stands in the compiled program: more than once in an unrolled loop. `reverse`: a scan goes through
    its slices and its stacks from the last to the first, as those of backward passes do.
    """

    id: int
    parent: int | None
    kind: str
    trips: float
    length: float
    source: str
    assumed: float = 1.0
    copies: int = 1
    reverse: bool = False

    def per_run(self, total: float) -> float:
        """What one run takes of what all runs of a call take together; nothing where there is none."""
        return total / self.trips if self.trips else 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """What one op computes, as a graph of its own; equal only to itself, so that equations of one body share it.

    `axes` are the mesh axes, with their sizes, along which every device runs the body on its own parts, of the shapes that
    the graph has (a `shard_map`); None for a body of whole arrays (a `custom_partitioning`).
    """

    graph: Graph
    axes: Mapping[str, int] | None

    @property
    def devices(self) -> int:
        """How many devices run it side by side, each on its own parts; 1 where its arrays are whole."""
        return math.prod((self.axes or {}).values())


class Op(NamedTuple):
    """One equation, or one boundary crossing of a region (kinds `loop_*`, `branch_*`, see `trace`).

    `params` and `primitive` are those of a leaf, which can be lowered alone with them; boundary ops have params of their
    own and no primitive. `path` names the equation for emission. `name` says where it comes from, by its module where it
    has one: `MLP/Dense_0/dot_general`, several ops may have it. `source` is the user's own line of code, `line` that of the
    innermost code outside of JAX, by which compilers know it. `body` is what a `shard_map` or the like computes, for its
    work to be counted: the op stays one op.
    """

    id: int
    kind: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    params: Mapping[str, Any]
    primitive: Any
    region: int
    path: Path
    name: str
    source: str
    line: str
    body: Body | None = None

    @property
    def lines(self) -> tuple[str, str]:
        """The user's own line of code, and that by which compilers know it."""
        return self.source, self.line


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Ops in program order over tensors.

    `inputs`/`outputs` are tensor ids of the flattened arguments and results; `ties` are pairs of tensors that must have
    one spec (loop carries, branch results); `aliases` maps an output position to the donated input position it reuses;
    `feeds` maps an output position to the input position it would be fed back to by the next call; `kept` are the input
    positions that stay arguments of the compiled program; `equal` maps a tensor to the first one in its body that is
    computed alike from the same; `zeros` are the places, (path of an op, position of an operand), where a zero of the
    program's own is broadcast.
    """

    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    regions: tuple[Region, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    output_names: tuple[str, ...]
    ties: tuple[tuple[int, int], ...]
    aliases: Mapping[int, int]
    feeds: Mapping[int, int]
    kept: frozenset[int]
    equal: Mapping[int, int] = field(default_factory=dict[int, int])
    zeros: frozenset[tuple[Path, int]] = frozenset()
    notes: tuple[str, ...] = ()

    @cached_property
    def taken(self) -> frozenset[int]:
        """The tensors that are arguments."""
        return frozenset(self.inputs)

    @cached_property
    def returned(self) -> frozenset[int]:
        """The tensors that are results."""
        return frozenset(self.outputs)

    def avals(self, tensors: Sequence[int]) -> tuple[Aval, ...]:
        """The avals of some tensors."""
        return tuple([self.tensors[tensor].aval for tensor in tensors])

    def maker(self, tensor: int) -> Op | None:
        """The op that makes a tensor; None for arguments and constants."""
        producer = self.tensors[tensor].producer
        return None if producer is None else self.ops[producer]

    def readers(self, tensor: int) -> list[Op]:
        """The ops that read a tensor, in program order, one for every position at which it is read."""
        return [self.ops[reader] for reader, _ in self.consumers[tensor]]

    @cached_property
    def aval_numbers(self) -> tuple[int, ...]:
        """For each tensor the number of its aval, the same for equal ones."""
        numbers: dict[Aval, int] = {}
        by_identity: dict[int, int] = {}
        for tensor in self.tensors:
            if id(tensor.aval) not in by_identity:
                by_identity[id(tensor.aval)] = numbers.setdefault(tensor.aval, len(numbers))
        return tuple([by_identity[id(tensor.aval)] for tensor in self.tensors])

    @cached_property
    def by_kind(self) -> Mapping[str, tuple[Op, ...]]:
        """The ops of every kind there is, in program order."""
        found: dict[str, list[Op]] = {}
        for op in self.ops:
            found.setdefault(op.kind, []).append(op)
        return {kind: tuple(ops) for kind, ops in found.items()}

    def of_kinds(self, kinds: Iterable[str]) -> list[Op]:
        """The ops of these kinds, in program order."""
        return sorted([op for kind in kinds for op in self.by_kind.get(kind, ())], key=lambda op: op.id)

    @cached_property
    def consumers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each tensor, the (op id, operand position) pairs that read it, in program order."""
        readers: list[list[tuple[int, int]]] = [[] for _ in self.tensors]
        for op in self.ops:
            for position, tensor in enumerate(op.operands):
                if tensor >= 0:
                    readers[tensor].append((op.id, position))
        return tuple(map(tuple, readers))
