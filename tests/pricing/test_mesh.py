"""Meshes: which factorizations there are, which a user may fix, and the devices they are laid on."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

from cost_models import Topology, parse_topology
from planner.errors import MeshError
from planner.machine.target import Target, resolve
from planner.pricing.mesh import check_mesh, factorizations


def test_all_factorizations_into_three_axes_and_fewer_devices() -> None:
    found = [tuple(shape.values()) for shape in factorizations(parse_topology("cpu:8"))]
    assert found == [(8,), (4, 2), (2, 2, 2), (4,), (2, 2), (2,), (1,)]
    assert [tuple(s.values()) for s in factorizations(parse_topology("cpu:8"), max_axes=1)] == [(8,), (4,), (2,), (1,)]
    assert list(factorizations(parse_topology("cpu:8"))[2]) == ["x", "y", "z"]


@pytest.mark.parametrize("name", ["cpu:12", "v5e:4x4", "v5p:4x4x4", "v4:2x2x1", "h100:4x8", "mi300x:8"])
def test_every_factorization_fits_its_topology(name: str) -> None:
    topology = parse_topology(name)
    found = factorizations(topology)
    assert math.prod(found[0].values()) == topology.num_devices
    assert len({tuple(shape.items()) for shape in found}) == len(found)
    for shape in found:
        sizes = tuple(shape.values())
        assert topology.num_devices % math.prod(sizes) == 0
        assert topology.links(sizes) is not None


def test_a_fixed_mesh_keeps_names_and_order() -> None:
    assert list(check_mesh({"model": 2, "data": np.int64(4)}, 8).items()) == [("model", 2), ("data", 4)]


@pytest.mark.parametrize("shape", [{"x": 8}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2}, {"x": 4}, {"x": 1}])
def test_every_device_stands_once_in_the_mesh(shape: dict[str, int]) -> None:
    mesh = resolve(None, None).jax_mesh(shape)
    assert isinstance(mesh, Mesh)
    assert dict(mesh.shape) == shape
    assert len({device.id for device in mesh.devices.flat}) == math.prod(shape.values())


def test_a_topology_without_devices_has_an_abstract_mesh() -> None:
    target = resolve(None, "v5e:4x4")
    assert target.devices is None
    assert target.count == 16
    assert isinstance(target.jax_mesh({"x": 4, "y": 4}), AbstractMesh)


def test_a_mesh_axis_gets_the_wires_it_is_priced_for() -> None:
    islands = Topology.custom(
        name="islands",
        shape=(4, 2),
        link_bytes_per_s=(1e9, 1e12),
        flops_per_s=1e12,
        hbm_bytes=1e9,
        hbm_bytes_per_s=1e11,
    )
    devices = tuple(jax.devices())
    mesh = Target(topology=islands, devices=devices).jax_mesh({"fast": 2, "slow": 4})
    links = islands.links((2, 4))
    assert links is not None
    # The pairs of the second physical dim, devices 0 and 1 and so on, are joined by the fast wires.
    pairs = [{device.id for device in column} for column in mesh.devices.T]
    assert pairs == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]


def test_devices_alone_name_their_topology() -> None:
    assert resolve(None, None).topology.name == f"cpu:{jax.device_count()}"
    assert resolve(jax.devices()[:3], None).topology.name == "cpu:3"
    assert resolve(np.array(jax.devices()), None).count == jax.device_count()  # pyright: ignore[reportArgumentType]


def test_more_devices_than_the_topology_has_are_left_alone() -> None:
    assert resolve(jax.devices(), "h100:4").count == 4


@pytest.mark.parametrize(
    ("devices", "topology", "words"),
    [
        (5, None, "non-empty sequence of jax.Device"),
        ([], None, "non-empty sequence of jax.Device"),
        (["cpu:0"], None, "non-empty sequence of jax.Device"),
        ("twice", None, "more than once; give every device once"),
        (None, "v9:4x4", "unknown topology 'v9:4x4'.*for example"),
        (None, "v5e", "unknown topology 'v5e'"),
        (None, "v5e:1000x4", "at most 16x16 chips, got 'v5e:1000x4'"),
        (None, 16, "topology is 16; give a name"),
        ("all", "h100:16", "h100:16 has 16 devices, but only 8 are given"),
    ],
)
def test_devices_and_topologies_that_are_none(devices: object, topology: object, words: str) -> None:
    given = {"twice": jax.devices()[:1] * 2, "all": jax.devices()}.get(str(devices), devices)
    with pytest.raises(MeshError, match=words):
        resolve(given, topology)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({"a": 16}, "needs 16 devices, but there are 8; make"),
        ({"a": 0}, "'a' has size 0; give"),
        ({"a": True}, "'a' has size True; give"),
        ({"a": 2.0}, "'a' has size 2.0; give"),
        ({3: 2}, "axis 3 has size 2; give strings"),
        ({}, "got {}; write"),
        ("ab", "got 'ab'; write"),
    ],
)
def test_meshes_that_are_none(mesh: object, words: str) -> None:
    with pytest.raises(MeshError, match=words):
        check_mesh(mesh, 8)  # pyright: ignore[reportArgumentType]
