"""Kinds of placement as people write them: which mesh axes split which roles of dims, and how weights are stored.

Meshes have an axis `data`, an axis `model`, or both. Roles of activations are "batch", "tokens" (the positions of a
residual stream), "sequence" (those of attention), "features", "height", "nodes" and so on; of weights "embed", "heads",
"kv", "ffn", "vocab", "expert", "in", "out".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Axes = tuple[str, ...]
DATA, MODEL = ("data",), ("model",)
BOTH = (*DATA, *MODEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A way to place any program of a family on any mesh with these `axes`.

    `rules`: the axes that split a role; others are whole. `stored`: the axes that split weights and the optimizer's state
    besides, by their largest dim that nothing else splits (FSDP); `stored_for`: for the optimizer's state alone (ZeRO-1).
    """

    name: str
    axes: Axes
    rules: Mapping[str, Axes] = field(default_factory=dict[str, Axes])
    stored: Axes = ()
    stored_for: Literal["all", "optimizer"] = "all"

    @property
    def gathers(self) -> bool:
        """Whether weights are stored in parts that can be gathered at use."""
        return bool(self.stored) and self.stored_for == "all"


_ROWS = {"batch": DATA}
_ALL_ROWS = {"batch": BOTH}
_MEGATRON = {"heads": MODEL, "kv": MODEL, "ffn": MODEL, "vocab": MODEL}
_SEQUENCE = {"tokens": MODEL}

DP = Kind(name="dp", axes=DATA, rules=_ROWS)
ZERO = Kind(name="zero-1", axes=DATA, rules=_ROWS, stored=DATA, stored_for="optimizer")
FSDP = Kind(name="fsdp", axes=DATA, rules=_ROWS, stored=DATA)
HSDP = Kind(name="hsdp", axes=BOTH, rules=_ALL_ROWS, stored=MODEL)
"""The batch over both axes, weights split over one and repeated over the other."""
STORED_ONLY = Kind(name="stored only", axes=DATA, stored=DATA)
"""Everything stored in parts and nothing said of the computation; among the bad ones for most programs."""

ANY = (DP, ZERO, FSDP, HSDP, STORED_ONLY)

_PARALLEL = (
    Kind(name="tp", axes=MODEL, rules=_MEGATRON),
    Kind(name="dp+tp", axes=BOTH, rules=_ROWS | _MEGATRON),
    Kind(name="fsdp+tp", axes=BOTH, rules=_ROWS | _MEGATRON, stored=DATA),
)
_CROSSED = Kind(name="crossed", axes=BOTH, rules=_ROWS | {"embed": MODEL, "tokens": MODEL}, stored=DATA)
"""A bad one: every matrix split on the dim that Megatron leaves whole."""

DENSE = (DP, ZERO, FSDP, HSDP, *_PARALLEL, _CROSSED)
TRANSFORMER = (
    DP,
    FSDP,
    HSDP,
    *_PARALLEL,
    Kind(name="tp+sp", axes=BOTH, rules=_ROWS | _MEGATRON | _SEQUENCE),
    Kind(name="fsdp+tp+sp", axes=BOTH, rules=_ROWS | _MEGATRON | _SEQUENCE, stored=DATA),
    _CROSSED,
)
EXPERTS = (
    Kind(name="ep", axes=DATA, rules=_ROWS | {"expert": DATA}),
    Kind(name="fsdp+ep", axes=BOTH, rules=_ALL_ROWS | {"expert": MODEL}, stored=DATA),
    Kind(name="hsdp+ep", axes=BOTH, rules=_ALL_ROWS | {"expert": MODEL}, stored=MODEL),
    Kind(name="fsdp+tp+ep", axes=BOTH, rules=_ROWS | _MEGATRON | {"expert": MODEL}, stored=DATA),
)
DECODE = (
    Kind(name="dp", axes=DATA, rules=_ROWS),
    Kind(name="tp", axes=MODEL, rules=_MEGATRON),
    Kind(name="tp+batch", axes=BOTH, rules=_ROWS | _MEGATRON),
    Kind(name="tp+length", axes=BOTH, rules=_MEGATRON | {"length": DATA}),
    Kind(name="2-D tp", axes=BOTH, rules=_MEGATRON | {"embed": DATA, "features": DATA}),
    Kind(name="2-D tp+batch", axes=BOTH, rules=_ROWS | _MEGATRON | {"embed": DATA}),
    Kind(name="2-D tp+length", axes=BOTH, rules=_MEGATRON | {"embed": DATA, "features": DATA, "length": DATA}),
    Kind(
        name="tp over both",
        axes=BOTH,
        rules={"heads": BOTH, "ffn": BOTH, "vocab": BOTH, "kv": MODEL, "length": DATA},
    ),
    Kind(name="fsdp", axes=DATA, rules=_ROWS, stored=DATA),
)
IMAGES = (
    DP,
    ZERO,
    FSDP,
    HSDP,
    Kind(name="spatial", axes=BOTH, rules=_ROWS | {"height": MODEL}),
    Kind(name="fsdp+spatial", axes=BOTH, rules=_ROWS | {"height": MODEL}, stored=DATA),
    Kind(name="channels", axes=BOTH, rules=_ROWS | {"out": MODEL}),
    Kind(name="fsdp+channels", axes=BOTH, rules=_ROWS | {"out": MODEL}, stored=DATA),
    STORED_ONLY,
)
GRAPH = (
    Kind(name="nodes", axes=DATA, rules={"nodes": DATA, "edges": DATA}),
    Kind(name="edges", axes=DATA, rules={"edges": DATA}),
    Kind(name="features", axes=MODEL, rules={"features": MODEL}),
    Kind(name="features, weights too", axes=MODEL, rules={"features": MODEL, "out": MODEL}),
    Kind(name="nodes and features", axes=BOTH, rules={"nodes": DATA, "edges": DATA, "features": MODEL}),
    Kind(name="edges and features", axes=BOTH, rules={"edges": DATA, "features": MODEL}),
    Kind(name="nodes over both", axes=BOTH, rules={"nodes": BOTH, "edges": BOTH}),
    Kind(name="nodes and edges apart", axes=BOTH, rules={"nodes": MODEL, "edges": DATA}),
    STORED_ONLY,
)
GRID = (
    Kind(name="slab", axes=DATA, rules={"first": DATA}),
    Kind(name="pencil", axes=BOTH, rules={"first": DATA, "second": MODEL}),
    Kind(name="slab over both", axes=BOTH, rules={"first": BOTH}),
    Kind(name="whole", axes=DATA),
)
