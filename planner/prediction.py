"""What is predicted of a plan, as records: seconds, memory and collectives, all per device and call."""

from __future__ import annotations

from dataclasses import dataclass

from planner.printing.parts import Part, section, table_of
from planner.printing.printed import Printed
from planner.units import quantity

MOST_COLLECTIVES = 12
"""Collectives that are printed one by one: those that move most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One predicted collective: `bytes` is the larger of its local operand and result, `count` how often it runs.

    `source` is the user's own line of code, `line` that of the innermost code outside of JAX, by which compilers know it.
    `assumed` is the part of `count` that nothing says: the passes of loops that end when some value does. `lifted` are
    both for a compiler that moves out of loops what none of their passes changes. `by_dim` are the axes of a sum by the
    dim that they split, for one that sums over one dim after the other. `emitted` is the kind that the program asks for,
    where `kind` is what a platform's compiler makes of it, and `bytes` are the share `narrowed` of what it asks to move.
    """

    kind: str
    bytes: float
    axes: tuple[str, ...]
    count: float
    source: str
    tensor: str
    dtype: str
    assumed: float
    lifted: tuple[float, float]
    by_dim: tuple[tuple[str, ...], ...] = ()
    emitted: str = ""
    narrowed: float = 1.0
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted(Printed):
    """All per device and call. `seconds` is the sum of computing and of the communication that is exposed.

    `hidden_seconds` of communication run beside computing. `seconds_range` is what a machine may take, from the spread of
    published runs around predictions; None where a plan of an earlier release does not say it.

    `feed_seconds` are beside them: what it takes to bring the inputs from hosts, which a pipeline that prefetches hides
    behind the call before. `fed_bytes` of inputs go to a device; the busiest host loads `host_bytes` for its devices.
    `offloaded_bytes` of arrays wait in the memory of a device's host.
    """

    seconds: float
    compute_seconds: float
    communication_seconds: float
    flops: float
    traffic_bytes: float
    collectives: tuple[Collective, ...]
    peak_bytes: float
    argument_bytes: float
    output_bytes: float
    alias_bytes: float
    energy_joules: float
    feed_seconds: float = 0.0
    fed_bytes: float = 0.0
    host_bytes: float = 0.0
    offloaded_bytes: float = 0.0
    hidden_seconds: float = 0.0
    seconds_range: tuple[float, float] | None = None

    def _parts(self) -> list[Part]:
        between = "" if self.seconds_range is None else " to ".join(quantity(each, "s") for each in self.seconds_range)
        figures = [
            ("time of a call", quantity(self.seconds, "s"), between),
            ("  computing", quantity(self.compute_seconds, "s"), ""),
            ("  communicating", quantity(self.communication_seconds, "s"), ""),
            ("  beside computing", quantity(self.hidden_seconds, "s"), ""),
            ("operations", quantity(self.flops, "FLOP"), ""),
            ("read and written", quantity(self.traffic_bytes, "B"), ""),
            ("energy", quantity(self.energy_joules, "J"), ""),
            ("peak memory", quantity(self.peak_bytes, "B"), ""),
            ("  arguments", quantity(self.argument_bytes, "B"), ""),
            ("  results", quantity(self.output_bytes, "B"), ""),
            ("  results in donated arguments", quantity(self.alias_bytes, "B"), ""),
        ]
        largest = sorted(self.collectives, key=lambda one: -one.count * one.bytes)
        moved = [
            (
                one.kind,
                ",".join(one.axes),
                f"{one.count:g}",
                quantity(one.count * one.bytes, "B"),
                one.tensor,
                one.source,
            )
            for one in largest
        ]
        columns = "|axes|>runs|>bytes|of|at"
        return [
            "Predicted per device and call",
            table_of("|>|", figures),
            *section("collectives", columns, moved, MOST_COLLECTIVES),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Operations of products of matrices at a line of code, per device and call, of which `again` are computed again.

    `line` is "folder/file.py:line", by which compilers know it; "" stands for all lines where nothing is computed again.
    """

    line: str
    flops: float
    again: float
