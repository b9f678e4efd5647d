"""What compilers make of collectives: the table of all-reduces in the place of scatters and gathers."""

from __future__ import annotations

import math

import pytest

from cost_models import Roofline, parse_topology
from planner.compiler.collectives.lowering import all_reduced_bytes
from planner.compiler.collectives.overlap import HIDDEN
from planner.compiler.emission.options import SLICE_SCATTERS, plan_options, scatters_over_slices
from planner.compiler.targets.table import flops_that_hide

ALWAYS, NEVER, GATHERED = math.inf, 0.0, 16 * 2**20

WHOLE = {
    # topology: (reduce-scatter, all-gather) over all devices; None where only scatters to parts below a tile change
    "v5e:2x4": (None, NEVER),
    "v5e:4x4": (ALWAYS, NEVER),
    "v5e:4x8": (None, NEVER),
    "v5e:8x8": (ALWAYS, GATHERED),
    "v5e:8x16": (None, GATHERED),
    "v6e:16x16": (ALWAYS, GATHERED),
    "v5p:2x2x1": (None, NEVER),
    "v5p:2x2x4": (ALWAYS, NEVER),
    "v5p:4x4x4": (ALWAYS, ALWAYS),
    "v4:2x2x1": (ALWAYS, NEVER),
    "v4:2x4x4": (ALWAYS, ALWAYS),
    "tpu7x:2x2x4": (None, NEVER),
    "tpu7x:4x4x4": (None, ALWAYS),
}


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_groups_of_all_devices(name: str) -> None:
    topology = parse_topology(name)
    count = topology.num_devices
    scatter, gather = WHOLE[name]
    assert all_reduced_bytes("all-gather", topology, group=count, devices=count) == gather
    expected = 4096 * count - 1 if scatter is None else scatter
    assert all_reduced_bytes("reduce-scatter", topology, group=count, devices=count) == expected


def test_groups_of_some_devices_and_other_kinds() -> None:
    torus = parse_topology("v5p:4x4x4")
    assert all_reduced_bytes("all-gather", torus, group=32, devices=64) == NEVER
    assert all_reduced_bytes("reduce-scatter", torus, group=32, devices=64) == 4096 * 32 - 1
    assert all_reduced_bytes("all-gather", torus, group=32, devices=32) == NEVER, "a block of the slice"
    assert all_reduced_bytes("reduce-scatter", torus, group=32, devices=32) == ALWAYS
    for kind in ("all-to-all", "collective-permute", "all-reduce"):
        assert all_reduced_bytes(kind, torus, group=64, devices=64) == NEVER


@pytest.mark.parametrize(
    ("name", "devices", "always"),
    [("v5e:2x4", 4, False), ("v5e:4x4", 2, False), ("v5e:4x4", 4, False), ("v6e:4x4", 4, False), ("v5e:4x4", 8, True)],
)
def test_scatters_over_a_small_block_of_two_dims_stay_scatters(name: str, devices: int, always: bool) -> None:
    found = all_reduced_bytes("reduce-scatter", parse_topology(name), group=devices, devices=devices)
    assert found == (ALWAYS if always else 4096 * devices - 1)


@pytest.mark.parametrize(
    ("name", "scatter", "gather"),
    [("v5p:4x4x4*2", ALWAYS, ALWAYS), ("v5e:16x16*2", None, GATHERED), ("v5e:4x4*2", None, NEVER)],
)
def test_groups_of_one_of_several_slices(name: str, scatter: float | None, gather: float) -> None:
    topology = parse_topology(name)
    count, everything = topology.num_devices // 2, topology.num_devices
    small = 4096 * count - 1
    assert all_reduced_bytes("all-gather", topology, group=count, devices=everything) == gather
    assert all_reduced_bytes("all-gather", topology, group=everything, devices=everything) == NEVER
    found = all_reduced_bytes("reduce-scatter", topology, group=count, devices=everything)
    assert found == (small if scatter is None else scatter)


@pytest.mark.parametrize(
    ("name", "stay"),
    [
        ("v5e:4x4", True),
        ("v5e:16x16", False),
        ("v5e:4x4*2", True),
        ("v5e:16x16*2", False),
        ("v5p:4x4x4", False),
        ("v6e:16x16", True),
        ("h100:8", False),
        ("cpu:8", False),
    ],
)
def test_scatters_over_slices_stay_where_they_take_less_than_all_reduces(name: str, stay: bool) -> None:
    topology = parse_topology(name)
    assert scatters_over_slices(topology) == stay
    assert (SLICE_SCATTERS.items() <= plan_options(topology).items()) == stay
    if topology.chip.platform == "tpu":
        count = topology.num_devices // topology.nodes
        kept = all_reduced_bytes(
            "reduce-scatter", topology, group=count, devices=topology.num_devices, slice_scatters=True
        )
        assert kept == 4096 * count - 1


def test_other_platforms() -> None:
    cpu, gpu = parse_topology("cpu:8"), parse_topology("h100:8")
    assert all_reduced_bytes("reduce-scatter", cpu, group=2, devices=8) == ALWAYS
    assert all_reduced_bytes("all-gather", cpu, group=8, devices=8) == NEVER
    assert all_reduced_bytes("reduce-scatter", gpu, group=8, devices=8) == NEVER


@pytest.mark.parametrize(
    "name", ["v5e:4x4", "v5e:4x8", "v5e:16x16", "v5e:16x16*4", "v5p:4x4x4", "v6e:4x4", "tpu7x:2x2x4"]
)
@pytest.mark.parametrize("shape", [(2,), (4, 2), (2, 4), (16,), (8, 4), (4, 2, 2), (4, 8, 4)])
@pytest.mark.parametrize("bytes", [512.0, 2.0**20, 2.0**30])
def test_no_gather_takes_longer_than_the_matmuls_that_hide_any(name: str, shape: tuple[int, ...], bytes: float) -> None:
    topology = parse_topology(name)
    links = topology.links(shape)
    if links is None:
        pytest.skip("the topology cannot hold the mesh")
    of_any, per_byte = flops_that_hide(topology)
    hidden = (of_any + per_byte * bytes) / (topology.num_devices * topology.chip.peak("bfloat16", "matrix"))
    for kind in ("all-gather", "all-reduce"):
        # Axis by axis, and over all axes at once.
        model = Roofline(topology=topology)
        gathers = [model.collective_affine(kind, wires) for wires in (tuple(links), *((link,) for link in links))]
        (latency, each), *parts = gathers
        held = [bytes / math.prod(shape[:axis]) for axis in range(len(shape))]
        one_by_one = sum(fixed + slope * size for (fixed, slope), size in zip(parts, held, strict=True))
        assert HIDDEN * max(latency + each * bytes, one_by_one) <= hidden


def test_nothing_hides_gathers_where_they_run_alone() -> None:
    assert flops_that_hide(parse_topology("cpu:8")) == (0.0, 0.0)
