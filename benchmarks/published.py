"""Do machines take the seconds that plans promise? Runs that others measured and published, priced as they were run.

    python -m benchmarks.published [--only NAME,NAME] [--out FILE.json]

Every run of `published_runs/runs.jsonl` is planned on its own mesh with its arrays pinned as it had them, as written and in
one pass, and nothing is run: held against each other are the predicted and the published seconds. Per chip

    ratio      predicted / published seconds, the median
    error      the mean size of its logarithm
    tau        Kendall's, over pairs of runs, of seconds per operation of matmuls
    inside     the share of runs whose published seconds lie within `predicted.seconds_range`

`fit` says which rates of `cost_models.hardware` come out of the train steps: for each chip `matrix_efficiency`, and for all
`attention_efficiency` and `PER_DOUBLING` of slices, by least squares of the logarithms. `left_out` are the errors of each
model's runs by a fit to all the others. Rates that are one's own are adopted by hand, so that the table of chips says what
a plan is made with.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import kendalltau

from benchmarks.published_runs.priced import Parts, collective_seconds, parts_of, planned, topology_of
from benchmarks.stamp import stamp
from cost_models import CHIPS
from cost_models.hardware import ATTENTION_EFFICIENCY
from cost_models.topology import PER_DOUBLING

RUNS = Path(__file__).resolve().parent / "published_runs" / "runs.jsonl"
RESULTS = Path(__file__).resolve().parent / "results" / "published.json"
PRIOR, AROUND = 0.02, {"matrix_efficiency": 0.75, "attention_efficiency": 0.5, "per_doubling": 0.02}
"""How strongly a rate is drawn to a common value, so that one run of a chip does not settle it alone."""
Rates = Mapping[str, float]


def runs() -> list[dict[str, Any]]:
    """The published runs."""
    return [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]


def priced(row: Mapping[str, Any]) -> dict[str, Any]:
    """A run beside its prediction."""
    found = {key: row[key] for key in ("id", "kind", "chip", "topology")}
    measured = row["measured"]["seconds"]
    if row["kind"] == "collective":
        seconds = collective_seconds(row["what"], topology_of(row))
        return found | {"measured": measured, "predicted": seconds, "ratio": seconds / measured}
    plan = planned(row)
    predicted = plan.predicted
    low, high = predicted.seconds_range or (math.nan, math.nan)
    return found | {
        "model": row["model_name"],
        "mesh": row["mesh"],
        "slices": topology_of(row).nodes,
        "measured": measured,
        "predicted": predicted.seconds,
        "ratio": predicted.seconds / measured,
        "range": [low, high],
        "flops": predicted.flops,
        "hidden": predicted.hidden_seconds,
        "parts": asdict(parts_of(plan.alternatives.chosen)),
    }


def by_chip(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What is made of the train steps of each chip, and of all."""
    steps = [row for row in rows if row["kind"].startswith("train")]
    chips = sorted({row["chip"] for row in steps})
    return {chip: _summary([row for row in steps if chip in ("all", row["chip"])]) for chip in (*chips, "all")}


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    errors = [abs(math.log(row["ratio"])) for row in rows]
    inside = [row["range"][0] <= row["measured"] <= row["range"][1] for row in rows]
    per_flop = [[row[key] / row["flops"] for row in rows] for key in ("predicted", "measured")]
    tau = float(kendalltau(*per_flop).statistic) if len(rows) > 1 else math.nan
    return {
        "runs": len(rows),
        "ratio": round(statistics.median(row["ratio"] for row in rows), 3),
        "error": round(statistics.fmean(errors), 3),
        "largest": round(max(errors), 3),
        "tau": None if math.isnan(tau) else round(tau, 2),
        "inside": round(statistics.fmean(inside), 2),
        "width": round(statistics.median((row["range"][1] - row["range"][0]) / row["predicted"] for row in rows), 2),
    }


# ------------------------------------------------------------ the fit


def committed(chips: Sequence[str]) -> Rates:
    """The rates that predictions are made with."""
    return {
        **{chip: CHIPS[chip].matrix_efficiency for chip in chips},
        "attention_efficiency": ATTENTION_EFFICIENCY,
        "per_doubling": PER_DOUBLING,
    }


def by_rates(row: Mapping[str, Any], rates: Rates, now: Rates) -> float:
    """The seconds of a run by other rates than it was priced with."""
    parts = Parts(**row["parts"])
    faster = now[row["chip"]] / rates[row["chip"]]
    attention = faster * now["attention_efficiency"] / rates["attention_efficiency"]
    doublings = math.log2(row["slices"]) if CHIPS[row["chip"]].platform == "tpu" else 0.0
    slower = (1 + rates["per_doubling"] * doublings) / (1 + now["per_doubling"] * doublings)
    return slower * (faster * parts.matmul + attention * parts.attention + parts.other) + parts.communication


def fitted(rows: Sequence[Mapping[str, Any]], now: Rates) -> Rates:
    """The rates with which the predicted seconds of these runs are nearest to the published ones."""
    names = list(now)
    around = np.array([AROUND.get(name, AROUND["matrix_efficiency"]) for name in names])

    def off(values: Any) -> list[float]:
        rates = dict(zip(names, values, strict=True))
        errors = [math.log(by_rates(row, rates, now) / row["measured"]) for row in rows]
        return [*errors, *(PRIOR * (values - around)).tolist()]

    low = [0.0 if name == "per_doubling" else 0.1 for name in names]
    found = least_squares(off, around, bounds=(low, np.ones(len(names))), loss="soft_l1", f_scale=0.1)
    return dict(zip(names, map(float, found.x), strict=True))


def fit(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fitted rates beside those in use, and the errors of each model's runs by a fit to all others."""
    steps = [row for row in rows if row["kind"].startswith("train")]
    now = committed(sorted({row["chip"] for row in steps}))
    rates, left_out = fitted(steps, now), dict[str, float]()
    for model in dict.fromkeys(row["model"] for row in steps):
        others = fitted([row for row in steps if row["model"] != model], now)
        left_out |= {
            row["id"]: round(by_rates(row, others, now) / row["measured"], 3) for row in steps if row["model"] == model
        }
    return {
        "rates": {name: {"fitted": round(value, 3), "in use": now[name]} for name, value in rates.items()},
        "left_out": left_out,
        "left_out_error": round(statistics.fmean(abs(math.log(ratio)) for ratio in left_out.values()), 3),
    }


def main() -> None:
    """Prices the runs and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names of runs, with commas between them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    wanted = [part for part in given.only.split(",") if part]
    rows: list[dict[str, Any]] = []
    for row in runs():
        if not wanted or any(part in row["id"] for part in wanted):
            rows.append(priced(row))
            print(f"{row['id']:36} {rows[-1]['ratio']:6.2f}", flush=True)
    if wanted:
        return
    found = {"stamp": stamp(), "chips": by_chip(rows), "fit": fit(rows), "rows": rows}
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found["chips"], indent=1))
    print(json.dumps(found["fit"]["rates"]), found["fit"]["left_out_error"])


if __name__ == "__main__":
    main()
