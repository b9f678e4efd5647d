"""Collectives of GPUs: those measured in a node, and rings between nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from cost_models import CHIPS, CostModelError, Roofline, Topology, parse_topology
from cost_models.network import gpu_collectives
from cost_models.network.collectives import COLLECTIVE_KINDS
from cost_models.network.links import Link

MIB = 2**20


@pytest.fixture
def rings_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rings between nodes with the half of a port's rate that XLA's model of H100 clusters counts on."""
    rings = {name: replace(ring, efficiency=0.5 / 1.025) for name, ring in gpu_collectives.RING.items()}
    monkeypatch.setattr(gpu_collectives, "RING", rings)
    gpu_collectives.affine.cache_clear()
    yield
    gpu_collectives.affine.cache_clear()


def seconds(name: str, mesh: tuple[int, ...], axes: tuple[int, ...], kind: str, bytes: float) -> float:
    topology = parse_topology(name)
    latency_s, per_byte = Roofline(topology=topology).collective_affine(kind, links_of(topology, mesh, axes))
    return latency_s + bytes * per_byte


def links_of(topology: Topology, mesh: tuple[int, ...], axes: tuple[int, ...]) -> tuple[Link, ...]:
    links = topology.links(mesh)
    assert links is not None
    return tuple(links[axis] for axis in axes)


@pytest.mark.parametrize(
    ("name", "mesh", "axes", "kind", "mebibytes", "microseconds"),
    [
        # within a node: what XLA's table has for H100
        ("h100:8", (8,), (0,), "all-gather", 256, 729.3),
        ("h100:8", (8,), (0,), "all-reduce", 64, 379.8),
        ("h100:8", (8,), (0,), "reduce-scatter", 256, 771.1),
        ("h100:8", (2, 4), (1,), "all-reduce", 256, 1419.6),
        ("h100:8", (2, 4), (0,), "all-gather", 256, 549.3),
        ("b200:8", (8,), (0,), "all-to-all", 256, 458.9),
        # between nodes: what XLA's compiler for H100 notes
        ("h100:4x8", (32,), (0,), "all-gather", 256, 1782.0),
        ("h100:4x8", (32,), (0,), "all-reduce", 256, 3129.7),
        ("h100:4x8", (4, 8), (0,), "all-gather", 256, 8900.1),
        ("h100:4x8", (4, 8), (0,), "all-reduce", 16, 1304.1),
        ("h100:2x8", (2, 8), (0,), "all-gather", 16, 444.4),
        ("h100:2x8", (16,), (0,), "all-reduce", 16, 350.4),
        ("h100:16x8", (16, 8), (0,), "all-reduce", 256, 22415.8),
        ("h100:4x8", (4, 8), (0,), "collective-permute", 16, 802.8),
    ],
)
@pytest.mark.usefixtures("rings_of_the_compiler")
def test_prices_are_those_of_the_compiler(
    name: str, mesh: tuple[int, ...], axes: tuple[int, ...], kind: str, mebibytes: float, microseconds: float
) -> None:
    assert 1e6 * seconds(name, mesh, axes, kind, mebibytes * MIB) == pytest.approx(microseconds, rel=0.1)


@pytest.mark.parametrize("chip", ["a100", "h100", "h200", "b200"])
@pytest.mark.parametrize("kind", COLLECTIVE_KINDS)
def test_a_group_within_a_node_takes_less_than_one_between_nodes(chip: str, kind: str) -> None:
    for size in (2, 4):
        inside = seconds(f"{chip}:4x8", (4, 8 // size, size), (2,), kind, 64 * MIB)
        assert 0 < inside < seconds(f"{chip}:{size}x8", (size, 8), (0,), kind, 64 * MIB)
    assert seconds(f"{chip}:4x8", (4, 8), (1,), kind, 64 * MIB) == seconds(f"{chip}:8", (8,), (0,), kind, 64 * MIB)


def test_sizes_that_were_not_measured_lie_between_those_that_were() -> None:
    four, six, eight = (seconds("h100:8", (n,), (0,), "all-gather", 64 * MIB) for n in (4, 6, 8))
    assert four < six < eight


def test_all_gpus_of_a_node_share_the_ring_between_nodes() -> None:
    whole, alone = (seconds("h100:4x8", (4, 8), axes, "all-gather", 1024 * MIB) for axes in ((0, 1), (0,)))
    assert alone / whole == pytest.approx((3 / 4) / (31 / 32 / 8), rel=0.2)


def test_wires_of_ones_own_are_taken_in_proportion() -> None:
    slow = Topology.custom(name="half", shape=(8,), link_bytes_per_s=(225e9,), kind=("switch",), chip=CHIPS["h100"])
    ring = Topology.custom(name="ring", shape=(8,), link_bytes_per_s=(225e9,), kind=("torus",), chip=CHIPS["h100"])
    prices = [
        Roofline(topology=topology).collective_affine("all-reduce", links_of(topology, (8,), (0,)))
        for topology in (parse_topology("h100:8"), slow, ring)
    ]
    assert prices[1] == (prices[0][0], pytest.approx(2 * prices[0][1]))
    assert prices[2][1] == pytest.approx(2 * 7 / 8 / 225e9)


def test_a_group_of_one_is_free_and_an_unknown_kind_is_refused() -> None:
    topology = parse_topology("h100:4x8")
    model = Roofline(topology=topology)
    assert model.collective_affine("all-gather", links_of(topology, (1, 8), (0,))) == (0.0, 0.0)
    with pytest.raises(CostModelError, match="unknown collective 'gather'"):
        model.collective_affine("gather", links_of(topology, (4, 8), (0,)))
    assert not math.isnan(model.collective_affine("all-to-all", links_of(topology, (4, 8), (0, 1)))[1])
