"""Decoding by jax-llm-examples (https://github.com/jax-ml/jax-llm-examples): its llama3, under a mesh of Explicit axes.

Its folder `llama3` is on PYTHONPATH; the types of its arguments name their shardings, so they are given with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.real.base import Build, Placed, RealProgram, Size, named

PACKAGES = ("llama3_jax",)
LAYERS, BATCH, LENGTH = 16, 32, 2048
TOPOLOGY = "v5e:4x4"
MESHES: Mapping[str, tuple[int, int, int]] = {"as configured": (1, 4, 4), "1x8x2": (1, 8, 2), "2x4x2": (2, 4, 2)}
"""Batch, and the two axes of the heads; their `main.py` has the first."""


def _mesh(shape: tuple[int, int, int], devices: Any) -> Mesh:
    return jax.make_mesh(shape, ("x", "y", "z"), devices=devices, axis_types=(AxisType.Explicit,) * 3)


def _arguments(config: Any, batch: int) -> tuple[Any, ...]:
    """Tokens, weights and cache as shapes with their shardings."""
    model = import_module("llama3_jax.model")

    def shaped(info: Any, sharding: Any) -> Any:
        return jax.ShapeDtypeStruct(info.shape, info.dtype, sharding=sharding)

    def of(kind: Any, *args: Any) -> Any:
        return jax.tree.map(shaped, kind.abstract(config, *args), kind.shardings(config, *args), is_leaf=model.is_param)

    tokens = jax.ShapeDtypeStruct((batch, 1), jnp.int32, sharding=NamedSharding(config.mesh, P(None, None)))
    return tokens, of(model.Weights), of(model.KVCache, batch), config


def decode(size: Size) -> RealProgram:
    """One step of decoding with weights and cache in int8."""
    model, configs = import_module("llama3_jax.model"), import_module("llama3_jax.configs")
    if size == "small":
        mesh = _mesh((1, 4, 2), jax.devices())
        small = replace(
            configs.LLAMA3_70B,
            embed=64,
            ffw_size=128,
            q_heads=8,
            kv_heads=4,
            head_dim=16,
            num_layers=2,
            vocab_size=256,
            max_seq_len=32,
            mesh=mesh,
        )
        with jax.set_mesh(mesh):
            key = jax.random.key(0)
            tokens = jax.device_put(jnp.arange(4, dtype=jnp.int32)[:, None], NamedSharding(mesh, P(None, None)))
            weights, cache = model.Weights.init(key, small), model.KVCache.init(key, small, 4)
            _, _, cache = model.prefill(jnp.ones((4, 8), jnp.int32), weights, cache, small)
        return RealProgram(
            fn=model.decode_step,
            args=(tokens, weights, cache, small),
            topology=TOPOLOGY,
            context=partial(jax.set_mesh, mesh),
        )
    real = replace(configs.LLAMA3_70B, num_layers=LAYERS, max_seq_len=LENGTH)
    devices = topologies.get_topology_desc(TOPOLOGY, "tpu").devices

    def configured(shape: tuple[int, int, int]) -> Any:
        return replace(real, mesh=_mesh(shape, devices))

    def own() -> Iterator[Placed]:
        for name, shape in MESHES.items():
            config = configured(shape)
            yield Placed(
                name=name,
                jit=model.decode_step,
                args=_arguments(config, BATCH),
                mesh=named(config.mesh.shape),
                context=partial(jax.set_mesh, config.mesh),
            )

    config = configured(MESHES["as configured"])
    return RealProgram(
        fn=model.decode_step,
        args=_arguments(config, BATCH),
        topology=TOPOLOGY,
        context=partial(jax.set_mesh, config.mesh),
        own=own,
        notes=f"{LAYERS} of 80 layers, {BATCH} sequences of {LENGTH} tokens",
    )


PROGRAMS: Mapping[str, Build] = {"jax_llm_llama3_70b_decode": decode}
