"""Is our plan as good as the best that people write by hand? Judged by the compiler's schedule, not by our prices.

    python -m benchmarks.plan_quality [--only NAME,NAME] [--topology T,T] [--plans ours,refined,hand,pins] [--out FILE.json]
    python -m benchmarks.plan_quality --again --best 3
    python -m benchmarks.plan_quality --summary [--out FILE.json]

Every program of `benchmarks.suite` is planned for every topology and set beside the hand plans of its family
(`benchmarks.hand_plans`), written as people write them. Every kind of plan is compiled on the best mesh found for it: on
few devices all are tried, on many a quarter and three quarters of the way from few rows to many, then neighbours of the
best. The best few are then compiled in every way to write them: weights gathered at use or not, windowed einsum or not.
`refined` plans with `Options(autotune="compile")`; `pins` with the best hand plan pinned, which tells whether a difference
is one of choosing or of emitting.

All are compiled for the topology with no device present; seconds are those of the compiler's schedule
(`planner.verify.step_time`), and a plan that the compiler says does not fit has none. Rows in the file stay, so that a
run can go on where it was ended; a compiler that dies leaves a row that says so. All hand plans take hours: `--best` judges
anew only the best of each case in the file. Ours is set beside the hand plans of its own commit where there are some.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import planner
from benchmarks.compiled_row import Row, compiled_row
from benchmarks.hand_plans import HandPlan, Kind, hand_plans, jitted, meshes_of, pins
from benchmarks.models.base import Model
from benchmarks.real.kernels import counted_kernels
from benchmarks.stamp import stamp
from benchmarks.suite import PROGRAMS, TOPOLOGIES, Program
from cost_models import Topology, parse_topology
from planner.errors import CompileError, PlannerError
from planner.options import Autotune
from planner.verify.aot import aot_compile

RESULTS = Path(__file__).resolve().parent / "results" / "plan_quality.json"
TIE = 0.05
REWRITTEN = 3
"""The plans, best first, that are compiled in every way to write them."""
ALL_MESHES = 4
"""Up to so many meshes of a kind are all tried."""
COMPILE_LIMIT_S = 300.0
UNCHECKED = planner.Options(check="never")
"""Plans are compiled here, not by the planner."""
OURS = ("ours", "refined")
"""Our plans: by prices alone, and with the compiler asked."""


def compiled(
    jit: Any, model: Model, topology: Topology, mesh: Mapping[str, int], options: Mapping[str, str] | None
) -> Row:
    """What the compiler of a topology makes of a jitted program: fit, seconds of the schedule, peak, collectives."""
    try:
        with counted_kernels():
            report = aot_compile(
                jit,
                model.args,
                mesh_shape=mesh,
                topology=topology.name,
                timeout_s=COMPILE_LIMIT_S,
                compiler_options=options,
            )
    except CompileError as error:
        return {"status": "error", "message": str(error)[:300]}
    return compiled_row(report, topology, mesh)


def ours(
    model: Model,
    topology: Topology,
    program: Program,
    pinned: HandPlan | None = None,
    *,
    options: planner.Options = UNCHECKED,
) -> Row:
    """A plan of ours, free or with a hand plan's placement pinned, predicted and compiled."""
    started = time.perf_counter()
    try:
        plan = planner.plan(
            model.fn,
            model.args,
            topology=topology.name,
            mesh=pinned.mesh if pinned else None,
            memory_limit=1e15 if pinned else None,
            pins=pins(model, program.family, pinned) if pinned else None,
            donate_argnums=model.donate_argnums,
            options=options,
        )
    except PlannerError as error:
        return {"mesh": {}, "status": "not planned", "message": f"{type(error).__name__}: {error}"[:300]}
    shape = dict(plan.decision.mesh_shape)
    promise = {
        "seconds": plan.predicted.seconds,
        "communication_seconds": plan.predicted.communication_seconds,
        "peak_bytes": plan.predicted.peak_bytes,
        "flops": plan.predicted.flops,
        "bound": plan.certificate.any_form or plan.certificate.lower_bound,
    }
    row: Row = {"mesh": shape, "plan_seconds": round(time.perf_counter() - started, 1), "predicted": promise}
    row |= {"form": asdict(plan.decision.form), "recomputation": _of_recomputation(plan.decision.notes)}
    return row | compiled(plan.jit, model, topology, shape, None)


def _of_recomputation(notes: Iterable[str]) -> str:
    """What a plan's notes say of the values that are computed again; nothing where the program is as written."""
    return " ".join(note for note in notes if note.startswith("recomputation"))


@dataclass(slots=True)
class Case:
    """The rows of a program on a topology, in a file with those of others."""

    program: str
    topology: Topology
    out: Path
    rows: list[Row]
    again: bool = False
    _model: list[Model] = field(default_factory=list[Model])

    @property
    def model(self) -> Model:
        """The program, built when first asked for."""
        if not self._model:
            self._model.append(PROGRAMS[self.program].build(self.topology))
        return self._model[0]

    def own(self) -> list[Row]:
        """The rows of this case."""
        return [row for row in self.rows if (row["program"], row["topology"]) == (self.program, self.topology.name)]

    def keep(self, row: Row) -> Row:
        """Adds a row to the file in the place of an older one, with the commit that it is of, and prints it."""
        made = stamp()
        row = {"program": self.program, "topology": self.topology.name, **row, "commit": made["commit"]}
        old = next((r for r in self.own() if r["plan"] == row["plan"]), None)
        if old is not None:
            self.rows.remove(old)
        self.rows.append(row)
        self.out.parent.mkdir(exist_ok=True)
        lines = ",\n".join(json.dumps(r) for r in self.rows)
        self.out.write_text(f'{{"stamp": {json.dumps(made)},\n"rows": [\n{lines}\n]}}\n')
        print(line(row), flush=True)
        return row

    def find(self, plan: str) -> Row | None:
        """The row of a plan where it is not to be made again."""
        return None if self.again else next((row for row in self.own() if row["plan"] == plan), None)

    def hand(self, hand: HandPlan) -> Row:
        """The row of a hand plan."""
        found = self.find(hand.name)
        if found is not None:
            return found
        try:
            jit = jitted(self.model, PROGRAMS[self.program].family, hand)
            row = compiled(jit, self.model, self.topology, hand.mesh, hand.compiler_options(self.topology))
        except (TypeError, ValueError) as error:
            row = {"status": "error", "message": f"{type(error).__name__}: {error}"[:300]}
        return self.keep({"plan": hand.name, "mesh": dict(hand.mesh), **row})

    def best_hands(self, count: int) -> list[tuple[HandPlan, Row]]:
        """The hand plans that the file has as the best, best first; of those that are compiled alike the first."""
        known = {row["plan"]: row for row in self.own()}
        tpu = self.topology.chip.platform == "tpu"
        plain = hand_plans(PROGRAMS[self.program].family, self.topology.num_devices)
        ways = (way for plan in plain for way in (plan, *plan.variants(windows=tpu)) if way.name in known)
        unlike = {score(known[way.name]): way for way in reversed(tuple(ways))}
        hands = [unlike[at] for at in sorted(unlike)]
        return sorted(((hand, self.hand(hand)) for hand in hands[:count]), key=lambda pair: score(pair[1]))

    def ours(self, *, pinned: HandPlan | None = None, autotune: Autotune = "never") -> Row:
        """The row of our plan."""
        name = f"pins {pinned.name}" if pinned else OURS[autotune == "compile"]
        found, options = self.find(name), replace(UNCHECKED, autotune=autotune)
        return found or self.keep(
            {"plan": name, **ours(self.model, self.topology, PROGRAMS[self.program], pinned, options=options)}
        )

    def hands(self) -> list[tuple[HandPlan, Row]]:
        """The hand plans, best first: every kind on its best mesh, the best few in every way to write them."""
        found: list[tuple[HandPlan, Row]] = []
        for kind in PROGRAMS[self.program].family.kinds:
            found += self._best_mesh(kind)
        for hand, _ in sorted(found, key=lambda pair: score(pair[1]))[:REWRITTEN]:
            ways = hand.variants(windows=self.topology.chip.platform == "tpu")
            found += [(way, self.hand(way)) for way in ways]
        return sorted(found, key=lambda pair: score(pair[1]))

    def _best_mesh(self, kind: Kind) -> list[tuple[HandPlan, Row]]:
        """The plans of a kind that were tried, by the meshes from few rows to many."""
        meshes = meshes_of(kind, self.topology.num_devices)
        tried: dict[int, tuple[HandPlan, Row]] = {}

        def visit(n: int) -> None:
            if 0 <= n < len(meshes) and n not in tried:
                hand = HandPlan(kind=kind, mesh=meshes[n])
                tried[n] = hand, self.hand(hand)

        count = len(meshes)
        for n in range(count) if count <= ALL_MESHES else (count // 4, count - 1 - count // 4):
            visit(n)
        while True:
            best = min(tried, key=lambda n: score(tried[n][1]))
            before = len(tried)
            visit(best - 1)
            visit(best + 1)
            if len(tried) == before:
                return list(tried.values())


def score(row: Row) -> tuple[int, float]:
    """Orders plans: those that fit by seconds, then those that do not by how much they need, then the others."""
    if row["status"] == "ok":
        return 0, row["seconds"]
    return (1, row["peak_bytes"]) if row.get("peak_bytes") else (2, 0.0)


def line(row: Mapping[str, Any]) -> str:
    """One plan."""
    head = f"{row['program']:<22}{row['topology']:<11}{row['plan']:<34} {'x'.join(map(str, row['mesh'].values())):<8}"
    if row["status"] != "ok":
        peak = f"{row['peak_bytes'] / 1e9:.1f} GB " if row.get("peak_bytes") else ""
        return f"{head}{row['status']}: {peak}{row.get('message', '')[:90]!r}"
    predicted = f"{1e3 * row['predicted']['seconds']:.1f} predicted" if "predicted" in row else ""
    return (
        f"{head}{1e3 * row['seconds']:>10.2f} ms, exposed {1e3 * row['exposed_seconds']:.2f} of "
        f"{1e3 * row['collective_seconds']:.2f}; {row['peak_bytes'] / 1e9:.2f} GB {predicted}"
    )


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line per case and plan of ours: it, the best hand plan, and their ratio; then the shares."""
    for name in OURS:
        ratios: list[float] = []
        for program, topology in dict.fromkeys((row["program"], row["topology"]) for row in rows):
            own = [row for row in rows if (row["program"], row["topology"]) == (program, topology)]
            plan = next((row for row in own if row["plan"] == name), None)
            hand = [row for row in own if row["plan"] not in OURS and not row["plan"].startswith("pins ")]
            if plan is None or not hand:
                continue
            hand = [row for row in hand if row.get("commit") == plan.get("commit")] or hand
            best = min(hand, key=score)
            head = f"{program:<22}{topology:<11}{name:<9}"
            mine = f"{1e3 * plan['seconds']:.1f} ms" if plan["status"] == "ok" else plan["status"]
            mine = f"{'x'.join(map(str, plan['mesh'].values()))} {mine}"
            if best["status"] != "ok":
                yield f"{head}     -  {mine}; no hand plan of {len(hand)} fits"
                continue
            ratios.append(plan["seconds"] / best["seconds"] if plan["status"] == "ok" else math.inf)
            yield f"{head}{ratios[-1]:>6.2f}  {mine}; best of {len(hand)}: {best['plan']} {1e3 * best['seconds']:.1f} ms"
        if ratios:
            yield (
                f"{name}, {len(ratios)} cases: at most 1.05 {_share(ratios, 1 + TIE)}, at most 1.15 "
                f"{_share(ratios, 1.15)}, better by more than 5 % {_share(ratios, 1 / (1 + TIE))}, worst {max(ratios):.2f}"
            )


def _share(ratios: Iterable[float], most: float) -> str:
    held = [ratio <= most for ratio in ratios]
    return f"{sum(held)} of {len(held)}"


def main() -> None:
    """Compiles the plans of every case, prints each as it is made, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs of the suite")
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--plans", default="ours,hand")
    parser.add_argument("--again", action="store_true", help="make rows again that are in the file")
    parser.add_argument(
        "--best", type=int, metavar="N", help="only the N best hand plans that the file has of each case"
    )
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    for topology in () if options.summary else options.topology.split(","):
        for name in options.only.split(","):
            case = Case(name, parse_topology(topology), options.out, rows, options.again)
            if "ours" in options.plans:
                case.ours()
            if "refined" in options.plans:
                case.ours(autotune="compile")
            hands = (case.best_hands(options.best) if options.best else case.hands()) if "hand" in options.plans else []
            if "pins" in options.plans and hands:
                case.ours(pinned=hands[0][0])
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
