"""The cost of computing on a TPU: tiles that are filled up, and what stays on the chip."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from cost_models import parse_topology

CHECK = planner.Options(check="never")


def _predicted(
    fn: Callable[..., Any], *args: Any, topology: str = "v5e:2x2", mesh: dict[str, int] | None = None
) -> Any:
    return planner.plan(fn, args, topology=topology, mesh=mesh or {"x": 1}, options=CHECK).predicted


def _square(columns: int, contracted: int = 4096, rows: int = 4096) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (
        jax.ShapeDtypeStruct((rows, contracted), jnp.bfloat16),
        jax.ShapeDtypeStruct((contracted, columns), jnp.bfloat16),
    )


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    return x @ y


@pytest.mark.parametrize(("columns", "filled"), [(4096, 4096), (4096 + 64, 4096 + 128)])
def test_a_matmul_fills_up_its_tiles(columns: int, filled: int) -> None:
    full, narrow = (_predicted(_product, *_square(n, rows=8192 + 1)) for n in (4096, columns))
    assert narrow.flops == full.flops * columns / 4096
    assert narrow.compute_seconds == pytest.approx(full.compute_seconds * filled / 4096, rel=1e-3)


def test_either_side_may_be_the_weights() -> None:
    """A few rows stream past the weights, or the other way round: what is filled up least."""
    assert _predicted(_product, *_square(4096, rows=8)).compute_seconds == pytest.approx(
        _predicted(_product, *_square(8, rows=4096)).compute_seconds, rel=0.1
    )


def test_a_convolution_of_patches_contracts_all_of_a_patch() -> None:
    """As a product of matrices does: the features of an image alone would fill up a tile with many times as many zeros."""

    def patches(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (16, 16), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    images = (
        jax.ShapeDtypeStruct((64, 224, 224, 3), jnp.bfloat16),
        jax.ShapeDtypeStruct((16, 16, 3, 4096), jnp.bfloat16),
    )
    of_patches, product = _predicted(patches, *images), _predicted(_product, *_square(4096, 768, 64 * 14 * 14))
    assert of_patches.flops == product.flops
    assert of_patches.compute_seconds == pytest.approx(product.compute_seconds, rel=0.1)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32"])
def test_a_matmul_by_a_mask_takes_as_long_as_one_of_what_it_is_converted_to(dtype: str) -> None:
    """A mask of bools or narrow weights become bfloat16 when they multiply that, whichever of the two is first."""

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.lax.dot(x, y, preferred_element_type=jnp.bfloat16)

    x, y = _square(4096)
    plain = _predicted(product, x, y).compute_seconds
    mask = jax.ShapeDtypeStruct((4096, 4096), dtype)
    assert _predicted(product, mask, y).compute_seconds == pytest.approx(plain, rel=1e-3)
    assert _predicted(product, x, mask).compute_seconds == pytest.approx(plain, rel=1e-3)


def test_what_stays_on_the_chip_costs_no_traffic() -> None:
    def chain(x: jax.Array, y: jax.Array) -> jax.Array:
        return (x @ y) @ y

    small, large = (
        _predicted(chain, *(jax.ShapeDtypeStruct((n, n), jnp.bfloat16) for _ in range(2))) for n in (1024, 8192)
    )
    # Small: x, y twice and the result. Large: what is made between is written and read as well.
    assert small.traffic_bytes == pytest.approx(4 * 2 * 1024**2, rel=0.01)
    assert large.traffic_bytes == pytest.approx(6 * 2 * 8192**2, rel=0.01)


def test_a_product_of_two_cores_stays_on_neither() -> None:
    """Cores that share a matmul or a sort read each other's parts of the result from memory; what fused passes make stays.

    By libtpu 0.0.42 the products that are sorted here stand in VMEM, and the sorted ones in main memory.
    """

    def moved(fn: Callable[..., Any], topology: str) -> float:
        return _predicted(fn, *_square(2048, 2048, 2048), topology=topology).traffic_bytes / (2 * 2048**2)

    def chain(x: jax.Array, y: jax.Array) -> jax.Array:
        return (x @ y) @ y

    def passes(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.sort(jnp.tanh(x) * jnp.sum(x, axis=0, keepdims=True), axis=0) + y

    assert moved(chain, "v5p:2x2x1") == pytest.approx(moved(chain, "v5e:2x2") + 2)
    assert moved(passes, "v5p:2x2x1") == pytest.approx(moved(passes, "v5e:2x2") + 2)


def test_what_fills_its_tiles_badly_stays_on_the_chip_by_its_elements() -> None:
    """Scores of 49 queries and keys, whose tiles take three times as much."""

    def moved(windows: int) -> float:
        array = jax.ShapeDtypeStruct((windows, 4, 49, 128), jnp.bfloat16)

        def fn(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return jnp.einsum("nhqk,nhkd->nhqd", jnp.tanh(jnp.einsum("nhqd,nhkd->nhqk", q, k)), v)

        return _predicted(fn, array, array, array).traffic_bytes / (2 * 4 * windows)

    # Three arrays and the result; scores of more windows are written and read as well.
    assert moved(2048) == pytest.approx(4 * 49 * 128, rel=0.2)
    assert moved(4096) - moved(2048) == pytest.approx(2 * 56 * 128, rel=0.2)


def test_large_rows_are_looked_up_part_by_part() -> None:
    def moved(*row: int) -> float:
        table, at = jax.ShapeDtypeStruct((64, *row), jnp.float32), jax.ShapeDtypeStruct((32,), jnp.int32)
        found = _predicted(lambda table, at: jnp.take(table, at, axis=0, mode="clip"), table, at)
        return found.traffic_bytes / (4 * math.prod(row))

    # The rows are read and written. Of large ones the table is cut up, and what was looked up in its parts is joined.
    assert moved(256, 1024) == pytest.approx(2 * 32, rel=0.01)
    assert moved(1024, 1024) == pytest.approx(2 * 32 + 2 * 64 + 2 * 32, rel=0.01)
    # Of rows of one dim eight lie in a tile.
    assert moved(2**20) == pytest.approx(moved(1024, 1024), rel=0.01)
    assert moved(2**14) == pytest.approx(moved(256, 1024), rel=0.01)


def test_transforms_of_small_arrays_stay_on_the_chip() -> None:
    def chain(x: jax.Array) -> jax.Array:
        return jnp.fft.ifft(jnp.fft.fft(x))

    small, large = (
        _predicted(chain, jax.ShapeDtypeStruct((rows, 1024), jnp.complex64)).traffic_bytes / (8 * 1024 * rows)
        for rows in (1024, 16384)
    )
    # What lies between the two goes over memory many times where it does not fit.
    assert large > 1.5 * small


def test_padding_is_moved_as_well() -> None:
    found = _predicted(lambda x: jnp.sort(x, axis=0), jax.ShapeDtypeStruct((65, 65, 65), jnp.float32))
    assert found.traffic_bytes == 3 * 2 * 4 * 65 * 72 * 128


def test_the_op_graph_adds_up_to_the_prediction() -> None:
    def fn(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ up) @ down.T) + x

    args = (*_square(2048, 512, 4096), jax.ShapeDtypeStruct((512, 2048), jnp.bfloat16))
    plan = planner.plan(fn, args, topology="v5e:2x2", mesh={"x": 2, "y": 2}, options=CHECK)
    nodes = [data for _, data in plan.graph.nodes(data=True)]
    assert sum(data["bytes"] for data in nodes) == pytest.approx(plan.predicted.traffic_bytes)
    assert sum(data["seconds"] for data in nodes) == pytest.approx(plan.predicted.compute_seconds)


@pytest.mark.parametrize(("dtype", "precision", "itemsize"), [("float32", None, 2), ("float32", "highest", 4)])
def test_halos_are_moved_as_narrow_as_they_are_read(dtype: str, precision: str | None, itemsize: int) -> None:
    def fn(x: jax.Array, kernel: jax.Array) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers, precision=precision)

    plan = planner.plan(
        fn,
        (jax.ShapeDtypeStruct((1, 1024, 1024, 128), dtype), jax.ShapeDtypeStruct((3, 3, 128, 128), dtype)),
        topology="v5e:2x2",
        mesh={"x": 4},
        pins={"x": P(None, "x"), "kernel": P(), "out": P(None, "x")},
        options=CHECK,
    )
    moved = [c.bytes for c in plan.predicted.collectives if c.kind == "collective-permute"]
    assert moved == [itemsize * 1024 * 128] * 2


def test_gpus_fill_up_no_tiles() -> None:
    images = jax.ShapeDtypeStruct((64, 64, 64, 32), jnp.bfloat16)
    found = _predicted(lambda x: x * 2, images, topology="h100:1").compute_seconds
    bandwidth = parse_topology("h100:1").chip.memory_bytes_per_s
    assert found == pytest.approx(2 * images.size * 2 / bandwidth, rel=1e-6)


def _product_seconds(rows: int, columns: int, contracted: int, dtype: Any = jnp.bfloat16) -> float:
    args = jax.ShapeDtypeStruct((rows, contracted), dtype), jax.ShapeDtypeStruct((contracted, columns), dtype)
    return _predicted(lambda x, w: x @ w, *args, topology="h100:1").compute_seconds


@pytest.mark.parametrize(
    ("dtype", "measured", "within"), [(jnp.bfloat16, 1.41, 0.1), (jnp.float32, 1.7, 0.15)], ids=["bfloat16", "float32"]
)
def test_shallow_products_take_longer_on_gpus_for_what_they_do(dtype: Any, measured: float, within: float) -> None:
    """Eight times 4096 x 4096 x 512 beside 4096 x 4096 x 4096, as XLA's table of measured products for H100 has them."""
    ratio = 8 * _product_seconds(4096, 4096, 512, dtype) / _product_seconds(4096, 4096, 4096, dtype)
    assert ratio == pytest.approx(measured, rel=within)


def test_products_with_small_results_contract_in_parts_on_gpus() -> None:
    """Of 256 x 256 x 131072 a part per kernel would take 250 us; several at once take 46 by the compiler's note."""
    assert _product_seconds(256, 256, 131072) < 110e-6
    assert _product_seconds(131072, 256, 256) > 200e-6
