"""Collectives over all devices and over some, as the TPU compiler makes them: what `planner.compiler.targets` says."""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from cost_models import Roofline, objective, parse_topology
from planner.compiler.emission.options import plan_options
from planner.pricing.mesh import make_mesh
from planner.verify.aot import aot_compile, unavailable_reason

pytestmark = pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")

COLUMNS = 1024
BETWEEN = 2.0**25
"""Bytes: less than the large collectives, and more than the small ones, padded or not."""


def program(shape: dict[str, int], jobs: list[tuple[str, tuple[str, ...], int]]) -> tuple[Any, list[Any]]:
    """A function that runs these collectives (kind, axes, rows) one after the other, and its arguments."""
    mesh = AbstractMesh(tuple(shape.values()), tuple(shape), axis_types=(AxisType.Auto,) * len(shape))

    def run(*arrays: jax.Array) -> list[jax.Array]:
        results: list[jax.Array] = []
        for array, (kind, axes, _) in zip(arrays, jobs, strict=True):
            # One after the other, so that the compiler does not join them.
            given = lax.optimization_barrier((array, results[-1]))[0] if results else array
            split, whole = PartitionSpec(axes), PartitionSpec()
            local, spec, out = (
                (lambda x, a=axes: lax.all_gather(x, a, tiled=True), split, whole)
                if kind == "all-gather"
                else (lambda x, a=axes: lax.psum_scatter(x, a, tiled=True), whole, split)
            )
            results.append(jax.shard_map(local, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)(given))
        return results

    specs = [PartitionSpec(axes) if kind == "all-gather" else PartitionSpec() for kind, axes, _ in jobs]
    args = [
        jax.ShapeDtypeStruct((rows, COLUMNS), jnp.bfloat16, sharding=NamedSharding(mesh, spec))
        for (_, _, rows), spec in zip(jobs, specs, strict=True)
    ]
    return jax.jit(run), args


@pytest.mark.parametrize(
    ("topology", "shape"),
    [
        ("v5e:4x4", {"x": 4, "y": 4}),
        ("v5e:4x8", {"x": 32}),
        ("v5e:8x8", {"x": 32, "y": 2}),
        ("v5p:2x2x2", {"x": 8}),
        ("v5p:4x4x4", {"x": 16, "y": 4}),
        pytest.param("tpu7x:2x2x4", {"x": 32}, marks=pytest.mark.slow),
    ],
)
def test_the_compiler_makes_all_reduces_where_the_table_says(topology: str, shape: dict[str, int]) -> None:
    chips = parse_topology(topology)
    mesh = make_mesh(shape, chips, Roofline(topology=chips), objective("time", chips.chip))
    groups = [axes for count in range(1, len(shape) + 1) for axes in combinations(shape, count)]
    sizes = (4096, 32768)  # 8 and 64 MiB
    jobs = [(kind, axes, rows) for kind in ("all-gather", "reduce-scatter") for axes in groups for rows in sizes]
    jitted, args = program(shape, jobs)
    options = plan_options(chips)
    report = aot_compile(jitted, args, mesh_shape=shape, topology=topology, compiler_options=options)
    assert report.ok, report.message
    moved = [(kind, axes, 2.0 * rows * COLUMNS) for kind, axes, rows in jobs]
    expected = [(mesh.runs_as(kind, mesh.mask(axes), size), axes, size > BETWEEN) for kind, axes, size in moved]
    kept = [c for c in report.collectives if c.kind != "collective-permute"]
    found = [(c.kind, c.axes(shape), c.bytes > BETWEEN) for c in kept]
    assert sorted(found) == sorted(expected)  # newer compilers start some that are asynchronous earlier
    assert prod(shape.values()) == chips.num_devices
