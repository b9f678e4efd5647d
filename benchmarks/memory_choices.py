"""Is what we save for the backward pass as good as what people save? Judged by the compiler's schedule, not by our prices.

    python -m benchmarks.memory_choices [--only NAME,NAME] [--topology T,T] [--plans hand,ours] [--out FILE.json]
    python -m benchmarks.memory_choices --summary [--out FILE.json]

Each program is planned with what is saved left to the planner (`ours`) and kept as written (`ours as written`), and set
beside hand plans (`benchmarks.hand_plans`) whose layers are checkpointed by the policies that people use
(`benchmarks.models.checkpoints`). The hand plans are the best of the same program and topology in the file of
`benchmarks.plan_quality` (with attention in plain JAX, where it is a kernel here); where it has none, the usual kinds on
the usual mesh. The first is compiled with every policy, the others with its two best, and the best pair in every way to
write it. All have the compiler options of our plans, but for windowed einsum.

`bound / ours` is, by the cost model, the least that any plan could take, whatever it saves, as a part of what ours is
promised to take.

All are compiled for the topology with no device present. Rows in the file stay, so that a run can go on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import plan_quality
from benchmarks.hand_plans import HandPlan, jitted, meshes_of
from benchmarks.hand_plans.families import Family
from benchmarks.models.checkpoints import POLICIES, WITH_KERNELS, Policy, with_policy
from benchmarks.plan_quality import UNCHECKED, Case, Row, compiled, ours, score
from benchmarks.suite import PROGRAMS
from cost_models import Topology, parse_topology
from planner.options import Remat

RESULTS = Path(__file__).resolve().parent / "results" / "memory_choices.json"
CASES = (
    ("llama 8B s4096 kernel", "v5p:4x4x4"),
    ("llama 8B kernel", "v5e:16x16"),
    ("mixtral 8x7B kernel", "v5e:4x4"),
    ("llama 8B s4096 kernel", "h100:8"),
    ("t5 large", "v5e:4x4"),
    ("gpt 1.3B kernel", "v5e:4x4"),
    ("deepseek-like 708B kernel", "v5p:4x4x4"),
    ("gpt 175B kernel", "v5e:16x16"),
    ("llama 70B kernel", "v5p:4x4x4"),
    ("vit large", "v5p:4x4x4"),
    ("unet remat", "v5e:4x4"),
    ("mixtral 8x7B kernel", "v5p:4x4x4"),
    ("gpt deep x16 kernel", "v5e:4x4"),
    ("t5 large", "v5p:4x4x4"),
    ("vit large", "v5e:4x4"),
    ("llama 8B s4096", "v5p:4x4x4"),
)
OURS: dict[str, Remat] = {"ours": "auto", "ours as written": "as written"}
"""Our plans, by what is asked for."""
HANDS = 3
"""Hand plans, best first, that are tried; the first with every policy, the others with its best."""
BEST_POLICIES = 2
USUAL = ("dp", "fsdp", "hsdp", "fsdp+tp", "fsdp+ep", "fsdp+tp+ep")
"""Kinds that are tried first where nothing is known of a program's hand plans."""


def all_ways(family: Family, topology: Topology) -> dict[str, HandPlan]:
    """Every hand plan of a family, in every way to write it, by name."""
    plain = [HandPlan(kind=kind, mesh=mesh) for kind in family.kinds for mesh in meshes_of(kind, topology.num_devices)]
    ways = [way for hand in plain for way in (hand, *hand.variants(windows=topology.chip.platform == "tpu"))]
    return {way.name: way for way in ways}


def one_way_each(rows: Iterable[Row], ways: dict[str, HandPlan]) -> list[HandPlan]:
    """The hand plans of these rows, in their order, at most one way to write each kind on a mesh."""
    found: dict[tuple[str, tuple[int, ...]], HandPlan] = {}
    for row in rows:
        if row["plan"] in ways:
            hand = ways[row["plan"]]
            found.setdefault((hand.kind.name, tuple(hand.mesh.values())), hand)
    return list(found.values())


def best_hands(known: Sequence[Row], ways: dict[str, HandPlan]) -> list[HandPlan]:
    """The best hand plans of these rows, at most one way to write each kind on a mesh."""
    judged = (row for row in sorted(known, key=score) if row["status"] in ("ok", "oom"))
    return one_way_each(judged, ways)[:HANDS]


def usual_hands(family: Family, devices: int) -> list[HandPlan]:
    """The usual kinds, each on the mesh three quarters of the way from few rows to many."""
    found: list[HandPlan] = []
    for kind in family.kinds:
        if kind.name in USUAL:
            meshes = meshes_of(kind, devices)
            found.append(HandPlan(kind=kind, mesh=meshes[len(meshes) - 1 - len(meshes) // 4]))
    return found


def hand_row(case: Case, hand: HandPlan, policy: Policy) -> Row:
    """The row of a hand plan whose layers save what a policy says."""
    name = f"{hand.name}, {policy}"
    found = case.find(name)
    if found is not None:
        return found
    jit = jitted(with_policy(case.model, policy), PROGRAMS[case.program].family, hand)
    row = compiled(jit, case.model, case.topology, hand.mesh, hand.compiler_options(case.topology))
    return case.keep({"plan": name, "policy": policy, "mesh": dict(hand.mesh), **row})


def hands(case: Case, known: Sequence[Row]) -> None:
    """The rows of the hand plans of a case: the best that are known, else the best of the usual, with the best policies."""
    family, topology = PROGRAMS[case.program].family, case.topology
    chosen = best_hands(known, all_ways(family, topology))
    if not chosen:
        usual = usual_hands(family, topology.num_devices)
        chosen = sorted(usual, key=lambda hand: score(hand_row(case, hand, "as written")))[:HANDS]
    policies = WITH_KERNELS if PROGRAMS[case.program].plain else POLICIES
    ranked = sorted(policies, key=lambda policy: score(hand_row(case, chosen[0], policy)))
    tried = [(hand, policy, hand_row(case, hand, policy)) for hand in chosen for policy in ranked[:BEST_POLICIES]]
    hand, policy, _ = min(tried, key=lambda one: score(one[2]))
    for way in hand.variants(windows=topology.chip.platform == "tpu"):
        hand_row(case, way, policy)


def our_row(case: Case, name: str) -> Row:
    """The row of a plan of ours, one of `OURS`."""
    found = case.find(name)
    if found is not None:
        return found
    row = ours(case.model, case.topology, PROGRAMS[case.program], options=replace(UNCHECKED, remat=OURS[name]))
    return case.keep({"plan": name, **row})


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A table: a line per case, with our plans, the best hand plans, and their ratios."""
    yield (
        "| program | topology | ours: mesh, ms | ours as written | best hand plan as written | best hand plan, any policy "
        "| ours / as written | ours / best hand | bound / ours | peak GB of ours: predicted, compiled "
        "| TFLOP: ours, as written | planned in s: ours, as written | commit |"
    )
    yield "|" + "---|" * 13
    for program, topology in dict.fromkeys((row["program"], row["topology"]) for row in rows):
        own = [row for row in rows if (row["program"], row["topology"]) == (program, topology)]
        mine, written = (next((row for row in own if row["plan"] == name), None) for name in OURS)
        by_hand = sorted((row for row in own if "policy" in row), key=score)
        hand_written = [row for row in by_hand if row["policy"] == "as written"]
        hand = by_hand[0] if by_hand else None
        yield (
            f"| {program} | {topology} | {_cell(mine)} | {_cell(written)} | {_cell(next(iter(hand_written), None))} "
            f"| {_cell(hand)} | {_ratio(mine, written)} | {_ratio(mine, hand)} | {_bound(mine)} "
            f"| {_peaks(mine)} "
            f"| {_promised(mine)}, {_promised(written)} | {_planned(mine)}, {_planned(written)} "
            f"| {', '.join(sorted({row['commit'][:7] for row in own if 'commit' in row})) or '-'} |"
        )


def _cell(row: Row | None) -> str:
    """A plan's mesh or name, and its milliseconds, or why it has none."""
    if row is None:
        return "-"
    name = row["plan"] if "policy" in row else "x".join(map(str, row["mesh"].values()))
    time = f"{1e3 * row['seconds']:.1f}" if row["status"] == "ok" else row["status"]
    return f"{name}, {time}"


def _ratio(ours: Row | None, other: Row | None) -> str:
    both = ours is not None and other is not None and ours["status"] == other["status"] == "ok"
    return f"{ours['seconds'] / other['seconds']:.2f}" if both and ours and other else "-"


def _bound(row: Row | None) -> str:
    """Seconds that the model says no plan in any form is below, over those that it promises of ours."""
    bound = row["predicted"].get("bound") if row is not None and "predicted" in row else None
    return f"{bound / row['predicted']['seconds']:.2f}" if row is not None and bound else "-"


def _peaks(row: Row | None) -> str:
    if row is None or "predicted" not in row:
        return "-"
    needed = f"{row['peak_bytes'] / 1e9:.1f}" if row.get("peak_bytes") else "?"
    return f"{row['predicted']['peak_bytes'] / 1e9:.1f}, {needed}"


def _promised(row: Row | None) -> str:
    return f"{row['predicted']['flops'] / 1e12:.1f}" if row is not None and "predicted" in row else "-"


def _planned(row: Row | None) -> str:
    return f"{row['plan_seconds']:.1f}" if row is not None and "plan_seconds" in row else "-"


def main() -> None:
    """Compiles the plans of every case, prints each as it is made, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="programs of the suite, by commas")
    parser.add_argument("--topology", help="by commas; with --only, these in the place of the usual cases")
    parser.add_argument("--plans", default="hand,ours")
    parser.add_argument("--again", action="store_true", help="make rows again that are in the file")
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--known", type=Path, default=plan_quality.RESULTS, help="the file of benchmarks.plan_quality")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    known: list[Row] = json.loads(options.known.read_text())["rows"]
    for program, topology in () if options.summary else _cases(options.only, options.topology):
        case = Case(program, parse_topology(topology), options.out, rows, options.again)
        if "hand" in options.plans:
            plain = PROGRAMS[program].plain or program
            hands(case, [row for row in known if (row["program"], row["topology"]) == (plain, topology)])
        if "ours" in options.plans:
            for name in OURS:
                our_row(case, name)
    print("\n".join(summary(rows)))


def _cases(only: str | None, topologies: str | None) -> Iterator[tuple[str, str]]:
    """The usual cases, those of these programs and topologies; or every pair of them where both are given."""
    if only and topologies:
        yield from ((program, topology) for program in only.split(",") for topology in topologies.split(","))
        return
    for program, topology in CASES:
        if (not only or program in only.split(",")) and (not topologies or topology in topologies.split(",")):
            yield program, topology


if __name__ == "__main__":
    main()
