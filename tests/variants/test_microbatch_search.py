"""How many microbatches are taken is found without planning the program in every number of them."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from benchmarks.problems import least_time
from pbqp.deadline import Deadline
from planner.machine.target import resolve
from planner.options import Options
from planner.program.tracing.trace import trace
from planner.search.mesh_search import search as mesh_search
from planner.search.problem import PlanningProblem, planning_problem
from planner.transforms.remat_choice import can_wait
from planner.variants.host_memory import with_host_memory
from planner.variants.lower_bounds import Floors
from planner.variants.microbatch_search import Counts
from planner.variants.problem_variants import problem_variants
from planner.variants.variant_result import FormBounds, VariantResult, VariantSearch, value_of

UNCHECKED = Options(check="never")


def _attention(batch: int) -> tuple[Any, Any]:
    """A train step of layers of attention, whose scores are far larger than all else, and arguments that are shapes."""

    @jax.checkpoint
    def layer(x: jax.Array, params: Any) -> tuple[jax.Array, None]:
        query, key, value = (jnp.einsum("bsm,mhd->bshd", x, params[name]) for name in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), value)
        return x + jnp.einsum("bshd,mhd->bsm", mixed, params["o"]), None

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(layer, x, params)[0].astype(jnp.float32) ** 2)

    params = {name: jax.ShapeDtypeStruct((4, 1024, 16, 64), jnp.bfloat16) for name in "qkvo"}
    return jax.value_and_grad(loss), (params, jax.ShapeDtypeStruct((batch, 1024, 1024), jnp.bfloat16))


def test_parts_of_which_more_stays_on_the_chips_are_taken_though_memory_is_not_short() -> None:
    fn, args = _attention(batch=64)
    chosen = planner.plan(fn, args, topology="v5e:2x2", options=UNCHECKED)
    whole = planner.plan(fn, args, topology="v5e:2x2", options=replace(UNCHECKED, microbatches=1))
    assert whole.predicted.peak_bytes < 0.6 * 16e9
    assert chosen.decision.form.microbatches > 1
    assert chosen.predicted.seconds < 0.9 * whole.predicted.seconds
    # Where the scores fit already, or no chip holds them, parts gain nothing.
    small, args = _attention(batch=4)
    assert planner.plan(small, args, topology="v5e:2x2", options=UNCHECKED).decision.form.microbatches == 1
    fn, args = _attention(batch=64)
    assert planner.plan(fn, args, topology="h100:4", options=UNCHECKED).decision.form.microbatches == 1


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of microbatches of the forms that are searched, one after the other."""
    found: list[int] = []
    search = VariantSearch.search

    def noted(self: VariantSearch, problem: PlanningProblem, **asked: Any) -> VariantResult | None:
        found.append(problem.program.form.microbatches)
        return search(self, problem, **asked)

    monkeypatch.setattr(VariantSearch, "search", noted)
    return found


def test_where_parts_beat_what_the_whole_batch_takes_at_the_least_it_is_not_planned(tried: list[int]) -> None:
    fn, args = _attention(batch=64)
    plan = planner.plan(fn, args, topology="v5e:2x2", options=UNCHECKED)
    assert 1 not in tried
    assert plan.decision.form.microbatches in tried
    assert any("no plan of the whole batch at once takes less than" in note for note in plan.notes)
    whole = planner.plan(fn, args, topology="v5e:2x2", options=replace(UNCHECKED, microbatches=1))
    assert whole.predicted.seconds > plan.predicted.seconds


def test_as_many_parts_are_taken_as_let_large_arrays_stay_on_the_chips() -> None:
    fn, args = _attention(batch=256)
    plan = planner.plan(fn, args, topology="v5e:2x2", options=UNCHECKED)
    assert plan.decision.form.microbatches == 64
    whole = planner.plan(fn, args, topology="v5e:2x2", options=replace(UNCHECKED, microbatches=1))
    assert plan.predicted.seconds < 0.5 * whole.predicted.seconds


def test_where_neither_memory_nor_the_room_on_the_chips_is_short_no_parts_are_tried(tried: list[int]) -> None:
    fn, args = _attention(batch=4)
    planner.plan(fn, args, topology="v5e:2x2", options=UNCHECKED)
    assert set(tried) == {1}


def test_no_plan_takes_less_than_the_floor_of_its_parts() -> None:
    fn, args = _attention(batch=64)
    target = resolve(None, "v5e:2x2")
    problem = planning_problem(program=trace(fn, args), target=target, request=least_time(target.topology, 16e9))
    floors = Floors(problem, {"x": 1}, 4, 0.0)
    values = [floors.of(parts) for parts in (1, 2, 4, 8, 16, 32)]
    assert values == sorted(values, reverse=True)
    assert floors.least_parts([2, 4, 8, 16, 32], 0, 4) == 3
    for parts in (1, 4, 16):
        options = replace(UNCHECKED, microbatches=parts, remat="as written")
        assert planner.plan(fn, args, topology="v5e:2x2", options=options).predicted.seconds >= floors.of(parts)


def test_a_form_that_has_nothing_better_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[object] = []

    def search(meshes: Any, problem: PlanningProblem, how: Any) -> Any:
        searched.append(problem.program.form)
        return mesh_search(meshes, problem, how)

    monkeypatch.setattr("planner.variants.variant_result.search", search)
    fn, args = _attention(batch=64)
    target = resolve(None, "v5e:2x2")
    request = least_time(target.topology, 16e9)
    variants = problem_variants(program=trace(fn, args), target=target, request=request)
    bounds = FormBounds()

    def forms() -> VariantSearch:
        deadline = Deadline.after(60.0)
        return VariantSearch(
            variants=variants, meshes=[{"x": 4}], options=UNCHECKED, pinned={}, deadline=deadline, bounds=bounds
        )

    best = forms().search(variants.base, below=math.inf)
    assert best is not None
    assert len(searched) == 1
    # Nothing is far below the best of a form, whichever search has found that.
    assert forms().search(variants.base, below=0.5 * value_of(best)) is None
    assert len(searched) == 1
    # Of a form that does not fit it is known that memory was too short for it.
    whole = variants.base.with_objective("time", 1e6)
    bounds.free.clear()
    for _ in range(2):
        again = forms()
        assert again.search(whole, below=math.inf) is None
        assert again.short
    assert len(searched) == 2


def test_nothing_is_made_of_numbers_of_microbatches_that_take_more_than_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fn, args = _attention(batch=64)
    target = resolve(None, "v5e:2x2")
    request = least_time(target.topology, 0.2e9)
    variants = problem_variants(program=trace(fn, args), target=target, request=request).without_checkpoints()
    assert variants is not None
    floor = Floors(variants.base, {"x": 4}, 4, spared=0.0).of(1)
    search = VariantSearch(
        variants=variants,
        meshes=[{"x": 4}],
        options=UNCHECKED,
        pinned={},
        deadline=Deadline.after(60.0),
        bounds=FormBounds(below=0.99 * floor, parts=1),
        short=True,
    )
    counts = Counts(search, None)
    assert counts.may_be_below(1, 1.01 * floor) is False
    assert Counts(replace(search, bounds=FormBounds()), None).may_be_below(1, 1.01 * floor)
    assert any(can_wait(of, value) for of in variants.forms.crossings(variants.base_form) for value in of.values)
    tried: list[int] = []
    monkeypatch.setattr("planner.variants.host_memory._in_parts", lambda _, count, best: tried.append(count))
    assert with_host_memory(search, None, counts) is None
    assert not tried


def test_where_many_parts_gain_nothing_fewer_are_tried_until_fewer_are_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every part reads the weights once more, so what gains less on the chips may be better.
    tried: list[int] = []

    def of(_: Counts, count: int, *, below: float) -> Any:
        tried.append(count)
        return SimpleNamespace(slower=0.0, parts=count) if count == 4 and below > 0 else None

    monkeypatch.setattr(Counts, "_of_microbatches", of)
    monkeypatch.setattr(Counts, "_cutoff", lambda *_: 1.0)
    counts = Counts(SimpleNamespace(over=False, late=False), None)  # pyright: ignore[reportArgumentType]
    vars(counts)["possible"] = [2, 4, 8, 16, 32, 64, 128]
    best = SimpleNamespace(slower=0.0, parts=1)
    found: Any = counts._best_count(3, best, misses=2)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    assert found.parts == 4
    assert tried == [16, 64, 8, 4, 2, 32]
