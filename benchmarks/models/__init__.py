"""The programs that the planner is tried on, each written for one device, by name.

`MODELS[name](size)` builds one at size "small" (arrays; a CPU runs a step in well under a second) or "real" (shapes
only, nothing allocated). `TEXTBOOK[name](size)` builds one whose best placement is known, its size the same for both.
"""

from collections.abc import Callable

from benchmarks.models import (
    bert,
    decode,
    deep,
    gnn,
    gpt,
    llama,
    lstm,
    mlp,
    moe,
    resnet,
    sparse,
    spectral,
    t5,
    unet,
    vit,
)
from benchmarks.models.base import Model, Size
from benchmarks.models.textbook import TEXTBOOK

__all__ = ["MODELS", "TEXTBOOK", "Model", "Size"]

MODELS: dict[str, Callable[[Size], Model]] = {
    "bert": bert.build,
    "decode": decode.build,
    "deep": deep.build,
    "gnn": gnn.build,
    "gpt": gpt.build,
    "gpt_unrolled": gpt.build_unrolled,
    "llama": llama.build,
    "lstm": lstm.build,
    "mlp": mlp.build,
    "moe": moe.build,
    "resnet": resnet.build,
    "sparse": sparse.build,
    "spectral": spectral.build,
    "t5": t5.build,
    "unet": unet.build,
    "vit": vit.build,
}
