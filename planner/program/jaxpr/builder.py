"""What is gathered while jaxprs are walked: ops, tensors, regions, ties and notes, and what of it is needed.

What a program computes twice from the same, compilers compute once: XLA merges equal ops on equal operands (common
subexpressions), such as the indices that every layer derives from one argument. Not what a gradient computes again to
save memory (`remat`): a barrier keeps that apart.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import jax.extend.core as jex_core
import numpy as np

from planner.program.graph import Aval, Body, Graph, Op, Path, Region, Tensor
from planner.program.jaxpr.bodies import REMATS
from planner.program.jaxpr.origins import Origin, lines_of, module_of
from planner.program.tracing.arguments import aval_of


@dataclass
class EqualValues:
    """By tensor the first one of its body that has the same value, where there is one before it; found while walking."""

    first: dict[int, int] = field(default_factory=dict[int, int])
    _known: dict[Hashable, tuple[int, ...]] = field(default_factory=dict[Hashable, tuple[int, ...]])
    _apart: int = 0
    _bodies: int = 0

    def enter(self, eqn: Any) -> int:
        """Enters the body of a call; returns what `leave` wants to know when it is left."""
        outside = self._apart
        params = eqn.params
        if eqn.primitive.name in REMATS and params.get("differentiated") and params.get("prevent_cse"):
            self._bodies += 1
            self._apart = self._bodies
        return outside

    def leave(self, outside: int) -> None:
        """Leaves the body of a call."""
        self._apart = outside

    def add(self, eqn: Any, operands: Sequence[int], results: Sequence[int], region: int) -> None:
        """Notes an op without a body of its own, whose results are these tensors."""
        if eqn.effects or eqn.primitive.name == "optimization_barrier":
            return
        values: list[Hashable] = [self.first.get(tensor, tensor) for tensor in operands]
        for i, atom in enumerate(eqn.invars):
            if isinstance(atom, jex_core.Literal):
                values[i] = atom.aval, np.asarray(atom.val).tobytes()
        key = (eqn.primitive, tuple(values), tuple(eqn.params.items()), region, self._apart)
        try:
            known = self._known.setdefault(key, tuple(results))
        except TypeError:  # a param that cannot be hashed
            return
        if known[:1] != tuple(results[:1]):
            self.first.update(zip(results, known, strict=True))


WhileTrips = float | Mapping[str, float]
NO_SOURCE = "(no source)"
_NOWHERE = Origin("", "", "", "")


@dataclass
class Builder:
    """Accumulates ops and tensors while a jaxpr is walked."""

    while_trips: WhileTrips
    tests: bool = False
    ops: list[Op] = field(default_factory=list[Op])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    regions: list[Region] = field(default_factory=list[Region])
    ties: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    notes: list[str] = field(default_factory=list[str])
    names: dict[str, int] = field(default_factory=dict[str, int])
    avals: dict[Any, Aval] = field(default_factory=dict[Any, Aval])
    modules: dict[tuple[str, Any], tuple[str, str]] = field(default_factory=dict[tuple[str, Any], tuple[str, str]])
    """By what the bodies around it are called, and the name stack."""
    literals: dict[Aval, int] = field(default_factory=dict[Aval, int])
    zeros: set[tuple[Path, int]] = field(default_factory=set[tuple[Path, int]])
    around: list[tuple[str, Origin]] = field(default_factory=lambda: [("", _NOWHERE)])
    """The name stacks and origins of the equations whose bodies are walked, from the outermost inwards."""
    equal: EqualValues = field(default_factory=EqualValues)
    graphs: dict[int, Graph] = field(default_factory=dict[int, Graph])
    """The graphs of bodies that are counted and not expanded, by the `id` of their jaxpr."""
    bodies: dict[Any, Body] = field(default_factory=dict[Any, Body])
    """The same with the axes along which they run, so that equations of one body share it."""

    def of_body(self) -> Builder:
        """The builder of a body that becomes a graph of its own: it shares what is known, and has its own ops."""
        return Builder(
            while_trips=self.while_trips,
            tests=self.tests,
            avals=self.avals,
            modules=self.modules,
            around=list(self.around),
            graphs=self.graphs,
            bodies=self.bodies,
        )

    def tensor(self, aval: Aval, producer: int | None, name: str, kind: Any) -> int:
        unique, number = self._unique(name), len(self.tensors)
        self.tensors.append(Tensor(number, aval, producer, unique, kind))
        return number

    def _unique(self, name: str) -> str:
        """A name that no tensor has: the name itself, or it with the next free number."""
        count, unique = self.names.get(name, 0) + 1, name
        if count > 1:
            while (unique := f"{name}#{count}") in self.names:
                count += 1
            self.names[unique] = 1
        self.names[name] = count
        return unique

    def literal(self, literal: Any) -> int:
        aval = self.aval(literal.aval)
        if aval.shape:
            return self.tensor(aval, None, "constant", "constant")
        if aval not in self.literals:
            self.literals[aval] = self.tensor(aval, None, f"literal {aval.dtype}", "constant")
        return self.literals[aval]

    def op(
        self,
        kind: str,
        operands: Sequence[int],
        avals: Sequence[Aval],
        region: int,
        path: Path,
        origin: Origin,
        params: Mapping[str, Any],
        primitive: Any = None,
        name: str | None = None,
        body: Body | None = None,
    ) -> list[int]:
        """The results of a new op, named after where it comes from unless they have a name."""
        number, own = len(self.ops), origin.named(kind)
        results = [self.tensor(aval, number, name or own, "intermediate") for aval in avals]
        made, read = tuple(results), tuple(operands)
        lines = (origin.source, origin.line)
        self.ops.append(Op(number, kind, read, made, params, primitive, region, path, own, *lines, body))
        return results

    def region(
        self,
        parent: int,
        kind: str,
        length: float,
        source: str,
        *,
        known: bool = True,
        copies: int = 1,
        reverse: bool = False,
    ) -> int:
        outside = self.regions[parent]
        self.regions.append(
            Region(
                id=len(self.regions),
                parent=parent,
                kind=kind,
                trips=outside.trips * length,
                length=length,
                source=source,
                assumed=outside.assumed * (1.0 if known else length),
                copies=copies,
                reverse=reverse,
            )
        )
        return len(self.regions) - 1

    def aval(self, value: Any) -> Aval:
        found = self.avals.get(value)
        if found is None:
            found = self.avals[value] = aval_of(value)
        return found

    def origin(self, eqn: Any) -> Origin:
        """Where an equation comes from: from where the body around it does, as far as it does not say so itself."""
        info, (stack, around) = eqn.source_info, self.around[-1]
        key = (stack, info.name_stack)
        module = self.modules.get(key)
        if module is None:
            module = self.modules[key] = module_of(f"{stack}/{info.name_stack}")
        source, line = lines_of(info)
        return Origin(*module, source or around.source or line or NO_SOURCE, line or around.line)

    @contextmanager
    def inside(self, eqn: Any) -> Generator[None]:
        """While the bodies of an equation are walked."""
        self.around.append((f"{self.around[-1][0]}/{eqn.source_info.name_stack}", self.origin(eqn)))
        yield
        self.around.pop()


def live(b: Builder, outputs: Sequence[int]) -> tuple[tuple[Op, ...], tuple[Tensor, ...], tuple[tuple[int, int], ...]]:
    """The ops whose results reach an output (or that have an effect), numbered; XLA drops the rest as well."""
    keep, needed = _needed(b, outputs)
    numbers: dict[int | None, int] = {made: number for number, made in enumerate(compress(range(len(keep)), keep))}
    ops, tensors = tuple(b.ops), tuple(b.tensors)
    if len(numbers) < len(ops):
        ops = tuple([op._replace(id=number) for number, op in enumerate(compress(ops, keep))])
        tensors = tuple([t if t.producer is None else t._replace(producer=numbers.get(t.producer)) for t in tensors])
    return ops, tensors, tuple((i, o) for i, o in b.ties if needed[i] and needed[o])


def _needed(b: Builder, outputs: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Which ops reach an output or have an effect, and which tensors they and the outputs need."""
    keep, needed = [False] * len(b.ops), [False] * len(b.tensors)
    for tensor in outputs:
        needed[tensor] = True
    left = range(len(b.ops) - 1, -1, -1)
    while left:
        idle: list[int] = []
        for number in left:
            op = b.ops[number]
            if not op.results or op.kind in _EFFECTS or any(map(needed.__getitem__, op.results)):
                keep[number] = True
                for tensor in op.operands:
                    needed[tensor] = True
            else:
                idle.append(number)
        left = idle if _need_through_ties(b, needed) else ()
    return keep, needed


def _need_through_ties(b: Builder, needed: list[bool]) -> bool:
    """Whether the other end of a tie is needed as well now."""
    changed = False
    for inside, outside in b.ties:
        if needed[inside] and not needed[outside]:
            needed[outside] = changed = True
        if needed[outside] and not needed[inside] and _is_carried(b, inside):
            needed[inside] = changed = True
    return changed


def _is_carried(b: Builder, tensor: int) -> bool:
    """Whether a tensor is the carry in a loop, which takes its initial value even where no pass reads it.

    Of a loop of one pass XLA leaves the body alone.
    """
    producer = b.tensors[tensor].producer
    op = b.ops[producer] if producer is not None else None
    return op is not None and op.kind == "loop_carry_in" and b.regions[op.region].length != 1


_EFFECTS = frozenset(("debug_callback", "io_callback", "debug_print", "check", "swap", "addupdate", "ref_set"))
