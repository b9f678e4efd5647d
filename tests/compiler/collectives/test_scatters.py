"""Which sums a TPU's compiler scatters: the law beside what was read off compiled programs, and beside libtpu."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from planner.compiler.collectives.lowering import scatters
from planner.compiler.release import installed_release, is_from
from planner.verify.aot import aot_compile, unavailable_reason

PARTS = 4
CASES: tuple[tuple[tuple[int, ...], int, int, bool, bool], ...] = (
    ((65536,), 0, 2, False, False),
    ((256, 512), 0, 2, True, True),
    ((400, 2048), 0, 2, True, True),
    ((16, 2048), 0, 4, False, False),
    ((20, 2048), 0, 4, True, True),
    ((256, 512), 0, 1, False, False),
    ((512, 512), 1, 2, False, True),
    ((512, 1024), 1, 2, True, True),
    ((512, 1536), 1, 2, False, True),
    ((8, 512, 512), 2, 4, True, True),
    ((8, 32, 512), 1, 2, False, False),
    ((8, 64, 512), 1, 2, True, True),
    ((8, 96, 512), 1, 2, False, False),
    ((8, 96, 512), 1, 4, True, True),
    ((1, 2048, 512), 1, 2, False, True),
    ((4, 1, 2048, 512), 2, 2, True, True),
    ((4, 64, 256, 512), 1, 2, False, True),
    ((1, 64, 256, 512), 1, 2, True, True),
    ((64, 256, 512), 0, 2, True, True),
    ((256, 8, 64), 0, 4, False, True),
    ((3, 3, 256, 1024), 3, 4, True, True),
    ((3, 3, 64, 256), 3, 4, False, True),
    ((1024, 100), 0, 2, True, True),
    ((256, 223 * 128), 0, 2, True, True),
    ((256, 479 * 128), 0, 2, False, False),
    ((256, 22 * 83 * 128), 0, 2, True, True),
    ((256, 23 * 83 * 128), 0, 2, False, False),
    ((256, 8 * 479 * 128), 1, 2, False, False),
    ((256, 8 * 229 * 128), 1, 2, False, True),
    ((8 * 431, 512), 1, 4, True, True),
    ((8 * 463, 512), 1, 4, False, True),
    ((56 * 8 * 499, 512), 1, 4, False, True),
    ((64 * 8 * 499, 512), 1, 4, True, True),
)
"""What each of four devices holds, the dim that is cut, bytes of an element; whether v5e and tpu7x can."""
ROOMY = {(256, 8 * 229 * 128), (8 * 463, 512), (56 * 8 * 499, 512)}
"""What v6e can as well, where v5e cannot, as it has twice the room."""
SINCE = {(1, 2048, 512): "0.0.50"}
"""The releases of libtpu from which on v5e can, too, for so much as was seen."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_law(case: Any) -> None:
    shape, dim, itemsize, v5e, tpu7x = case
    for chip, expected in (("v5e", v5e), ("v6e", v5e or shape in ROOMY), ("tpu7x", tpu7x)):
        assert scatters(chip, shape, dim, parts=PARTS, itemsize=itemsize) is expected, chip


@pytest.mark.parametrize(
    ("chip", "parts", "roomy", "short"),
    [("v5e", 4, 233, 239), ("v5e", 16, 89, 97), ("v6e", 16, 181, 191), ("tpu7x", 16, 181, 191)],
)
def test_rows_of_tiles_have_room(chip: str, parts: int, roomy: int, short: int) -> None:
    """Of twice a prime number of tiles, of which a row falls into two chunks."""
    assert scatters(chip, (16 * parts, 2 * roomy * 128), 0, parts=parts, itemsize=2)
    assert not scatters(chip, (16 * parts, 2 * short * 128), 0, parts=parts, itemsize=2)


def test_fewer_elements_than_parts_are_summed_whole() -> None:
    assert not scatters("v5e", (64, 64, 8), 2, parts=16, itemsize=4)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_libtpu_scatters_by_the_law() -> None:
    """All cases as one program, over half of the devices: no group of all, which has a law of its own."""
    mesh = AbstractMesh((2, PARTS), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    release = installed_release("tpu") or ""
    changed = [shape for shape, since in SINCE.items() if is_from(release, since)]
    cases = [case for case in CASES if case[2] > 1 and case[0] not in changed]

    def sums(*arrays: Any) -> tuple[Any, ...]:
        return tuple(
            lax.psum_scatter(2 * array, "y", scatter_dimension=dim, tiled=True)
            for array, (_, dim, *_) in zip(arrays, cases, strict=True)
        )

    everywhere = P(("x", "y"))
    split = jax.shard_map(sums, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    args = [
        jax.ShapeDtypeStruct(
            (8 * shape[0], *shape[1:]),
            jnp.bfloat16 if itemsize == 2 else jnp.float32,
            sharding=NamedSharding(mesh, everywhere),
        )
        for shape, _, itemsize, *_ in cases
    ]
    report = aot_compile(jax.jit(split), args, mesh_shape={"x": 2, "y": PARTS}, topology="v5e:2x4")
    assert report.ok, report.message
    found = {kind: [c for c in report.collectives if c.kind == kind] for kind in ("reduce-scatter", "all-reduce")}
    scattered = [case for case in cases if case[3]]
    assert len(found["reduce-scatter"]) == len(scattered)
    whole = sum(case[2] * jnp.prod(jnp.array(case[0])) for case in cases if not case[3])
    assert sum(c.bytes for c in found["all-reduce"]) == pytest.approx(float(whole), rel=0.01)
