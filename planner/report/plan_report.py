"""The report of a plan: all that its text, its JSON and its page show, as one record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from jax.sharding import PartitionSpec

from planner.decision import Checked, Decision, OpNote
from planner.explain.explain import Alternatives
from planner.explain.explanation import TensorExplanation
from planner.explain.recipe import Recipes
from planner.folded import fold_numbers
from planner.plan_file.codec import as_json
from planner.printing.parts import count
from planner.program.graph import type_text
from planner.program.jaxpr.source_text import texts_of
from planner.program.spec_entries import parts_over
from planner.program.tracing.traced import Leaf
from planner.report.collectives import CollectiveUse, by_cost, collective_uses, merged
from planner.report.program_report import Fold, Line, MemoryOverTime, fold_ops, memory_over_time, seconds_by_place
from planner.report.rows import TableRow, bytes_on_device, returned_as_taken, rows_of
from planner.units import quantity

WIRES = {"torus": "neighbours' wires", "switch": "switch", "full": "wires between all", "network": "network"}
"""What the page calls the kinds of links of a machine."""
MOST_EXPLAINED = 12
"""Rows of arrays whose alternatives are looked for: the largest."""
EXPLAIN_SECONDS = 10.0
"""Seconds for the alternatives of all of them, where the problem is too large for exact figures."""
OPS = {
    "replicated": "placed whole for lack of a rule",
    "guessed": "work guessed as one operation per result element",
    "by_shardy": "placed by Shardy's rule",
}
"""What the planner did with the ops that it knows less of, by field of the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpUse:
    """Ops of one kind, name and line as one: `place` is their folded name with the line, `runs` their number per call."""

    op: str
    place: str
    runs: float


@dataclass(frozen=True, kw_only=True)
class PlanReport:
    """All that a plan says of itself, and what its program adds where it is there.

    `arguments` are in the order of the program, and so are `results`, without those returned as taken: `returned` are the
    names of the arguments that these have. `moved` are the collectives by kind and axes, those that take longest first, and
    `links` the wires under each axis. `ops` are those that the planner knows less of, by what it did with them. `checks`
    are those of one verdict and detail as one.

    `lines` are seconds by source line, `modules` by module, `texts` what stands at source lines. `recipes` is the plan
    beside the usual recipes, `alternatives` are other specs of the largest arrays and what they would cost, by `first` of
    their row. Without the program `lines` are of communication alone, and what follows is empty.
    """

    decision: Decision
    arguments: tuple[TableRow, ...]
    results: tuple[TableRow, ...]
    returned: tuple[str, ...]
    moved: tuple[CollectiveUse, ...]
    links: Mapping[str, str]
    ops: Mapping[str, tuple[OpUse, ...]]
    checks: tuple[Checked, ...]
    lines: tuple[Line, ...]
    modules: tuple[Line, ...] = ()
    memory: MemoryOverTime | None = None
    folds: tuple[Fold, ...] = ()
    recipes: Recipes | None = None
    alternatives: Mapping[str, TensorExplanation] = field(default_factory=dict[str, TensorExplanation])
    texts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def title(self) -> str:
        """Of what function the plan is, and for which topology."""
        return f"Plan of {self.decision.function_name} for {self.decision.topology}"

    @property
    def devices(self) -> str:
        """The devices that the plan uses, of those there are: "8 of 16 devices"."""
        used = parts_over(self.decision.mesh_shape, self.decision.mesh_shape)
        available = self.decision.request.topology.num_devices
        return f"{f'{used} of ' if used < available else ''}{count(available, 'device')}"

    @property
    def time_parts(self) -> str:
        """What the seconds of a call are made of."""
        p = self.decision.predicted
        hidden = f" and {quantity(p.hidden_seconds, 's')} more beside computing" if p.hidden_seconds else ""
        moved = quantity(p.communication_seconds, "s")
        return f"computing {quantity(p.compute_seconds, 's')}, communicating {moved}{hidden}"

    @property
    def interval(self) -> str:
        """The seconds that a machine may take, " (74 ms to 92 ms)"; nothing where the plan does not say them."""
        p = self.decision.predicted
        return "" if p.seconds_range is None else f" ({' to '.join(quantity(s, 's') for s in p.seconds_range)})"

    @property
    def memory_parts(self) -> str:
        """What of the peak are arguments and results."""
        p = self.decision.predicted
        aliased = f", of which {quantity(p.alias_bytes, 'B')} reuse donated arguments" if p.alias_bytes else ""
        return f"arguments {quantity(p.argument_bytes, 'B')}, results {quantity(p.output_bytes, 'B')}{aliased}"

    @property
    def has_bound(self) -> bool:
        """Whether the search found a lower bound for every mesh."""
        c = self.decision.certificate
        return c.lower_bound > 0 or c.value == 0

    @property
    def bound(self) -> str:
        """The lower bound of the search, as a sentence without its first capital."""
        c = self.decision.certificate
        if not self.has_bound:
            return "the search ended before it had a bound for every mesh"
        among = "" if c.within_bytes is None else f" of at most {quantity(c.within_bytes, 'B')} per device"
        proven = f"no plan{among}{'' if c.any_form is None else ' in this form'} is below {c.lower_bound:.6g} {c.unit}"
        whatever = "" if c.any_form is None else f", and none in any form below {c.any_form:.4g}"
        return f"{proven}{whatever} by this cost model"

    def wires(self, axes: Sequence[str]) -> list[str]:
        """The kinds of wires under some axes, each once."""
        return list(dict.fromkeys(self.links[axis] for axis in axes if axis in self.links))


def plan_report(decision: Decision, program: Alternatives | None = None) -> PlanReport:
    """The report of a decision; `program` is the problem of its program, for what the decision does not say itself."""
    mesh, uses = decision.mesh_shape, collective_uses(decision)
    taken = returned_as_taken(decision.arguments, decision.in_specs, decision.results, decision.out_specs)
    computed = [i for i in range(len(decision.results)) if i not in taken]
    report = PlanReport(
        decision=decision,
        arguments=tuple(rows_of(decision.arguments, decision.in_specs, mesh)),
        results=tuple(
            rows_of([decision.results[i] for i in computed], [decision.out_specs[i] for i in computed], mesh)
        ),
        returned=tuple(decision.arguments[i].name for i in sorted(taken.values())),
        moved=tuple(sorted(merged(uses, lambda use: (use.kind, use.axes)), key=by_cost)),
        links=_links(decision),
        ops={what: _op_uses(getattr(decision, field)) for field, what in OPS.items() if getattr(decision, field)},
        checks=_by_verdict(decision.checked),
        lines=_communication_lines(uses),
    )
    if program is None:
        return report
    graph = program.network
    lines, folds = seconds_by_place(graph, "by line"), (fold_ops(graph, "by module"), fold_ops(graph, "by line"))
    places = {line.source for line in lines} | {stage.source for fold in folds for stage in fold.stages}
    return replace(
        report,
        lines=lines,
        modules=seconds_by_place(graph, "by module"),
        memory=memory_over_time(program.memory, program.choice),
        folds=folds,
        recipes=program.recipes,
        alternatives=_explained(program, (*report.arguments, *report.results)),
        texts=texts_of(program.problem_of_program.program.jaxpr, places),
    )


def _explained(program: Alternatives, rows: Sequence[TableRow]) -> dict[str, TensorExplanation]:
    """The alternatives of the largest arrays, by the name of the first of each row."""
    largest = sorted(rows, key=lambda row: -row.bytes)[:MOST_EXPLAINED]
    places = {row.first: program.places[row.first] for row in largest if row.shape and row.first in program.places}
    return {name: program.of(place, EXPLAIN_SECONDS / len(places)) for name, place in places.items()}


def _links(decision: Decision) -> dict[str, str]:
    """For every mesh axis the kinds of the wires that it runs along; an axis without a link is missing."""
    links = decision.request.topology.links(tuple(decision.mesh_shape.values())) or ()
    found: dict[str, str] = {}
    for name, link in zip(decision.mesh_shape, links, strict=False):
        kinds = dict.fromkeys(WIRES[segment.kind] for segment in link.dims if segment.extent > 1)
        rings = any(segment.wrap and segment.kind == "torus" for segment in link.dims)
        if kinds:
            found[name] = f"{' and '.join(kinds)}{' in rings' if rings else ''}"
    return found


def at_source(name: str, source: str) -> str:
    """A name with its source line, which the names of unnamed intermediates hold already."""
    return name if source in name else f"{name} at {source}"


def _op_uses(ops: Sequence[OpNote]) -> tuple[OpUse, ...]:
    """The ops of one kind, name and line as one, in the order of the first."""
    folded = fold_numbers([op.name or op.source for op in ops], [(op.op, op.source) for op in ops])
    return tuple(
        OpUse(
            op=ops[members[0]].op,
            place=at_source(name, ops[members[0]].source),
            runs=sum(ops[i].trips for i in members),
        )
        for name, members in folded
    )


def _by_verdict(checks: Sequence[Checked]) -> tuple[Checked, ...]:
    """The checks of one verdict and detail as one, under all of their names."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for check in checks:
        groups.setdefault((check.verdict, check.detail), []).append(check)
    return tuple(replace(group[0], what=", ".join(check.what for check in group)) for group in groups.values())


def _communication_lines(uses: Sequence[CollectiveUse]) -> tuple[Line, ...]:
    """Seconds of communication by source line, or by the tensor of which none is known."""
    seconds: dict[str, float] = {}
    for use in uses:
        if use.seconds is not None:
            place = use.source or use.tensor
            seconds[place] = seconds.get(place, 0.0) + use.seconds
    lines = [Line(source=place, compute_seconds=0.0, communication_seconds=each) for place, each in seconds.items()]
    return tuple(sorted(lines, key=Line.order))


# ---------------------------------------------------------------- as plain data


LEFT_OUT = (
    "function_name",
    "mesh_shape",
    "choice",
    "constraints",
    "arguments",
    "results",
    "in_specs",
    "out_specs",
    "request",
    "compiler_options",
    "in_tree",
    "jax_version",
)
"""Fields of a decision that say nothing to others, or have another name here."""


def decision_data(decision: Decision) -> dict[str, Any]:
    """A decision as JSON can hold it; specs are lists of the axes of every dim, bytes those on one device."""
    request, certificate = decision.request, decision.certificate
    plain = {name: as_json(getattr(decision, name)) for name in decision.__dataclass_fields__ if name not in LEFT_OUT}
    return {
        "function": decision.function_name,
        "mesh": dict(decision.mesh_shape),
        **plain,
        "objective": request.objective,
        "memory_limit_bytes": request.memory_limit if request.memory_limit < math.inf else None,
        "certificate": {**as_json(certificate), "gap": certificate.gap, "status": certificate.status},
        "arguments": _leaves(decision, decision.arguments, decision.in_specs),
        "results": _leaves(decision, decision.results, decision.out_specs),
    }


def report_data(report: PlanReport) -> dict[str, Any]:
    """All that the page of a plan shows as JSON can hold it; the decision is under "plan"."""
    own = {part.name: as_json(getattr(report, part.name)) for part in fields(report) if part.name != "decision"}
    return {"plan": decision_data(report.decision), **own, "has_program": report.memory is not None}


def _leaves(decision: Decision, leaves: Sequence[Leaf], specs: Sequence[PartitionSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": leaf.name,
            "type": type_text(leaf.aval),
            "spec": as_json(spec),
            "bytes": bytes_on_device(leaf, spec, decision.mesh_shape),
        }
        for leaf, spec in zip(leaves, specs, strict=True)
    ]
