"""Fine-tuning by tunix (https://github.com/google/tunix): the train step of its `PeftTrainer`, all weights of Llama 3.2 1B.

Its models are Flax nnx objects that the step changes in place, layers written out. Weights name the mesh axes "fsdp" and
"tp" in their metadata, activations in constraints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.real.base import Build, Placed, RealProgram, Size, named

PACKAGES = ("tunix", "metrax", "flax", "optax")
TOPOLOGY = "v5e:4x4"
SEQUENCES, TOKENS = 32, 1024
SMALL_SEQUENCES, SMALL_TOKENS = 8, 16
SMALL: Mapping[str, int] = {
    "num_layers": 2,
    "vocab_size": 256,
    "embed_dim": 64,
    "hidden_dim": 128,
    "num_heads": 4,
    "head_dim": 16,
    "num_kv_heads": 2,
}
MESHES: Mapping[str, tuple[int, int]] = {"as configured": (16, 1), "8x2": (8, 2), "4x4": (4, 4)}
"""Over "fsdp" and "tp"; the examples for several chips have all of them on the first."""
POLICIES = ("BLOCK", "DECODER")
"""Remat policies beside the default, which has none."""


@dataclass(frozen=True, slots=True)
class _OnDevices:
    """JAX as a model sees it that asks for its devices, to leave its constraints out on CPUs: those of a topology."""

    found: Any

    def devices(self) -> Any:
        """The devices."""
        return self.found

    def __getattr__(self, name: str) -> Any:
        return getattr(jax, name)


def _context(mesh: Mesh) -> ExitStack:
    """A mesh around the step, as tunix's examples have it."""
    stack = ExitStack()
    model = import_module("tunix.models.llama3.model")
    stack.enter_context(mock.patch.object(model, "jax", _OnDevices(list(mesh.devices.flat))))
    stack.enter_context(mesh)
    return stack


def _train_step() -> Callable[..., Any]:
    """The trainer's step; of the trainer, which opens checkpoints and logs, it has what the step reads."""
    trainer, utils = import_module("tunix.sft.peft_trainer"), import_module("tunix.sft.utils")

    def model_input(given: Mapping[str, Any]) -> Mapping[str, Any]:
        mask = given["input_tokens"] != 0
        return {
            **given,
            "positions": utils.build_positions_from_mask(mask),
            "attention_mask": utils.make_causal_attn_mask(mask),
        }

    read = SimpleNamespace(
        gen_model_input_fn=model_input, loss_fn=trainer._default_loss_fn, _lora_enabled=False, _has_aux=False
    )
    return partial(trainer.PeftTrainer._train_step, read)


def _objects(config: Any, dtype: Any) -> tuple[Any, Any]:
    """The model with weights of a type, and its optimizer."""
    nnx, optax = import_module("flax.nnx"), import_module("optax")
    model = import_module("tunix.models.llama3.model").Llama3(config, rngs=nnx.Rngs(0))
    nnx.update(model, jax.tree.map(lambda x: x.astype(dtype), nnx.state(model, nnx.Param)))
    return model, nnx.Optimizer(model, optax.adamw(1e-5), wrt=nnx.Param)


def _batch(sequences: int, tokens: int) -> dict[str, Any]:
    ids = jnp.reshape(jnp.arange(sequences * tokens, dtype=jnp.int32) % 251 + 1, (sequences, tokens))
    return {"input_tokens": ids, "input_mask": jnp.ones((sequences, tokens), jnp.int32)}


def _placed(name: str, mesh: Mesh, config: Any, args: tuple[Any, ...], context: Callable[[], Any]) -> Placed:
    """The step under `nnx.jit`, its objects laid as their metadata say and the batch over "fsdp"."""
    nnx, step = import_module("flax.nnx"), _train_step()
    model, optimizer = import_module("flax.nnx").eval_shape(partial(_objects, config, jnp.bfloat16))
    graph, *states = nnx.split((model, optimizer), nnx.Param, ...)

    def functional(weights: Any, moments: Any, inputs: Any) -> Any:
        objects = nnx.merge(graph, weights, moments)
        made = step(*objects, inputs)
        return made, *nnx.split(objects, nnx.Param, ...)[1:]

    weights, moments = (
        jax.tree.map(lambda spec: NamedSharding(mesh, spec), nnx.get_partition_spec(state), is_leaf=_is_spec)
        for state in states
    )
    jitted = jax.jit(
        functional,
        in_shardings=(weights, moments, NamedSharding(mesh, P("fsdp"))),
        out_shardings=(None, weights, moments),
        donate_argnums=(1,),
    )
    return Placed(name=name, jit=jitted, args=(*states, args[2]), mesh=named(mesh.shape), context=context)


def _is_spec(x: Any) -> bool:
    return isinstance(x, P)


def finetune(size: Size) -> RealProgram:
    """A step of AdamW."""
    models, nnx = import_module("tunix.models.llama3.model"), import_module("flax.nnx")
    real = models.ModelConfig.llama3p2_1b()
    if size == "small":
        small = replace(real, **SMALL)
        mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("fsdp", "tp"))
        args = (*_objects(small, jnp.float32), _batch(SMALL_SEQUENCES, SMALL_TOKENS))
        return RealProgram(
            fn=_train_step(), args=args, topology=TOPOLOGY, donate_argnums=(1,), context=partial(_context, mesh)
        )
    devices = topologies.get_topology_desc(TOPOLOGY, "tpu").devices

    def context_of(shape: tuple[int, int]) -> tuple[Mesh, Callable[[], AbstractContextManager[Any]]]:
        mesh = Mesh(np.array(devices).reshape(shape), ("fsdp", "tp"))
        return mesh, partial(_context, mesh)

    objects = nnx.eval_shape(partial(_objects, real, jnp.bfloat16))
    args = (*objects, jax.eval_shape(partial(_batch, SEQUENCES, TOKENS)))

    def own() -> Iterator[Placed]:
        for name, shape in MESHES.items():
            mesh, context = context_of(shape)
            yield _placed(name, mesh, real, args, context)
        mesh, context = context_of(MESHES["as configured"])
        for policy in POLICIES:
            config = replace(real, remat_config=models.RematConfig[policy])
            yield _placed(f"remat_config={policy}", mesh, config, args, context)

    return RealProgram(
        fn=_train_step(),
        args=args,
        topology=TOPOLOGY,
        donate_argnums=(1,),
        context=context_of(MESHES["as configured"])[1],
        own=own,
        notes=f"Llama 3.2 1B, {SEQUENCES} sequences of {TOKENS} tokens",
    )


PROGRAMS: Mapping[str, Build] = {"tunix_llama3_1b": finetune}
