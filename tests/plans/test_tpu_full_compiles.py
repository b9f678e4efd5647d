"""What plans ask of libtpu compiles to the end: some options end in errors only after the schedule is known."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from cost_models import parse_topology
from planner.compiler.emission.options import plan_options
from planner.verify.aot import lower_request, run_request, unavailable_reason

pytestmark = pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")


@pytest.mark.parametrize(
    ("topology", "shape"),
    [
        pytest.param("v4:4x4x4", {"x": 8, "y": 16}, marks=pytest.mark.slow),
        pytest.param("v5e:4x4", {"x": 4, "y": 4}, marks=pytest.mark.slow),
        ("v5e:8x8", {"x": 8, "y": 8}),  # of more than 16 chips libtpu refuses what it takes of fewer
        pytest.param("v5p:2x2x4", {"x": 4, "y": 4}, marks=pytest.mark.slow),
        ("v6e:8x8", {"x": 8, "y": 8}),
        pytest.param("tpu7x:2x2x2", {"x": 4, "y": 4}, marks=pytest.mark.slow),
    ],
)
def test_a_loop_with_every_collective(topology: str, shape: Mapping[str, int]) -> None:
    mesh = AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))

    def laid(x: jax.Array, *spec: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        mixed = laid(jnp.tanh(laid(x @ w, None, "x", None)), "x", None, None)
        summed = laid(jnp.einsum("bsf,fg->bsg", laid(mixed, "x", None, "y"), laid(w, "y", None)), "x", None, None)
        return x + summed + jnp.sin(x @ laid(w, None, None)), None

    def step(x: jax.Array, ws: jax.Array) -> jax.Array:
        return jax.grad(lambda ws: jnp.sum(jax.lax.scan(layer, x, ws)[0].astype(jnp.float32)))(ws)

    args = (
        jax.ShapeDtypeStruct((2 * shape["x"], 64 * shape["x"], 1024), jnp.bfloat16),
        jax.ShapeDtypeStruct((3, 1024, 1024), jnp.bfloat16),
    )
    specs = NamedSharding(mesh, P("x")), NamedSharding(mesh, P(None, ("x", "y")))
    report = run_request(
        lower_request(
            jax.jit(step, in_shardings=specs, out_shardings=specs[1]),
            args,
            mesh_shape=shape,
            topology=topology,
            mode="full",
            compiler_options=dict(plan_options(parse_topology(topology), offloads=True)),
        )
    )
    assert report.status == "ok", report.message
    assert {"all-to-all", "all-gather"} <= {collective.kind for collective in report.collectives}
