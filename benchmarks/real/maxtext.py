"""Train steps of MaxText (https://github.com/AI-Hypercomputer/maxtext) as its `train_compile` builds them.

MaxText 0.2.4 is the version for JAX 0.10.2; the mesh has twelve axes, the attention is the splash kernel in a `shard_map`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.real.base import Build, Placed, RealProgram, Size, named, shapes

PACKAGES = ("maxtext",)
HARDWARE = {"v5e:16x16": "v5e-256", "v5p:4x4x4": "v5p-128"}
"""MaxText's names of the topologies."""
ALWAYS = ("log_config=false", "enable_checkpointing=false", "run_name=planned", "dataset_type=synthetic")
SMALL = (
    "hardware=cpu",
    "skip_jax_distributed_system=true",
    "override_model_config=true",
    "per_device_batch_size=2",
    "max_target_length=32",
    "base_emb_dim=64",
    "base_num_query_heads=4",
    "base_num_kv_heads=4",
    "head_dim=16",
    "base_mlp_dim=128",
    "base_num_decoder_layers=2",
    "vocab_size=256",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What MaxText builds for one configuration: its train step, shardings and the mesh over real or virtual devices."""

    config: Any
    mesh: Any
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    in_shardings: Any
    out_shardings: Any
    donate_argnums: tuple[int, ...]

    def context(self) -> ExitStack:
        """The contexts in which MaxText traces its step."""
        rules = import_module("flax.linen.partitioning").axis_rules
        stack = ExitStack()
        for each in (jax.set_mesh(self.mesh), self.mesh, rules(self.config.logical_axis_rules)):
            stack.enter_context(each)
        return stack


def _step(overrides: Sequence[str]) -> _Step:
    """The step of a configuration, as `train_compile.main` makes it."""
    root = Path(import_module("maxtext").__file__ or "").parent
    sharding, utils = import_module("maxtext.utils.sharding"), import_module("maxtext.utils.maxtext_utils")
    compile_module = import_module("maxtext.trainers.pre_train.train_compile")
    config = import_module("maxtext.configs.pyconfig").initialize(
        ["train_compile", str(root / "configs" / "base.yml"), *ALWAYS, *overrides]
    )
    mesh = compile_module.get_topology_mesh(config) if config.compile_topology else _mesh_here(config)
    args, _, state_shardings, _, model = compile_module.get_shaped_inputs(mesh, config)
    params_shardings, state_shardings = sharding.maybe_update_params_sharding_with_opt(config, state_shardings)
    fn, in_shardings, out_shardings, _, donated = utils.get_functional_train_with_signature(
        import_module("maxtext.trainers.pre_train.train").train_step,
        sharding.get_input_data_sharding(config, mesh),
        state_shardings,
        model,
        config,
        params_shardings,
    )
    return _Step(
        config=config,
        mesh=mesh,
        fn=fn,
        args=tuple(args),
        in_shardings=in_shardings,
        out_shardings=out_shardings,
        donate_argnums=(donated,),
    )


def _mesh_here(config: Any) -> Any:
    utils = import_module("maxtext.utils.maxtext_utils")
    return jax.sharding.Mesh(
        utils.create_device_mesh(config, jax.devices()),
        config.mesh_axes,
        axis_types=(jax.sharding.AxisType.Auto,) * len(config.mesh_axes),
    )


def _arrays(tree: Any) -> Any:
    """Arrays for a tree of shapes: small random weights, moments of an optimiser and counters zero, tokens in order."""
    keys = iter(jax.random.split(jax.random.key(0), len(jax.tree.leaves(tree))))

    def array(path: Any, leaf: Any) -> Any:
        name, key = jax.tree_util.keystr(path), next(keys)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if "segmentation" in name:
            return jnp.ones(leaf.shape, leaf.dtype)
        if "position" in name:
            return jnp.broadcast_to(jnp.arange(leaf.shape[-1], dtype=leaf.dtype), leaf.shape)
        if "inputs" in name or "targets" in name:
            return jax.random.randint(key, leaf.shape, 0, 256, leaf.dtype)
        if "opt" in name or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return 1.0 * ("scale" in name) + 0.1 * jax.random.normal(key, leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map_with_path(array, tree)


def train_step(
    topology: str,
    overrides: Sequence[str],
    alternatives: Mapping[str, Sequence[str]],
    size: Size,
    *,
    small: Sequence[str] = (),
    notes: str = "",
) -> RealProgram:
    """The train step of a configuration; `alternatives` are configurations of MaxText's own to set beside it, by name."""
    if size == "small":
        step = _step([*(word for word in overrides if "parallelism" not in word), *SMALL, *small])
        return RealProgram(
            fn=step.fn,
            args=_arrays(shapes(step.args)),
            topology=topology,
            donate_argnums=step.donate_argnums,
            context=step.context,
        )
    target = (f"compile_topology={HARDWARE[topology]}", "compile_topology_num_slices=1")
    step = _step([*overrides, *target])

    def own() -> Iterator[Placed]:
        for name, extra in {"as configured": (), **alternatives}.items():
            other = _step([*overrides, *target, *extra]) if extra else step
            jit = jax.jit(
                other.fn,
                in_shardings=other.in_shardings,
                out_shardings=other.out_shardings,
                donate_argnums=other.donate_argnums,
            )
            yield Placed(name=name, jit=jit, args=other.args, mesh=named(other.mesh.shape), context=other.context)

    return RealProgram(
        fn=step.fn,
        args=shapes(step.args),
        topology=topology,
        donate_argnums=step.donate_argnums,
        context=step.context,
        own=own,
        notes=notes,
    )


def _policies(*names: str, beside: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    prefix = f"{' '.join(beside)} " if beside else ""
    return {f"{prefix}remat_policy={name}": (*beside, f"remat_policy={name}") for name in names}


LLAMA2_7B = ("model_name=llama2-7b", "per_device_batch_size=4", "remat_policy=save_qkv_proj", "use_iota_embed=true")
"""configs/tpu/v5e/llama2_7b.sh: 2,048 tokens a sequence, weights split over all devices."""
MIXTRAL = ("model_name=mixtral-8x7b", "per_device_batch_size=8", "max_target_length=4096", "remat_policy=full")
SMALL_MIXTRAL = ("base_moe_mlp_dim=128",)
BY_EXPERTS = ("ici_fsdp_parallelism=8", "ici_expert_parallelism=8", "allow_split_physical_axes=true")
PROGRAMS: Mapping[str, Build] = {
    "maxtext_llama2_7b": partial(
        train_step, "v5e:16x16", LLAMA2_7B, _policies("full", "minimal", "save_dot_except_mlp", "save_out_proj")
    ),
    "maxtext_mixtral_capacity": partial(
        train_step,
        "v5p:4x4x4",
        (*MIXTRAL, "sparse_matmul=false", "capacity_factor=1.25"),
        {"by experts": BY_EXPERTS} | _policies("minimal", "save_qkv_proj") | _policies("minimal", beside=BY_EXPERTS),
        small=SMALL_MIXTRAL,
    ),
    "maxtext_mixtral_sparse": partial(
        train_step,
        "v5p:4x4x4",
        (*MIXTRAL, "sparse_matmul=true", "megablox=false"),
        {"by experts": BY_EXPERTS} | _policies("minimal", "save_qkv_proj") | _policies("minimal", beside=BY_EXPERTS),
        small=SMALL_MIXTRAL,
    ),
    "maxtext_gemma3_12b": partial(
        train_step,
        "v5p:4x4x4",
        ("model_name=gemma3-12b", "per_device_batch_size=4", "max_target_length=4096", "remat_policy=full"),
        _policies("minimal", "save_qkv_proj"),
    ),
}
