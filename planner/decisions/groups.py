"""Groups: ops that are placed by one decision, over one set of factors.

Ops that a compiler fuses (elementwise, reshapes, reductions) only follow: those connected by tensors share their
factors and become one group, so that a residual stream with its norms, a softmax with its gradient or an optimizer's
update is a single choice. Every other op is a group of its own. What a reduction returns is not followed, nor is
anything across the border of a loop, so that gathers, reduce-scatters and hoisting stay decisions.

A constraint of the program is a group of its own, which demands what it says. Those before and behind it are one group as
if it were not there, unless constraints demand different specs of them: then it stays a decision where the data move. Nor
are they one where what is constrained was there before its body ran, as weights are: these are stored one way and used in
another.

Forms: what the kind, the avals and the params of an op fix about how it is grouped; equal ops have one form.

Deep programs repeat the same ops time and again, so all that does not depend on where an op stands is found out once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import final

from planner.decisions.factor_unification import Merger, Spec, View
from planner.program.graph import Graph, Op
from planner.program.slots import ALWAYS_THERE, BOUNDARY, ENTERING
from planner.rules.choose import op_rule
from planner.rules.factors import replicated
from planner.rules.primitives import traits
from planner.rules.rule import Combiner, Dim, Dims, Rule
from planner.rules.unify import Forest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpForm:
    """The rule of an op, and what follows from it.

    Without a rule (`unruled`) every dim is a factor that stays whole. `whole` are the factors that must not be split,
    `reduced` those that are reduced; `order` has the reduced ones and then those of operands and results in the order in
    which they first appear. `follows` are the positions of operands that may bring the op into another's group; `leads`
    says whether those who read its results may follow it.
    """

    rule: Rule
    unruled: bool
    by_shardy: bool
    fused: bool
    whole: tuple[int, ...]
    reduced: tuple[int, ...]
    order: tuple[int, ...]
    follows: tuple[int, ...]
    leads: bool


@dataclass
class Forms:
    """The forms of a graph's ops, each made once per kind, avals and params."""

    graph: Graph
    found: dict[Hashable, OpForm] = field(default_factory=dict[Hashable, OpForm])

    def of(self, op: Op) -> OpForm:
        """The form of an op."""
        numbers = self.graph.aval_numbers
        # Those of boundary ops say where in their loop they stand, which no rule asks.
        params = () if op.kind in BOUNDARY else tuple(op.params.items())
        key = (
            op.kind,
            tuple([numbers[t] for t in op.operands]),
            tuple([numbers[t] for t in op.results]),
            params,
            op.body,
        )
        try:
            form = self.found.get(key)
        except TypeError:  # a param that cannot be hashed
            return _form(self.graph, op)
        if form is None:
            form = self.found[key] = _form(self.graph, op)
        return form


def is_fused(op: Op) -> bool:
    """Whether a compiler folds this op into its neighbours' passes over memory."""
    return traits(op.kind).fused or op.kind in BOUNDARY


def _form(graph: Graph, op: Op) -> OpForm:
    found, by_shardy = op_rule(graph, op)
    operands, results = graph.avals(op.operands), graph.avals(op.results)
    rule = replicated(operands, results) if found is None else found
    fused = is_fused(op)
    whole = [f for f, kind in enumerate(rule.kinds) if kind == "replicate" or (kind == "permute" and fused)]
    reduced = [f for f, kind in enumerate(rule.kinds) if kind == "reduce"]
    seen = [f for dims in (*rule.operands, *rule.results) for dim in dims for f in dim]
    follower = fused and found is not None and op.kind not in ENTERING
    # What an op broadcasts is small and is left to its own group.
    least = max(2, results[0].size) if results else 2
    return OpForm(
        rule=rule,
        unruled=found is None,
        by_shardy=by_shardy,
        fused=fused,
        whole=tuple(whole),
        reduced=tuple(reduced),
        order=tuple(dict.fromkeys((*reduced, *seen))),
        follows=tuple(i for i, aval in enumerate(operands) if aval.size >= least) if follower else (),
        leads=fused and not reduced and op.kind not in ("loop_carry_out", "loop_stack"),
    )


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
    """All groups of a graph, the group and placement of every op, the ops without a rule, and those of Shardy's rules.

    Ops of one form in like places share one placement.
    """

    groups: tuple[Group, ...]
    group_of: tuple[int, ...]
    placements: tuple[Placement, ...]
    unruled: tuple[int, ...]
    by_shardy: tuple[int, ...]
    _products: dict[int, frozenset[Dim]] = field(
        init=False, repr=False, compare=False, default_factory=dict[int, frozenset[Dim]]
    )

    def products(self, group: Group) -> frozenset[Dim]:
        """The dims of a group's tensors that are products of several factors."""
        if group.id not in self._products:
            placed = map(self.placements.__getitem__, group.ops)
            tensors = {dims for of in placed for dims in (*of.operands, *of.results)}
            self._products[group.id] = frozenset(dim for dims in tensors for dim in dims if len(dim) > 1)
        return self._products[group.id]


def group_ops(graph: Graph) -> Grouping:
    """The groups of a graph (deterministic: a function of program order only)."""
    there = {tensor.id: tensor.producer is None for tensor in graph.tensors}
    walk = _Walk(graph=graph, merger=Merger(count=len(graph.ops)), there=there)
    known = Forms(graph=graph)
    entered = {graph.tensors[outside].producer: graph.tensors[inside].producer for inside, outside in graph.ties}
    for op in graph.ops:
        walk.add(op, known.of(op))
        first = entered.get(op.id)
        if first is not None:
            walk.merger.tie(first, walk.result(first, 0), op.id, walk.result(op.id, 0))
        walk.note(op)
        walk.follow_operands(op)
    return _collected(walk)


@dataclass
class _Walk:
    """The ops met so far in program order: their forms, the numbers of their first factors, and how they merge."""

    graph: Graph
    merger: Merger
    there: dict[int, bool]
    """Whether a tensor is there before its body runs: an argument, what a loop takes in, and what follows from these alone
    element by element."""
    constrained: dict[int, int] = field(default_factory=dict[int, int])
    """The tensor that the result of a constraint is another name for."""
    specs: dict[int, Spec | None] = field(default_factory=dict[int, "Spec | None"])
    """What is demanded of it."""
    forms: list[OpForm] = field(default_factory=list[OpForm])
    firsts: list[int] = field(default_factory=list[int])
    first_reader: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict[tuple[int, int], tuple[int, int]])
    """The (op, operand position) that first reads a tensor in a region."""

    def add(self, op: Op, form: OpForm) -> None:
        self.forms.append(form)
        self.firsts.append(self.merger.factors.extend(form.rule.sizes, form.whole))

    def note(self, op: Op) -> None:
        """Keeps in mind what an op constrains, and whether its results are there before its body runs."""
        places = traits(op.kind).places
        passes = places or bool(traits(op.kind).fused)
        there = op.kind in ALWAYS_THERE or (passes and all(self.there[t] for t in op.operands))
        for tensor in op.results:
            self.there[tensor] = there
        if places:
            (operand,), (result,) = op.operands, op.results
            self.constrained[result] = self.constrained.get(operand, operand)
            self.specs[result] = op.params["result_specs"][0]
            maker = self.graph.tensors[operand].producer
            if maker is not None and self.forms[maker].leads:
                made = self.result(maker, self.graph.ops[maker].results.index(operand))
                self.merger.demand(made, self.specs[result])

    def operand(self, op: int, position: int) -> View:
        return self.forms[op].rule.operands[position], self.firsts[op]

    def result(self, op: int, position: int) -> View:
        return self.forms[op].rule.results[position], self.firsts[op]

    def follow_operands(self, op: Op) -> None:
        """Merges an op with those that make what it reads, or else with those that read it before."""
        ops, tensors = self.graph.ops, self.graph.tensors
        for position in self.forms[op.id].follows:
            tensor = op.operands[position]
            mine = self.operand(op.id, position)
            if tensor in self.constrained:
                self.merger.demand(mine, self.specs[tensor])
            if not self.there[tensor]:
                tensor = self.constrained.get(tensor, tensor)
            maker = tensors[tensor].producer
            if maker is None or traits(ops[maker].kind).places:
                continue
            if self.forms[maker].leads and ops[maker].region == op.region:
                self.merger.follow(op.id, mine, maker, self.result(maker, ops[maker].results.index(tensor)))
                continue
            reader, at = self.first_reader.setdefault((tensor, op.region), (op.id, position))
            if reader != op.id:
                self.merger.follow(op.id, mine, reader, self.operand(reader, at))


def _collected(walk: _Walk) -> Grouping:
    groups: list[Group] = []
    group_of = [0] * len(walk.forms)
    placed: dict[int, Placement] = {}
    placements = _Placements()
    roots = walk.merger.factors.roots()
    for ops in walk.merger.groups():
        numbers = _Numbers(walk.merger.factors)
        doubled: set[int] = set()
        for op in ops:
            form, first = walk.forms[op], walk.firsts[op]
            placed[op], twice = placements[form, tuple([numbers[roots[first + f]] for f in form.order])]
            doubled |= twice
            group_of[op] = len(groups)
        sizes, whole = numbers.sizes_and_whole()
        fused = all(walk.forms[op].fused for op in ops)
        groups.append(Group(id=len(groups), ops=tuple(ops), sizes=sizes, whole=whole | doubled, fused=fused))
    return Grouping(
        groups=tuple(groups),
        group_of=tuple(group_of),
        placements=tuple([placed[op] for op in range(len(walk.forms))]),
        unruled=tuple([op for op, form in enumerate(walk.forms) if form.unruled]),
        by_shardy=tuple([op for op, form in enumerate(walk.forms) if form.by_shardy]),
    )


@final
class _Numbers(dict[int, Dim]):
    """The numbers, in a group, of the factors that a root is made of: given as they are asked for."""

    def __init__(self, factors: Forest) -> None:
        super().__init__()
        self.factors = factors
        self.leaves: dict[int, int] = {}

    def __missing__(self, root: int) -> Dim:
        leaves = self.factors.leaves((root,))
        self[root] = found = tuple([self.leaves.setdefault(leaf, len(self.leaves)) for leaf in leaves])
        return found

    def sizes_and_whole(self) -> tuple[tuple[int, ...], frozenset[int]]:
        """The sizes of all factors, and those that must not be split."""
        whole = frozenset(number for leaf, number in self.leaves.items() if leaf in self.factors.whole)
        return tuple([self.factors.size[leaf] for leaf in self.leaves]), whole


@final
class _Placements(dict[tuple[OpForm, tuple[Dim, ...]], tuple[Placement, frozenset[int]]]):
    """The placement of ops of one form whose factors have these numbers, and the factors in two dims of one tensor.

    A loop that transposes its carry ties two dims of one tensor: no spec splits both alike.
    """

    def __missing__(self, key: tuple[OpForm, tuple[Dim, ...]]) -> tuple[Placement, frozenset[int]]:
        form, numbers = key
        self[key] = found = _placement(form, dict(zip(form.order, numbers, strict=True)))
        return found


def _placement(form: OpForm, made_of: dict[int, Dim]) -> tuple[Placement, frozenset[int]]:
    def renamed(dims: Dims) -> Dims:
        return tuple(tuple(number for factor in dim for number in made_of[factor]) for dim in dims)

    placement = Placement(
        operands=tuple(map(renamed, form.rule.operands)),
        results=tuple(map(renamed, form.rule.results)),
        reduced=frozenset(number for factor in form.reduced for number in made_of[factor]),
        combiner=form.rule.combiner,
    )
    doubled: set[int] = set()
    for dims in (*placement.operands, *placement.results):
        held = [number for dim in dims for number in set(dim)]
        doubled |= {number for number in held if held.count(number) > 1}
    return placement, frozenset(doubled)
