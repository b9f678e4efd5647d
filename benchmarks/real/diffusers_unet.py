"""Diffusion by the Flax code of diffusers (https://github.com/huggingface/diffusers): the U-Net of Stable Diffusion.

The step is that of its `examples/text_to_image/train_text_to_image_flax.py`: a `pmap` over the axis "batch", weights
repeated on each device. Latents and text states, which frozen networks make there, are arguments here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from benchmarks.real.base import Build, Placed, RealProgram, Size

PACKAGES = ("diffusers", "flax", "optax")
TOPOLOGY = "v5e:4x4"
SMALL: Mapping[str, Any] = {
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "layers_per_block": 1,
    "cross_attention_dim": 32,
    "sample_size": 8,
    "attention_head_dim": 4,
}
STABLE_DIFFUSION: Mapping[str, Any] = {"cross_attention_dim": 768, "sample_size": 64}
"""Version 1.5 of Stable Diffusion: the default sizes of the U-Net, text states of CLIP's, images of 512 x 512."""
TEXT_TOKENS = 77


def _step(model: Any, scheduler: Any, scheduler_state: Any) -> Any:
    """The step of the example."""

    def train_step(state: Any, batch: Mapping[str, jax.Array], train_rng: jax.Array) -> Any:
        _, sample_rng, new_train_rng = jax.random.split(train_rng, 3)

        def compute_loss(params: Any) -> jax.Array:
            latents = batch["latents"]
            noise_rng, timestep_rng = jax.random.split(sample_rng)
            noise = jax.random.normal(noise_rng, latents.shape)
            timesteps = jax.random.randint(timestep_rng, (latents.shape[0],), 0, scheduler.config.num_train_timesteps)
            noisy = scheduler.add_noise(scheduler_state, latents, noise, timesteps)
            predicted = model.apply(
                {"params": params}, noisy, timesteps, batch["encoder_hidden_states"], train=True
            ).sample
            return ((noise - predicted) ** 2).mean()

        loss, grad = jax.value_and_grad(compute_loss)(state.params)
        grad = jax.lax.pmean(grad, "batch")
        new_state = state.apply_gradients(grads=grad)
        return new_state, jax.lax.pmean({"loss": loss}, axis_name="batch"), new_train_rng

    return train_step


def unet(size: Size) -> RealProgram:
    """A step of training, 4 images a device."""
    flax = import_module("diffusers.models.unets.unet_2d_condition_flax")
    schedulers = import_module("diffusers.schedulers.scheduling_ddpm_flax")
    states, optax = import_module("flax.training.train_state"), import_module("optax")
    config = SMALL if size == "small" else STABLE_DIFFUSION
    model = flax.FlaxUNet2DConditionModel(**config, dtype=jnp.float32 if size == "small" else jnp.bfloat16)
    scheduler = schedulers.FlaxDDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    devices = jax.devices() if size == "small" else topologies.get_topology_desc(TOPOLOGY, "tpu").devices
    count, images = len(devices), 1 if size == "small" else 4
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4, weight_decay=1e-2))

    def arguments() -> tuple[Any, ...]:
        key = jax.random.key(0)
        state = states.TrainState.create(apply_fn=model.__call__, params=model.init_weights(key), tx=tx)
        pixels, text = config["sample_size"], config["cross_attention_dim"]
        batch = {
            "latents": jax.random.normal(key, (count, images, 4, pixels, pixels)),
            "encoder_hidden_states": jax.random.normal(key, (count, images, TEXT_TOKENS, text)),
        }
        repeated = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], count, axis=0), state)
        return repeated, batch, jax.random.split(jax.random.PRNGKey(0), count)

    args = arguments() if size == "small" else jax.eval_shape(arguments)
    step = _step(model, scheduler, scheduler.create_state())
    pmapped = jax.pmap(step, "batch", donate_argnums=(0,), devices=devices)

    def own() -> Iterator[Placed]:
        jitted = jax.jit(pmapped, donate_argnums=(0,))
        yield Placed(name="as configured", jit=jitted, args=args, mesh={"batch": count})

    return RealProgram(
        fn=pmapped,
        args=args,
        topology=TOPOLOGY,
        donate_argnums=(0,),
        own=own,
        notes=f"{images} images a device, latents and text states given",
    )


PROGRAMS: Mapping[str, Build] = {"diffusers_unet_sd15": unet}
