"""A plan, and a profile of devices, as tables a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import PartitionSpec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cost_models import Profile
from planner.autotune_log import Refined
from planner.decision import Decision, Guessed, Replicated, Ruled
from planner.emit.alternatives import options_words
from planner.folded import fold_numbers
from planner.prediction import Collective, Predicted
from planner.pricing.candidates.specs import spec_words
from planner.report.rows import TableRow, returned_as_taken, roots, rows_of, split_into
from planner.report.text_table import Justify, add_row, table_of, text_of
from planner.units import quantity

MOST_ROWS = 40
MOST_INTERMEDIATES = 12
MOST_COLLECTIVES = 16
MOST_TRIALS = 8
MOST_AXES = 12
MOST_EXCEPTIONS = 4


def describe(decision: Decision) -> str:
    """The plan as text: what it costs, where arguments and results lie, what is communicated, what was checked."""
    parts: list[RenderableType] = [
        Text(f"Plan of {decision.function_name} for {decision.topology}", style="bold"),
        _summary(decision),
        *_arguments(decision),
        *_results(decision),
        *_axes(decision),
        *_intermediates(decision),
        *_collectives(decision.predicted),
        *_ops("placed whole for lack of a rule", decision.replicated),
        *_ops("work guessed as one operation per result element", decision.guessed),
        *_ops("placed by Shardy's rule", decision.by_shardy),
        *_refined(decision.refined),
        *_verdicts(decision),
    ]
    return text_of(parts)


# ---------------------------------------------------------------- the parts of a plan


def _summary(decision: Decision) -> Table:
    p, c = decision.predicted, decision.certificate
    table = table_of(("", "left"), ("", "left"), header=False)
    mesh = " x ".join(f"{name}={size}" for name, size in decision.mesh_shape.items())
    devices = split_into(PartitionSpec(tuple(decision.mesh_shape)), decision.mesh_shape)
    there = decision.request.topology.num_devices
    add_row(table, "mesh", f"{mesh}: {f'{devices} of ' if devices < there else ''}{_count(there, 'device')}")
    if decision.form.microbatches > 1:
        add_row(table, "form", f"{decision.form.microbatches} microbatches, one after the other")
    add_row(
        table,
        "time",
        f"{quantity(p.seconds, 's')} per call: computing {quantity(p.compute_seconds, 's')}, communicating "
        f"{quantity(p.communication_seconds, 's')}",
    )
    add_row(
        table,
        "work",
        f"{quantity(p.flops, 'FLOP')}, {quantity(p.traffic_bytes, 'B')} read and written, "
        f"{quantity(p.energy_joules, 'J')}, per device and call",
    )
    limit = decision.request.memory_limit
    share = f" of {quantity(limit, 'B')} ({100 * p.peak_bytes / limit:.3g} %)"
    aliased = f", of which {quantity(p.alias_bytes, 'B')} reuse donated arguments" if p.alias_bytes else ""
    add_row(
        table,
        "memory",
        f"peak {quantity(p.peak_bytes, 'B')}{share} per device: arguments {quantity(p.argument_bytes, 'B')}, results "
        f"{quantity(p.output_bytes, 'B')}{aliased}",
    )
    among = "" if c.within_bytes is None else f" of at most {quantity(c.within_bytes, 'B')} per device"
    bound = (
        f"and no plan{among} is below {c.lower_bound:.6g} {c.unit} by this cost model"
        if c.lower_bound > 0 or c.value == 0
        else "the search ended before it had a bound for every mesh"
    )
    add_row(
        table,
        "certificate",
        f"{c.status}: {c.value:.6g} {c.unit}, {bound} ({_count(c.meshes, 'mesh', 'es')}, {c.solve_seconds:.1f} s)",
    )
    if p.feed_seconds:
        add_row(
            table,
            "inputs",
            f"{quantity(p.fed_bytes, 'B')} per device from hosts, of which one loads up to {quantity(p.host_bytes, 'B')}: "
            f"{quantity(p.feed_seconds, 's')} per call, beside it",
        )
    if decision.compiler_options:
        add_row(table, "compiler", options_words(decision.compiler_options))
    return table


def _arguments(decision: Decision) -> list[RenderableType]:
    rows = rows_of(decision.arguments, decision.in_specs, decision.mesh_shape)
    return [_heading(f"arguments: {_count(len(decision.arguments), 'array')}"), *_leaf_table(rows)]


def _results(decision: Decision) -> list[RenderableType]:
    taken = returned_as_taken(decision.arguments, decision.in_specs, decision.results, decision.out_specs)
    heading = f"results: {_count(len(decision.results), 'array')}"
    if taken:
        names = ", ".join(roots([decision.arguments[i].name for i in sorted(taken.values())]))
        heading += f", {len(taken)} of them returned as taken, type and spec ({names})"
    rest = [i for i in range(len(decision.results)) if i not in taken]
    rows = rows_of([decision.results[i] for i in rest], [decision.out_specs[i] for i in rest], decision.mesh_shape)
    return [_heading(heading), *(_leaf_table(rows) if rows else [])]


def _leaf_table(rows: Sequence[TableRow]) -> list[RenderableType]:
    """A table of rows, the largest `MOST_ROWS` of them, and a line that says what is folded."""
    labels = _labels([root for row in rows for root in row.also])
    columns: list[tuple[str, Justify]] = [("", "left"), ("type", "left"), ("spec", "left"), ("per device", "right")]
    table = table_of(*columns, ("with", "left")) if labels else table_of(*columns)
    order = sorted(range(len(rows)), key=lambda i: -rows[i].bytes)
    for i in sorted(order[:MOST_ROWS]):
        row = rows[i]
        with_it = (", ".join(labels[root] for root in row.also),) if labels else ()
        add_row(table, row.name, row.type, spec_words(row.spec), quantity(row.bytes, "B"), *with_it)
    rest = [rows[i] for i in order[MOST_ROWS:]]
    if rest:
        count = sum(row.count for row in rest)
        left = quantity(sum(row.bytes for row in rest), "B")
        add_row(table, f"... and {count} smaller", "", "", left, *(("",) if labels else ()))
    legend = [f"{label} = {root}/..." for root, label in labels.items()]
    if not legend:
        return [table]
    return [table, Text(f"  with: counted in, of the same type and spec; {', '.join(legend)}")]


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


def _intermediates(decision: Decision) -> list[RenderableType]:
    """Those that the program names with `checkpoint_name`; the others are named after where they come from."""
    named = {name: spec for name, spec in decision.intermediates.items() if name in decision.named}
    if not named:
        return []
    table = table_of(("", "left"), ("spec", "left"))
    rows = fold_numbers(list(named), list(named.values()))
    for name, members in rows[:MOST_INTERMEDIATES]:
        add_row(table, name, spec_words(list(named.values())[members[0]]))
    if len(rows) > MOST_INTERMEDIATES:
        add_row(table, f"... and {sum(len(row.members) for row in rows[MOST_INTERMEDIATES:])} more", "")
    return [_heading("intermediates named by checkpoint_name"), table]


def _axes(decision: Decision) -> list[RenderableType]:
    """The logical axes that the plan splits, and what lies otherwise than they say."""
    logical = decision.logical
    split = [axis for axis in logical.axes if axis.arguments or axis.computed]
    if not split and not logical.exceptions:
        return []
    table = table_of(("", "left"), ("extent", "right"), ("in arguments", "left"), ("in what is computed", "left"))
    for axis in split[:MOST_AXES]:
        computed = "" if axis.computed is None else ",".join(axis.computed) or "whole"
        add_row(table, axis.name, f"{axis.size:,}", ",".join(axis.arguments) or "whole", computed)
    parts: list[RenderableType] = [_heading("axes of the program, and those of the mesh that split them"), table]
    if len(split) > MOST_AXES:
        parts.append(Text(f"... and {len(split) - MOST_AXES} more"))
    if logical.exceptions:
        leaves = [leaf for leaf in decision.arguments if leaf.name in logical.exceptions]
        rows = rows_of(leaves, [logical.exceptions[leaf.name] for leaf in leaves], decision.mesh_shape)
        named = [f"{row.name} {spec_words(row.spec)}" for row in rows]
        more = f", and {len(rows) - MOST_EXCEPTIONS} more" if len(rows) > MOST_EXCEPTIONS else ""
        parts.append(Text(f"  otherwise: {', '.join(named[:MOST_EXCEPTIONS])}{more}"))
    return parts


def _collectives(predicted: Predicted) -> list[RenderableType]:
    """Runs and bytes by kind and axes, most bytes first, with the largest transfer of each and its source line."""
    if not predicted.collectives:
        return [_heading("collectives: none")]
    lots: dict[tuple[str, tuple[str, ...]], list[Collective]] = {}
    for c in predicted.collectives:
        lots.setdefault((c.kind, c.axes), []).append(c)
    totals = {key: (sum(c.count for c in lot), sum(c.count * c.bytes for c in lot)) for key, lot in lots.items()}
    table = table_of(("", "left"), ("axes", "left"), ("runs", "right"), ("bytes", "right"), ("largest", "left"))
    order = sorted(totals, key=lambda k: (-totals[k][1], k))
    for kind, axes in order[:MOST_COLLECTIVES]:
        runs, size = totals[kind, axes]
        add_row(table, kind, ",".join(axes), f"{runs:g}", quantity(size, "B"), _largest(lots[kind, axes]))
    rest = order[MOST_COLLECTIVES:]
    if rest:
        runs, size = (sum(totals[key][i] for key in rest) for i in (0, 1))
        add_row(table, f"... and {len(rest)} smaller", "", f"{runs:g}", quantity(size, "B"), "")
    size = quantity(sum(size for _, size in totals.values()), "B")
    return [_heading(f"collectives: {size} per device and call"), table]


def _largest(lot: Sequence[Collective]) -> str:
    """The largest of some collectives in words, with the like of it in other layers."""
    size = max(c.count * c.bytes for c in lot)
    largest = [c for c in lot if c.count * c.bytes == size]
    name, members = fold_numbers([c.tensor for c in largest], [c.source for c in largest])[0]
    source = largest[members[0]].source
    times = f"{len(members)} x " if len(members) > 1 else ""
    return f"{times}{quantity(size, 'B')}: {name if source in name else f'{name} at {source}'}"


def _ops(heading: str, ops: Sequence[Replicated | Ruled | Guessed]) -> list[RenderableType]:
    """These ops, those of one kind, name and line together."""
    if not ops:
        return []
    table = table_of(("", "left"), ("at", "left"), ("runs", "right"))
    rows = fold_numbers([op.name or op.source for op in ops], [(op.op, op.source) for op in ops])
    for name, members in rows[:MOST_ROWS]:
        op = ops[members[0]]
        at = op.source if op.source in name else f"{name} at {op.source}"
        add_row(table, op.op, at, f"{sum(ops[i].trips for i in members):g}")
    if len(rows) > MOST_ROWS:
        add_row(table, f"... and {len(rows) - MOST_ROWS} more", "", "")
    return [_heading(heading), table]


def _refined(refined: Refined | None) -> list[RenderableType]:
    """The fastest plans tried and the one chosen (*), with what was predicted, expected and found of each."""
    if refined is None:
        return []
    tried = {"compile": "compiled", "measure": "run"}[refined.how]
    words = (
        f"refined: {_count(len(refined.trials), 'plan')} {tried} in {_count(refined.rounds, 'round')} and "
        f"{refined.seconds:.0f} s; {refined.ended}"
    )
    figures: list[tuple[str, Justify]] = [(name, "right") for name in ("predicted", "expected", "found", "peak")]
    table = table_of(("", "left"), ("mesh", "left"), ("how it came about", "left"), *figures, ("", "left"))
    order = sorted(
        range(len(refined.trials)),
        key=lambda i: (i != refined.chosen, refined.trials[i].found_seconds or float("inf"), i),
    )
    for i in order[:MOST_TRIALS]:
        trial = refined.trials[i]
        found, peak = trial.found_seconds, trial.found_peak_bytes
        add_row(
            table,
            "*" if i == refined.chosen else "",
            "x".join(map(str, trial.mesh.values())),
            trial.why if trial.emission == "as planned" else f"{trial.why}, {trial.emission}",
            quantity(trial.predicted_seconds, "s"),
            quantity(trial.expected_seconds, "s"),
            "" if found is None else quantity(found, "s"),
            "" if peak is None else quantity(peak, "B"),
            "" if trial.status == "ok" else trial.status,
        )
    more = len(refined.trials) - MOST_TRIALS
    return [
        _heading(words),
        *([table] if refined.trials else []),
        *([Text(f"... and {more} more")] if more > 0 else []),
    ]


def _verdicts(decision: Decision) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if decision.checked:
        table = table_of(("", "left"), ("", "left"), ("", "left"), header=False)
        together: dict[tuple[str, str], list[str]] = {}
        for check in decision.checked:
            together.setdefault((check.verdict, check.detail), []).append(check.what)
        for (verdict, detail), what in together.items():
            add_row(table, ", ".join(what), verdict, detail)
        lines += [_heading("checks"), table]
    if decision.notes:
        lines += [_heading("notes"), *(Text(f"- {note}") for note in decision.notes)]
    return lines


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


# ---------------------------------------------------------------- profiles


def describe_profile(profile: Profile) -> str:
    """The profile as text: what was fitted per device, and how well the lines fit."""
    table = table_of(("", "left"), ("latency", "right"), ("throughput per device", "right"), ("residual", "right"))
    rows = [(f"matmul {m.dtype}", m.fit, "FLOP/s") for m in profile.matmuls]
    rows += [("elementwise pass", profile.elementwise, "B/s"), ("vector work", profile.vector, "FLOP/s")]
    rows += [(f"{c.kind} over {c.group_size}", c.fit, "B/s") for c in profile.collectives]
    for name, fit, unit in rows:
        rate = quantity(1 / fit.seconds_per_unit, unit) if fit.seconds_per_unit > 0 else "not measurable"
        add_row(table, name, quantity(fit.latency_s, "s"), rate, f"{100 * fit.residual:.1f} %")
    heading = (
        f"{profile.num_devices} x {profile.device_kind} ({profile.platform}), {profile.machine}, jax "
        f"{profile.jax_version}, {profile.date}"
    )
    return text_of([Text(heading), Text(""), table])
