"""A plan as a table a person reads."""

from __future__ import annotations

import io
from collections.abc import Mapping

from jax.sharding import PartitionSpec
from rich.console import Console
from rich.table import Table

from planner.decision import Decision
from planner.predict import Predicted

MOST_ROWS = 40
WIDTH = 118


def quantity(value: float, unit: str) -> str:
    """A number with a metric prefix: 1536 -> "1.54 kB"."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
    return f"{value:.3g} {unit}"


def describe(decision: Decision) -> str:
    """The plan as text: summary, arguments and results by size, collectives, checks and notes."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=WIDTH, no_color=True, highlight=False)
    mesh = " x ".join(f"{name}={size}" for name, size in decision.mesh_shape.items())
    p, c = decision.predicted, decision.certificate
    console.print(f"Plan of {decision.function_name} for {decision.topology}: mesh {mesh}")
    console.print(
        f"  {quantity(p.seconds, 's')} per call (computing {quantity(p.compute_seconds, 's')}, communication "
        f"{quantity(p.communication_seconds, 's')}), {quantity(p.flops, 'FLOP')}, peak memory "
        f"{quantity(p.peak_bytes, 'B')}, {quantity(p.energy_joules, 'J')} per device"
    )
    console.print(
        f"  {c.status}: {c.value:.6g} {c.unit}, no plan below {c.lower_bound:.6g} {c.unit} by this cost model "
        f"({c.meshes} meshes, {c.solve_seconds:.1f} s)"
    )
    console.print(_leaves("argument", decision))
    console.print(_leaves("result", decision))
    if p.collectives:
        console.print(_collectives(p))
    if decision.replicated:
        console.print("Placed whole for lack of a rule:")
        for op in decision.replicated[:MOST_ROWS]:
            console.print(f"  {op.op} at {op.source} ({op.trips:g} times per call)")
    for check in decision.checked:
        mark = {True: "ok", False: "FAILED", None: "not checked"}[check.ok]
        console.print(f"{check.what}: {mark}. {check.detail}")
    for note in decision.notes:
        console.print(f"note: {note}")
    return buffer.getvalue().rstrip()


def _leaves(what: str, decision: Decision) -> Table:
    leaves, specs = (
        (decision.arguments, decision.in_specs) if what == "argument" else (decision.results, decision.out_specs)
    )
    table = Table(title=f"{what}s", title_justify="left", box=None, pad_edge=False)
    for column, justify in ((what, "left"), ("type", "left"), ("spec", "left"), ("per device", "right")):
        table.add_column(column, justify=justify, overflow="fold")  # pyright: ignore[reportArgumentType]
    order = sorted(range(len(leaves)), key=lambda i: -leaves[i].aval.bytes)
    for i in sorted(order[:MOST_ROWS]):
        leaf = leaves[i]
        parts = split_into(specs[i], decision.mesh_shape)
        table.add_row(
            leaf.name,
            f"{leaf.aval.dtype}{list(leaf.aval.shape)}",
            spec_words(specs[i]),
            quantity(leaf.aval.bytes / parts, "B"),
        )
    if len(order) > MOST_ROWS:
        rest = order[MOST_ROWS:]
        left = sum(leaves[i].aval.bytes / split_into(specs[i], decision.mesh_shape) for i in rest)
        table.add_row(f"... and {len(rest)} smaller", "", "", quantity(left, "B"))
    return table


def spec_words(spec: PartitionSpec) -> str:
    """A PartitionSpec in the short form P('x', None)."""
    return f"P({', '.join(map(repr, spec))})"


def split_into(spec: PartitionSpec, mesh_shape: Mapping[str, int]) -> int:
    """Into how many parts a spec cuts a tensor."""
    parts = 1
    for entry in spec:
        for name in () if entry is None else (entry,) if isinstance(entry, str) else entry:
            parts *= mesh_shape[name]
    return parts


def _collectives(predicted: Predicted) -> Table:
    table = Table(title="collectives per call and device", title_justify="left", box=None, pad_edge=False)
    for column, justify in (
        ("kind", "left"),
        ("axes", "left"),
        ("count", "right"),
        ("bytes", "right"),
        ("largest", "left"),
    ):
        table.add_column(column, justify=justify, overflow="fold")  # pyright: ignore[reportArgumentType]
    totals: dict[tuple[str, tuple[str, ...]], list[float]] = {}
    largest: dict[tuple[str, tuple[str, ...]], tuple[float, str]] = {}
    for c in predicted.collectives:
        key = (c.kind, c.axes)
        total = totals.setdefault(key, [0.0, 0.0])
        total[0] += c.count
        total[1] += c.count * c.bytes
        if c.count * c.bytes >= largest.get(key, (-1.0, ""))[0]:
            largest[key] = (c.count * c.bytes, f"{c.tensor} at {c.source}" if c.source not in c.tensor else c.tensor)
    for key in sorted(totals, key=lambda k: -totals[k][1]):
        count, size = totals[key]
        table.add_row(key[0], ",".join(key[1]), f"{count:g}", quantity(size, "B"), largest[key][1])
    return table
