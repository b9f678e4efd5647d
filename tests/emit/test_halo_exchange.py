"""Ops that slide a window over split space compute what one device computes, whatever is split, and at the price told.

XLA's own partitioner computes some of these wrongly (kernel gradients of split space were multiplied by the size of the
other axes of the mesh), so every strategy that the planner can choose is held against the whole op here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.decisions.groups import group_ops
from planner.emit.halo_exchange import exchanges
from planner.pricing.candidates.specs import spec_of
from planner.pricing.candidates.strategies import group_strategies
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.rewrite import constrained
from planner.program.tracing.trace import trace
from planner.rules.primitives import slides_of, traits
from planner.rules.sliding import Slide, hops
from planner.verify.aot import unavailable_reason
from tests.rules import halo_cases

NEVER = planner.Options(check="never")
MESHES = ((8,), (4, 2), (2, 4), (2, 2, 2))
PROGRAMS = [
    (f"{case.name}, {what}", *program) for case in halo_cases.CASES for what, program in case.programs().items()
]
WHOLE = {
    "conv 2d as large as the image, by image",
    "conv 2d as large as the image, by kernel",
    "conv 2d valid, forward",
    "conv 2d valid, by image",
    "conv 2d valid, by kernel",
}
"""Programs whose parts would differ in what they see, or that slide nothing."""


# ---------------------------------------------------------------- geometry


def _slides() -> Iterator[tuple[Slide, tuple[int, int]]]:
    """Slides of one dim that can be split by their results, of all small extents; and their padding."""
    for image, window, stride, dilation, spread in itertools.product((4, 6, 8), (1, 2, 3), (1, 2, 3), (1, 2), (1, 2)):
        for low, high in itertools.product((-1, 0, 2), (-1, 0, 1, 3)):
            length = (image - 1) * dilation + 1 + low + high
            result = (length - (window - 1) * spread - 1) // stride + 1
            if length >= (window - 1) * spread + 1 and result * stride == image * dilation:
                yield (
                    Slide(
                        image_dim=0,
                        window_dim=0,
                        result_dim=0,
                        image=image,
                        window=window,
                        result=result,
                        stride=stride,
                        image_dilation=dilation,
                        window_dilation=spread,
                        low=low,
                        split="result",
                    ),
                    (low, high),
                )


def test_a_part_with_its_halo_sees_what_the_whole_sees() -> None:
    found = 0
    for slide, padding in _slides():
        rng = np.random.default_rng(0)
        image, kernel = rng.standard_normal(slide.image), rng.standard_normal(slide.window)
        whole = _slid(image, kernel, slide, padding)
        for parts in (n for n in range(2, slide.count + 1) if slide.count % n == 0):
            reach, size = slide.reach(parts), slide.image // parts
            padded = np.pad(image, (reach.left, reach.right))
            pieces = [padded[k * size : (k + 1) * size + reach.left + reach.right] for k in range(parts)]
            joined = [_slid(piece, kernel, slide, (reach.low, reach.high)) for piece in pieces]
            np.testing.assert_allclose(np.concatenate(joined), whole, atol=1e-12)
            found += 1
    assert found > 50


def _slid(image: Any, kernel: Any, slide: Slide, padding: tuple[int, int]) -> Any:
    """A convolution of one dim, element by element."""
    low, high = padding
    length = (len(image) - 1) * slide.image_dilation + 1 + low + high
    stops = (length - (len(kernel) - 1) * slide.window_dilation - 1) // slide.stride + 1
    result = np.zeros(stops)
    for o, w in itertools.product(range(stops), range(len(kernel))):
        place, rest = divmod(o * slide.stride + w * slide.window_dilation - low, slide.image_dilation)
        if not rest and 0 <= place < len(image):
            result[o] += image[place] * kernel[w]
    return result


def test_hops_make_up_a_halo() -> None:
    assert hops(0, 4, 8) == []
    assert hops(3, 4, 8) == [3]
    assert hops(9, 4, 8) == [4, 4, 1]
    assert hops(9, 4, 2) == [4], "there is nobody further away"


# ---------------------------------------------------------------- every strategy


@pytest.mark.parametrize(("name", "fn", "args"), PROGRAMS, ids=[name for name, *_ in PROGRAMS])
def test_a_split_op_computes_what_the_whole_one_does(name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    tried = sum(_hold(fn, args, mesh, most=2) for mesh in MESHES[1::2])
    assert bool(tried) == (name not in WHOLE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(("name", "fn", "args"), PROGRAMS, ids=[name for name, *_ in PROGRAMS])
def test_all_strategies(name: str, fn: Callable[..., Any], args: tuple[Any, ...], mesh: tuple[int, ...]) -> None:
    del name
    _hold(fn, args, mesh, most=400)


def _hold(fn: Callable[..., Any], args: tuple[Any, ...], shape: tuple[int, ...], *, most: int) -> int:
    """Holds at most so many strategies of a program of one sliding op against one device; how many exchange."""
    program = trace(fn, args)
    graph = build_graph(program)
    grouping = group_ops(graph)
    names = ("x", "y", "z")[: len(shape)]
    mesh = Mesh(np.array(jax.devices()).reshape(shape), names, axis_types=(AxisType.Auto,) * len(shape))
    (op,) = (op for op in graph.ops if traits(op.kind).slides is not None)
    group, placement = grouping.groups[grouping.group_of[op.id]], grouping.placements[op.id]
    strategies = group_strategies(grouping, group, shape, np.ones(max(1, len(group.sizes))))
    image = 1 if op.kind == "select_and_scatter_add" else 0
    moving = {slide.image_dim for slide in slides_of(graph, op)}
    where = strategies.locations(placement.operands[image])
    splitting = np.flatnonzero(np.isin(where, list(moving)).any(axis=1))
    if len(splitting) > most:
        splitting = np.random.default_rng(len(splitting)).choice(splitting, most, replace=False)
    expected = np.asarray(jax.jit(fn)(*args))
    runs: list[Callable[..., list[Any]]] = []
    for i in splitting.tolist():
        constraints: dict[Any, tuple[P, ...]] = {}
        for what, tensors, dims in (
            ("operand", op.operands, placement.operands),
            ("result", op.results, placement.results),
        ):
            for n, (tensor, mine) in enumerate(zip(tensors, dims, strict=True)):
                rank = len(graph.tensors[tensor].aval.shape)
                constraints[what, op.path, n] = (spec_of(strategies.locations(mine)[i], rank, names),)
        replacements = exchanges(graph, constraints, mesh)
        assert set(replacements) == {op.path}

        def edits(slot: Any, constraints: dict[Any, tuple[P, ...]] = constraints) -> list[NamedSharding]:
            return [NamedSharding(mesh, spec) for spec in constraints.get(slot, ())]

        runs.append(constrained(program, edits, replacements))
    for start in range(0, len(runs), 16):  # one compilation for several
        some = runs[start : start + 16]
        results = jax.jit(lambda *leaves, some=some: [run(*leaves)[0] for run in some])(*args)
        for result, i in zip(results, splitting[start : start + 16].tolist(), strict=True):
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(
                np.asarray(result) / scale, expected / scale, atol=2e-5, err_msg=str(strategies.assignment[i])
            )
    return len(splitting)


# ---------------------------------------------------------------- plans


def _free(devices: int) -> planner.Topology:
    """Wires and memory that cost little, slow devices."""
    axes = round(math.log2(devices))
    return planner.Topology.custom(
        name="slow devices",
        shape=(2,) * axes,
        link_bytes_per_s=(1e9,) * axes,
        flops_per_s=1e9,
        hbm_bytes=1e9,
        hbm_bytes_per_s=1e11,
    )


def _images(size: int) -> Any:
    return halo_cases.normal(7, (2, size, size, 3))


def _splits(spec: P, dim: int) -> bool:
    return len(spec) > dim and spec[dim] is not None


@pytest.mark.parametrize("pins", [None, {"x": P("data", "space"), "y": P("data", "space")}], ids=["free", "pinned"])
def test_a_unet_of_few_images_trains_right_split_in_space(pins: dict[str, P] | None) -> None:
    """Two images on eight devices: there is no way to use them all by images alone."""
    step, parameters, x = halo_cases.train_step(), halo_cases.unet_parameters(4), _images(32)
    plan = planner.plan(
        step,
        (parameters, x, -x),
        devices=jax.devices(),
        topology=_free(8),
        mesh={"data": 2, "space": 4},
        pins=pins,
        options=NEVER,
    )
    assert _splits(plan.in_specs[1], 1) or _splits(plan.in_specs[1], 2)
    assert "collective-permute" in {c.kind for c in plan.predicted.collectives}
    found = plan.verify(parameters, x, -x)
    assert found.as_promised, str(found)
    planned = expected = parameters
    alone = jax.jit(step)
    for _ in range(4):
        planned, loss = plan(planned, x, -x)
        expected, reference = alone(expected, x, -x)
        np.testing.assert_allclose(loss, reference, rtol=1e-4)
    for name in parameters:
        np.testing.assert_allclose(planned[name], expected[name], rtol=1e-2, atol=1e-4)


@pytest.mark.sample
def test_a_mesh_that_splits_space_is_chosen_where_it_pays() -> None:
    step, parameters, x = halo_cases.train_step(), halo_cases.unet_parameters(4), _images(32)
    plan = planner.plan(step, (parameters, x, -x), devices=jax.devices(), topology=_free(8), options=NEVER)
    assert math.prod(plan.mesh.shape.values()) == 8
    assert _splits(plan.in_specs[1], 1) or _splits(plan.in_specs[1], 2)
    data = planner.plan(
        step,
        (parameters, x, -x),
        devices=jax.devices(),
        topology=_free(8),
        mesh={"data": 2},
        pins={"x": P("data")},
        options=NEVER,
    )
    assert plan.predicted.seconds < data.predicted.seconds / 2
    assert plan.verify(parameters, x, -x).as_promised


def test_halos_are_predicted_byte_by_byte() -> None:
    """A window of 5: two rows of each neighbour, of the image in the forward pass and of the gradient in the backward."""

    def fn(x: Any, kernel: Any) -> Any:
        return jax.value_and_grad(
            lambda k: jnp.sin(
                jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            ).sum()
        )(kernel)

    x, kernel = np.ones((1, 64, 32, 4), np.float32), np.ones((5, 5, 4, 4), np.float32)
    plan = planner.plan(
        fn,
        (x, kernel),
        devices=jax.devices(),
        topology=_free(8),
        mesh={"a": 4, "b": 2},
        pins={"x": P(None, "a", "b"), "kernel": P(), "out/1": P()},
        options=NEVER,
    )
    found = plan.verify(x, kernel)
    assert found.as_promised, str(found)
    assert found.collectives.by_kind is not None
    rows, columns = 2 * 16 * 4 * 4, 2 * (16 + 4) * 4 * 4
    assert found.collectives.by_kind["collective-permute", ("a",)] == (2 * rows, 2 * rows)
    assert found.collectives.by_kind["collective-permute", ("b",)] == (2 * columns, 2 * columns)


@pytest.mark.sample
def test_a_planned_function_that_exchanges_can_be_differentiated() -> None:
    forward, parameters, x = halo_cases.unet(), halo_cases.unet_parameters(4), _images(16)
    plan = planner.plan(
        lambda p, x: (forward(p, x) ** 2).mean(),
        (parameters, x),
        devices=jax.devices(),
        topology=_free(8),
        mesh={"data": 2, "space": 4},
        pins={"x": P("data", "space")},
        options=NEVER,
    )
    assert "collective-permute" in {c.kind for c in plan.predicted.collectives}
    gradient = jax.grad(lambda p: plan.jit(p, x))(parameters)
    expected = jax.grad(lambda p: (forward(p, x) ** 2).mean())(parameters)
    for name in parameters:
        np.testing.assert_allclose(gradient[name], expected[name], rtol=1e-3, atol=1e-5)


def test_a_saved_plan_exchanges_as_it_did(tmp_path: Path) -> None:
    forward, parameters, x = halo_cases.unet(), halo_cases.unet_parameters(4), _images(16)
    plan = planner.plan(
        forward,
        (parameters, x),
        devices=jax.devices(),
        topology=_free(8),
        mesh={"data": 2, "space": 4},
        pins={"x": P("data", "space")},
        options=NEVER,
    )
    plan.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json").bind(forward)
    assert again.verify(parameters, x).as_promised
    assert "collective-permute" in {c.kind for c in again.verify().collectives.compiled}


def test_the_body_of_a_loop_exchanges_in_every_trip() -> None:
    def fn(x: Any, kernels: Any) -> Any:
        def layer(x: Any, kernel: Any) -> Any:
            y = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return jnp.tanh(y), None

        return jax.grad(lambda k: jax.lax.scan(jax.checkpoint(layer), x, k)[0].sum())(kernels)  # pyright: ignore

    x, kernels = _images(32), np.full((3, 3, 3, 3, 3), 0.1, np.float32)
    plan = planner.plan(
        fn,
        (x, kernels),
        devices=jax.devices(),
        topology=_free(8),
        mesh={"data": 2, "space": 4},
        pins={"x": P("data", "space")},
        options=NEVER,
    )
    assert 3 in {c.count for c in plan.predicted.collectives if c.kind == "collective-permute"}
    found = plan.verify(x, kernels)
    assert found.as_promised, str(found)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_the_tpu_compiler_takes_exchanges() -> None:
    step, parameters = halo_cases.train_step(), halo_cases.unet_parameters(32)
    images = jax.ShapeDtypeStruct((2, 512, 512, 3), np.float32)
    plan = planner.plan(
        step,
        (jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), parameters), images, images),
        topology="v5e:2x2",
        mesh={"data": 2, "space": 2},
        options=NEVER,
    )
    assert plan.in_specs[1] in (P("data", "space"), P("space", "data"), P(None, ("data", "space")))
    found = plan.verify().collectives
    assert found.by_kind is not None, found.reason
    ((_, (promised, compiled)),) = (item for item in found.by_kind.items() if item[0][0] == "collective-permute")
    assert promised == pytest.approx(compiled, rel=0.1)
