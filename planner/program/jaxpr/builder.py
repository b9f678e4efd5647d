"""What is gathered while jaxprs are walked: ops, tensors, regions, ties and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.source_info_util as source_info_util

from planner.program.arguments import aval_of
from planner.program.graph import Aval, Op, Path, Region, Tensor
from planner.program.jaxpr.equal_values import EqualValues

WhileTrips = float | Mapping[str, float]


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
    sources: dict[Any, str] = field(default_factory=dict[Any, str])
    """By traceback: equal for all layers that one line of a Python loop writes out."""
    literals: dict[Aval, int] = field(default_factory=dict[Aval, int])
    zeros: set[tuple[Path, int]] = field(default_factory=set[tuple[Path, int]])
    calls: list[str] = field(default_factory=lambda: ["(no source)"])
    equal: EqualValues = field(default_factory=EqualValues)

    def tensor(self, aval: Aval, producer: int | None, name: str, kind: Any) -> int:
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        unique = name if count == 0 else f"{name}#{count + 1}"
        number = len(self.tensors)
        self.tensors.append(Tensor(number, aval, producer, unique, kind))
        return number

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
        source: str,
        params: Mapping[str, Any],
        primitive: Any = None,
        name: str | None = None,
    ) -> list[int]:
        """The results of a new op, named after its source line where it has no name."""
        number, name = len(self.ops), name or f"{source} {kind}"
        results = [self.tensor(aval, number, name, "intermediate") for aval in avals]
        self.ops.append(Op(number, kind, tuple(operands), tuple(results), params, primitive, region, path, source))
        return results

    def region(self, parent: int, kind: str, length: float, source: str, *, known: bool = True, copies: int = 1) -> int:
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
            )
        )
        return len(self.regions) - 1

    def aval(self, value: Any) -> Aval:
        found = self.avals.get(value)
        if found is None:
            found = self.avals[value] = aval_of(value)
        return found

    def source(self, eqn: Any) -> str:
        """`file:line` of the user's code that made the equation; that of the enclosing call where it has none."""
        traceback = eqn.source_info.traceback
        found = self.sources.get(traceback)
        if found is None:
            found = self.sources[traceback] = _short_source(source_info_util.summarize(eqn.source_info))
        return found or self.calls[-1]


def _short_source(text: str) -> str:
    """`dir/file.py:line` of a summary such as `/path/dir/file.py:12:8 (function)`."""
    place = text.split(" ", 1)[0]
    pieces = place.split(":")
    directory, _, file = pieces[0].rpartition("/")
    short = f"{directory.rpartition('/')[2]}/{file}" if directory else file
    return f"{short}:{pieces[1]}" if len(pieces) > 1 else short
