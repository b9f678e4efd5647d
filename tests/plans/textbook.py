"""The textbook cases: programs whose best placement is known, the machines they are planned for, and what to expect.

Their source are the unit tests of Alpa's intra-operator pass (https://github.com/alpa-projects/alpa,
tests/shard_parallel), four devices each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jax.sharding import PartitionSpec as P

from benchmarks.models import TEXTBOOK, Model, Size
from benchmarks.models.bert import BertConfig, bert_layers
from benchmarks.models.mlp import mlp
from cost_models import CHIPS, Topology

SCALAR_BYTES = 4
"""Collectives of scalars are not counted, as Alpa does not: the loss is one number, wherever it is added up."""

CHIP = dataclasses.replace(
    CHIPS["cpu"],
    name="textbook",
    peak_flops_per_s={"float32": 1e10},
    matrix_efficiency=1.0,
    vector_flops_per_s=1e15,
    hbm_bytes=16 * 10**9,
    hbm_bytes_per_s=1e15,
    source="chosen so that only matrix products and links take time",
)
"""10 GFLOP/s beside links of 1 GB/s: a matrix product done twice costs more than summing its parts, so all products are
split, and plans differ in what they communicate, which is the textbook's question. With much faster products doing all
of them everywhere would win, as nothing is communicated then; with slower elementwise units or memory the passes over
small tensors would have a say."""

LINE = Topology.custom(name="line", shape=(4,), link_bytes_per_s=(1e9,), chip=CHIP)
SQUARE = Topology.custom(name="square", shape=(2, 2), link_bytes_per_s=(1e9, 1e9), chip=CHIP)
SLOW_FAST = Topology.custom(name="slow-fast", shape=(2, 2), link_bytes_per_s=(1e9, 1e10), chip=CHIP)
"""All latencies are 0. The second dim of the last one is ten times faster."""

MESHES: Mapping[str, Mapping[str, int]] = {
    LINE.name: {"x": 4},
    SQUARE.name: {"x": 2, "y": 2},
    SLOW_FAST.name: {"slow": 2, "fast": 2},
}

Key = tuple[str, tuple[str, ...]]
"""The kind of a collective and the axes it runs over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One expectation.

    `compiled` are the HLO instructions, after XLA has combined them, and all their bytes; scalars count in the bytes
    alone; None where the textbook has no say. `specs` are those of the arguments that match a shell-style pattern.
    `slow`: compiling takes seconds.
    """

    name: str
    topology: Topology
    compiled: Mapping[Key, tuple[int, int]] | None
    specs: Mapping[str, P]
    reason: str
    program: Callable[[Size], Model] | None = None
    slow: bool = False
    mesh: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mesh", MESHES[self.topology.name])

    def model(self, size: Size) -> Model:
        """The program with its arguments: arrays at size "small", shapes of the same size at "real"."""
        return (self.program or TEXTBOOK[self.name])(size)


def _megatron(axes: str | tuple[str, ...]) -> dict[str, P]:
    """The specs of encoder layers whose columns, then rows, are split over `axes`."""
    return {
        "params/*/qkv/kernel": P(None, axes),
        "params/*/out/kernel": P(axes),
        "params/*/fc1/kernel": P(None, axes),
        "params/*/fc2/kernel": P(axes),
    }


def _alternating(axis: str, batch: P) -> dict[str, P]:
    """The specs of dense layers whose columns and rows are split in turn."""
    return {
        **{f"params/params/Dense_{layer}/kernel": P(None, axis) for layer in (0, 2, 4)},
        **{f"params/params/Dense_{layer}/kernel": P(axis) for layer in (1, 3, 5)},
        "batch/*": batch,
    }


def _small_batch_mlp(size: Size) -> Model:
    return mlp(batch=64, hidden=32, size=size, name="mlp_small_batch")


def _odd_bert(size: Size) -> Model:
    config = BertConfig(layers=2, hidden=32, heads=8, sequence=15)
    return bert_layers(config, batch=62, size=size, name="bert_odd_batch")


_LAYER = 12 * 32 * 32 + 13 * 32
"""Parameters of an encoder layer of 32 features: four kernels, their biases, two norms."""

CASES = (
    Case(
        name="mlp_batch_heavy",
        topology=LINE,
        compiled={("all-reduce", ("x",)): (1, 4 * 6 * (32 * 32 + 32) + 4)},
        specs={"params/*": P(), "batch/*": P("x")},
        reason="data parallel; XLA combines the gradients and the loss into one",
    ),
    Case(
        name="mlp_width_heavy",
        topology=LINE,
        compiled={("all-reduce", ("x",)): (5, 5 * 32 * 256 * 4)},
        specs=_alternating("x", P()),
        reason="columns and rows in turn: layers - 1 activations, three forward and two backward",
    ),
    Case(
        name="bert_batch_heavy",
        topology=LINE,
        compiled={("all-reduce", ("x",)): (1, 4 * 2 * _LAYER + 4)},
        specs={"params/*": P(), "batch/*": P("x")},
        reason="data parallel",
    ),
    Case(
        name="bert_width_heavy",
        topology=LINE,
        compiled={("all-reduce", ("x",)): (7, 7 * 8 * 8 * 128 * 4)},
        specs={**_megatron("x"), "batch/*": P()},
        reason="Megatron: 4 L - 1 activations",
    ),
    Case(
        name="bert_width_heavy_remat",
        topology=LINE,
        compiled={("all-reduce", ("x",)): (9, 11 * 8 * 8 * 128 * 4)},
        specs={**_megatron("x"), "batch/*": P()},
        reason="6 L - 1 = 11 sums; Alpa counts 11, XLA combines two pairs of them that are ready together",
        slow=True,
    ),
    Case(
        name="tied_embedding",
        topology=SQUARE,
        compiled={("all-reduce", ("x", "y")): (4, 2 * 64 * 8 * 4 + 3 * 64 * 4 + 4)},
        specs={"params/embedding": P(("x", "y")), "batch/*": P()},
        reason="the vocabulary is split over both axes: two sums of 64 tokens of 8 features (looked up, and gradient "
        "of the logits' input) and three of 64 numbers (softmax), all-reduces only. Alpa splits the tokens over one "
        "axis and the vocabulary over the other, and sums 16 kB of gradients besides",
    ),
    Case(
        name="bert_mlm_wide",
        topology=SQUARE,
        compiled={
            ("all-reduce", ("x", "y")): (13, 11 * 16 * 512 * 4 + 4 * 16 * 4),
            ("all-gather", ("x", "y")): (1, 16 * 512 * 4),
        },
        specs={**_megatron(("x", "y")), "params/*/tokens/embedding": P(("x", "y"))},
        reason="Alpa counts 4 L + 5 = 13: the layers' 4 L, 2 of the softmax, 2 of the embedding, 1 of gradients. Here "
        "no gradient is summed, since both axes split the vocabulary; Alpa computes the transform before the logits on "
        "every device, here it is split too, either way, for one gather and one sum, forward and backward",
        slow=True,
    ),
    Case(
        name="moe_one_layer",
        topology=LINE,
        compiled={
            ("all-to-all", ("x",)): (4, 4 * 16 * 32 * 64 * 4),
            ("all-reduce", ("x",)): (1, 4 * (64 * 192 + 192 + 64 * 64 + 5 * 64 + 64 * 16) + 4),
        },
        specs={"params/*/moe/up": P("x"), "params/*/moe/down": P("x"), "params/*kernel": P(), "batch/*": P("x")},
        reason="experts split, all else data parallel: tokens go to their experts and back, forward and backward",
        slow=True,
    ),
    Case(
        name="moe_two_layers",
        topology=LINE,
        compiled={("all-to-all", ("x",)): (4, 4 * 16 * 32 * 64 * 4), ("all-reduce", ("x",)): (3, 292768)},
        specs={"params/*/moe/up": P("x"), "params/*/moe/down": P("x"), "params/*kernel": P(), "batch/*": P("x")},
        reason="the same; Alpa allows four all-reduces",
        slow=True,
    ),
    Case(
        name="conv_batch_heavy",
        topology=LINE,
        compiled={("all-reduce", ("x",)): (7, 4 * 3 * (9 * 4 * 4 + 2 * 4) + 4 * 3 * 3 * 4 + 4)},
        specs={"params/*": P(), "batch/*": P("x")},
        reason="data parallel: the gradients, and the sums of three batch norms, each once forward and once backward",
    ),
    Case(
        name="conv_channel_heavy",
        topology=LINE,
        compiled={
            ("all-reduce", ("x",)): (3, (131072 + 32768 + 8192)),
            ("all-gather", ("x",)): (2, (131072 + 32768)),
        },
        specs={"params/Conv_0/kernel": P(None, None, None, "x"), "batch/*": P()}
        | {f"params/Conv_{layer}/kernel": P(None, None, "x") for layer in (1, 2, 3)},
        reason="layers - 1 = 3 all-reduces. Alpa splits channels out and in by turns and sums 131072, 131072 and 8192 "
        "bytes, 1.5 of each on the wire; here the input channels of all later layers are split, and the gradient of "
        "what is summed forward is gathered backward, 0.75 of each on the wire: 381 kB instead of 406 kB",
        slow=True,
    ),
    Case(
        name="conv_depthwise",
        topology=LINE,
        compiled={("all-reduce", ("x",)): (1, 4 * 8 * 8 * 256 * 4)},
        specs={
            "params/Conv_0/kernel": P(None, None, None, "x"),
            "params/Conv_1/kernel": P(None, None, None, "x"),
            "params/Conv_2/kernel": P(None, None, "x"),
        },
        reason="the wide channels are split: one sum on the way back to 256 channels",
        slow=True,
    ),
    Case(
        name="mlp_small_batch",
        program=_small_batch_mlp,
        topology=SLOW_FAST,
        compiled={
            ("all-reduce", ("fast",)): (5, 5 * 32 * 32 * 4),
            ("all-reduce", ("slow",)): (1, 4 * (6 * 32 * 16 + 3 * 32 + 3 * 16) + 4),
        },
        specs=_alternating("fast", P("slow")),
        reason="with 64 rows for Alpa's 256: data parallel on the slow axis, which sums halves of the gradients, and "
        "columns and rows in turn on the fast one; 6 in all, as Alpa counts",
    ),
    Case(
        name="bert_odd_batch",
        program=_odd_bert,
        topology=SLOW_FAST,
        compiled={
            ("all-reduce", ("fast",)): (7, 7 * 31 * 15 * 32 * 4),
            ("all-reduce", ("slow",)): (1, 4 * 2 * (6 * 32 * 32 + 6 * 32 + 7 * 16) + 4),
        },
        specs={**_megatron("fast"), "batch/*": P("slow")},
        reason="62 sequences of 15 can be halved once: data parallel on the slow axis, Megatron on the fast one; "
        "4 L = 8 in all, as Alpa counts",
        slow=True,
    ),
    Case(
        name="bert_width_heavy",
        topology=SLOW_FAST,
        compiled=None,
        specs={},
        reason="Megatron on the slow axis, which sums 7 halves of the activations: see ALTERNATIVES",
        slow=True,
    ),
    Case(
        name="mlp_batch_heavy",
        topology=SLOW_FAST,
        compiled=None,
        specs={},
        reason="data parallel, but for two layers that are split on the fast axis: see ALTERNATIVES",
    ),
)

ALTERNATIVES: Mapping[str, Mapping[str, tuple[tuple[tuple[str, ...], int, int], ...]]] = {
    "mlp_batch_heavy": {
        "data parallel on slow, Megatron on fast": (
            (("slow",), 6, 32 * 32 * 4 // 2),
            (("fast",), 5, 256 * 32 * 4 // 2),
        ),
        "data parallel on both": ((("slow", "fast"), 6, (32 * 32 + 32) * 4),),
        "Megatron on both": ((("slow", "fast"), 5, 256 * 32 * 4),),
    },
    "bert_width_heavy": {
        "data parallel on slow, Megatron on fast": (
            (("slow",), 2, 12 * 128 * 128 * 4 // 2),
            (("fast",), 7, 8 * 8 * 128 * 4 // 2),
        ),
        "data parallel on both": ((("slow", "fast"), 2, 12 * 128 * 128 * 4),),
        "Megatron on both": ((("slow", "fast"), 7, 8 * 8 * 128 * 4),),
    },
}
"""The all-reduces (axes, count, bytes of each) of hand-made plans on `SLOW_FAST`; Alpa expects the mixed ones, of which
the biases are left out here. Alpa prices an all-reduce over both axes as one over each in turn, 1.1 seconds per GB. But
one ring through all four devices takes 0.75, as both devices of a side send over the slow links at a time, and one of
halves over the slow axis alone 0.5. So in microseconds:

                       data parallel and Megatron    data parallel    Megatron    found
    mlp_batch_heavy              20.5                    19.0           122.9      18.4
    bert_width_heavy            797.9                  1179.6           172.0     152.8

The encoder's gradients are larger than its activations: what is found is Megatron on the slow axis, on halves that the
fast one makes. With 64 rows (`mlp_small_batch`) the mixed plan is the best one: 14.9, against 19.0 and 30.7. An encoder
may also split its sequence, or move its batch around the attention; with 62 sequences of 15 (`bert_odd_batch`) neither
divides by both axes, which leaves the textbook's two.
"""
