"""Topology names, wraparound, and how meshes map onto physical dims."""

import itertools
import math

import numpy as np
import pytest

from cost_models import CHIPS, CostModelError, Topology, parse_topology

Parts = list[list[tuple[int, int, int, bool]]]


def parts(name: str, mesh: tuple[int, ...]) -> Parts:
    """Per axis: physical dim, extent, stride and wraparound of every segment, by dim."""
    links = parse_topology(name).links(mesh)
    assert links is not None
    return [sorted((s.dim, s.extent, s.stride, s.wrap) for s in link.dims) for link in links]


@pytest.mark.parametrize(
    ("name", "shape", "wrap", "devices"),
    [
        ("a100:16", (2, 8), (False, False), 16),
        ("b200:4", (1, 4), (False, False), 4),
        ("cpu:8", (8,), (False,), 8),
        ("h100:4x8", (4, 8), (False, False), 32),
        ("h200:8", (1, 8), (False, False), 8),
        ("mi300x:2x8", (2, 8), (False, False), 16),
        ("tpu7x:2x2x1", (2, 2, 1, 2), (False, False, False, False), 8),
        ("v4:4x4x4", (4, 4, 4, 2), (True, True, True, False), 128),
        ("v5e:16x16", (16, 16), (True, True), 256),
        ("v5e:4x4", (4, 4), (False, False), 16),
        ("v5e:8x16", (8, 16), (False, True), 128),
        ("v5p:2x2x4", (2, 2, 4), (False, False, False), 16),
        ("v5p:4x4x8", (4, 4, 8), (True, True, True), 128),
        ("v6e:16x16", (16, 16), (True, True), 256),
        ("v5e:16x16*4", (4, 16, 16), (False, True, True), 1024),
        ("v4:2x2x2*2", (2, 2, 2, 2, 2), (False, False, False, False, False), 32),
    ],
)
def test_names(name: str, shape: tuple[int, ...], wrap: tuple[bool, ...], devices: int) -> None:
    topology = parse_topology(name)
    assert (topology.shape, topology.wrap, topology.num_devices) == (shape, wrap, devices)
    assert topology.name == name
    assert topology == parse_topology(name)
    assert hash(topology) == hash(parse_topology(name))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "v5e",
        "v5e:",
        "v5e:4",
        "v5e:0x4",
        "v5e:4x32",
        "v5p:4x4",
        "v7:2x2",
        "h100:12",
        "h100:2x16",
        "cpu:2x4",
        "h100:x",
        "h100:4x8*2",
        "cpu:8*2",
        "v5e:4x4*0",
        "v5e:4x4*",
        "v5e:4x4*2*2",
    ],
)
def test_a_bad_name_is_told_what_names_there_are(name: str) -> None:
    with pytest.raises(CostModelError, match=r"[a-z0-9]+:\d|dims|nodes"):
        parse_topology(name)


@pytest.mark.parametrize(
    ("name", "mesh", "expected"),
    [
        # whole dims
        ("v5e:4x4", (4, 4), [[(0, 4, 1, False)], [(1, 4, 1, False)]]),
        ("v5e:4x4", (16,), [[(0, 4, 1, False), (1, 4, 1, False)]]),
        ("v5e:16x16", (16, 16), [[(0, 16, 1, True)], [(1, 16, 1, True)]]),
        ("v5e:16x16", (256, 1), [[(0, 16, 1, True), (1, 16, 1, True)], []]),
        ("v5p:4x4x4", (4, 16), [[(0, 4, 1, True)], [(1, 4, 1, True), (2, 4, 1, True)]]),
        ("v5p:4x4x4", (16, 4), [[(0, 4, 1, True), (1, 4, 1, True)], [(2, 4, 1, True)]]),
        ("v5e:8x16", (16, 8), [[(1, 16, 1, True)], [(0, 8, 1, False)]]),
        ("h100:4x8", (4, 8), [[(0, 4, 1, False)], [(1, 8, 1, False)]]),
        # across nodes and slices lie the leading axes, whatever the wires of the others
        ("h100:4x8", (8, 4), [[(0, 4, 1, False), (1, 2, 4, False)], [(1, 4, 1, False)]]),
        ("h100:4x8", (2, 16), [[(0, 2, 2, False)], [(0, 2, 1, False), (1, 8, 1, False)]]),
        ("h100:4x8", (2, 8), [[(0, 2, 1, False)], [(1, 8, 1, False)]]),
        ("h100:3x8", (2, 12), [[(1, 2, 4, False)], [(0, 3, 1, False), (1, 4, 1, False)]]),
        ("v5e:16x16*4", (64, 16), [[(0, 4, 1, False), (1, 16, 1, True)], [(2, 16, 1, True)]]),
        ("v5e:16x16*4", (16, 64), [[(0, 4, 1, False), (1, 4, 1, False)], [(1, 4, 4, True), (2, 16, 1, True)]]),
        ("v5e:4x4*2", (16,), [[(1, 4, 1, False), (2, 4, 1, False)]]),
        ("v4:2x2x1*2", (2, 8), [[(0, 2, 1, False)], [(1, 2, 1, False), (2, 2, 1, False), (4, 2, 1, False)]]),
        ("h100:4x8", (32,), [[(0, 4, 1, False), (1, 8, 1, False)]]),
        ("tpu7x:2x2x1", (4, 2), [[(0, 2, 1, False), (1, 2, 1, False)], [(3, 2, 1, False)]]),
        # parts of dims: the small axis runs along neighbours, a ring through the large one has room to turn
        ("v5e:4x4", (2, 8), [[(0, 2, 1, False)], [(0, 2, 2, False), (1, 4, 1, False)]]),
        ("v5e:16x16", (4, 64), [[(0, 4, 1, False)], [(0, 4, 4, True), (1, 16, 1, True)]]),
        ("v5e:16x16", (2, 128), [[(0, 2, 1, False)], [(0, 8, 2, True), (1, 16, 1, True)]]),
        ("h100:4x8", (16, 2), [[(0, 4, 1, False), (1, 4, 2, False)], [(1, 2, 1, False)]]),
        # a block of the devices
        ("v5e:16x16", (4, 4), [[(0, 4, 1, False)], [(1, 4, 1, False)]]),
        ("h100:4x8", (4,), [[(1, 4, 1, False)]]),
        ("cpu:8", (3,), [[(0, 3, 1, False)]]),
    ],
)
def test_mapping(name: str, mesh: tuple[int, ...], expected: Parts) -> None:
    assert parts(name, mesh) == expected


@pytest.mark.parametrize(
    ("name", "mesh"), [("v5e:4x4", (32,)), ("v5e:4x4", (5, 2)), ("cpu:8", (3, 3)), ("h100:8", (16,))]
)
def test_a_mesh_that_does_not_fit_has_no_links(name: str, mesh: tuple[int, ...]) -> None:
    assert parse_topology(name).links(mesh) is None
    assert parse_topology(name).order(mesh) is None


@pytest.mark.parametrize(
    "name", ["v5e:4x4", "v5p:4x4x4", "h100:4x8", "tpu7x:2x2x1", "cpu:8", "v5e:4x4*2", "v4:2x2x1*4"]
)
def test_every_factorization_maps_and_orders_every_device_once(name: str) -> None:
    topology = parse_topology(name)
    count = topology.num_devices
    sizes = [size for size in range(1, count + 1) if count % size == 0]
    for mesh in itertools.product(sizes, repeat=2):
        if math.prod(mesh) != count:
            continue
        links = topology.links(mesh)
        assert links is not None
        assert tuple(link.size for link in links) == mesh
        assert all(math.prod(s.extent for s in link.dims) == link.size for link in links)
        order = topology.order(mesh)
        assert order is not None
        assert order.shape == mesh
        assert sorted(order.reshape(-1).tolist()) == list(range(count))


def test_order_keeps_the_physical_neighbours_of_the_links() -> None:
    order = parse_topology("v5p:2x4x2").order((4, 4))
    np.testing.assert_array_equal(order, np.arange(16).reshape(2, 4, 2).transpose(1, 0, 2).reshape(4, 4))
    np.testing.assert_array_equal(parse_topology("cpu:8").order((2, 4)), np.arange(8).reshape(2, 4))


@pytest.mark.parametrize("mesh", [(32,), (16, 2), (2, 16), (8, 4), (4, 8), (2, 4, 4), (8, 2, 2), (16,), (2, 8), (4, 2)])
def test_gpus_are_numbered_as_jax_numbers_them(mesh: tuple[int, ...]) -> None:
    """So that a mesh of devices in their natural order, as `jax.make_mesh` makes it, is the one that is priced."""
    order = parse_topology("h100:4x8").order(mesh)
    np.testing.assert_array_equal(order, np.arange(math.prod(mesh)).reshape(mesh))


def test_slices_share_the_network_of_the_data_centre() -> None:
    one, four = parse_topology("v5e:4x4"), parse_topology("v5e:4x4*4")
    assert (four.nodes, one.nodes, parse_topology("h100:4x8").nodes, parse_topology("cpu:8").nodes) == (4, 1, 4, 1)
    assert four == one.slices(4)
    assert one.slices(1) is one
    assert parse_topology("v5e:4x4*1") == one
    links = four.links((4, 16))
    assert links is not None
    assert [s.bytes_per_s for s in links[0].dims] == [CHIPS["v5e"].network_bytes_per_s]
    assert links[1] == one.slices(2).links((2, 16))[1]  # pyright: ignore[reportOptionalSubscript]


def test_a_custom_mesh_of_its_own_shape_maps_one_to_one() -> None:
    topology = Topology.custom(
        name="slow and fast",
        shape=(2, 2),
        link_bytes_per_s=(1e9, 1e10),
        flops_per_s=1e12,
        hbm_bytes=1e10,
        hbm_bytes_per_s=1e11,
    )
    links = topology.links((2, 2))
    assert links is not None
    assert [link.bytes_per_s for link in links] == pytest.approx([1e9, 1e10])
    assert topology.chip.peak("bfloat16") == topology.chip.peak("float32", "vector") == 1e12
    assert topology.chip.matrix_efficiency == 1.0


def test_a_custom_topology_may_change_figures_of_a_chip() -> None:
    topology = Topology.custom(
        name="small", shape=(4,), link_bytes_per_s=(1e9,), chip=CHIPS["v5e"], hbm_bytes=1e9, link_latency_s=(1e-6,)
    )
    assert topology.chip.hbm_bytes == 1_000_000_000
    assert topology.chip.peak("bfloat16") == CHIPS["v5e"].peak("bfloat16")
    assert "small" in topology.chip.source


def test_custom_errors() -> None:
    with pytest.raises(CostModelError, match="one per dim"):
        Topology.custom(name="t", shape=(2, 2), link_bytes_per_s=(1e9,), chip=CHIPS["v5e"])
    with pytest.raises(CostModelError, match="sizes of 1 or more"):
        Topology.custom(name="t", shape=(0,), link_bytes_per_s=(1e9,), chip=CHIPS["v5e"])
    with pytest.raises(CostModelError, match="lacks hbm_bytes"):
        Topology.custom(name="t", shape=(2,), link_bytes_per_s=(1e9,), flops_per_s=1e12, hbm_bytes_per_s=1e9)
    with pytest.raises(CostModelError, match="positive"):
        Topology.custom(name="t", shape=(2,), link_bytes_per_s=(-1.0,), chip=CHIPS["v5e"])
    with pytest.raises(CostModelError, match="positive"):
        Topology.custom(name="t", shape=(2,), link_bytes_per_s=(1.0,), chip=CHIPS["v5e"], hbm_bytes=0)


@pytest.mark.parametrize("name", ["v5e:2x4", "h100:2x8", "cpu:8", "v5e:2x4*2"])
def test_so_many_times_as_many_devices_are_wired_alike(name: str) -> None:
    topology = parse_topology(name)
    more = topology.multiplied(4)
    assert more.num_devices == 4 * topology.num_devices
    assert (more.kind, more.link_bytes_per_s, more.chip) == (topology.kind, topology.link_bytes_per_s, topology.chip)
    assert more.links((more.num_devices,)) is not None


@pytest.mark.parametrize(
    ("name", "hosts", "of_each"),
    [
        ("cpu:8", 1, 8),
        ("h100:2x8", 2, 8),
        ("tpu7x:2x2x2", 2, 8),
        ("v4:2x2x1", 1, 8),
        ("v5e:1x1", 1, 1),
        ("v5e:16x16*2", 128, 4),
        ("v5e:2x4", 1, 8),
        ("v5e:4x4", 4, 4),
        ("v5p:2x2x2", 2, 4),
    ],
)
def test_hosts_have_the_devices_of_a_node_or_a_tray_of_four_chips(name: str, hosts: int, of_each: int) -> None:
    topology = parse_topology(name)
    assert topology.hosts.shape == topology.shape
    assert np.bincount(topology.hosts.ravel()).tolist() == [of_each] * hosts


def test_a_host_of_a_torus_has_neighbours() -> None:
    hosts = parse_topology("v5e:4x4").hosts
    assert hosts.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]
