"""A plan, and a profile of devices, as tables a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models import Profile
from planner.autotune_log import Refined, Trial
from planner.decision import Decision
from planner.emit.alternatives import options_text
from planner.folded import fold_numbers
from planner.pricing.candidates.specs import spec_text
from planner.printing.parts import Part, count, section, table_of
from planner.printing.text import text_of
from planner.report.collectives import CollectiveUse
from planner.report.plan_report import PlanReport, at_source, plan_report
from planner.report.rows import TableRow, rows_of
from planner.units import listed, quantity

MOST_ROWS = 40
MOST_INTERMEDIATES = 12
MOST_COLLECTIVES = 16
MOST_TRIALS = 8
MOST_AXES = 12
MOST_EXCEPTIONS = 4


def plan_parts(decision: Decision) -> list[Part]:
    """What a plan says: what it costs, where arguments and results lie, what is communicated, what was checked."""
    report = plan_report(decision)
    return [
        report.title,
        table_of("|", _summary(report)),
        f"\narguments: {count(len(decision.arguments), 'array')}",
        *_leaf_table(report.arguments),
        *_results(report),
        *_axes(decision),
        *_intermediates(decision),
        *_collectives(report),
        *_ops(report),
        *_refined(decision.refined),
        *_checks(report),
    ]


# ---------------------------------------------------------------- the parts of a plan


def _summary(report: PlanReport) -> list[tuple[str, str]]:
    """The figures of a plan by name."""
    decision, p, c = report.decision, report.decision.predicted, report.decision.certificate
    mesh = " x ".join(f"{name}={size}" for name, size in decision.mesh_shape.items())
    limit = decision.request.memory_limit
    rows = [
        ("mesh", f"{mesh}: {report.devices}"),
        ("time", f"{quantity(p.seconds, 's')} per call{report.interval}: {report.time_parts}"),
        (
            "work",
            f"{quantity(p.flops, 'FLOP')}, {quantity(p.traffic_bytes, 'B')} read and written, "
            f"{quantity(p.energy_joules, 'J')}, per device and call",
        ),
        (
            "memory",
            f"peak {quantity(p.peak_bytes, 'B')} of {quantity(limit, 'B')} ({100 * p.peak_bytes / limit:.3g} %) per "
            f"device: {report.memory_parts}",
        ),
        (
            "certificate",
            f"{c.status}: {c.value:.6g} {c.unit}, {'and ' if report.has_bound else ''}{report.bound} "
            f"({count(c.meshes, 'mesh', 'meshes')}, {c.solve_seconds:.1f} s)",
        ),
    ]
    if p.offloaded_bytes:
        waits = f"{quantity(p.offloaded_bytes, 'B')} per device"
        rows.insert(4, ("host memory", waits))
    if decision.form.microbatches > 1:
        rows.insert(1, ("form", f"{decision.form.microbatches} microbatches, one after the other"))
    if p.feed_seconds:
        fed, loaded = quantity(p.fed_bytes, "B"), quantity(p.host_bytes, "B")
        time = f"{quantity(p.feed_seconds, 's')} per call, beside it"
        rows.append(("inputs", f"{fed} per device from hosts, of which one loads up to {loaded}: {time}"))
    if decision.compiler_options:
        rows.append(("compiler", options_text(decision.compiler_options)))
    return rows


def _results(report: PlanReport) -> list[Part]:
    heading = f"\nresults: {count(len(report.decision.results), 'array')}"
    if report.returned:
        roots = dict.fromkeys(name.split("/")[0] for name in report.returned)
        heading += f", {len(report.returned)} of them returned as taken, type and spec ({', '.join(roots)})"
    return [heading, *(_leaf_table(report.results) if report.results else [])]


def _leaf_table(rows: Sequence[TableRow]) -> list[Part]:
    """A table of rows, the largest `MOST_ROWS` of them, and a line that says what is folded."""
    labels = _labels([root for row in rows for root in row.also])
    order = sorted(range(len(rows)), key=lambda i: -rows[i].bytes)
    cells = [
        (
            row.name,
            row.type,
            spec_text(row.spec),
            quantity(row.bytes, "B"),
            *((", ".join(labels[root] for root in row.also),) if labels else ()),
        )
        for row in (rows[i] for i in sorted(order[:MOST_ROWS]))
    ]
    rest = [rows[i] for i in order[MOST_ROWS:]]
    if rest:
        smaller = f"... and {sum(row.count for row in rest)} smaller"
        cells.append((smaller, "", "", quantity(sum(row.bytes for row in rest), "B")))
    table = table_of(f"|type|spec|>per device{'|with' if labels else ''}", cells)
    legend = ", ".join(f"{label} = {root}/..." for root, label in labels.items())
    return [table, f"  with: counted in, of the same type and spec; {legend}"] if labels else [table]


def _labels(prefixes: Sequence[str]) -> dict[str, str]:
    """Prefix -> its shortest end that tells it from the others: `opt_state/1/0/mu` -> `mu`."""
    distinct = list(dict.fromkeys(prefixes))

    def end(prefix: str, length: int) -> str:
        return "/".join(prefix.split("/")[-length:])

    found: dict[str, str] = {}
    for prefix in distinct:
        length = next(
            n for n in range(1, len(prefix) + 2) if sum(end(other, n) == end(prefix, n) for other in distinct) == 1
        )
        found[prefix] = end(prefix, length)
    return found


def _axes(decision: Decision) -> list[Part]:
    """The logical axes that the plan splits, and the arguments whose specs are not what these say."""
    logical = decision.logical
    split = [axis for axis in logical.axes if axis.arguments or axis.computed]
    if not split and not logical.exceptions:
        return []
    rows = [
        (
            axis.name,
            f"{axis.size:,}",
            ",".join(axis.arguments) or "whole",
            "" if axis.computed is None else ",".join(axis.computed) or "whole",
        )
        for axis in split
    ]
    parts: list[Part] = [
        "\naxes of the program, and those of the mesh that split them",
        table_of("|>extent|in arguments|in what is computed", rows[:MOST_AXES]),
    ]
    if len(split) > MOST_AXES:
        parts.append(f"... and {len(split) - MOST_AXES} more")
    if logical.exceptions:
        leaves = [leaf for leaf in decision.arguments if leaf.name in logical.exceptions]
        exceptions = rows_of(leaves, [logical.exceptions[leaf.name] for leaf in leaves], decision.mesh_shape)
        named = [f"{row.name} {spec_text(row.spec)}" for row in exceptions]
        parts.append(f"  otherwise: {listed(named, MOST_EXCEPTIONS)}")
    return parts


def _intermediates(decision: Decision) -> list[Part]:
    """Those that the program names with `checkpoint_name`; the others are named after where they come from."""
    named = {name: spec for name, spec in decision.intermediates.items() if name in decision.named}
    if not named:
        return []
    specs = list(named.values())
    folded = fold_numbers(list(named), specs)
    rows: list[Sequence[str]] = [(name, spec_text(specs[members[0]])) for name, members in folded[:MOST_INTERMEDIATES]]
    if len(folded) > MOST_INTERMEDIATES:
        rows.append([f"... and {sum(len(one.members) for one in folded[MOST_INTERMEDIATES:])} more"])
    return ["\nintermediates named by checkpoint_name", table_of("|spec", rows)]


def _collectives(report: PlanReport) -> list[Part]:
    """Runs and bytes by kind and axes, most bytes first, with the largest transfer of each and its source line."""
    if not report.moved:
        return ["\ncollectives: none"]
    groups = sorted(report.moved, key=lambda group: (-group.bytes, group.kind, group.axes))
    rows = [
        (group.kind, ",".join(group.axes), f"{group.runs:g}", quantity(group.bytes, "B"), _largest(group, report))
        for group in groups[:MOST_COLLECTIVES]
    ]
    rest = groups[MOST_COLLECTIVES:]
    if rest:
        runs, size = sum(group.runs for group in rest), sum(group.bytes for group in rest)
        rows.append((f"... and {len(rest)} smaller", "", f"{runs:g}", quantity(size, "B"), ""))
    size = quantity(sum(group.bytes for group in groups), "B")
    return [f"\ncollectives: {size} per device and call", table_of("|axes|>runs|>bytes|largest", rows)]


def _largest(group: CollectiveUse, report: PlanReport) -> str:
    """The largest collective of one kind over some axes, with those of other layers that are the same."""
    mine = [c for c in report.decision.predicted.collectives if (c.kind, c.axes) == (group.kind, group.axes)]
    size = max(c.count * c.bytes for c in mine)
    largest = [c for c in mine if c.count * c.bytes == size]
    name, members = fold_numbers([c.tensor for c in largest], [c.source for c in largest])[0]
    where = at_source(name, largest[members[0]].source)
    times = f"{len(members)} x " if len(members) > 1 else ""
    return f"{times}{quantity(size, 'B')}: {where}"


def _ops(report: PlanReport) -> list[Part]:
    """The ops that the planner knows less of."""
    parts: list[Part] = []
    for what, ops in report.ops.items():
        rows: list[Sequence[str]] = [(one.op, one.place, f"{one.runs:g}") for one in ops[:MOST_ROWS]]
        if len(ops) > MOST_ROWS:
            rows.append([f"... and {len(ops) - MOST_ROWS} more"])
        parts += [f"\n{what}", table_of("|at|>runs", rows)]
    return parts


def _refined(refined: Refined | None) -> list[Part]:
    """The fastest plans tried and the one chosen (*), with what was predicted, expected and found of each."""
    if refined is None:
        return []
    how = {"compile": "compiled", "measure": "run"}[refined.how]
    title = (
        f"refined: {count(len(refined.trials), 'plan')} {how} in {count(refined.rounds, 'round')} and "
        f"{refined.seconds:.0f} s; {refined.ended}"
    )

    def row(i: int, trial: Trial) -> tuple[str, ...]:
        found, peak = trial.found_seconds, trial.found_peak_bytes
        return (
            "*" if i == refined.chosen else "",
            "x".join(map(str, trial.mesh.values())),
            trial.why if trial.emission == "as planned" else f"{trial.why}, {trial.emission}",
            quantity(trial.predicted_seconds, "s"),
            quantity(trial.expected_seconds, "s"),
            "" if found is None else quantity(found, "s"),
            "" if peak is None else quantity(peak, "B"),
            "" if trial.status == "ok" else trial.status,
        )

    order = sorted(
        enumerate(refined.trials),
        key=lambda pair: (pair[0] != refined.chosen, pair[1].found_seconds or float("inf"), pair[0]),
    )
    columns = "|mesh|how it came about|>predicted|>expected|>found|>peak|"
    return section(title, columns, [row(*pair) for pair in order], MOST_TRIALS) or [f"\n{title}"]


def _checks(report: PlanReport) -> list[Part]:
    parts: list[Part] = []
    if report.checks:
        rows = [(check.what, check.verdict, check.detail) for check in report.checks]
        parts += ["\nchecks", table_of("||", rows)]
    if report.decision.notes:
        parts += ["\nnotes", *(f"- {note}" for note in report.decision.notes)]
    return parts


# ---------------------------------------------------------------- profiles


def describe_profile(profile: Profile) -> str:
    """The profile as text: what was fitted per device, and how well the lines fit."""
    fits = [(f"matmul {m.dtype}", m.fit, "FLOP/s") for m in profile.matmuls]
    fits += [("elementwise pass", profile.elementwise, "B/s"), ("vector work", profile.vector, "FLOP/s")]
    fits += [(f"{c.kind} over {c.group_size}", c.fit, "B/s") for c in profile.collectives]
    rows = [
        (
            name,
            quantity(fit.latency_s, "s"),
            quantity(1 / fit.seconds_per_unit, unit) if fit.seconds_per_unit > 0 else "not measurable",
            f"{100 * fit.residual:.1f} %",
        )
        for name, fit, unit in fits
    ]
    heading = (
        f"{profile.num_devices} x {profile.device_kind} ({profile.platform}), {profile.machine}, jax "
        f"{profile.jax_version}, {profile.date}"
    )
    return text_of([heading, "", table_of("|>latency|>throughput per device|>residual", rows)])
