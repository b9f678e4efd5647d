"""Logical axes found: the indices that run through a program, named, and how a plan splits them.

An index has the name that the program's annotations give it; else "batch" where it leads the data, is in nothing that is
fed back, and in no array twice, and no other is like that; else "layers" where loops run over it in what is fed back; else
it is called after the largest argument that has it: `Dense_0/kernel.1` is its last dim. Indices of layers that are alike,
placed alike, are one axis. Only those that matter have a name: which the plan splits, which the program names, or which
several arguments share.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.decisions.logical_dims import LogicalDims
from planner.logical import LogicalAxes, LogicalAxis, Names, spec_by_rules
from planner.pricing.assignment import Chosen
from planner.program.spec_entries import axes_of_spec
from planner.program.tracing.traced import Program

BATCH, LAYERS = "batch", "layers"
_NUMBER = re.compile(r"\d+")
Place = tuple[int, int]
"""An argument and one of its dims."""


class _Index(NamedTuple):
    """An index, the dims of arguments it leads, the mesh axes that split it there, and the bytes of what is computed by
    those that split it in it."""

    number: int
    places: tuple[Place, ...]
    arguments: tuple[str, ...]
    computed: Counter[tuple[str, ...]]


def logical_axes(program: Program, chosen: Chosen) -> LogicalAxes:
    """The logical axes of a program, as a choice places them."""
    found = _Found(program, chosen)
    names: dict[Place, str] = {}
    axes: list[LogicalAxis] = []
    for name, indices in found.named().items():
        places = [place for index in indices for place in index.places]
        names.update(dict.fromkeys(places, name))
        computed = sum((index.computed for index in indices), Counter[tuple[str, ...]]())
        axes.append(
            LogicalAxis(
                name=name,
                size=found.dims.size(indices[0].number),
                arguments=found.most(places),
                computed=_most(computed) if computed else None,
            )
        )
    return found.with_exceptions(axes, names)


def _most(weights: Counter[tuple[str, ...]]) -> tuple[str, ...]:
    """The mesh axes of the most bytes; of as many, what is split."""
    return max(weights, key=lambda axes: (weights[axes], len(axes)))


class _Found:
    """The indices of a program that lead dims of its arguments."""

    def __init__(self, program: Program, chosen: Chosen) -> None:
        model = chosen.instance.model
        self.graph = graph = model.graph
        self.leaves = program.arguments
        self.dims = LogicalDims(graph, model.grouping, model.flow)
        self.specs = [chosen.stored(tensor) for tensor in graph.inputs]
        self.split = [axes_of_spec(s, len(leaf.aval.shape)) for s, leaf in zip(self.specs, self.leaves, strict=True)]
        self.fed_back = set(graph.feeds.values())
        self.twice: set[int] = set()
        weights: dict[int, Counter[tuple[str, ...]]] = defaultdict(Counter)
        for tensor in graph.tensors:
            if tensor.kind != "intermediate" or tensor.aval.size < 2:
                continue
            leading = [dim[0] if dim else -1 for dim in self.dims.of(tensor.id)]
            self.twice.update(i for i in leading if i >= 0 and leading.count(i) > 1)
            if model.compiled.materialized[tensor.id]:
                split = axes_of_spec(chosen.stored(tensor.id), len(leading))
                for index, axes in zip(leading, split, strict=True):
                    weights[index][axes] += int(tensor.aval.bytes)
        places: dict[int, list[Place]] = defaultdict(list)
        for position, tensor in enumerate(graph.inputs):
            for d, dim in enumerate(self.dims.of(tensor)):
                if dim:
                    places[dim[0]].append((position, d))
        self.indices = [_Index(number, tuple(at), self.most(at), weights[number]) for number, at in places.items()]

    def most(self, places: Sequence[Place]) -> tuple[str, ...]:
        """The mesh axes that split most of the bytes of dims of arguments."""
        weights = Counter[tuple[str, ...]]()
        for position, dim in places:
            weights[self.split[position][dim]] += int(self.leaves[position].aval.bytes)
        return _most(weights)

    def named(self) -> Mapping[str, Sequence[_Index]]:
        """The indices that matter by name, the largest first."""
        batch, looped = self._batch(), self.dims.looped()
        found: dict[str, list[_Index]] = {}
        plain: dict[object, list[_Index]] = {}
        for index in self.indices:
            own = self._annotated(index)
            if own:
                found.setdefault(own, []).append(index)
            elif index.number == batch:
                found.setdefault(BATCH, []).append(index)
            elif index.number in looped and all(p in self.fed_back and d == 0 for p, d in index.places):
                found.setdefault(LAYERS, []).append(index)
            elif index.arguments or any(index.computed) or len({position for position, _ in index.places}) > 1:
                plain.setdefault(self._kind(index), []).append(index)
        index_groups = [part for indices in plain.values() for part in self._apart(indices)]
        for name, indices in zip(self._plain_names(index_groups), index_groups, strict=True):
            found.setdefault(name, []).extend(indices)
        order = sorted(found, key=lambda name: -sum(self._bytes(index) for index in found[name]))
        return {name: found[name] for name in order}

    def _bytes(self, index: _Index) -> float:
        return sum(self.leaves[position].aval.bytes for position, _ in index.places)

    def _annotated(self, index: _Index) -> str | None:
        """The name that the program's annotations give an index, in most of its bytes where they differ."""
        bytes_by_name = Counter[str]()
        for p, d in index.places:
            names = self.leaves[p].logical
            if names is not None and (name := names[d]) is not None:
                bytes_by_name[name] += int(self.leaves[p].aval.bytes)
        return bytes_by_name.most_common(1)[0][0] if bytes_by_name else None

    def _batch(self) -> int | None:
        """The index that is the batch, where one alone may be; where nothing is fed back, data look like parameters."""
        if not self.fed_back:
            return None
        found: list[int] = []
        for index in self.indices:
            leads = any(d == 0 and p not in self.fed_back and not self.leaves[p].constant for p, d in index.places)
            kept = any(p in self.fed_back for p, _ in index.places)
            if leads and not kept and index.number not in self.twice:
                found.append(index.number)
        return found[0] if len(found) == 1 else None

    def _kind(self, index: _Index) -> object:
        """What indices of layers that are alike have in common."""
        places = {(_NUMBER.sub("#", self.leaves[p].name), d, self.split[p][d]) for p, d in index.places}
        return self.dims.size(index.number), frozenset(places)

    def _apart(self, indices: Sequence[_Index]) -> list[list[_Index]]:
        """Indices that are alike in parts of which none has two in one argument."""
        parts: list[tuple[set[int], list[_Index]]] = []
        for index in indices:
            mine = {position for position, _ in index.places}
            part = next((part for part in parts if not part[0] & mine), None)
            if part is None:
                parts.append((mine, [index]))
            else:
                part[0].update(mine)
                part[1].append(index)
        return [part for _, part in parts]

    def _plain_names(self, index_groups: Sequence[Sequence[_Index]]) -> list[str]:
        """A name for each lot, after the largest argument that has it, as short as tells it from the others."""
        long: list[tuple[list[str], int]] = []
        for indices in index_groups:
            position, dim = max(indices[0].places, key=lambda at: (self.leaves[at[0]].aval.bytes, -at[0], -at[1]))
            long.append((self.leaves[position].name.removesuffix("/value").split("/"), dim))

        def ending(path: Sequence[str], dim: int, count: int) -> str:
            return f"{'/'.join(path[-count:])}.{dim}"

        names: list[str] = []
        for path, dim in long:
            counts = [n for n in range(min(2, len(path)), len(path) + 1) if not path[-n].isdigit()]
            others = [other for other in long if other != (path, dim)]
            alone = (n for n in counts if ending(path, dim, n) not in {ending(*other, n) for other in others})
            names.append(ending(path, dim, next(alone, len(path))))
        return names

    def with_exceptions(self, axes: Sequence[LogicalAxis], names: Mapping[Place, str]) -> LogicalAxes:
        """The axes with the names of the arguments' dims, and the arguments that lie otherwise than the axes say."""
        rules = [(axis.name, axis.arguments) for axis in axes]
        named: dict[str, Names] = {}
        exceptions = {}
        for position, leaf in enumerate(self.leaves):
            dims = [names.get((position, d)) for d in range(len(leaf.aval.shape))]
            # An index that a tensor has twice names the dim that is split, as no rule can say it of both.
            order = sorted(range(len(dims)), key=lambda d: (not self.split[position][d], d))
            for d in order:
                if dims[d] is not None and dims.count(dims[d]) > 1:
                    first = next(other for other in order if dims[other] == dims[d])
                    dims[d] = dims[d] if d == first else None
            named[leaf.name] = own = tuple(dims)
            if spec_by_rules(own, rules) != tuple(self.split[position]):
                exceptions[leaf.name] = self.specs[position]
        return LogicalAxes(axes=tuple(axes), names=named, exceptions=exceptions)
