"""Which values are saved for the backward pass is chosen with the placement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planner
from benchmarks.models import llama
from planner.decision import Certificate
from planner.errors import ArgumentError, InfeasibleError, PinError
from planner.options import Options
from planner.search.problem import PlanningProblem
from planner.variants import lower_bounds
from tests.transforms.loops import PROGRAMS, arguments

MESH = {"x": 2, "y": 2}
UNCHECKED = Options(check="never")


def _wide(layers: int = 4, width: int = 4096, batch: int = 8192, *, remat: bool) -> tuple[Any, Any]:
    """A train step of wide layers, and arguments that are shapes only."""

    def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def loss(params: Any, x: jax.Array) -> jax.Array:
        step = jax.checkpoint(block) if remat else block
        return jnp.mean(jax.lax.scan(step, x, params)[0] ** 2)

    def array(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {"up": array(layers, width, 4 * width), "down": array(layers, 4 * width, width)}
    return jax.value_and_grad(loss), (params, array(batch, width))


@pytest.mark.parametrize("how", ["as written", "none", "full", "auto"])
def test_every_choice_computes_the_same(how: Any) -> None:
    fn, args = PROGRAMS["checkpointed"](), arguments()
    plan = planner.plan(fn, args, devices=jax.devices()[:4], mesh=MESH, options=Options(remat=how))
    for here, there in zip(jax.tree.leaves(plan(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-6)
    assert bool(plan.decision.form.saved) == (how not in ("as written",)) or how == "auto"
    assert plan.verify(*args).ok


def test_a_checkpoint_that_memory_does_not_ask_for_is_lifted() -> None:
    fn, args = _wide(remat=True)
    written = planner.plan(fn, args, topology="v5e:2x2", options=Options(check="never", remat="as written"))
    chosen = planner.plan(fn, args, topology="v5e:2x2", options=UNCHECKED)
    assert chosen.decision.form.without_checkpoints
    assert chosen.predicted.seconds < 0.95 * written.predicted.seconds
    assert chosen.predicted.flops < 0.9 * written.predicted.flops
    assert any(note.startswith("recomputation:") for note in chosen.notes)


def test_what_does_not_fit_is_computed_again() -> None:
    fn, args = _wide(layers=16, width=256, batch=4096, remat=False)
    written = planner.plan(fn, args, topology="v5e:2x2", options=Options(check="never", remat="as written"))
    least = planner.plan(
        fn, args, topology="v5e:2x2", objective="memory", options=Options(check="never", remat="as written")
    )
    limit = 0.8 * least.predicted.peak_bytes
    as_written = Options(check="never", remat="as written", microbatches=1)
    with pytest.raises(InfeasibleError):
        planner.plan(fn, args, topology="v5e:2x2", memory_limit=limit, options=as_written)
    fits = planner.plan(fn, args, topology="v5e:2x2", memory_limit=limit, options=UNCHECKED)
    assert fits.predicted.peak_bytes <= limit
    assert fits.predicted.flops > written.predicted.flops


def test_what_is_saved_fills_the_room_that_is_left() -> None:
    def block(x: jax.Array, weights: jax.Array) -> tuple[jax.Array, None]:
        for n in range(5):
            x = jax.nn.gelu(x @ weights[n])
        return x, None

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(jax.checkpoint(block), x, weights)[0] ** 2)

    args = (jax.ShapeDtypeStruct((4, 5, 4096, 4096), jnp.float32), jax.ShapeDtypeStruct((16384, 4096), jnp.float32))

    def planned(limit: float | None) -> planner.Plan:
        options = Options(check="never", microbatches=1)
        return planner.plan(
            jax.value_and_grad(loss), args, topology="v5e:2x2", mesh={"x": 4}, memory_limit=limit, options=options
        )

    # Of five matmuls all can be saved, or half of the bytes: two. Here is room for three.
    again = (planned(2.6e9).predicted.flops - planned(None).predicted.flops) / (2 * 4 * 16384 * 4096**2 / 4)
    assert again == pytest.approx(2, abs=0.1)


def test_a_program_that_fits_without_checkpoints_computes_no_more_than_passes_again() -> None:
    fn, args = _wide(remat=False)
    written = planner.plan(fn, args, topology="v5e:2x2", options=Options(check="never", remat="as written"))
    plan = planner.plan(fn, args, topology="v5e:2x2", options=UNCHECKED)
    assert plan.predicted.seconds <= written.predicted.seconds
    assert plan.predicted.flops < 1.001 * written.predicted.flops


def test_the_choice_is_saved_and_bound_again(tmp_path: Path) -> None:
    fn, args = PROGRAMS["written_out_checkpointed"](), arguments()
    plan = planner.plan(fn, args, devices=jax.devices()[:4], mesh=MESH, options=Options(remat="none"))
    plan.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json").bind(fn, devices=jax.devices()[:4])
    assert again.decision.form == plan.decision.form
    assert plan.decision.form.saved
    for here, there in zip(jax.tree.leaves(again(*args)), jax.tree.leaves(fn(*args)), strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-6)


def test_unknown_words_are_refused() -> None:
    with pytest.raises(ArgumentError, match="as written"):
        Options(remat="some")  # pyright: ignore[reportArgumentType]


def _planned(how: Any, **more: Any) -> planner.Plan:
    fn, args = _wide(remat=True)
    return planner.plan(fn, args, topology="v5e:2x2", options=Options(check="never", remat=how), **more)


def test_what_is_saved_is_told_by_name_with_the_other_choice() -> None:
    plan = _planned("auto")
    told = plan.explain("*.py:* dot_general")
    (matmul,) = told.saved
    assert matmul.saved
    assert matmul.bytes == 4 * 8192 * 16384 * 4 / 4
    assert matmul.flops == 4 * 2 * 8192 * 4096 * 16384 / 4
    assert (matmul.other_bytes, matmul.other_flops) == (-matmul.bytes, matmul.flops)
    assert 0 < (matmul.other_seconds or 0) < matmul.seconds
    assert "saved; 537 MB to save" in str(told)
    assert "computed again instead: 537 MB less saved" in str(told)
    # The other choice is what it costs as written.
    (written,) = _planned("as written").explain(f"folder/{matmul.name}").saved
    assert not written.saved
    assert written.other_seconds == pytest.approx(-(matmul.other_seconds or 0))
    (carry,) = plan.explain("carry").saved
    assert carry.saved
    assert carry.other_bytes is None
    assert "cannot be computed again" in str(carry)
    assert not plan.explain().saved


def test_names_are_saved_or_computed_again_as_asked() -> None:
    name = next(value.name for value in _planned("auto").explain("*dot_general").saved)
    again = _planned({name: "recompute"})
    assert not again.explain(name).saved[0].saved
    gelu = {"* tanh": "save", "* dot_general": "save"}
    assert all(value.saved for pattern in gelu for value in _planned(gelu).explain(pattern).saved)
    # The later pattern wins, and what cannot be is left to the planner: a carry is never computed again.
    found = _planned({"*": "recompute", "* dot_general": "save"}).explain("*")
    assert {value.name.split()[-1] for value in found.saved if value.saved} == {"dot_general", "carry"}


def test_names_hold_in_microbatches_too_and_for_layers_written_out() -> None:
    fn, args = PROGRAMS["checkpointed"](), arguments()
    how: Any = {"*dot_general": "save"}
    parts = planner.plan(
        fn, args, topology="cpu:4", mesh=MESH, options=Options(check="never", remat=how, microbatches=2)
    )
    assert parts.decision.form.microbatches == 2
    assert all(value.saved for value in parts.explain("*dot_general").saved)


def test_names_that_are_none_are_told() -> None:
    with pytest.raises(PinError, match=r"no value that the backward pass reads is named 'dot_genral'.*dot_general"):
        _planned({"dot_genral": "save"})
    options = Options(check="never", remat={"x": "save"})
    with pytest.raises(PinError, match="has no backward pass"):
        planner.plan(jnp.sin, (jnp.ones(8),), options=options)
    for wrong in ({}, {"x": "keep"}, {3: "save"}, "some"):
        with pytest.raises(ArgumentError, match="a mapping from patterns to 'save' or 'recompute'"):
            Options(remat=wrong)  # pyright: ignore[reportArgumentType]


def test_what_is_to_stay_as_written_does_so_in_microbatches_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlanningProblem, "takes_all", lambda *_: True)
    fn, args = _wide(remat=True)
    options = replace(UNCHECKED, remat="as written")
    form = planner.plan(fn, args, topology="v5e:2x2", options=options).decision.form
    assert form.microbatches > 1
    assert not any(form.saved)


@pytest.mark.slow
def test_a_batch_that_fits_in_no_form_is_taken_in_as_many_parts_as_let_more_be_saved() -> None:
    """What every part takes whole, such as the angles of positions, is no reason to compute a layer again."""
    model = llama.llama(replace(llama.CONFIGS["8B"], query_block=512), batch=112, size="real")

    def planned(**options: Any) -> planner.Plan:
        asked = Options(check="never", **options)
        return planner.plan(model.fn, model.args, topology="h100:8", donate_argnums=model.donate_argnums, options=asked)

    written, chosen = planned(remat="as written"), planned()
    assert chosen.decision.form.microbatches > 1
    assert any(chosen.decision.form.saved)
    assert chosen.predicted.seconds < 0.8 * written.predicted.seconds
    assert any("no plan of the whole batch at once fits" in note for note in chosen.notes)


@pytest.mark.parametrize("remat", [False, True])
def test_no_form_takes_less_than_what_is_computed_in_any(remat: bool) -> None:
    fn, args = _wide(batch=2**17, remat=remat)

    def planned(**how: Any) -> planner.Plan:
        return planner.plan(fn, args, topology="v5e:2x2", memory_limit=1e15, options=Options(check="never", **how))

    certificate = planned().certificate
    assert certificate.any_form is not None
    assert 0.8 * certificate.value < certificate.any_form <= certificate.lower_bound
    for how in ("as written", "none", "full"):
        for count in (1, 2):
            assert planned(remat=how, microbatches=count).certificate.value >= certificate.any_form


def test_no_form_communicates_less_than_the_one_that_saves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args = _wide(layers=2, batch=2048, remat=True)

    def planned(**how: Any) -> Certificate:
        options = Options(check="never", **how)
        return planner.plan(fn, args, topology="v5e:2x2", memory_limit=1e15, options=options).certificate

    least = planned().any_form
    assert least is not None
    assert planned(remat="none", microbatches=1).lower_bound >= least
    assert planned(remat="full", microbatches=2).lower_bound >= least
    monkeypatch.setattr(lower_bounds, "_least_communicating", lambda *args, **known: 0.0)
    computed = planned().any_form
    assert computed is not None
    assert computed < 0.95 * least


def test_a_program_of_one_form_has_one_bound() -> None:
    fn, args = _wide(remat=False)
    plan = planner.plan(fn, args, topology="v5e:2x2", options=Options(check="never", remat="none", microbatches=1))
    assert plan.certificate.any_form is None
