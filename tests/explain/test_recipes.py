"""Recipes: the usual placements are those that they are said to be, and the plan is no worse than any that fits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.explain.recipe import Recipe
from tests.small import NEVER, mlp, mlp_args, shapes, train_args, train_step

FIXED = planner.Options(check="never", microbatches=1, remat="as written")
NAMES = ["data parallel", "FSDP", "FSDP + tensor parallel", "one device"]
WIDTH = 1024


def recipes_of(width: int, batch: int, topology: str, **more: object) -> tuple[planner.Plan, dict[str, Recipe]]:
    p = planner.plan(
        train_step, shapes(train_args(width, batch)), topology=topology, donate_argnums=0, options=FIXED, **more
    )
    return p, {one.name: one for one in p.alternatives.recipes.others}


@pytest.fixture(scope="module")
def priced() -> tuple[planner.Plan, dict[str, Recipe]]:
    return recipes_of(WIDTH, 4096, "cpu:8")


def test_arguments_are_stored_as_the_recipes_say(priced: tuple[planner.Plan, dict[str, Recipe]]) -> None:
    _, found = priced
    assert list(found) == NAMES
    large, small, x = 3 * 2 * WIDTH**2 * 4, 3 * WIDTH * 4, 4096 * WIDTH * 4
    stored = {name: one.predicted.argument_bytes for name, one in found.items() if one.predicted is not None}
    assert stored["data parallel"] == pytest.approx(large + small + x / 8)
    assert stored["FSDP"] == pytest.approx(large / 8 + small + x / 8)
    assert stored["one device"] == pytest.approx(large + small + x)
    both = found["FSDP + tensor parallel"].mesh
    assert stored["FSDP + tensor parallel"] <= large / both["data"] + small + x / both["data"]


def test_one_device_computes_everything_and_the_others_split_it(priced: tuple[planner.Plan, dict[str, Recipe]]) -> None:
    _, found = priced
    one = found["one device"].predicted
    assert one is not None
    assert not one.collectives
    for name in NAMES[:3]:
        other = found[name].predicted
        assert other is not None
        assert other.flops == pytest.approx(one.flops / 8, rel=0.1)
        assert other.collectives


@settings(max_examples=4, deadline=None)
@given(width=st.sampled_from((64, 256, 1024)), batch=st.sampled_from((8, 48, 1024)), chips=st.sampled_from((4, 8)))
def test_no_recipe_that_fits_is_better_than_a_proven_plan(width: int, batch: int, chips: int) -> None:
    p, found = recipes_of(width, batch, f"v5e:2x{chips // 2}")
    for one in found.values():
        assert one.why
        assert one.predicted is None or one.predicted.seconds >= p.predicted.seconds * 0.995


def test_what_does_not_fit_says_what_it_needs() -> None:
    _, found = recipes_of(2048, 64, "v5e:2x4", memory_limit=40e6)
    one = found["data parallel"]
    assert not one.fits
    assert one.verdict == "does not fit"
    assert "the limit is 40 MB" in one.why


def test_a_batch_that_does_not_divide_is_told() -> None:
    _, found = recipes_of(64, 12, "cpu:8")
    assert found["data parallel"].predicted is None
    assert found["data parallel"].why == "the 12 examples of x do not split over 8 devices"
    assert found["FSDP + tensor parallel"].mesh["data"] in (2, 4)


def test_a_program_without_examples_has_no_data_parallelism() -> None:
    p = planner.plan(jnp.linalg.det, (jax.ShapeDtypeStruct((64, 64), jnp.float32),), topology="cpu:4", options=NEVER)
    found = {one.name: one for one in p.alternatives.recipes.others}
    assert found["data parallel"].verdict == "not possible"
    assert "counts examples" in found["FSDP"].why
    assert found["one device"].fits


def test_examples_of_a_program_without_a_state_are_those_of_its_batch() -> None:
    p = planner.plan(mlp, shapes(mlp_args()), topology="cpu:8", options=NEVER)
    one = p.alternatives.recipes.others[0]
    assert one.predicted is not None
    assert one.predicted.flops == pytest.approx(p.alternatives.recipes.others[-1].predicted.flops / 8, rel=0.01)


def test_the_explanation_of_a_plan_prints_them_and_that_of_a_name_does_not(
    priced: tuple[planner.Plan, dict[str, Recipe]],
) -> None:
    p, _ = priced
    text = str(p.explain())
    assert "usual recipes" in text
    for name in ("this plan", *NAMES):
        assert name in text
    assert "usual recipes" not in str(p.explain("x"))


def test_a_program_that_names_its_own_mesh_has_none() -> None:
    automatic = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((4, 2), ("a", "b"), axis_types=automatic)

    def fn(x: jax.Array) -> jax.Array:
        return jax.shard_map(jnp.sin, mesh=mesh, in_specs=jax.P("a"), out_specs=jax.P("a"))(x)

    p = planner.plan(fn, (jax.ShapeDtypeStruct((8, 8), jnp.float32),), topology="cpu:8", options=NEVER)
    assert p.alternatives.recipes.others == ()
    assert "usual recipes" not in str(p.explain())
