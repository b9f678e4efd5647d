"""Does the measured cost model rank plans as the clock does?

    python -m benchmarks.measured_ranking [--only mlp,gpt] [--rounds 9] [--budget 60] [--out FILE.json]

Calibrates the 8 virtual CPU devices of this machine, then plans each model file with the measured cost model three ways,
runs the plans in turn and compares their order by predicted and by measured seconds per step:

    dp       every batch leaf split over all devices, parameters and optimizer state whole (pinned)
    tp       every batch leaf whole (pinned), so that only the model is split
    chosen   free

A pair of plans counts as ranked right where the order agrees, and as a tie where the measured medians differ by less than
their spread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jaxlib
from jax.sharding import PartitionSpec

import planner
from benchmarks.models import MODELS, Model
from cost_models import save_profile
from cost_models.calibrate import calibrate

RESULTS = Path(__file__).resolve().parent / "results"
TRAINED = ("bert", "gpt", "lstm", "mlp", "moe", "resnet", "vit")


def pins(model: Model, how: str) -> dict[str, PartitionSpec]:
    """The pins that make a plan of the model data parallel ("dp") or keep its batch whole ("tp")."""
    if how == "chosen":
        return {}
    found: dict[str, PartitionSpec] = {}
    names = ("params", "stats", "opt_state", "batch")
    for name, argument in zip(_argument_names(model), model.args, strict=True):
        leaves = [leaf for leaf in jax.tree.leaves(argument) if getattr(leaf, "ndim", 0)]
        if not leaves or name not in names:
            continue
        if name == "batch":
            found[f"{name}*"] = PartitionSpec("x") if how == "dp" else PartitionSpec()
        elif how == "dp":
            found[f"{name}*"] = PartitionSpec()
    return found


def _argument_names(model: Model) -> list[str]:
    code = getattr(model.fn, "__code__", None)
    return list(code.co_varnames[: len(model.args)]) if code else [f"arg{i}" for i in range(len(model.args))]


def step_seconds(plans: dict[str, planner.Plan], model: Model, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every plan, taken in turn, after a step to warm up. State is placed anew for every step."""
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for turn in range(rounds + 1):
        for name, plan in plans.items():
            placed = jax.block_until_ready(plan.place(*jax.tree.map(lambda x: x.copy(), model.args)))
            start = time.perf_counter()
            jax.block_until_ready(plan(*placed))
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def compare(model: Model, profile: Path, rounds: int) -> dict[str, Any]:
    """Predicted and measured seconds of the three plans of a model, and how many pairs are ranked right."""
    options = planner.Options(cost_model="measured", profile=str(profile), check="never")
    plans: dict[str, planner.Plan] = {}
    for how in ("dp", "tp", "chosen"):
        plans[how] = planner.plan(
            model.fn,
            model.args,
            mesh=None if how == "chosen" else {"x": 8},
            pins=pins(model, how),
            donate_argnums=model.donate_argnums,
            options=options,
        )
    seconds = step_seconds(plans, model, rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    quartiles = {name: statistics.quantiles(values, n=4) for name, values in seconds.items()}
    predicted = {name: plan.predicted.seconds for name, plan in plans.items()}
    verdicts: dict[str, str] = {}
    for a, b in itertools.combinations(plans, 2):
        spread = max(quartiles[a][2] - quartiles[a][0], quartiles[b][2] - quartiles[b][0])
        if abs(medians[a] - medians[b]) <= spread or plans[a].decision.constraints == plans[b].decision.constraints:
            verdicts[f"{a}/{b}"] = "tie"
        else:
            right = (predicted[a] < predicted[b]) == (medians[a] < medians[b])
            verdicts[f"{a}/{b}"] = "right" if right else "wrong"
    return {
        "mesh": {name: dict(plan.decision.mesh_shape) for name, plan in plans.items()},
        "predicted_seconds": predicted,
        "measured_median_seconds": medians,
        "measured_quartiles_seconds": quartiles,
        "pairs": verdicts,
    }


def main() -> None:
    """Calibrates, compares, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TRAINED), help="models, separated by commas")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of every plan")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of calibration")
    parser.add_argument("--out", type=Path, default=RESULTS / "measured_ranking.json")
    options = parser.parse_args()
    profile = RESULTS / "profile_cpu8.json"
    RESULTS.mkdir(exist_ok=True)
    save_profile(calibrate(jax.devices(), budget_seconds=options.budget), profile)
    record: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 8 virtual CPU devices",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": options.rounds,
        "load_before": os.getloadavg()[0],
        "models": {},
    }
    for name in options.only.split(","):
        row = compare(MODELS[name]("small"), profile, options.rounds)
        record["models"][name] = row
        print(name)
        for how in ("dp", "tp", "chosen"):
            low, _, high = row["measured_quartiles_seconds"][how]
            print(
                f"  {how:7} predicted {1e3 * row['predicted_seconds'][how]:8.2f} ms   measured "
                f"{1e3 * row['measured_median_seconds'][how]:8.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})   "
                f"{row['mesh'][how]}"
            )
        print("  " + ", ".join(f"{pair} {verdict}" for pair, verdict in row["pairs"].items()), flush=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
