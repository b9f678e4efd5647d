"""Collectives: oracles that count the traffic of every wire, and properties that hold on every topology."""

import dataclasses
import itertools
from collections import Counter

import numpy as np
import pytest

from cost_models import (
    CHIPS,
    COLLECTIVE_KINDS,
    CostModelError,
    EnergyObjective,
    Link,
    Roofline,
    Segment,
    parse_topology,
)
from cost_models.network.collectives import affine, seconds, traffic

KINDS = ("all-gather", "reduce-scatter", "all-reduce")
MESHES = [
    ("cpu:8", (2, 4)),
    ("h100:4x8", (4, 8)),
    ("h100:4x8", (8, 4)),
    ("mi300x:2x8", (2, 8)),
    ("tpu7x:2x2x1", (2, 4)),
    ("v4:4x4x4", (8, 16)),
    ("v5e:16x16", (4, 64)),
    ("v5e:4x4", (4, 4)),
    ("v5e:4x4", (2, 8)),
    ("v5p:4x4x4", (4, 16)),
]


def axes(name: str, mesh: tuple[int, ...]) -> tuple[Link, ...]:
    links = parse_topology(name).links(mesh)
    assert links is not None
    return links


def one(extent: int, *, wrap: bool, kind: str = "torus") -> tuple[Link, ...]:
    segment = Segment(extent=extent, wrap=wrap, bytes_per_s=1.0, latency_s=1.0, kind=kind)  # type: ignore[arg-type]
    return (Link(size=extent, dims=(segment,)),)


def paths(n: int, source: int, target: int, wrap: bool) -> list[list[tuple[int, int]]]:
    """The shortest paths along a line or ring, as directed wires."""
    ways: list[list[int]] = []
    if target > source or wrap:
        ways.append([(source + i) % n for i in range((target - source) % n + 1)])
    if target < source or wrap:
        ways.append([(source - i) % n for i in range((source - target) % n + 1)])
    best = min(map(len, ways))
    return [list(itertools.pairwise(way)) for way in ways if len(way) == best]


@pytest.mark.parametrize("n", range(2, 10))
@pytest.mark.parametrize("wrap", [False, True])
def test_all_to_all_is_the_load_of_the_busiest_wire(n: int, wrap: bool) -> None:
    if wrap and n == 2:
        pytest.skip("two devices are joined by one wire")
    load: Counter[tuple[int, int]] = Counter()
    for source, target in itertools.permutations(range(n), 2):
        ways = paths(n, source, target, wrap)
        for way in ways:
            for wire in way:
                load[wire] += 1 / n / len(ways)  # type: ignore[assignment]
    assert affine("all-to-all", one(n, wrap=wrap))[1] == pytest.approx(max(load.values()))
    assert traffic("all-to-all", one(n, wrap=wrap)) == pytest.approx(sum(load.values()) / n)


@pytest.mark.parametrize("n", range(2, 10))
@pytest.mark.parametrize("wrap", [False, True])
def test_all_gather_is_the_load_of_the_busiest_wire(n: int, wrap: bool) -> None:
    """Each shard goes to everyone: both ways around a ring, half of it each, or outwards along a line."""
    rightward: Counter[int] = Counter()
    for source in range(n):
        for step in range(n - 1 if wrap else n - 1 - source):
            rightward[(source + step) % n] += 1
    busiest = max(rightward.values()) / (2 if wrap else 1) / n
    assert affine("all-gather", one(n, wrap=wrap))[1] == pytest.approx(busiest)


def test_the_formulas_of_the_literature() -> None:
    assert affine("all-gather", one(16, wrap=True)) == pytest.approx((8, 15 / 16 / 2))
    assert affine("all-gather", one(16, wrap=False)) == pytest.approx((15, 15 / 16))
    assert affine("all-reduce", one(8, wrap=False, kind="switch")) == pytest.approx((6, 2 * 7 / 8))
    assert affine("all-to-all", one(16, wrap=True)) == pytest.approx((8, 16 / 8))
    assert affine("all-to-all", one(16, wrap=False)) == pytest.approx((15, 16 / 4))
    assert affine("all-to-all", one(8, wrap=False, kind="switch")) == pytest.approx((3, 7 / 8))
    assert affine("all-gather", one(8, wrap=False, kind="full")) == pytest.approx((1, 1 / 8))
    assert affine("collective-permute", one(8, wrap=True)) == pytest.approx((1, 1))


def test_an_all_reduce_adds_the_bandwidths_of_whole_dims() -> None:
    links = axes("v5p:4x4x4", (4, 4, 4))
    rates = [2 / affine("all-reduce", links[:count])[1] * (1 - 4.0**-count) for count in (1, 2, 3)]
    np.testing.assert_allclose(rates, [2 * 93e9, 4 * 93e9, 6 * 93e9])


@pytest.mark.parametrize(
    ("name", "mesh", "rings"),
    [
        # rings used by an all-gather, a reduce-scatter and an all-reduce over the last axis, as libtpu compiles them
        ("v5e:16x16", (16, 16), (1, 1, 1)),
        ("v5e:16x16", (1, 256), (1, 1, 2)),
        ("v5e:16x16", (2, 128), (1, 1, 1)),
        ("v5p:4x4x4", (4, 16), (1, 1, 2)),
        ("v5p:4x4x4", (1, 64), (3, 1, 3)),
    ],
)
def test_a_torus_group_uses_the_rings_that_the_compiler_uses(
    name: str, mesh: tuple[int, ...], rings: tuple[int, int, int]
) -> None:
    link = axes(name, mesh)[-1]
    ring = parse_topology(name).link_bytes_per_s[0] * 2 / (1 - 1 / link.size)
    used = [passes / affine(kind, (link,))[1] / ring for kind, passes in zip(KINDS, (1, 1, 2), strict=True)]
    np.testing.assert_allclose(used, rings)


@pytest.mark.parametrize(("name", "rings"), [("v6e:16x16", 2), ("v5e:16x16", 1)])
def test_sparse_cores_scatter_over_all_dims_of_a_slice(name: str, rings: int) -> None:
    topology = parse_topology(name)
    _, per_byte = Roofline(topology=topology).collective_affine("reduce-scatter", axes(name, (256,)))
    assert per_byte == pytest.approx(255 / 256 / (rings * 2 * topology.link_bytes_per_s[0]))


def test_axes_that_share_a_ring_are_together_that_ring() -> None:
    assert affine("all-gather", axes("v5e:16x16", (4, 64))) == pytest.approx(
        affine("all-gather", axes("v5e:16x16", (256,)))
    )
    assert affine("all-to-all", axes("cpu:8", (2, 2, 2))) == pytest.approx(affine("all-to-all", axes("cpu:8", (8,))))


def test_across_nodes_the_network_binds_shared_by_the_gpus_of_a_node() -> None:
    nodes, gpus = axes("h100:4x8", (4, 8))
    assert 1 / affine("all-gather", (nodes,))[1] == pytest.approx(50e9 * 4 / 3)
    assert 1 / affine("all-gather", (gpus,))[1] == pytest.approx(450e9 * 8 / 7)
    whole = affine("all-gather", (nodes, gpus))[1]
    # Rings through all 32 GPUs: all but a device's own share of the result passes the 8 ports of a node.
    assert whole == pytest.approx(31 / 32 / (8 * 50e9))


@pytest.mark.parametrize(("name", "mesh"), MESHES)
def test_properties(name: str, mesh: tuple[int, ...]) -> None:
    links = axes(name, mesh)
    for group in ((links[0],), (links[1],), links):
        reduce, gather, scatter = (affine(k, group) for k in ("all-reduce", "all-gather", "reduce-scatter"))
        if parse_topology(name).kind[0] == "torus" and sum(len(link.dims) for link in group) > 1:
            assert reduce[1] <= (gather[1] + scatter[1]) * (1 + 1e-9)
        else:
            assert reduce == pytest.approx((gather[0] + scatter[0], gather[1] + scatter[1]))
        for kind in COLLECTIVE_KINDS:
            latency_s, per_byte = affine(kind, group)
            assert latency_s > 0
            assert per_byte > 0
            assert seconds(kind, 1e6, group) == pytest.approx(latency_s + 1e6 * per_byte)
            assert seconds(kind, 2e6, group) > seconds(kind, 1e6, group)
            assert affine(kind, group[::-1]) == pytest.approx((latency_s, per_byte))
            assert traffic(kind, group) > 0


@pytest.mark.parametrize(("name", "mesh"), MESHES)
def test_gathering_in_two_steps_is_no_faster_than_at_once(name: str, mesh: tuple[int, ...]) -> None:
    """All-gather over one axis, then over the other: the hierarchical algorithm without overlap."""
    first, second = axes(name, mesh)
    at_once = affine("all-gather", (first, second))[1]
    in_steps = affine("all-gather", (first,))[1] / second.size + affine("all-gather", (second,))[1]
    assert at_once <= in_steps * (1 + 1e-9)


def test_a_group_of_one_is_free_and_an_unknown_kind_an_error() -> None:
    (lonely, whole) = axes("cpu:8", (1, 8))
    for kind in COLLECTIVE_KINDS:
        assert affine(kind, (lonely,)) == (0, 0)
        assert affine(kind, (lonely, whole)) == affine(kind, (whole,))
    with pytest.raises(CostModelError, match="all-reduce"):
        affine("broadcast", (whole,))
    with pytest.raises(CostModelError, match="all-reduce"):
        traffic("broadcast", (whole,))


def test_data_parallelism_hides_above_flops_over_bandwidth_tokens() -> None:
    """Backward of a D x F layer: 4 b D F flops against the all-reduce of 2 D F bytes; v6e: 918e12 / 186e9 = 4,935."""
    chip = dataclasses.replace(CHIPS["v6e"], matrix_efficiency=1.0, all_reduce_efficiency=1.0)
    model = Roofline(topology=dataclasses.replace(parse_topology("v6e:16x16"), chip=chip))
    (link, _) = axes("v6e:16x16", (16, 16))
    d, f = 8192, 32768
    per_byte = model.collective_affine("all-reduce", (link,))[1]
    tokens = np.arange(4000.0, 6000.0)
    compute = model.compute_seconds(
        kind="dot_general", engine="matrix", dtype="bfloat16", flops=4 * tokens * d * f, bytes=np.zeros_like(tokens)
    )
    hidden = tokens[compute > per_byte * 2 * d * f]
    assert hidden[0] == pytest.approx(918e12 / (2 * 93e9) * 15 / 16, rel=1e-3)


def test_tensor_parallelism_hides_above_flops_over_bandwidth_columns() -> None:
    """2 b D F / n flops against the all-gather of 2 b D bytes: hidden where F / n > flops / bandwidth."""
    chip = CHIPS["v6e"]
    (_, link) = axes("v6e:16x16", (16, 16))
    critical = chip.peak("bfloat16") * affine("all-gather", (link,))[1]
    assert critical == pytest.approx(918e12 / (2 * 93e9) * 15 / 16, rel=1e-6)


def test_energy_counts_every_byte_sent_and_the_time_it_takes() -> None:
    objective = EnergyObjective(chip=CHIPS["h100"])
    (_, link) = axes("h100:4x8", (4, 8))
    chip = CHIPS["h100"]
    fixed, per_byte = objective.collective("all-gather", (link,), (1e-3, 1e-11))
    assert fixed == pytest.approx(1e-3 * chip.static_watts)
    moved = 7 / 8 * (chip.joules_per_link_byte + 2 * chip.joules_per_hbm_byte)
    assert per_byte == pytest.approx(1e-11 * chip.static_watts + moved)
