"""Meshes on TPUs: every factorization lies where its links were priced, on the devices of real topologies.

The devices are those of libtpu's compile-only client, which need no TPU; what takes them skips where libtpu is missing.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh

import planner
from cost_models import Topology, parse_topology
from planner.errors import ArgumentError, MeshError
from planner.machine.aot_child import Place, devices_of, place_of
from planner.machine.device_mesh import extents_of, lay_out
from planner.machine.target import Target, resolve
from planner.pricing.mesh import factorizations
from planner.verify.aot import lower_request, unavailable_reason
from tests.small import NEVER

NEEDS_LIBTPU = pytest.mark.skipif(
    bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there"
)
TOPOLOGIES = [
    *("v4:2x2x2", "v4:2x2x4", "v4:2x4x4", "v4:4x4x4", "v4:4x4x8", "v4:4x8x8", "tpu7x:2x2x1", "tpu7x:2x2x4"),
    *("v5e:2x4", "v5e:4x2", "v5e:4x4", "v5e:4x8", "v5e:8x4", "v5e:8x8", "v5e:8x16", "v5e:16x16"),
    *("v5p:2x2x2", "v5p:2x2x4", "v5p:2x4x4", "v5p:4x4x4", "v5p:4x4x8", "v5p:4x8x8"),
    *("v6e:2x4", "v6e:4x4", "v6e:4x8", "v6e:8x8", "v6e:8x16", "v6e:16x16"),
]
PARTS = {"all": (0.0, 1.0), "the first half": (0.0, 0.5), "the second half": (0.5, 1.0)}


@functools.cache
def devices_in(name: str, **options: Any) -> tuple[Any, ...]:
    return tuple(topologies.get_topology_desc(topology_name=name, platform="tpu", **options).devices)


def part_of(devices: Sequence[Any], part: str) -> list[Any]:
    start, stop = PARTS[part]
    return list(devices[int(start * len(devices)) : int(stop * len(devices))])


def shuffled(devices: Sequence[Any], seed: int = 0) -> list[Any]:
    mixed = list(devices)
    random.Random(seed).shuffle(mixed)
    return mixed


def places_of(devices: Sequence[Any]) -> list[Place]:
    return [place for device in devices if (place := place_of(device)) is not None]


def is_block(places: Sequence[Place]) -> bool:
    return len(set(places)) == len(places) == math.prod(extents_of(places))


def check_laid_as_priced(sizes: tuple[int, ...], laid: npt.NDArray[Any], topology: Topology) -> None:
    """Along every axis the coordinates are those that its segments say; `laid[position]` is a place."""
    links = topology.links(sizes)
    assert links is not None
    for axis, link in enumerate(links):
        of_axis = np.moveaxis(laid, axis, 0).reshape(link.size, -1, 5)
        steps = of_axis - of_axis[:1]
        along = sorted(link.dims, key=lambda segment: segment.dim)
        # The entries of a place are the slice, and then the dims of the topology, whose last may be the core.
        entries = [4 if topology.kind[s.dim] == "switch" else s.dim + 1 for s in along]
        wanted = np.zeros((link.size, 5), dtype=int)
        for i, parts in enumerate(itertools.product(*(range(s.extent) for s in along))):
            for entry, segment, part in zip(entries, along, parts, strict=True):
                wanted[i, entry] = part * segment.stride
        assert (steps == wanted[:, None, :]).all()


@NEEDS_LIBTPU
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_mesh_lies_where_it_is_priced(name: str, part: str) -> None:
    given = part_of(devices_in(name), part)
    target, mixed = resolve(given, None), resolve(shuffled(given), None)
    assert target.devices == mixed.devices
    assert target.topology == mixed.topology
    assert target.topology.num_devices == len(given)
    assert target.notes == ()
    places = places_of(target.devices or ())
    for shape in factorizations(target.topology):
        sizes = tuple(shape.values())
        layout = lay_out(sizes, places, target.topology)
        assert layout.order.shape == sizes
        assert layout.note == ""
        laid = [places[int(i)] for i in layout.order.flat]
        assert is_block(laid)
        check_laid_as_priced(sizes, np.array(laid).reshape(*sizes, 5), target.topology)
        turned = [places[::-1][int(i)] for i in lay_out(sizes, places[::-1], target.topology).order.flat]
        assert turned == laid


@NEEDS_LIBTPU
@pytest.mark.parametrize("name", ["v5e:4x4", "v5e:4x8", "v6e:4x8", "v5p:2x2x4", "v5p:4x4x4"])
def test_a_mesh_that_jax_lays_on_whole_dims_is_laid_on_whole_dims(name: str) -> None:
    """JAX lays eight chips of a v5e in a ring of their own."""
    devices, topology = devices_in(name), parse_topology(name)
    for shape in factorizations(topology):
        sizes = tuple(shape.values())
        if math.prod(sizes) < len(devices):
            continue
        try:
            theirs = mesh_utils.create_device_mesh(sizes, devices)
        except NotImplementedError:
            continue
        mesh = resolve(devices, None).jax_mesh(shape)
        assert isinstance(mesh, Mesh)
        for ours in (mesh.devices, theirs):
            for axis in range(len(sizes)):
                first = np.moveaxis(ours, axis, 0).reshape(sizes[axis], -1)[:, 0]
                extents = extents_of(places_of(list(first)))
                assert all(n in (1, whole) for n, whole in zip(extents[1:], topology.shape, strict=False))


@NEEDS_LIBTPU
@pytest.mark.parametrize("part", PARTS)
def test_the_devices_of_a_part_name_its_topology(part: str) -> None:
    names = {"v5e:4x4": "v5e:4x2", "v5e:16x16": "v5e:16x8", "v4:2x2x2": "v4:2x2x1", "v5p:4x4x4": "4x4x2 of v5p:4x4x4"}
    wraps = {"v5e:16x16": (True, False), "v5p:4x4x4": (True, True, False)}
    for name, half in names.items():
        found = resolve(part_of(devices_in(name), part), None).topology
        assert found.name == (name if part == "all" else half)
        if name in wraps:
            assert found.wrap == (parse_topology(name).wrap if part == "all" else wraps[name])


@NEEDS_LIBTPU
def test_fused_cores_are_one_device_with_the_figures_of_both() -> None:
    target = resolve(devices_in("v4:2x2x2", chip_config_name="megacore"), None)
    single = parse_topology("v4:2x2x2")
    assert target.topology.name == "v4:2x2x2 megacore"
    assert target.topology.shape == (2, 2, 2)
    assert target.topology.chip.hbm_bytes == 2 * single.chip.hbm_bytes
    assert target.topology.link_bytes_per_s == (2 * single.link_bytes_per_s[0],) * 3
    mesh = target.jax_mesh({"x": 4, "y": 2})
    assert isinstance(mesh, Mesh)
    assert len(set(mesh.devices.flat)) == 8


@NEEDS_LIBTPU
def test_devices_that_fill_no_block_are_a_line_and_that_is_told() -> None:
    ell = [d for d in devices_in("v5e:4x4") if d.coords[0] < 2 or d.coords[1] < 2]
    target = resolve(shuffled(ell), None)
    assert (target.count, target.topology.shape, target.topology.wrap) == (12, (12,), (False,))
    assert target.devices == resolve(ell, None).devices
    assert "fill no block" in " ".join(target.notes_for({"x": 12}))
    for shape in factorizations(target.topology):
        mesh = target.jax_mesh(shape)
        assert isinstance(mesh, Mesh)
        assert len(set(mesh.devices.flat)) == math.prod(shape.values())
        if mesh.size in (6, 4, 3, 2):
            assert is_block(places_of(list(mesh.devices.flat)))
    line = places_of(list(target.jax_mesh({"x": 12}).devices.flat))  # pyright: ignore[reportAttributeAccessIssue]
    assert all(sum(abs(a - b) for a, b in zip(one, two, strict=True)) <= 2 for one, two in itertools.pairwise(line))
    assert "along a line" in target.notes_for({"x": 12})[-1]
    assert "on a block of 2x2" in target.notes_for({"x": 4})[-1]
    assert target.notes_for({"x": 1}) == target.notes


@NEEDS_LIBTPU
@pytest.mark.parametrize("chips", ["v5e:2x2", "v4:2x2x1", "v5p:2x2x2"])
def test_meshes_on_slices_cross_the_network_where_that_is_priced(chips: str) -> None:
    devices = devices_in(chips, num_slices=2)
    target = resolve(shuffled(devices), None)
    assert (target.topology, target.notes) == (parse_topology(f"{chips}*2"), ())
    for shape in factorizations(target.topology):
        mesh, links = target.jax_mesh(shape), target.topology.links(tuple(shape.values()))
        assert isinstance(mesh, Mesh)
        assert links is not None
        assert target.notes_for(shape) == ()
        for axis, link in enumerate(links):
            line = np.moveaxis(mesh.devices, axis, 0).reshape(link.size, -1)[:, 0]
            crosses = len({device.slice_index for device in line}) == 2
            assert crosses == any(segment.kind == "network" for segment in link.dims)


@NEEDS_LIBTPU
def test_parts_of_slices_must_be_the_same_in_each() -> None:
    devices = devices_in("v5e:2x4", num_slices=2)
    half = [device for device in devices if device.coords[1] < 2]
    assert resolve(shuffled(half), None).topology == parse_topology("v5e:2x2*2")
    with pytest.raises(MeshError, match=r"lie in 2 slices, not at the same places in each \(8, 7 of each\); give"):
        resolve(devices[:-1], None)


@NEEDS_LIBTPU
@pytest.mark.parametrize(
    ("topology", "shape", "told"),
    [
        ("v5e:2x2", {"x": 4}, ""),
        ("v5e:2x8", {"x": 8, "y": 2}, "no block of the shape 2x8.*on a block of 4x4"),
        ("v5e:2x4", {"x": 8}, ""),
        ("h100:2x8", {"x": 8, "y": 2}, "no block of the shape 2x8.*on a block of 4x4"),
    ],
)
def test_a_named_topology_takes_a_block_of_its_shape(topology: str, shape: dict[str, int], told: str) -> None:
    target = resolve(shuffled(devices_in("v5e:4x4")), topology)
    mesh = target.jax_mesh(shape)
    assert isinstance(mesh, Mesh)
    assert is_block(places_of(list(mesh.devices.flat)))
    assert len(target.notes_for(shape)) == bool(told)
    assert re.search(told, " ".join(target.notes_for(shape)))


def double(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) * 2


def split_over(shape: dict[str, int]) -> Any:
    mesh = jax.sharding.AbstractMesh(tuple(shape.values()), tuple(shape))
    return jax.jit(double, in_shardings=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(tuple(shape))))


@NEEDS_LIBTPU
@pytest.mark.parametrize(
    ("topology", "options", "shape"),
    [
        ("v5e:4x4", {}, {"a": 8, "b": 2}),
        ("v5e:4x4", {}, {"a": 2, "b": 2}),
        ("v4:2x2x2", {}, {"a": 4, "b": 4}),
        ("v4:2x2x2", {"chip_config_name": "megacore"}, {"a": 8}),
        ("v5e:2x4*2", {}, {"a": 4, "b": 4}),
        ("v5e:2x4*2", {}, {"a": 2, "b": 8}),
        ("v4:2x2x1*2", {}, {"a": 2, "b": 8}),
    ],
)
def test_the_compiler_gets_the_devices_of_the_plan(
    topology: str, options: dict[str, str], shape: dict[str, int]
) -> None:
    arg = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    request = lower_request(split_over(shape), [arg], mesh_shape=shape, topology=topology, topology_options=options)
    laid = devices_of(
        {
            "platform": "tpu",
            "topology": request.topology,
            "topology_options": request.topology_options,
            "mesh_shape": list(shape.values()),
            "places": request.places,
        }
    )
    slices = {"num_slices": 2} if "*" in topology else {}
    mesh = resolve(shuffled(devices_in(request.topology, **options, **slices)), None).jax_mesh(shape)
    assert isinstance(mesh, Mesh)
    assert [device.id for device in laid] == [device.id for device in mesh.devices.flat]


def test_a_mesh_beyond_the_topology_is_refused_before_the_compiler_starts() -> None:
    arg = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    with pytest.raises(ArgumentError, match=r"v5e:2x2: a mesh of 8 needs 8 devices, but there are 4"):
        lower_request(split_over({"a": 8}), [arg], mesh_shape={"a": 8}, topology="v5e:2x2")
    with pytest.raises(ArgumentError, match=r"unknown topology 'v9:4x4'"):
        lower_request(split_over({"a": 8}), [arg], mesh_shape={"a": 8}, topology="v9:4x4")


def test_a_shuffled_list_without_coordinates_changes_nothing() -> None:
    mixed, listed = resolve(shuffled(jax.devices()), None), resolve(jax.devices(), None)
    assert mixed.devices == listed.devices == tuple(jax.devices())
    assert mixed.jax_mesh({"x": 4, "y": 2}) == listed.jax_mesh({"x": 4, "y": 2})


def test_fewer_devices_than_the_topology_has_still_hold_a_mesh_of_as_many() -> None:
    target = Target(topology=parse_topology("cpu:8"), devices=tuple(jax.devices()[:4]))
    mesh = target.jax_mesh({"x": 2, "y": 2})
    assert isinstance(mesh, Mesh)
    assert mesh.size == 4


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return (h**2).sum()

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


ARGS = ([np.ones((1024, 1024), np.float32)] * 2, np.ones((8192, 1024), np.float32))


@NEEDS_LIBTPU
def test_devices_to_compile_for_only_get_a_plan_that_was_compiled_and_not_run() -> None:
    """All meshes are searched, most of which split a physical dim of 4."""
    devices = devices_in("v5e:4x4")
    plan = planner.plan(step, ARGS, devices=devices, options=planner.Options(check="always"))
    assert plan.decision.topology == "v5e:4x4"
    assert isinstance(plan.mesh, Mesh)
    checked = {check.what: check for check in plan.checked}
    assert checked["compiling"].ok is True
    assert checked["numerics"].ok is None
    assert "16 x TPU v5 lite, are there to compile for only" in checked["numerics"].detail
    for use in (plan, plan.place):
        with pytest.raises(MeshError, match=r"cannot (run|place arguments): its devices.*lower and compile plan.jit"):
            use(*ARGS)
    mixed = planner.plan(step, ARGS, devices=shuffled(devices), options=NEVER)
    assert mixed.mesh == plan.mesh
    assert mixed.decision.in_specs == plan.decision.in_specs


@NEEDS_LIBTPU
def test_a_part_of_the_devices_is_compiled_for_where_it_lies() -> None:
    devices = devices_in("v5e:4x4")[8:]
    plan = planner.plan(step, ARGS, devices=devices, mesh={"a": 4, "b": 2}, options=NEVER)
    assert isinstance(plan.mesh, Mesh)
    assert set(plan.mesh.devices.flat) == set(devices)
    found = plan.verify(*ARGS)
    assert found.collectives.by_kind is not None
    assert found.numerics.ok is None


def test_a_topology_of_ones_own_is_not_compiled_for_and_that_is_told() -> None:
    own = Topology.custom(
        name="a ring", shape=(8,), link_bytes_per_s=(45e9,), kind=("torus",), chip=parse_topology("v5e:2x2").chip
    )
    found = planner.plan(step, ARGS, topology=own, mesh={"a": 8}, options=NEVER).verify()
    assert (found.collectives.ok, found.memory.ok) == (None, None)
    assert "the topology a ring is not one that compilers know" in found.collectives.reason
