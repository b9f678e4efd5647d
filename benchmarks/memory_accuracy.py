"""How far is the predicted peak memory from what the TPU compiler says?

    python -m benchmarks.memory_accuracy [--only gpt,vit] [--out FILE.json]

Plans model files of moderate size for `v5e:2x4`, compiles every plan for the TPU with no device present, and compares
the bytes of arguments, results and reused buffers, the peak, and the bytes of collectives.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import planner
from benchmarks.models.base import Model
from benchmarks.models.bert import BertConfig, bert_mlm
from benchmarks.models.gpt import GPTConfig, gpt
from benchmarks.models.llama import LlamaConfig, llama
from benchmarks.models.moe import MoEConfig, moe_lm
from benchmarks.models.vit import ViTConfig, vit
from benchmarks.stamp import stamp

TOPOLOGY = "v5e:2x4"
RESULTS = Path(__file__).resolve().parent / "results" / "memory_accuracy.json"

_GPT = GPTConfig(width=1024, layers=8, heads=16, vocabulary=32000, sequence=512)
_LLAMA = LlamaConfig(width=1024, layers=8, heads=16, kv_heads=8, ffn=4096, vocabulary=32000, sequence=1024)
_BERT = BertConfig(layers=4, hidden=768, heads=12, sequence=256, vocabulary=30522)
_VIT = ViTConfig(width=768, layers=4, heads=12, ffn=3072, patch=16, image=224, classes=1000, dtype="bfloat16")
_MOE = MoEConfig(layers=4, hidden=512, heads=8, sequence=512, group=1024, experts=16, vocabulary=32000, balance=0.01)

BUILDERS: Mapping[str, Callable[[], Model]] = {
    "gpt": lambda: gpt(_GPT, batch=64, size="real"),
    "gpt unrolled": lambda: gpt(_GPT, batch=64, scan=False, size="real"),
    "llama": lambda: llama(_LLAMA, batch=64, size="real"),
    "bert": lambda: bert_mlm(_BERT, batch=64, size="real"),
    "vit": lambda: vit(_VIT, batch=128, size="real"),
    "moe": lambda: moe_lm(_MOE, batch=64, size="real"),
}
"""Programs whose tensors are larger than the tiles and scratch space of the chip."""


def measure(model: Model) -> dict[str, Any]:
    """Predicted and compiled bytes per device of the plan of a model."""
    started = time.perf_counter()
    plan = planner.plan(
        model.fn,
        model.args,
        topology=TOPOLOGY,
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never"),
    )
    planned = time.perf_counter()
    verification = plan.verify()
    memory, collectives = verification.memory, verification.collectives
    return {
        "mesh": dict(plan.decision.mesh_shape),
        "plan_seconds": planned - started,
        "compile_seconds": time.perf_counter() - planned,
        "reason": memory.reason,
        "peak_bytes": memory.peak,
        "argument_bytes": memory.arguments,
        "output_bytes": memory.outputs,
        "alias_bytes": memory.aliased,
        "collective_bytes": (collectives.predicted_bytes, collectives.compiled_bytes),
        "by_kind_bytes": {
            f"{kind} {','.join(axes)}": sizes for (kind, axes), sizes in (collectives.by_kind or {}).items()
        },
    }


def main() -> None:
    """Compares the models, prints the table as it grows, and writes it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models, separated by commas; default all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    only = [word for word in options.only.split(",") if word]
    found: dict[str, Any] = {}
    print(
        f"{'model':<14}{'mesh':<10}{'peak GB pred':>13}{'compiled':>10}{'off':>8}   "
        f"{'arguments, results, reused':<28}{'collectives off':>16}"
    )
    for name, build in BUILDERS.items():
        if only and name not in only:
            continue
        row = found[name] = measure(build())
        peak, moved = row["peak_bytes"], row["collective_bytes"]
        off = peak[0] / peak[1] - 1 if peak[1] else float("nan")
        far = moved[0] / moved[1] - 1 if moved[1] else float("nan")
        borders = [row[key] for key in ("argument_bytes", "output_bytes", "alias_bytes")]
        same = ", ".join(
            "equal" if abs(a - b) <= 1024 + 1e-3 * b else f"{100 * (a / b - 1):+.1f} %" for a, b in borders
        )
        mesh = "x".join(map(str, row["mesh"].values()))
        print(f"{name:<14}{mesh:<10}{peak[0] / 1e9:>13.3f}{peak[1] / 1e9:>10.3f}{off:>+8.0%}   {same:<28}{far:>+16.1%}")
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps({"stamp": stamp(), "topology": TOPOLOGY, "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
