"""Groups: ops that are placed by one decision, over one set of factors.

Ops that a compiler fuses (elementwise, reshapes, reductions) only follow: those connected by tensors share their
factors and become one group, so that a residual stream with its norms, a softmax with its gradient or an optimizer's
update is a single choice. Every other op is a group of its own. What a reduction returns is not followed, nor is
anything across the border of a loop, so that gathers, reduce-scatters and hoisting stay decisions.

Factors of merged ops are unified dim by dim; where one side sees a product of factors (a reshape), the other side's
factor is split to match.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from planner.factors import Combiner, Dim, Rule
from planner.forest import Forest
from planner.graph import Aval, Graph, Op
from planner.op_rules import OpRules
from planner.places import BOUNDARY, ENTERING
from planner.rules import FUSIBLE

Dims = tuple[Dim, ...]
"""Factors of every dim of one tensor, major first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The factors of one op in terms of its group's: operand and result dims, and the factors it reduces."""

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reduced: frozenset[int]
    combiner: Combiner


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ops placed together. `sizes` are the factors; `whole` are those that must not be split."""

    id: int
    ops: tuple[int, ...]
    sizes: tuple[int, ...]
    whole: frozenset[int]
    fused: bool


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """All groups of a graph, the group and placement of every op, the ops without a rule, and those of Shardy's rules."""

    groups: tuple[Group, ...]
    group_of: tuple[int, ...]
    placements: tuple[Placement, ...]
    unruled: tuple[int, ...]
    by_shardy: tuple[int, ...]


@dataclass
class _Merger:
    """Merges ops into groups while walking the graph in program order."""

    graph: Graph
    factors: Forest = field(default_factory=Forest)
    dims: list[tuple[tuple[Dims, ...], tuple[Dims, ...]]] = field(
        default_factory=list[tuple[tuple[Dims, ...], tuple[Dims, ...]]]
    )
    reduced: list[tuple[frozenset[int], Combiner]] = field(default_factory=list[tuple[frozenset[int], Combiner]])
    owner: list[int] = field(default_factory=list[int])
    unruled: list[int] = field(default_factory=list[int])

    def find(self, op: int) -> int:
        while self.owner[op] != op:
            self.owner[op] = self.owner[self.owner[op]]
            op = self.owner[op]
        return op

    def join(self, op: int, other: int) -> None:
        a, b = self.find(op), self.find(other)
        self.owner[max(a, b)] = min(a, b)

    def add(self, op: Op, rule: Rule | None) -> None:
        """Registers an op with factors of its own; without a rule every dim is whole."""
        tensors = self.graph.tensors
        if rule is None:
            self.unruled.append(op.id)
            operands = tuple(self._whole(tensors[t].aval) for t in op.operands)
            results = tuple(self._whole(tensors[t].aval) for t in op.results)
            self.dims.append((operands, results))
            self.reduced.append((frozenset(), "add"))
        else:
            ids = [
                self.factors.new(size, whole=kind == "replicate" or (kind == "permute" and is_fused(op)))
                for size, kind in zip(rule.sizes, rule.kinds, strict=True)
            ]
            rename = [
                tuple(tuple(tuple(ids[f] for f in dim) for dim in t) for t in side)
                for side in (rule.operands, rule.results)
            ]
            self.dims.append((rename[0], rename[1]))
            reduced = frozenset(ids[f] for f, kind in enumerate(rule.kinds) if kind == "reduce")
            self.reduced.append((reduced, rule.combiner))
        self.owner.append(op.id)

    def _whole(self, aval: Aval) -> Dims:
        return tuple(() if extent == 1 else (self.factors.new(extent, whole=True),) for extent in aval.shape)

    def follow(self, op: int, mine: Dims, other: int, theirs: Dims) -> None:
        """Merges `op` into the group of `other` through a tensor both touch, if their factors nest and may be split."""
        pairs = self._one_by_one(mine, theirs)
        if pairs is not None:
            if all(self.factors.is_whole(a) == self.factors.is_whole(b) for a, b in pairs):
                for a, b in pairs:
                    self.factors.join(a, b)
                self.join(op, other)
            return
        for a, b in zip(mine, theirs, strict=True):
            leaves_a, leaves_b = self.factors.leaves(a), self.factors.leaves(b)
            if any(map(self.factors.is_whole, leaves_a)) != any(map(self.factors.is_whole, leaves_b)):
                return
            if self.factors.match(a, b) is None:
                return
        if self._mirrored(mine, theirs):
            return
        for a, b in zip(mine, theirs, strict=True):
            self.factors.unify(a, b)
        self.join(op, other)

    def _one_by_one(self, mine: Dims, theirs: Dims) -> list[tuple[int, int]] | None:
        """The factors to be joined where every dim has one of a like size on both sides, and none is of two dims."""
        pairs: list[tuple[int, int]] = []
        met: set[int] = set()
        size = self.factors.size
        for a, b in zip(mine, theirs, strict=True):
            if not a and not b:
                continue
            if len(a) != 1 or len(b) != 1:
                return None
            left, right = self.factors.leaves(a), self.factors.leaves(b)
            if len(left) != 1 or len(right) != 1 or size[left[0]] != size[right[0]]:
                return None
            pair = left[0], right[0]
            if pair[0] in met or pair[1] in met:
                return None
            met.update(pair)
            pairs.append(pair)
        return pairs

    def _mirrored(self, mine: Dims, theirs: Dims) -> bool:
        """Whether joining the dims would make one factor of two dims of the tensor, as `x + x.T` would."""
        parent: dict[int, int] = {}

        def find(leaf: int) -> int:
            while (up := parent.get(leaf, leaf)) != leaf:
                leaf = up
            return leaf

        for a, b in zip(mine, theirs, strict=True):
            for left, right, _ in self.factors.match(a, b) or ():
                parent[find(left)] = find(right)
        seen: dict[int, int] = {}
        for dim, factors in enumerate(mine):
            for leaf in self.factors.leaves(factors):
                if seen.setdefault(find(leaf), dim) != dim:
                    return True
        return False

    def tie(self, inside: int, outside: int) -> None:
        """Makes the two ends of a loop carry one group, whatever happens: dims that do not nest are kept whole."""
        mine, theirs = self.dims[inside][1][0], self.dims[outside][1][0]
        for a, b in zip(mine, theirs, strict=True):
            if self.factors.match(a, b) is None:
                self.factors.whole.update(self.factors.leaves(a) + self.factors.leaves(b))
            else:
                self.factors.unify(a, b)
        self.join(inside, outside)


def is_fused(op: Op) -> bool:
    """Whether a compiler folds this op into its neighbours' passes over memory."""
    return op.kind in FUSIBLE or op.kind in BOUNDARY


def group_ops(graph: Graph) -> Grouping:
    """The groups of a graph (deterministic: a function of program order only)."""
    merger = _Merger(graph=graph)
    rules = OpRules(graph=graph)
    first_reader: dict[tuple[int, int], tuple[int, int]] = {}
    entered = {graph.tensors[outside].producer: graph.tensors[inside].producer for inside, outside in graph.ties}
    for op in graph.ops:
        merger.add(op, rules.of(op))
        first = entered.get(op.id)
        if first is not None:
            merger.tie(first, op.id)
        if is_fused(op) and op.id not in merger.unruled[-1:]:
            _follow_operands(graph, merger, op, first_reader)
    return _collect(graph, merger, by_shardy=tuple(rules.by_shardy))


def _follow_operands(
    graph: Graph, merger: _Merger, op: Op, first_reader: dict[tuple[int, int], tuple[int, int]]
) -> None:
    if op.kind in ENTERING:
        return
    for position, tensor in enumerate(op.operands):
        made = graph.tensors[tensor]
        if made.producer is None or made.aval.size <= 1 or _expands(graph, op, made.aval):
            continue
        producer = graph.ops[made.producer]
        mine = merger.dims[op.id][0][position]
        if is_fused(producer):
            lives_here = producer.region == op.region and producer.kind not in ("loop_carry_out", "loop_stack")
            if lives_here and not merger.reduced[producer.id][0]:
                theirs = merger.dims[producer.id][1][producer.results.index(tensor)]
                merger.follow(op.id, mine, producer.id, theirs)
                continue
        reader = first_reader.setdefault((tensor, op.region), (op.id, position))
        if reader[0] != op.id:
            merger.follow(op.id, mine, reader[0], merger.dims[reader[0]][0][reader[1]])


def _expands(graph: Graph, op: Op, operand: Aval) -> bool:
    """Whether an op broadcasts this operand; what is broadcast is small and is left to its own group."""
    return bool(op.results) and operand.size < graph.tensors[op.results[0]].aval.size


def _collect(graph: Graph, merger: _Merger, *, by_shardy: tuple[int, ...]) -> Grouping:
    members: dict[int, list[int]] = {}
    for op in graph.ops:
        members.setdefault(merger.find(op.id), []).append(op.id)
    groups: list[Group] = []
    group_of = [0] * len(graph.ops)
    placements: list[Placement | None] = [None] * len(graph.ops)
    for ops in members.values():
        index: dict[int, int] = {}
        sizes: list[int] = []
        whole: set[int] = set()

        def number(
            dims: Dims, index: dict[int, int] = index, sizes: list[int] = sizes, whole: set[int] = whole
        ) -> Dims:
            renamed: list[Dim] = []
            for dim in dims:
                leaves = merger.factors.leaves(dim)
                for leaf in leaves:
                    if leaf not in index:
                        index[leaf] = len(sizes)
                        sizes.append(merger.factors.size[leaf])
                        if merger.factors.is_whole(leaf):
                            whole.add(index[leaf])
                renamed.append(tuple(index[leaf] for leaf in leaves))
            return tuple(renamed)

        for op in ops:
            operands, results = merger.dims[op]
            for dims in (*operands, *results):
                # A loop that transposes its carry ties two dims of one tensor: no spec splits both alike.
                leaves = [leaf for dim in dims for leaf in set(merger.factors.leaves(dim))]
                if len(set(leaves)) < len(leaves):
                    merger.factors.whole.update(leaf for leaf, count in Counter(leaves).items() if count > 1)
        for op in ops:
            operands, results = merger.dims[op]
            factors, combiner = merger.reduced[op]
            reduced = frozenset(f for dim in number((tuple(sorted(factors)),)) for f in dim)
            placements[op] = Placement(
                operands=tuple(map(number, operands)),
                results=tuple(map(number, results)),
                reduced=reduced,
                combiner=combiner,
            )
            group_of[op] = len(groups)
        fused = all(is_fused(graph.ops[op]) for op in ops)
        groups.append(Group(id=len(groups), ops=tuple(ops), sizes=tuple(sizes), whole=frozenset(whole), fused=fused))
    return Grouping(
        groups=tuple(groups),
        group_of=tuple(group_of),
        placements=tuple(p for p in placements if p is not None),
        unruled=tuple(merger.unruled),
        by_shardy=by_shardy,
    )
