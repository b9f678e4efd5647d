"""Weather by dinosaur (https://github.com/neuralgcm/dinosaur), the dynamical core of NeuralGCM, on its meshes z, x, y.

Its moist primitive equations on a sphere, as `primitive_equations_integration_test` simulates them: constraints of layout
in every transform, sums over the vertical and Legendre transforms in `shard_map`s with collectives of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.real.base import Build, Placed, RealProgram, Size, named

PACKAGES = ("dinosaur", "zarr")
TOPOLOGY = "v5e:4x4"
WAVENUMBERS, LAYERS, STEPS = 255, 32, 24
SMALL_WAVENUMBERS, SMALL_LAYERS, SMALL_STEPS = 31, 8, 2
MESHES: Mapping[str, tuple[int, int, int]] = {
    "as configured": (1, 4, 4),
    "2x4x2": (2, 4, 2),
    "4x2x2": (4, 2, 2),
    "16x1x1": (16, 1, 1),
}
"""Vertical, and the two axes of the sphere. The first is their "horizontal sharding"; the last their "vertical" one."""


@dataclass(frozen=True, slots=True)
class _Simulation:
    """Steps of the equations over a mesh: the function, its coordinates, and what makes the first state."""

    coords: Any
    fn: Any
    specs: Any

    def shapes(self) -> Any:
        """The shapes of a state."""
        every = jax.ShapeDtypeStruct(self.coords.modal_shape, jnp.float32)
        surface = jax.ShapeDtypeStruct(self.coords.surface_modal_shape, jnp.float32)
        return import_module("dinosaur.primitive_equations").State(
            vorticity=every,
            divergence=every,
            temperature_variation=every,
            log_surface_pressure=surface,
            tracers={"specific_humidity": every},
            sim_time=jax.ShapeDtypeStruct((), jnp.float32),
        )

    def state(self) -> Any:
        """A jet with a disturbance and a blob of moisture, padded as the mesh wants it."""
        states = import_module("dinosaur.primitive_equations_states")
        state = states.steady_state_jw(self.coords, self.specs)[0]()
        state = state + states.baroclinic_perturbation_jw(self.coords, self.specs)
        state.tracers = {"specific_humidity": states.gaussian_scalar(self.coords, self.specs)}
        state.sim_time = jnp.float32(0)
        return state


def _simulation(mesh: Any, wavenumbers: int, layers: int, steps: int) -> _Simulation:
    part = {
        name: import_module(f"dinosaur.{name}")
        for name in (
            "coordinate_systems",
            "primitive_equations",
            "primitive_equations_states",
            "scales",
            "sigma_coordinates",
            "spherical_harmonic",
            "time_integration",
            "xarray_utils",
        )
    }
    harmonics = part["spherical_harmonic"]
    coords = part["coordinate_systems"].CoordinateSystem(
        harmonics.Grid.with_wavenumbers(
            longitude_wavenumbers=wavenumbers + 1, spherical_harmonics_impl=harmonics.FastSphericalHarmonics
        ),
        part["sigma_coordinates"].SigmaCoordinates.equidistant(layers),
        spmd_mesh=mesh,
    )
    equations = part["primitive_equations"]
    specs = equations.PrimitiveEquationsSpecs.from_si()
    _, features = part["primitive_equations_states"].steady_state_jw(coords, specs)
    equation = equations.MoistPrimitiveEquations(
        features[part["xarray_utils"].REF_TEMP_KEY],
        np.zeros(coords.horizontal.modal_shape, np.float32),
        coords,
        specs,
    )
    dt = specs.nondimensionalize(5 * part["scales"].units.minute)
    integration = part["time_integration"]
    step = integration.imex_rk_sil3(equation, time_step=dt)
    return _Simulation(coords, integration.repeated(step, steps), specs)


def simulate(size: Size) -> RealProgram:
    """Some steps of five minutes of a global atmosphere."""

    def mesh_of(shape: tuple[int, int, int], devices: Any) -> Any:
        return jax.sharding.Mesh(np.array(devices).reshape(shape), ("z", "x", "y"))

    if size == "small":
        simulation = _simulation(mesh_of((2, 2, 2), jax.devices()), SMALL_WAVENUMBERS, SMALL_LAYERS, SMALL_STEPS)
        return RealProgram(fn=simulation.fn, args=(jax.device_get(simulation.state()),), topology=TOPOLOGY)
    devices = topologies.get_topology_desc(TOPOLOGY, "tpu").devices

    def real(shape: tuple[int, int, int]) -> _Simulation:
        return _simulation(mesh_of(shape, devices), WAVENUMBERS, LAYERS, STEPS)

    def own() -> Iterator[Placed]:
        for name, shape in MESHES.items():
            simulation = real(shape)
            state = simulation.shapes()
            mesh = simulation.coords.spmd_mesh
            spec = simulation.coords.dycore_partition_spec
            shardings = jax.tree.map(
                lambda x, mesh=mesh, spec=spec: NamedSharding(
                    mesh, P() if x.ndim == 0 else P(spec[0] if x.shape[0] > 1 else None, *spec[1:])
                ),
                state,
            )
            jit = jax.jit(simulation.fn, in_shardings=(shardings,), out_shardings=shardings)
            yield Placed(name=name, jit=jit, args=(state,), mesh=named(mesh.shape))

    simulation = real(MESHES["as configured"])
    return RealProgram(
        fn=simulation.fn,
        args=(simulation.shapes(),),
        topology=TOPOLOGY,
        own=own,
        notes=f"{WAVENUMBERS} wavenumbers, {LAYERS} layers, {STEPS} steps",
    )


PROGRAMS: Mapping[str, Build] = {"dinosaur_weather": simulate}
