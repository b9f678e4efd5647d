"""A graph network in plain JAX: messages along edges by gather, summed at nodes by scatter; bf16 compute, AdamW.

Each layer computes a message per edge from the features at both of its ends and a new state per node from its own and the
sum of what arrives (Gilmer et al. 2017, https://arxiv.org/abs/1704.01212), both by two dense layers; residual, normed.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, matrices_only, seed, trained
from benchmarks.models.language import parameters
from benchmarks.models.llama import rms_norm
from benchmarks.models.places import activation, at_use


@dataclass(frozen=True, slots=True, kw_only=True)
class GNNConfig:
    """Sizes of a graph and of the network over it."""

    nodes: int
    edges: int
    features: int
    layers: int


def shapes(config: GNNConfig) -> Tree:
    """The parameters, those of the layers as a list of one tree per layer."""
    f = config.features
    layer = {
        "from_sender": (f, f),
        "from_receiver": (f, f),
        "message": (f, f),
        "own": (f, f),
        "arrived": (f, f),
        "update": (f, f),
        "norm": (f,),
    }
    return {"embed": (f, f), "layers": [layer] * config.layers, "readout": (f, f)}


def forward(params: Tree, graph: Tree) -> jax.Array:
    """f32 results of shape (nodes, features) from a graph {"nodes", "senders", "receivers"}."""
    weights = at_use(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params))
    x = graph["nodes"].astype(jnp.bfloat16) @ weights["embed"]
    for layer in weights["layers"]:
        x = activation(x, "nodes")
        sent, received = x @ layer["from_sender"], x @ layer["from_receiver"]
        edges = activation(jax.nn.relu(sent[graph["senders"]] + received[graph["receivers"]]), "edges")
        messages = activation(edges @ layer["message"], "edges")
        arrived = activation(jnp.zeros_like(x).at[graph["receivers"]].add(messages), "nodes")
        hidden = jax.nn.relu(x @ layer["own"] + arrived @ layer["arrived"])
        x = rms_norm(x + hidden @ layer["update"], layer["norm"])
    return (x @ weights["readout"]).astype(jnp.float32)


def gnn(config: GNNConfig, *, size: Size = "small", name: str = "gnn") -> Model:
    """A train step on one graph {"nodes", "senders", "receivers", "targets"}, regressing a vector per node."""
    optimizer = optax.adamw(1e-3, mask=matrices_only)

    def loss(params: Tree, graph: Tree) -> jax.Array:
        return jnp.mean((forward(params, graph) - graph["targets"]) ** 2)

    def make() -> tuple[Tree, ...]:
        key_nodes, key_targets, key_senders, key_receivers, key = jax.random.split(seed(), 5)
        shape = (config.nodes, config.features)
        graph = {
            "nodes": jax.random.normal(key_nodes, shape),
            "targets": jax.random.normal(key_targets, shape),
            "senders": jax.random.randint(key_senders, (config.edges,), 0, config.nodes),
            "receivers": jax.random.randint(key_receivers, (config.edges,), 0, config.nodes),
        }
        params = parameters(shapes(config), key)
        return params, optimizer.init(params), graph

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=1,
        tokens=config.nodes,
        notes=f"{config.nodes} nodes, {config.edges} edges, {config.layers} layers of {config.features} features",
    )


def build(size: Size = "small") -> Model:
    """Small: 64 nodes, 256 edges. Real: a million nodes, 8 million edges, 4 layers of 256 features."""
    if size == "small":
        return gnn(GNNConfig(nodes=64, edges=256, features=32, layers=2), size=size)
    return gnn(GNNConfig(nodes=1 << 20, edges=1 << 23, features=256, layers=4), size=size)
