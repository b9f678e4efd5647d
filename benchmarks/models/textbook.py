"""Programs whose best placement is known: the unit tests of Alpa's intra-operator pass, at their sizes.

Expected are the collectives of one gradient step after the compiler has combined them, on four devices
(https://github.com/alpa-projects/alpa, tests/shard_parallel). Scalar all-reduces are not counted.
At size "real" the arguments are shapes; the sizes are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, seed, train_step
from benchmarks.models.bert import BertConfig, bert_layers, bert_mlm
from benchmarks.models.conv import conv
from benchmarks.models.mlp import mlp
from benchmarks.models.moe import MoEConfig, moe_layer, moe_lm


def mlp_batch_heavy(size: Size = "small") -> Model:
    """Data parallel: 1 all-reduce. With axis 1 of a 2x2 mesh ten times faster: Megatron on that axis, 6 all-reduces."""
    return mlp(batch=256, hidden=32, size=size, name="mlp_batch_heavy")


def mlp_width_heavy(size: Size = "small") -> Model:
    """Alternating column and row: 5 all-reduces (layers - 1) of batch x hidden x 4 bytes."""
    return mlp(batch=32, hidden=256, size=size, name="mlp_width_heavy")


def bert_batch_heavy(size: Size = "small") -> Model:
    """Data parallel: 1 all-reduce."""
    config = BertConfig(layers=2, hidden=32, heads=8, sequence=64)
    return bert_layers(config, batch=64, size=size, name="bert_batch_heavy")


def bert_width_heavy(size: Size = "small", *, remat: bool = False) -> Model:
    """Megatron: 4L - 1 = 7 all-reduces, with rematerialisation 6L - 1 = 11; on a fast and a slow axis 4L = 8."""
    config = BertConfig(layers=2, hidden=128, heads=8, sequence=8, remat=remat)
    return bert_layers(config, batch=8, size=size, name="bert_width_heavy_remat" if remat else "bert_width_heavy")


def bert_width_heavy_remat(size: Size = "small") -> Model:
    """`bert_width_heavy` with its layers rematerialised: 6L - 1 = 11 all-reduces."""
    return bert_width_heavy(size, remat=True)


def tied_embedding(size: Size = "small") -> Model:
    """All-reduces only, on a 2x2 mesh: vocabulary 1,024 looked up, and multiplied with again for the logits."""
    batch, sequence, vocabulary, hidden = 8, 8, 1024, 8
    optimizer = optax.adam(1e-2)

    def loss(params: Tree, batch: Tree) -> jax.Array:
        logits = params["embedding"][batch["ids"]] @ params["embedding"].T
        chosen = jax.nn.one_hot(batch["labels"], vocabulary)
        return -jnp.sum(chosen * jax.nn.log_softmax(logits))

    def make() -> tuple[Tree, ...]:
        key_ids, key_labels, key = jax.random.split(seed(), 3)
        params = {"embedding": jax.random.normal(key, (vocabulary, hidden)) / hidden**0.5}
        data = {
            "ids": jax.random.randint(key_ids, (batch, sequence), 0, vocabulary),
            "labels": jax.random.randint(key_labels, (batch, sequence), 0, vocabulary),
        }
        return params, optimizer.init(params), data

    return Model(
        name="tied_embedding",
        kind="train",
        fn=train_step(loss, optimizer),
        args=arguments(make, size),
        donate_argnums=(0, 1),
        batch=batch,
        tokens=batch * sequence,
    )


def bert_mlm_wide(size: Size = "small") -> Model:
    """Megatron with the vocabulary split, on a 2x2 mesh: 4L + 5 = 13 all-reduces."""
    config = BertConfig(layers=2, hidden=512, heads=4, sequence=4, vocabulary=4096)
    return bert_mlm(config, batch=4, size=size, name="bert_mlm_wide")


_MOE = MoEConfig(layers=2, hidden=64, heads=16, sequence=16, group=32, experts=16, vocabulary=32)


def moe_one_layer(size: Size = "small") -> Model:
    """Experts split, the rest data parallel: 4 all-to-all and 1 all-reduce."""
    return moe_layer(_MOE, batch=64, size=size, name="moe_one_layer")


def moe_two_layers(size: Size = "small") -> Model:
    """The language model: 4 all-to-all and at most 4 all-reduces."""
    return moe_lm(_MOE, batch=64, size=size, name="moe_two_layers")


def conv_batch_heavy(size: Size = "small") -> Model:
    """Data parallel: 1 all-reduce of the gradients, and 2 for each batch norm (3 layers)."""
    return conv(batch=16, image=16, channels=4, layers=3, size=size, name="conv_batch_heavy")


def conv_channel_heavy(size: Size = "small") -> Model:
    """Channels in and out split in turn: layers - 1 = 3 all-reduces."""
    return conv(batch=8, image=16, channels=256, layers=4, size=size, name="conv_channel_heavy")


def conv_depthwise(size: Size = "small") -> Model:
    """The channels of the depthwise layer split: 1 all-reduce."""
    return conv(batch=4, image=8, channels=256, depthwise=True, size=size, name="conv_depthwise")


TEXTBOOK: dict[str, Callable[[Size], Model]] = {
    "bert_batch_heavy": bert_batch_heavy,
    "bert_mlm_wide": bert_mlm_wide,
    "bert_width_heavy": bert_width_heavy,
    "bert_width_heavy_remat": bert_width_heavy_remat,
    "conv_batch_heavy": conv_batch_heavy,
    "conv_channel_heavy": conv_channel_heavy,
    "conv_depthwise": conv_depthwise,
    "mlp_batch_heavy": mlp_batch_heavy,
    "mlp_width_heavy": mlp_width_heavy,
    "moe_one_layer": moe_one_layer,
    "moe_two_layers": moe_two_layers,
    "tied_embedding": tied_embedding,
}
