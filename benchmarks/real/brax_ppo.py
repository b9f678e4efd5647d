"""Reinforcement learning over simulated physics by brax (https://github.com/google/brax): an epoch of its PPO, a `pmap`.

`brax.training.agents.ppo.train.train` makes the epoch in a closure and calls it; here it is taken at that call. brax 0.14.2
calls `jax.device_put_replicated`, which JAX 0.10 has no more; JAX's migration guide gives the stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from benchmarks.real.base import Build, Placed, RealProgram, Size, shapes

PACKAGES = ("brax", "mujoco")
TOPOLOGY = "v5e:4x4"
ANT: Mapping[str, Any] = {
    "num_timesteps": 50_000_000,
    "num_evals": 10,
    "episode_length": 1000,
    "unroll_length": 5,
    "num_minibatches": 32,
    "num_updates_per_batch": 4,
    "num_envs": 4096,
    "batch_size": 2048,
    "reward_scaling": 10,
    "discounting": 0.97,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-2,
    "normalize_observations": True,
}
"""The figures of brax's notebook of training for `ant`."""
SMALL: Mapping[str, Any] = {
    "num_timesteps": 1,
    "num_minibatches": 2,
    "num_updates_per_batch": 1,
    "num_envs": 16,
    "batch_size": 8,
    "unroll_length": 2,
}


@dataclass(frozen=True, slots=True)
class _Epoch(Exception):
    """The epoch at the call that would run it: what brax maps, how, and the arguments of the call."""

    fn: Callable[..., Any]
    mapped: Mapping[str, Any]
    args: tuple[Any, ...]

    def pmapped(self, devices: Any = None) -> Callable[..., Any]:
        """The epoch as brax maps it, over some devices."""
        return jax.pmap(self.fn, **self.mapped, devices=devices)


def _epoch(**settings: Any) -> _Epoch:
    """The epoch that `train` makes for one device, and its first arguments."""
    pmap = jax.pmap

    def caught(fn: Callable[..., Any], **mapped: Any) -> Any:
        def stop(*args: Any) -> Any:
            raise _Epoch(fn, mapped, args)

        return stop if fn.__name__ == "training_epoch" else pmap(fn, **mapped)

    def replicated(tree: Any, over: Any) -> Any:
        return jax.tree.map(lambda x: jnp.stack([x] * len(over)), tree)

    ppo = import_module("brax.training.agents.ppo.train")
    env = import_module("brax.envs").get_environment("ant", backend="spring")
    with mock.patch.multiple(jax, create=True, pmap=caught, device_put_replicated=replicated):
        try:
            ppo.train(environment=env, max_devices_per_host=1, run_evals=False, **settings)
        except _Epoch as epoch:
            return epoch
    raise RuntimeError("brax's train has called no function of the name training_epoch")


def _parts(count: int, x: Any, *, split: bool = False) -> Any:
    """What one device has, split among so many or repeated for each, under the leading dim that `pmap` maps over."""
    per_device = (x.shape[1] // count, *x.shape[2:]) if split else x.shape[1:]
    if isinstance(x, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((count, *per_device), x.dtype)
    return jnp.reshape(x, (count, *per_device)) if split else jnp.repeat(x, count, axis=0)


def ant(size: Size) -> RealProgram:
    """An epoch: environments step under the policy, then passes over shuffled minibatches with gradients averaged."""
    devices = jax.devices() if size == "small" else topologies.get_topology_desc(TOPOLOGY, "tpu").devices
    epoch = _epoch(**{**ANT, **(SMALL if size == "small" else {})})
    pmapped = epoch.pmapped(devices)
    state, environments, key = epoch.args if size == "small" else shapes(epoch.args)
    parts = partial(_parts, len(devices))
    args = (jax.tree.map(parts, state), jax.tree.map(partial(parts, split=True), environments), parts(key))

    def own() -> Iterator[Placed]:
        jitted = jax.jit(pmapped, donate_argnums=(0, 1))
        yield Placed(name="as configured", jit=jitted, args=args, mesh={"i": len(devices)})

    return RealProgram(
        fn=pmapped,
        args=args,
        topology=TOPOLOGY,
        donate_argnums=(0, 1),
        own=own,
        notes="ant, backend spring, 4096 environments",
    )


PROGRAMS: Mapping[str, Build] = {"brax_ppo_ant": ant}
