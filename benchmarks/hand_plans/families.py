"""What the dims of programs are for, by the names of their leaves and activations; and which kinds of plan suit them.

The role of a dim is a word ("heads", "ffn"); a kind of plan says which mesh axes split which roles, as the logical axis
rules of Flax and MaxText do. A pattern is the end of a path (`attention/query/kernel`), its roles those of the last dims
(stacked layers lie in front); "." is a dim that no kind splits. The optimizer's leaves end like the weights they are for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.hand_plans import kinds
from benchmarks.hand_plans.kinds import Kind

Roles = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Programs whose leaves bear the same names.

    `data` are what a call is given beside its state and weights; what is not in it has "batch" in front.
    """

    kinds: tuple[Kind, ...]
    weights: Roles = field(default_factory=dict[str, str])
    data: Roles = field(default_factory=dict[str, str])
    activations: Roles = field(default_factory=dict[str, str])


_ATTENTION = {
    "wq": "embed heads .",
    "wk": "embed kv .",
    "wv": "embed kv .",
    "wo": "heads . embed",
    "embed": "vocab embed",
    "head": "embed vocab",
}
_FLAX_ATTENTION = {
    f"attention/{name}/{leaf}": roles
    for name in ("query", "key", "value")
    for leaf, roles in (("kernel", "embed heads ."), ("bias", "heads ."))
} | {"attention/out/kernel": "heads . embed"}
_FLAX_FFN = {"up/kernel": "embed ffn", "up/bias": "ffn", "down/kernel": "ffn embed"}
_STREAM = {
    "residual": "batch tokens features",
    "attention": "batch sequence heads .",
    "hidden": "batch sequence ffn",
}
_BERT = {
    "qkv/kernel": "embed heads",  # a column holds the three values of one head and head dim
    "qkv/bias": "heads",
    "attention/out/kernel": "heads embed",
    "fc1/kernel": "embed ffn",
    "fc1/bias": "ffn",
    "fc2/kernel": "ffn embed",
    "tokens/embedding": "vocab embed",
    "params/bias": "vocab",
}
_EXPERTS = {"gate": "expert embed ffn", "up": "expert embed ffn", "down": "expert ffn embed"}
_DISPATCHED = {"dispatched": "expert batch . features"}
_IMAGES = {"images": "batch height width .", "noise": "batch height width .", "block": "batch height width out"}

LLAMA = Family(
    kinds=kinds.TRANSFORMER,
    weights=_ATTENTION | {"gate": "embed ffn", "up": "embed ffn", "down": "ffn embed"},
    activations=_STREAM,
)
SPARSE = Family(
    kinds=(*kinds.TRANSFORMER, *kinds.EXPERTS),
    weights=_ATTENTION
    | _EXPERTS
    | {"shared_gate": "embed ffn", "shared_up": "embed ffn", "shared_down": "ffn embed", "latent": "embed ."},
    activations=_STREAM | _DISPATCHED,
)
GPT = Family(
    kinds=kinds.TRANSFORMER,
    weights=_FLAX_ATTENTION | _FLAX_FFN | {"embed/embedding": "vocab embed", "head/kernel": "embed vocab"},
    activations=_STREAM,
)
DEEP = Family(
    kinds=kinds.TRANSFORMER,
    weights={
        "qkv": "embed . heads .",
        "out": "heads . embed",
        "up": "embed ffn",
        "down": "ffn embed",
        "embed": "vocab embed",
        "head": "embed vocab",
    },
    activations=_STREAM,
)
T5 = Family(
    kinds=kinds.TRANSFORMER,
    weights={
        "wq": "embed heads .",
        "wk": "embed heads .",
        "wv": "embed heads .",
        "wo": "heads . embed",
        "up": "embed ffn",
        "down": "ffn embed",
        "params/embed": "vocab embed",
    },
    activations=_STREAM,
)
BERT = Family(kinds=kinds.TRANSFORMER, weights=_BERT, activations=_STREAM)
MOE = Family(
    kinds=(*kinds.TRANSFORMER, *kinds.EXPERTS),
    weights=_BERT | {"moe/up": "expert embed ffn", "moe/down": "expert ffn embed"},
    activations=_STREAM | _DISPATCHED,
)
VIT = Family(kinds=kinds.TRANSFORMER, weights=_FLAX_ATTENTION | _FLAX_FFN, activations=_STREAM)
LSTM = Family(
    kinds=kinds.DENSE,
    weights={
        "weight_ih": "ffn embed",
        "weight_hh": "ffn embed",
        "cells/bias": "ffn",
        "embedding/weight": "vocab embed",
        "head/weight": "vocab embed",
    },
    activations={"hidden": "batch features"},
)
MLP = Family(
    kinds=kinds.DENSE,
    weights={
        f"Dense_{n}/{leaf}": roles
        for n in range(64)
        for leaf, roles in (
            (("kernel", "embed ffn"), ("bias", "ffn")) if n % 2 == 0 else (("kernel", "ffn embed"), ("bias", "."))
        )
    },
)
DECODE = Family(
    kinds=kinds.DECODE,
    weights=_ATTENTION | {"gate": "embed ffn", "up": "embed ffn", "down": "ffn embed"},
    data={
        "keys": "batch length kv .",
        "values": "batch length kv .",
        "whole": "batch length kv .",
        "scale": "batch length kv",
        "tokens": "batch",
        "position": "batch",
    },
    activations={"residual": "batch . features", "attention": "batch . heads ."},
)
RESNET = Family(kinds=kinds.IMAGES, weights={"conv/kernel": ". . in out"}, data=_IMAGES, activations=_IMAGES)
UNET = Family(
    kinds=kinds.IMAGES,
    weights={f"{name}/kernel": ". . in out" for name in ("first", "second", "shortcut")},
    data=_IMAGES,
    activations=_IMAGES,
)
GNN = Family(
    kinds=kinds.GRAPH,
    weights=dict.fromkeys(("embed", "from_sender", "from_receiver", "message", "own", "arrived", "update"), "in out"),
    data={
        "nodes": "nodes features",
        "targets": "nodes features",
        "senders": "edges",
        "receivers": "edges",
    },
    activations={"nodes": "nodes features", "edges": "edges features"},
)
SPECTRAL = Family(
    kinds=kinds.GRID,
    data={"velocity": "first second ."},
    activations={"lines_z": "first second .", "lines_y": "first . second", "lines_x": ". first second"},
)
ANY = Family(kinds=kinds.ANY)
"""Programs whose names are not known: only what the shapes of their arguments say."""

FAMILIES: Mapping[str, Family] = {
    "any": ANY,
    "bert": BERT,
    "decode": DECODE,
    "deep": DEEP,
    "gnn": GNN,
    "gpt": GPT,
    "gpt_unrolled": GPT,
    "llama": LLAMA,
    "lstm": LSTM,
    "mlp": MLP,
    "moe": MOE,
    "resnet": RESNET,
    "sparse": SPARSE,
    "spectral": SPECTRAL,
    "t5": T5,
    "unet": UNET,
    "vit": VIT,
}
"""By the names of `benchmarks.models.MODELS`."""
