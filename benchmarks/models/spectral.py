"""A turbulence solver in plain JAX: incompressible Navier-Stokes in a periodic box, pseudo-spectral, 3-D FFTs dim by dim.

Rotational form, dealiased by the 2/3 rule, viscosity exactly by an integrating factor and the rest by the midpoint rule
(Canuto et al., Spectral Methods: Fundamentals in Single Domains, 2006). Every transform is three of one dim each, as
distributed solvers write them: between them a field is turned so that whole lines lie on one device.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models.base import Model, Size, Tree, arguments, seed
from benchmarks.models.places import activation

LINES = {-1: "lines_z", -2: "lines_y", -3: "lines_x"}
"""The names of fields about to be transformed along a dim."""


def to_spectrum(field: jax.Array) -> jax.Array:
    """The transform of fields of shape (..., n, n, n) along z, y and x."""
    for dim, name in LINES.items():
        field = jnp.fft.fft(activation(field.astype(jnp.complex64), name), axis=dim)
    return activation(field, "lines_x")


def to_field(spectrum: jax.Array) -> jax.Array:
    """The real fields of spectra of shape (..., n, n, n), transformed along x, y and z."""
    for dim, name in reversed(LINES.items()):
        spectrum = jnp.fft.ifft(activation(spectrum, name), axis=dim)
    return activation(spectrum.real, "lines_z")


def cross(a: tuple[jax.Array, ...], b: jax.Array) -> jax.Array:
    """The cross product of vectors with their components in front."""
    return jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def spectral(*, points: int, steps: int, size: Size = "small", name: str = "spectral") -> Model:
    """A call (velocity, viscosity) -> (velocity, energy): `steps` time steps of a field of shape (3, n, n, n)."""

    def wavenumbers() -> tuple[jax.Array, ...]:
        k = jnp.fft.fftfreq(points, 1 / points)
        return k[:, None, None], k[None, :, None], k[None, None, :]

    def solve(velocity: jax.Array, viscosity: jax.Array) -> tuple[jax.Array, jax.Array]:
        k = wavenumbers()
        square = k[0] ** 2 + k[1] ** 2 + k[2] ** 2
        kept = (abs(k[0]) < points / 3) & (abs(k[1]) < points / 3) & (abs(k[2]) < points / 3)
        time = 0.1 / points

        def slope(u: jax.Array) -> jax.Array:
            curl = to_field(cross(tuple(1j * n for n in k), u))
            force = jnp.where(kept, to_spectrum(cross(tuple(to_field(u)), curl)), 0)
            along = (k[0] * force[0] + k[1] * force[1] + k[2] * force[2]) / jnp.maximum(square, 1)
            return force - jnp.stack([n * along for n in k])

        def step(u: jax.Array, _: None) -> tuple[jax.Array, None]:
            decay = jnp.exp(-viscosity * square * time / 2)
            half = decay * (u + time / 2 * slope(u))
            return decay * (decay * u + time * slope(half)), None

        u, _ = lax.scan(step, to_spectrum(velocity), None, length=steps)
        velocity = to_field(u)
        return velocity, 0.5 * jnp.mean(velocity**2)

    def make() -> tuple[Tree, ...]:
        return jax.random.normal(seed(), (3, points, points, points)), jnp.asarray(1e-3)

    return Model(
        name=name,
        kind="train",
        fn=solve,
        args=arguments(make, size),
        donate_argnums=(0,),
        batch=1,
        tokens=steps,
        notes=f"{points} points along each dim, {steps} steps",
    )


def build(size: Size = "small") -> Model:
    """Small: 16 points along each dim, 2 steps. Real: 512, 10 steps."""
    if size == "small":
        return spectral(points=16, steps=2, size=size)
    return spectral(points=512, steps=10, size=size)
