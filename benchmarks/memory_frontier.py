"""How large a batch fits? The largest of Llama 3 8B at sequence 8192, by the compiler, of our plans and of hand plans.

    python -m benchmarks.memory_frontier [--topology T,T] [--out FILE.json]
    python -m benchmarks.memory_frontier --summary [--out FILE.json]

Ours is asked for a plan of each batch, as users ask (`ours`), and for one that takes the whole batch in one pass (`ours in
one pass`). The hand plans are those that need the least in the file of `benchmarks.plan_quality`, each with every policy
of what its layers save. Batches are multiples of the devices by a power of two and 1, 1.25, 1.5 or 1.75; of each plan the
largest that fits is found by doubling and halving, taken as if what fits did so for every smaller batch. Ours is not asked
for more than `MOST` times what the best hand plan holds.

All are compiled for the topology with no device present. Rows in the file stay, so that a run can go on.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import plan_quality
from benchmarks.hand_plans import HandPlan, jitted
from benchmarks.memory_choices import all_ways, one_way_each
from benchmarks.models import llama
from benchmarks.models.base import Model
from benchmarks.models.checkpoints import POLICIES, Policy, with_policy
from benchmarks.plan_quality import UNCHECKED, Row, compiled, ours
from benchmarks.stamp import stamp
from benchmarks.suite import PROGRAMS
from cost_models import Topology, parse_topology

RESULTS = Path(__file__).resolve().parent / "results" / "memory_frontier.json"
PROGRAM = "llama 8B"
TOPOLOGIES = ("v5e:16x16", "v5p:4x4x4", "h100:8")
HANDS = 4
"""Hand plans, those of the least peak first, that are tried with every policy."""
QUARTERS = (4, 5, 6, 7)
"""Batches between two powers of two, in quarters of the lower one."""
LEAST, MOST = 8, 8
"""The smallest batch is the devices over `LEAST`; ours goes to `MOST` times the largest of the best hand plan."""
OURS = {"ours": UNCHECKED, "ours in one pass": replace(UNCHECKED, microbatches=1)}


def program(batch: int) -> Model:
    """The program for a batch."""
    return llama.llama(replace(llama.CONFIGS["8B"], query_block=512), batch=batch, size="real")


def batches(devices: int, quantum: int, most: float) -> list[int]:
    """The batches that are tried, from small to large, of those that `quantum` divides."""
    least = max(devices // LEAST, 1)
    powers = [least << i for i in range(64) if least << i <= most]
    tried = {power * n // 4 for power in powers for n in QUARTERS if power * n % (4 * quantum) == 0}
    return sorted(batch for batch in tried if batch <= most)


def largest(tried: Sequence[int], fits: Callable[[int], bool], start: int) -> int | None:
    """The largest of some batches that fits, from `start` on in both directions; None where none does."""
    low, high, at, step = -1, len(tried), next((i for i, b in enumerate(tried) if b >= start), len(tried) - 1), 4
    while high - low > 1:
        if fits(tried[at]):
            low = at
        else:
            high = at
        growing, falling = high == len(tried), low == -1
        at = min(low + step, high - 1) if growing else max(high - step, 0) if falling else (low + high) // 2
        step *= 2 if growing or falling else 1
    return tried[low] if low >= 0 else None


def batch_axes(hand: HandPlan) -> int:
    """In how many parts a hand plan splits the batch."""
    return math.prod(hand.mesh[axis] for axis in hand.kind.rules.get("batch", ()))


def smallest_hands(known: Sequence[Row], ways: dict[str, HandPlan]) -> list[HandPlan]:
    """The hand plans of the least peak among these rows, one way to write each kind on a mesh."""
    return one_way_each(sorted(known, key=lambda row: row.get("peak_bytes") or float("inf")), ways)[:HANDS]


class Rows:
    """The rows of a file, one per topology, plan and batch."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.rows: list[Row] = json.loads(out.read_text())["rows"] if out.exists() else []

    def row(self, topology: Topology, plan: str, batch: int, make: Callable[[], Row]) -> Row:
        """The row of a plan of a batch, made where there is none yet."""
        key = {"topology": topology.name, "plan": plan, "batch": batch}
        found = next((row for row in self.rows if key.items() <= row.items()), None)
        if found is None:
            found = key | make()
            self.rows.append(found)
            lines = ",\n".join(json.dumps(row) for row in self.rows)
            self.out.write_text(f'{{"stamp": {json.dumps(stamp())},\n"rows": [\n{lines}\n]}}\n')
            peak = f"{found['peak_bytes'] / 1e9:.1f} GB" if found.get("peak_bytes") else found.get("message", "")
            print(f"{topology.name:<10} {plan:<60} {batch:>6} {found['status']:<12} {peak}", flush=True)
        return found


def hand_largest(rows: Rows, topology: Topology, hand: HandPlan, policy: Policy) -> int | None:
    """The largest batch of a hand plan with a policy."""
    family = PROGRAMS[PROGRAM].family

    def fits(batch: int) -> bool:
        def make() -> Row:
            model = with_policy(program(batch), policy)
            jit = jitted(model, family, hand)
            return {"policy": policy, **compiled(jit, model, topology, hand.mesh, hand.compiler_options(topology))}

        return rows.row(topology, f"{hand.name}, {policy}", batch, make)["status"] == "ok"

    devices = topology.num_devices
    return largest(batches(devices, batch_axes(hand), devices * 64), fits, devices)


def our_largest(rows: Rows, topology: Topology, name: str, hand: int) -> int | None:
    """The largest batch of ours, up to `MOST` times that of the best hand plan."""

    def fits(batch: int) -> bool:
        def make() -> Row:
            return ours(program(batch), topology, PROGRAMS[PROGRAM], options=OURS[name])

        return rows.row(topology, name, batch, make)["status"] == "ok"

    return largest(batches(topology.num_devices, 1, MOST * hand), fits, hand)


def run(rows: Rows, topology: Topology, known: Sequence[Row]) -> None:
    """Finds the largest batches of a topology's plans."""
    best = 0
    for hand in smallest_hands(known, all_ways(PROGRAMS[PROGRAM].family, topology)):
        for policy in POLICIES:
            best = max(best, hand_largest(rows, topology, hand, policy) or 0)
    for name in OURS:
        our_largest(rows, topology, name, best or topology.num_devices)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A table: a line per topology and plan, the largest batch of it that fits."""
    yield "| topology | plan | largest batch | of the best hand plan's | its ms per sequence | its peak GB |"
    yield "|" + "---|" * 6
    for topology in dict.fromkeys(row["topology"] for row in rows):
        own = [row for row in rows if row["topology"] == topology and row["status"] == "ok"]
        hands = [row for row in own if "policy" in row]
        best = max(hands, key=_order, default=None)
        mine = (max((row for row in own if row["plan"] == name), key=_order, default=None) for name in OURS)
        for row in filter(None, (best, *mine)):
            share = f"{row['batch'] / best['batch']:.2f}" if best is not None else "-"
            each = f"{1e3 * row['seconds'] / row['batch']:.2f}"
            yield f"| {topology} | {row['plan']} | {row['batch']} | {share} | {each} | {row['peak_bytes'] / 1e9:.1f} |"


def _order(row: Any) -> tuple[int, float]:
    """More is larger, then faster."""
    return row["batch"], -row["seconds"]


def main() -> None:
    """Finds the largest batches of every topology, prints each plan as it is made, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--known", type=Path, default=plan_quality.RESULTS, help="the file of benchmarks.plan_quality")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = Rows(options.out)
    known: list[Row] = json.loads(options.known.read_text())["rows"]
    for topology in () if options.summary else options.topology.split(","):
        of_program = [row for row in known if (row["program"], row["topology"]) == (PROGRAM, topology)]
        run(rows, parse_topology(topology), [row for row in of_program if row["plan"] not in plan_quality.OURS])
    print("\n".join(summary(rows.rows)))


if __name__ == "__main__":
    main()
