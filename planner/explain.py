"""Explaining a plan: what each other spec of a tensor would cost, everything else re-optimised around it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

import numpy as np
from jax.sharding import PartitionSpec

from planner.errors import ArgumentError
from planner.instance import Instance
from planner.problem import Problem
from planner.solve import min_marginals
from planner.specs import spec_of

MOST_TENSORS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One spec a tensor could have: the best value of any plan that has it, and the bytes per device it takes."""

    spec: PartitionSpec
    value: float
    bytes: float
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorExplanation:
    """A tensor's spec among its alternatives, best first."""

    name: str
    shape: tuple[int, ...]
    decided_by: str
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        best = min(a.value for a in self.alternatives)
        lines = [f"{self.name} {list(self.shape)}, decided at {self.decided_by}"]
        for a in self.alternatives:
            mark = "->" if a.chosen else "  "
            extra = "" if a.value == best else f"  (+{100 * (a.value - best) / best if best else 0:.2g} %)"
            lines.append(f"  {mark} {a.spec!s:<40} {a.value:.6g} {a.bytes / 1e6:>12.3f} MB{extra}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why tensors are placed as they are. Values are those of plans without a memory limit."""

    tensors: tuple[TensorExplanation, ...]
    limited: bool

    def __str__(self) -> str:
        text = "\n".join(str(tensor) for tensor in self.tensors)
        if self.limited:
            text += "\nThe memory limit rules out the cheapest alternatives: values are without the limit."
        return text


@dataclass(kw_only=True)
class Alternatives:
    """The problem behind a plan, kept for several explanations."""

    instance: Instance
    choice: tuple[int, ...]

    @cached_property
    def problem(self) -> Problem:
        """The problem without memory rows."""
        return self.instance.problem()

    def of(self, tensor: int) -> TensorExplanation | None:
        """The alternatives of one tensor, or None where it has no decision."""
        model = self.instance.model
        home = model.flow.home[tensor]
        if home is None:
            return None
        node, dims = home
        aval = model.graph.tensors[tensor].aval
        values = min_marginals(self.problem, node)
        locations = self.instance.strategies[node].locations(dims)
        _, bytes_of = self.instance.stored_bytes(tensor) or (node, np.zeros(len(locations)))
        mine = tuple(int(a) for a in locations[self.choice[node]])
        best: dict[tuple[int, ...], tuple[float, float]] = {}
        for row, value, size in zip(locations, values, bytes_of, strict=True):
            key = tuple(int(a) for a in row)
            if np.isfinite(value) and (key not in best or value < best[key][0]):
                best[key] = (float(value), float(size))
        alternatives = [
            Alternative(
                spec=spec_of(key, len(aval.shape), self.instance.mesh.names),
                value=value,
                bytes=size,
                chosen=key == mine,
            )
            for key, (value, size) in best.items()
        ]
        alternatives.sort(key=lambda a: (a.value, a.bytes, str(a.spec)))
        return TensorExplanation(
            name=model.graph.tensors[tensor].name,
            shape=aval.shape,
            decided_by=model.flow.nodes[node].name,
            alternatives=tuple(alternatives),
        )


def explain(alternatives: Alternatives, path: str | None) -> Explanation:
    """The explanation of the tensors `path` names, or of the largest arguments. Raises: ArgumentError."""
    graph = alternatives.instance.model.graph
    by_name: dict[str, int] = {}
    for tensor in graph.tensors:
        if tensor.kind != "constant":
            by_name.setdefault(tensor.name, tensor.id)
    for name, tensor in zip(graph.output_names, graph.outputs, strict=True):
        by_name.setdefault(name, tensor)
    if path is None:
        chosen = sorted(graph.inputs, key=lambda t: -graph.tensors[t].aval.bytes)[:MOST_TENSORS]
    else:
        matches = re.compile(translate(path)).match
        chosen = [tensor for name, tensor in by_name.items() if matches(name)][:MOST_TENSORS]
        if not chosen:
            some = ", ".join(repr(graph.tensors[t].name) for t in graph.inputs[:3])
            raise ArgumentError(f"no tensor is named {path!r}; names look like {some}")
    found = [e for e in map(alternatives.of, dict.fromkeys(chosen)) if e is not None]
    cheaper = any(
        not a.chosen and a.value < mine.value * (1 - 1e-6)
        for e in found
        for mine in e.alternatives
        if mine.chosen
        for a in e.alternatives
    )
    return Explanation(tensors=tuple(found), limited=cheaper)
