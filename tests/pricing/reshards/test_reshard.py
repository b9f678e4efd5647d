"""Resharding: prices and steps agree, steps end at the target, and the compiler runs the collectives they name."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from cost_models import Roofline, Topology, objective, parse_topology
from planner.pricing.candidates.specs import Layout, layout_of, to_spec
from planner.pricing.mesh import Mesh, make_mesh
from planner.pricing.reshards.reshard import Patterns, Step, patterns_of, reshard_steps
from planner.pricing.reshards.shares import ALL, COUNTED, SUMMING
from planner.verify.hlo.collectives import read_collectives

MESHES: tuple[Mapping[str, int], ...] = ({"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 4}, {"x": 2, "y": 2, "z": 2})
EXTENT = 16
ITEM_BYTES = 4


def priced(shape: Mapping[str, int]) -> Mesh:
    """A mesh on links that all differ in latency and bandwidth, so that no two sequences of steps cost the same."""
    sizes = tuple(shape.values())
    topology = Topology.custom(
        name="uneven",
        shape=sizes,
        link_bytes_per_s=[1e9 * (1 + 0.37 * i) for i in range(len(sizes))],
        link_latency_s=[1e-6 * (1 + 0.61 * i) for i in range(len(sizes))],
        flops_per_s=1e12,
        hbm_bytes=1e9,
        hbm_bytes_per_s=1e11,
    )
    return make_mesh(shape, topology, Roofline(topology=topology), objective("time", topology.chip))


@st.composite
def reshards(draw: st.DrawFn) -> tuple[Mapping[str, int], int, list[int], list[bool], list[int]]:
    """(mesh, rank, source, partial, target); an axis with partial sums splits no dim of the source."""
    shape = draw(st.sampled_from(MESHES))
    rank = draw(st.integers(1, 3))
    source, partial, target = ([], [], [])
    for _ in shape:
        place = draw(st.integers(-2, rank - 1))  # -2 stands for partial sums
        source.append(max(place, -1))
        partial.append(place == -2)
        target.append(draw(st.integers(-1, rank - 1)))
    return shape, rank, source, partial, target


def reshard_values(mesh: Mesh, *ends: Any, patterns: Patterns, seconds: bool = False, **asked: Any) -> Any:
    """The value of every reshard between specs."""
    found = patterns_of(mesh, *ends, patterns=patterns, **asked)
    return patterns.price(mesh, seconds=seconds, shares=ALL).of(found, asked["whole_bytes"])


@settings(max_examples=300)
@given(reshards(), st.sampled_from((EXTENT, 4)))
def test_prices_are_those_of_the_steps(
    case: tuple[Mapping[str, int], int, list[int], list[bool], list[int]], extent: int
) -> None:
    shape, rank, source, partial, target = case
    mesh = priced(shape)
    whole = float(ITEM_BYTES * extent**rank)
    steps = reshard_steps(mesh, source, partial, target, shape=(extent,) * rank, whole_bytes=whole)
    value = reshard_values(
        mesh,
        np.array([source], np.int8),
        np.array([partial]),
        np.array([target], np.int8),
        shape=(extent,) * rank,
        whole_bytes=whole,
        patterns=Patterns(),
    )
    paid = [s for s in steps if s.kind is not None]
    expected = sum(mesh.fixed[s.kind][s.mask] + mesh.per_byte[s.kind][s.mask] * s.bytes for s in paid if s.kind)
    assert value.shape == (1, 1)
    assert value[0, 0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mebibytes", [1, 16, 17, 4096])
@pytest.mark.parametrize(("topology", "shape"), [("v5e:8x8", (32, 2)), ("v5p:4x4x4", (16, 4)), ("v5e:4x4", (4, 4))])
def test_what_becomes_an_all_reduce_is_priced_as_one(topology: str, shape: tuple[int, int], mebibytes: int) -> None:
    chips = parse_topology(topology)
    mesh = make_mesh(
        dict(zip("xy", shape, strict=True)), chips, Roofline(topology=chips), objective("time", chips.chip)
    )
    rows, whole, patterns = (1024 * mebibytes, 256), float(mebibytes * 2**20), Patterns()
    # Gathered from and scattered onto one dim, over all axes and over one.
    for source, partial, target in (
        ([0, 0], [False, False], [-1, -1]),
        ([-1, -1], [True, True], [0, 0]),
        ([0, -1], [False, False], [-1, -1]),
        ([-1, -1], [True, False], [0, -1]),
    ):
        (step,) = reshard_steps(mesh, source, partial, target, shape=rows, whole_bytes=whole)
        assert step.kind is not None
        arrays = (np.array([source], np.int8), np.array([partial]), np.array([target], np.int8))
        value = reshard_values(mesh, *arrays, shape=rows, whole_bytes=whole, patterns=patterns, seconds=True)
        assert value[0, 0] == pytest.approx(mesh.collective_seconds(step.kind, step.mask, step.bytes), rel=1e-9)
    everything, latency = 3, mesh.fixed_seconds["all-reduce"][3]
    limit = mesh.all_reduced["all-gather"][everything]
    assert (mesh.fixed_seconds["all-gather"][everything] == latency) == (limit == math.inf)
    assert mesh.runs_as("all-gather", everything, whole) == ("all-reduce" if whole <= limit else "all-gather")


def test_the_last_step_is_priced_alone() -> None:
    mesh = priced({"x": 2, "y": 4})
    ends = np.array([[0, 1]], np.int8), np.array([[False, False]]), np.array([[-1, -1], [0, -1]], np.int8)
    patterns, whole = Patterns(), 4.0 * 64 * 64
    found = patterns_of(mesh, *ends, shape=(64, 64), whole_bytes=whole, patterns=patterns)
    last = patterns.price(mesh, seconds=True, shares=ALL, last=True).of(found, whole)
    for target, price in zip(ends[2].tolist(), last[0], strict=True):
        step = reshard_steps(mesh, [0, 1], [False, False], target, shape=(64, 64), whole_bytes=whole)[-1]
        assert step.kind is not None
        assert price == pytest.approx(mesh.collective_seconds(step.kind, step.mask, step.bytes), rel=1e-9)


def test_small_sums_on_gpus_share_a_latency() -> None:
    topology = parse_topology("h100:2x8")
    mesh = make_mesh({"x": 2, "y": 8}, topology, Roofline(topology=topology), objective("time", topology.chip))
    together, limit = 0.1, mesh.combined_bytes
    shares = tuple((together, 1.0, 1.0) if kind in SUMMING else (1.0, 1.0, 1.0) for kind in COUNTED)
    ends = np.array([[-1, -1]], np.int8), np.array([[True, False]]), np.array([[-1, -1]], np.int8)
    patterns, sums = Patterns(), shares[COUNTED.index("all-reduce")]
    latency, each = mesh.fixed["all-reduce"][1], mesh.per_byte["all-reduce"][1]
    for size, share in ((1e3, together), (limit / 2, (1 + together) / 2), (limit, 1.0), (10 * limit, 1.0)):
        found = patterns_of(mesh, *ends, shape=(64,), whole_bytes=size, patterns=patterns)
        price = patterns.price(mesh, seconds=False, shares=shares).of(found, size)[0, 0]
        assert price == pytest.approx(share * latency + size * each, rel=1e-3)
        assert mesh.values("all-reduce", np.array([1]), np.array([size]), sums)[0] == pytest.approx(price, rel=1e-3)


@pytest.mark.parametrize("topology", ["v5e:2x4", "tpu7x:2x2x2", "h100:8"])
def test_sums_that_a_tpu_cannot_scatter_are_whole_first(topology: str) -> None:
    """Scattered onto the middle one of the dims in memory: (groups, rows, experts, columns) as they lie there."""
    chips = parse_topology(topology)
    mesh = make_mesh({"x": 2, "y": 4}, chips, Roofline(topology=chips), objective("time", chips.chip))
    shape, order = (8, 4096, 64, 256), (0, 2, 1, 3)
    made: dict[int, list[str | None]] = {}
    for dim in (1, 2, 3):
        pair = ([0, -1], [False, True], [0, dim])
        whole = 2.0 * math.prod(shape)
        steps = reshard_steps(mesh, *pair, shape=shape, whole_bytes=whole, orders=(order,))
        made[dim] = [step.kind for step in steps]
        value = reshard_values(
            mesh,
            *(np.array([pair[0]], np.int8), np.array([pair[1]]), np.array([pair[2]], np.int8)),
            shape=shape,
            whole_bytes=whole,
            patterns=Patterns(),
            orders=(order,),
            seconds=True,
        )
        paid = [mesh.collective_seconds(s.kind, s.mask, s.bytes) for s in steps if s.kind]
        assert value[0, 0] == pytest.approx(sum(paid), rel=1e-9)
    cut = ["reduce-scatter"]
    assert made[1] == cut
    # 64 columns are no whole tile of 256.
    assert made[2] == (["all-reduce", None] if topology.startswith("v5e") else cut)
    assert made[3] == (["all-reduce", None] if topology.startswith("v5e") else cut)


@settings(max_examples=300)
@given(reshards(), st.sampled_from((EXTENT, 4)))
def test_steps_lead_to_the_target(
    case: tuple[Mapping[str, int], int, list[int], list[bool], list[int]], extent: int
) -> None:
    shape, rank, source, partial, target = case
    steps = reshard_steps(
        priced(shape), source, partial, target, shape=(extent,) * rank, whole_bytes=float(extent**rank)
    )
    wanted = layout_of(target, rank)
    if source == target and not any(partial):
        assert steps == []
    else:
        assert steps[-1].layout == wanted
    before = layout_of(source, rank)
    for step in steps:
        assert _is_one_move(before, step, any(partial) and step is steps[0]), (before, step)
        before = step.layout
    sizes = tuple(shape.values())
    layouts = [layout_of(source, rank), wanted, *(step.layout for step in steps)]
    even = [all(extent % math.prod(sizes[a] for a in dim) == 0 for dim in layout) for layout in layouts]
    assert all(even) or not all(even[:2])


def _is_one_move(before: Layout, step: Step, sums: bool) -> bool:
    """Whether a step changes a layout in a way one collective (or a slice) can: at the minor ends of dims only."""
    moving = {a for a in range(8) if step.mask >> a & 1}
    old = [list(dim) for dim in before]
    new = [list(dim) for dim in step.layout]
    if step.kind == "collective-permute":
        return old != new and [sorted(d) for d in old] == [sorted(d) for d in new]
    if step.kind == "all-reduce":
        return sums and old == new
    arrived = [[a for a in n if a not in o] for o, n in zip(old, new, strict=True)]
    left = [[a for a in o if a not in n] for o, n in zip(old, new, strict=True)]
    tails = all(
        o[: len(o) - len(out)] == n[: len(n) - len(arrive)]
        for o, n, arrive, out in zip(old, new, arrived, left, strict=True)
    )
    came, went = ({a for dim in side for a in dim} for side in (arrived, left))
    allowed = {
        None: (moving, set()),
        "reduce-scatter": (moving, set()),
        "all-gather": (set(), moving),
        "all-to-all": (moving, moving),
    }
    return tails and (came, went) == allowed[step.kind] and (step.kind != "reduce-scatter" or sums)


# ---------------------------------------------------------------- against the compiler


def _sharding(devices: jax.sharding.Mesh, layout: Layout, *more: Any) -> NamedSharding:
    spec = to_spec(layout, devices.axis_names)
    return NamedSharding(devices, PartitionSpec(*spec, *[None] * (len(layout) - len(spec)), *more))


def compiled_and_named(
    shape: Mapping[str, int], rank: int, source: Sequence[int], partial: Sequence[bool], target: Sequence[int]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(kind, bytes, axes) of the collectives that one reshard compiles to, and of its steps as the CPU lowers them."""
    mesh = priced(shape)
    steps = reshard_steps(
        mesh, source, partial, target, shape=(EXTENT,) * rank, whole_bytes=float(ITEM_BYTES * EXTENT**rank)
    )
    sizes = tuple(shape.values())
    devices = jax.sharding.Mesh(
        np.array(jax.devices()[: mesh.num_devices]).reshape(sizes),
        mesh.names,
        axis_types=(AxisType.Auto,) * len(sizes),
    )
    summed = tuple(name for name, p in zip(mesh.names, partial, strict=True) if p)
    start = layout_of(source, rank)
    held = _sharding(devices, start, summed) if summed else _sharding(devices, start)

    def run(x: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(jnp.tanh(x), held)
        y = jnp.sum(x, axis=-1) if summed else x
        for step in steps:
            y = jax.lax.with_sharding_constraint(y, _sharding(devices, step.layout))
        return y

    extents = (EXTENT,) * (rank + bool(summed))
    argument = jax.ShapeDtypeStruct(extents, jnp.float32, sharding=held)
    out = _sharding(devices, layout_of(target, rank))
    text = jax.jit(run, out_shardings=out).trace(argument).lower().compile().as_text()
    read = read_collectives(text or "", num_devices=mesh.num_devices)
    found = [(c.kind, float(c.bytes), c.axes(shape)) for c in read]
    named = [
        ("all-reduce" if s.kind == "reduce-scatter" else s.kind, s.bytes, mesh.axes(s.mask)) for s in steps if s.kind
    ]
    return sorted(found), sorted(named)


def sample(
    count: int, seed: int
) -> list[tuple[Mapping[str, int], int, tuple[int, ...], tuple[bool, ...], tuple[int, ...]]]:
    """Reshards drawn with a fixed seed."""
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        shape, rank = rng.choice(MESHES), rng.choice((1, 2, 2, 3))
        places = [rng.randrange(-2, rank) for _ in shape]
        target = tuple(rng.randrange(-1, rank) for _ in shape)
        cases.append((shape, rank, tuple(max(p, -1) for p in places), tuple(p == -2 for p in places), target))
    return cases


REGRESSIONS = (
    # A sliced axis can only stand minor to one that a reduce-scatter put on the dim before.
    ({"x": 2, "y": 4}, 2, (-1, -1), (False, True), (0, 0)),
    ({"x": 2, "y": 2, "z": 2}, 2, (-1, 0, -1), (False, False, True), (1, 0, 1)),
    # Two axes that change places.
    ({"x": 4, "y": 2}, 2, (0, 1), (False, False), (1, 0)),
    ({"x": 2, "y": 2, "z": 2}, 2, (0, 1, 0), (False, False, False), (0, 0, 1)),
    # Two axes of a dim that change places, beside one that keeps its own.
    ({"x": 2, "y": 2, "z": 2}, 2, (0, 0, 0), (False, False, False), (0, -1, 0)),
    # Two axes that leave one dim for different ones, and one that meets another on its way.
    ({"x": 2, "y": 2, "z": 2}, 3, (1, 2, 1), (False, False, False), (0, -1, 2)),
    ({"x": 2, "y": 2, "z": 2}, 3, (0, 1, 2), (False, False, False), (1, 2, 0)),
)


@pytest.mark.parametrize("case", [*REGRESSIONS, *sample(24, seed=1)], ids=str)
def test_the_compiler_runs_the_steps(case: Any) -> None:
    found, named = compiled_and_named(*case)
    assert found == named


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 10))
def test_the_compiler_runs_the_steps_of_many(seed: int) -> None:
    for case in sample(60, seed=seed):
        found, named = compiled_and_named(*case)
        assert [collective[:2] for collective in found] == [collective[:2] for collective in named], case
