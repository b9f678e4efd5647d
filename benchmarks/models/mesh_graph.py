"""Message passing over a mesh: encode, process, decode, with states of nodes and of edges; plain JAX, AdamW.

The layout of MeshGraphNets' (Pfaff et al. 2021, https://arxiv.org/abs/2010.03409): every step updates the edges from their
ends and the nodes from the sum of their edges, by perceptrons of two layers with a norm, each added to what it updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from benchmarks.models.base import Model, Size, Tree, arguments, matrices_only, seed, trained
from benchmarks.models.language import parameters
from benchmarks.models.llama import rms_norm
from benchmarks.models.places import activation


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGraphConfig:
    """Sizes of a mesh and of the network over it: `of_node` and `of_edge` features come in, `steps` pass messages."""

    nodes: int
    edges: int
    of_node: int
    of_edge: int
    features: int
    steps: int


REAL = MeshGraphConfig(nodes=1 << 18, edges=1 << 20, of_node=16, of_edge=8, features=512, steps=15)
SMALL = MeshGraphConfig(nodes=64, edges=256, of_node=8, of_edge=8, features=16, steps=2)


def _perceptron(come: int, config: MeshGraphConfig) -> Tree:
    f = config.features
    return {"into": (come, f), "bias": (f,), "out": (f, f), "out_bias": (f,), "norm": (f,)}


def shapes(config: MeshGraphConfig) -> Tree:
    """The parameters, those of the steps as a list."""
    f = config.features
    step = {"edge": _perceptron(3 * f, config), "node": _perceptron(2 * f, config)}
    return {
        "node": _perceptron(config.of_node, config),
        "edge": _perceptron(config.of_edge, config),
        "steps": [step] * config.steps,
        "decode": (f, config.of_node),
    }


def _through(weights: Tree, x: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(x @ weights["into"] + weights["bias"])
    return rms_norm(hidden @ weights["out"] + weights["out_bias"], weights["norm"])


def forward(params: Tree, graph: Tree) -> jax.Array:
    """f32 results of shape (nodes, of_node) from a graph {"nodes", "edges", "senders", "receivers"}."""
    weights = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    nodes = _through(weights["node"], graph["nodes"].astype(jnp.bfloat16))
    edges = _through(weights["edge"], graph["edges"].astype(jnp.bfloat16))
    for step in weights["steps"]:
        ends = nodes[graph["senders"]], nodes[graph["receivers"]]
        edges = activation(edges + _through(step["edge"], jnp.concatenate([edges, *ends], axis=-1)), "edges")
        arrived = jax.ops.segment_sum(edges, graph["receivers"], num_segments=nodes.shape[0])
        nodes = activation(nodes + _through(step["node"], jnp.concatenate([nodes, arrived], axis=-1)), "nodes")
    return (nodes @ weights["decode"]).astype(jnp.float32)


def mesh_graph(config: MeshGraphConfig, *, size: Size = "small", name: str = "mesh graph") -> Model:
    """A train step on one graph {"nodes", "edges", "senders", "receivers", "targets"}."""
    optimizer = optax.adamw(1e-3, mask=matrices_only)

    def loss(params: Tree, graph: Tree) -> jax.Array:
        return jnp.mean((forward(params, graph) - graph["targets"]) ** 2)

    def make() -> tuple[Tree, ...]:
        keys = jax.random.split(seed(), 6)
        graph = {
            "nodes": jax.random.normal(keys[0], (config.nodes, config.of_node)),
            "edges": jax.random.normal(keys[1], (config.edges, config.of_edge)),
            "targets": jax.random.normal(keys[2], (config.nodes, config.of_node)),
            "senders": jax.random.randint(keys[3], (config.edges,), 0, config.nodes),
            "receivers": jax.random.randint(keys[4], (config.edges,), 0, config.nodes),
        }
        params = parameters(shapes(config), keys[5])
        return params, optimizer.init(params), graph

    return trained(
        name,
        loss,
        optimizer,
        arguments(make, size),
        batch=1,
        tokens=config.nodes,
        notes=f"{config.nodes} nodes, {config.edges} edges, {config.steps} steps of {config.features} features",
    )


def build(size: Size = "small") -> Model:
    """Small: 64 nodes. Real: 262,144 nodes, a million edges, 15 steps of 512 features."""
    return mesh_graph(SMALL if size == "small" else REAL, size=size)
