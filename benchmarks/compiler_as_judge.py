"""What does the TPU compiler think of our plan beside the plans people write by hand?

    python -m benchmarks.compiler_as_judge [--only ours,fsdp] [--full ours,fsdp] [--forms pins,jit] [--out FILE.json]

Rows already in the file stay, except those that are made again.

One program, a Llama of 8 scanned and rematerialised layers, 2048 wide, trained by AdamW on 32 sequences of 2,048, is
planned for `v5e:4x4` and set beside hand-made plans, each in two forms:

    pins    the placement of arguments, and of the activations named in the model, pinned; the planner solves the rest
    jit     as people write it: `jax.jit` with shardings on arguments and results, and `with_sharding_constraint` on the
            activations named in the model; the partitioner does the rest

Every plan is compiled for the TPU with no device present. Peak memory and collectives are the compiler's; the time is
`benchmarks.hlo_schedule`'s walk over its schedule: by roofline for every plan, and by the compiler's own cycles for those
of `--full`, whose compile takes minutes. Both count only the communication that the schedule leaves exposed. Collectives
are priced as rings (`hlo_schedule.ring_seconds`), not by the planner's cost model, which is what is on trial.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from benchmarks.hlo_schedule import Rates, estimate_seconds
from benchmarks.models import llama as llama_module
from benchmarks.models.base import Model
from benchmarks.models.llama import LlamaConfig, llama
from benchmarks.stamp import stamp
from planner.verify.aot import AotReport, aot_compile

TOPOLOGY = "v5e:4x4"
CONFIG = LlamaConfig(width=2048, layers=8, heads=16, kv_heads=16, ffn=8192, vocabulary=32000, sequence=2048)
BATCH = 32
RATES = Rates(flops_per_s=197e12, hbm_bytes_per_s=819e9, link_bytes_per_s=46.7e9)
"""v5e: https://docs.cloud.google.com/tpu/docs/v5e; the link's rate is that of libtpu's own scheduler."""
CLOCK_HZ = 1.5e9
RESULTS = Path(__file__).resolve().parent / "results" / "compiler_as_judge.json"

Specs = Mapping[str, P]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandPlan:
    """A placement as people write it: specs by the last name of a leaf (others are replicated), and of activations."""

    name: str
    mesh: Mapping[str, int]
    weights: Specs
    batch: P
    activations: Specs = field(default_factory=dict[str, P])


def _weights(fsdp: Any, model: Any) -> Specs:
    """Megatron's columns and rows over `model`, the other matrix dim over `fsdp`; None leaves a dim whole."""
    return {
        "embed": P(model, fsdp),
        "head": P(fsdp, model),
        "wq": P(None, fsdp, model),
        "wk": P(None, fsdp, model),
        "wv": P(None, fsdp, model),
        "wo": P(None, model, None, fsdp),
        "gate": P(None, fsdp, model),
        "up": P(None, fsdp, model),
        "down": P(None, model, fsdp),
    }


_LARGEST: Specs = {
    "embed": P("data"),
    "head": P(None, "data"),
    "wq": P(None, "data"),
    "wk": P(None, "data"),
    "wv": P(None, "data"),
    "wo": P(None, None, None, "data"),
    "gate": P(None, None, "data"),
    "up": P(None, None, "data"),
    "down": P(None, "data"),
}
_ROWS = {"residual": P("data"), "attention": P("data")}
_HEADS = {"residual": P("data"), "attention": P("data", None, "model")}
_SEQUENCE = {"residual": P("data", "model"), "attention": P("data", None, "model")}
_BOTH = ("data", "model")

HAND_PLANS = (
    HandPlan(name="dp", mesh={"data": 16}, weights={}, batch=P("data"), activations=_ROWS),
    HandPlan(name="fsdp", mesh={"data": 16}, weights=_weights("data", None), batch=P("data"), activations=_ROWS),
    HandPlan(name="fsdp largest", mesh={"data": 16}, weights=_LARGEST, batch=P("data"), activations=_ROWS),
    *(
        HandPlan(
            name=f"hsdp {copies}x{parts}",
            mesh={"data": copies, "model": parts},
            weights=_weights("model", None),
            batch=P(_BOTH),
            activations={"residual": P(_BOTH), "attention": P(_BOTH)},
        )
        for copies, parts in ((4, 4), (2, 8))
    ),
    *(
        HandPlan(
            name=f"{name} {data}x{model}",
            mesh={"data": data, "model": model},
            weights=_weights("data" if "fsdp" in name else None, "model"),
            batch=P("data"),
            activations=_SEQUENCE if "sp" in name.split("+") else _HEADS,
        )
        for name, data, model in (
            ("fsdp+tp", 4, 4),
            ("fsdp+tp", 8, 2),
            ("fsdp+tp+sp", 4, 4),
            ("fsdp+tp+sp", 8, 2),
            ("tp+sp", 4, 4),
            ("tp", 4, 4),
        )
    ),
)


def spec_of(path: tuple[Any, ...], hand: HandPlan) -> P:
    """The spec of an argument or result of the train step: by its last name, the batch apart."""
    name = jax.tree_util.keystr(path, simple=True, separator="/").rsplit("/", 1)[-1]
    return hand.batch if name in ("ids", "labels") else hand.weights.get(name, P())


def pins_of(model: Model, hand: HandPlan) -> dict[str, P]:
    """The hand plan as pins: every argument by its path, the named activations, the results like the arguments."""
    leaves = jax.tree_util.tree_flatten_with_path(model.args)[0]
    names = {jax.tree_util.keystr(path, simple=True, separator="/").rsplit("/", 1)[-1]: path for path, _ in leaves}
    return {f"*/{name}": spec_of(path, hand) for name, path in names.items()} | dict(hand.activations)


@contextmanager
def constrained_activations(constrain: Callable[[jax.Array, str], jax.Array]) -> Generator[None]:
    """Within it, `constrain` is applied wherever the model names an activation."""
    with mock.patch.object(llama_module, "checkpoint_name", constrain):
        yield


def compile_hand(model: Model, hand: HandPlan, mode: Any) -> AotReport:
    """What the TPU compiler makes of the plan as people write it."""
    sizes, names = tuple(hand.mesh.values()), tuple(hand.mesh)
    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))

    def constrain(x: jax.Array, name: str) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, hand.activations.get(name, P())))

    def shardings(tree: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: NamedSharding(mesh, spec_of(path, hand)), tree)

    def step(*args: Any) -> Any:
        return model.fn(*args)

    with constrained_activations(constrain):
        results = jax.eval_shape(step, *model.args)
        jitted = jax.jit(
            step,
            in_shardings=shardings(model.args),
            out_shardings=shardings(results),
            donate_argnums=model.donate_argnums,
        )
        return aot_compile(jitted, model.args, mesh_shape=hand.mesh, topology=TOPOLOGY, mode=mode, timeout_s=900.0)


def judged(report: AotReport, mesh: Mapping[str, int]) -> dict[str, Any]:
    """What is kept of a compile: fit, peak, collectives by kind and axes, and the estimates of its schedule."""
    row: dict[str, Any] = {"status": report.status, "compile_seconds": report.seconds}
    if report.memory is None:
        return row | {"message": report.message[:300], "needed_bytes": report.needed_bytes}
    totals: dict[str, float] = {}
    for c in report.collectives:
        axes = c.axes(mesh)
        key = f"{c.kind} {','.join(axes) if axes is not None else '?'}"
        totals[key] = totals.get(key, 0.0) + c.bytes * (c.trip_count or 1)
    count = 1
    for size in mesh.values():
        count *= size
    row |= {
        "peak_bytes": report.memory.peak_bytes,
        "argument_bytes": report.memory.argument_bytes,
        "collective_bytes": totals,
        "rematerialized": len(report.rematerialized),
    }
    for label, clock in (("roofline", None), ("cycles", CLOCK_HZ)):
        if clock is not None and "estimated_cycles" not in report.hlo:
            continue
        rates = Rates(
            flops_per_s=RATES.flops_per_s,
            hbm_bytes_per_s=RATES.hbm_bytes_per_s,
            link_bytes_per_s=RATES.link_bytes_per_s,
            clock_hz=clock,
        )
        estimate = estimate_seconds(report.hlo, num_devices=count, rates=rates)
        row[label] = {
            "seconds": estimate.seconds,
            "exposed_seconds": estimate.exposed_collective_seconds,
            "collective_seconds": estimate.collective_seconds,
            "unknown_loops": estimate.unknown_loops,
        }
    return row


def predicted(plan: planner.Plan) -> dict[str, Any]:
    """What the planner promises."""
    p = plan.predicted
    totals: dict[str, float] = {}
    for c in p.collectives:
        key = f"{c.kind} {','.join(c.axes)}"
        totals[key] = totals.get(key, 0.0) + c.bytes * c.count
    return {
        "seconds": p.seconds,
        "compute_seconds": p.compute_seconds,
        "communication_seconds": p.communication_seconds,
        "peak_bytes": p.peak_bytes,
        "argument_bytes": p.argument_bytes,
        "collective_bytes": totals,
        "status": plan.certificate.status,
    }


def compile_plan(plan: planner.Plan, model: Model, mode: Any) -> AotReport:
    """What the TPU compiler makes of a plan of ours."""
    return aot_compile(
        plan.jit, model.args, mesh_shape=plan.decision.mesh_shape, topology=TOPOLOGY, mode=mode, timeout_s=900.0
    )


def make_plan(model: Model, hand: HandPlan | None) -> planner.Plan:
    """Our plan, or the one that a hand plan's pins allow; hand plans may exceed the memory."""
    return planner.plan(
        model.fn,
        model.args,
        topology=TOPOLOGY,
        mesh=None if hand is None else hand.mesh,
        memory_limit=None if hand is None else 1e12,
        pins={} if hand is None else pins_of(model, hand),
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never"),
    )


def line(row: Mapping[str, Any]) -> str:
    """One line of the table."""
    promise, made = row.get("predicted", {}), row["compiled"]

    def number(value: float | None, scale: float) -> str:
        return f"{'-' if value is None else format(value * scale, '.4g'):>9}"

    cells = (
        number(promise.get("seconds"), 1e3),
        number(made.get("roofline", {}).get("seconds"), 1e3),
        number(made.get("cycles", {}).get("seconds"), 1e3),
        number(made.get("cycles", made.get("roofline", {})).get("exposed_seconds"), 1e3),
        number(promise.get("peak_bytes"), 1e-9),
        number(made.get("peak_bytes", made.get("needed_bytes")), 1e-9),
        number(sum(promise["collective_bytes"].values()) if promise else None, 1e-9),
        number(sum(made["collective_bytes"].values()) if "collective_bytes" in made else None, 1e-9),
    )
    return f"{row['plan']:<16}{row['form']:<6}{row['mesh']:<16}{made['status']:<5}{''.join(cells)}"


HEADER = (
    f"{'plan':<16}{'form':<6}{'mesh':<16}{'fits':<5}{'ms pred':>9}{'roofline':>9}{'cycles':>9}{'exposed':>9}"
    f"{'GB pred':>9}{'compiled':>9}{'coll pred':>9}{'compiled':>9}"
)


def rows(only: Sequence[str], full: Sequence[str], forms: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of the table, one compile each."""
    model = llama(CONFIG, batch=BATCH, size="real")

    def mode(name: str) -> str:
        return "full" if name in full else "dump"

    if not only or "ours" in only:
        started = time.perf_counter()
        plan = make_plan(model, None)
        mesh = plan.decision.mesh_shape
        yield {
            "plan": "ours",
            "form": "plan",
            "mesh": "x".join(map(str, mesh.values())),
            "plan_seconds": time.perf_counter() - started,
            "predicted": predicted(plan),
            "compiled": judged(compile_plan(plan, model, mode("ours")), mesh),
        }
    for hand in HAND_PLANS:
        if only and hand.name not in only:
            continue
        shape = "x".join(map(str, hand.mesh.values()))
        if "pins" in forms:
            plan = make_plan(model, hand)
            compiled = judged(compile_plan(plan, model, mode(hand.name)), hand.mesh)
            yield {
                "plan": hand.name,
                "form": "pins",
                "mesh": shape,
                "predicted": predicted(plan),
                "compiled": compiled,
            }
        if "jit" in forms:
            compiled = judged(compile_hand(model, hand, mode(hand.name)), hand.mesh)
            yield {"plan": hand.name, "form": "jit", "mesh": shape, "compiled": compiled}


def verdict(found: Sequence[Mapping[str, Any]]) -> str:
    """Our plan beside the best hand plan that fits, by each of the two judges that saw both."""
    lines: list[str] = []
    for judge in ("roofline", "cycles"):
        seconds = {
            f"{row['plan']} ({row['form']})": row["compiled"][judge]["seconds"]
            for row in found
            if row["compiled"]["status"] == "ok" and judge in row["compiled"]
        }
        ours = seconds.pop("ours (plan)", None)
        if ours is not None and seconds:
            best = min(seconds, key=lambda name: seconds[name])
            lines.append(
                f"by {judge}: ours {1e3 * ours:.4g} ms, best hand plan {best} {1e3 * seconds[best]:.4g} ms "
                f"({100 * (ours / seconds[best] - 1):+.1f} %)"
            )
    return "\n".join(lines)


def main() -> None:
    """Compiles the plans, prints the table as it grows, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of plans, separated by commas; default all")
    parser.add_argument("--full", default="", help="names of plans to compile to the end, for the compiler's cycles")
    parser.add_argument("--forms", default="pins,jit", help="forms of the hand plans")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    words = {key: [w for w in getattr(options, key).split(",") if w] for key in ("only", "full", "forms")}
    found: list[dict[str, Any]] = []
    print(HEADER)
    for row in rows(words["only"], words["full"], words["forms"]):
        found.append(row | {"stamp": stamp()})
        print(line(row), flush=True)
    made = {(row["plan"], row["form"], row["mesh"]) for row in found}
    found = [row for row in kept if (row["plan"], row["form"], row["mesh"]) not in made] + found
    print(verdict(found))
    options.out.parent.mkdir(exist_ok=True)
    program = {"topology": TOPOLOGY, "batch": BATCH, "config": {n: getattr(CONFIG, n) for n in CONFIG.__slots__}}
    options.out.write_text(json.dumps({"program": program, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
