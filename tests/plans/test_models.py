"""Every benchmark program runs a step on one device, and traces from shapes alone at its real size."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.models import MODELS, TEXTBOOK, diffusion, long_skips, mesh_graph, two_tower

SLOW = {"bert", "deep", "gpt_unrolled", "moe", "resnet", "vit"}
"""Their layers, dozens or a thousand, are written out: seconds to trace."""
SLOW_TO_COMPILE = {"deep", "gpt_unrolled", "moe", "resnet", "sparse", "t5", "unet", "vit"}
"""So many kernels, even at their small size, that XLA takes six seconds and more."""


def _names(slow):
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in MODELS]


def _shapes(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


def _check_step(model):
    results = jax.jit(model.fn)(*model.args)
    if model.kind == "inference":
        logits, cache = results
        assert jnp.isfinite(logits).all()
        assert _shapes(cache) == _shapes(model.args[1])
        return
    *state, loss = results
    assert loss.shape == ()
    assert jnp.isfinite(loss)
    before = model.args[: len(state)]
    assert _shapes(tuple(state)) == _shapes(before)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), state[0], before[0])
    assert any(jax.tree.leaves(changed))


@pytest.mark.parametrize("name", _names(SLOW_TO_COMPILE))
def test_small_runs(name):
    _check_step(MODELS[name]("small"))


@pytest.mark.slow
@pytest.mark.parametrize("module", [diffusion, long_skips, mesh_graph, two_tower])
def test_those_of_planning_time_run(module):
    _check_step(module.build("small"))


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_runs(name):
    _check_step(TEXTBOOK[name]("small"))


@pytest.mark.parametrize("name", TEXTBOOK)
def test_textbook_traces(name):
    model = TEXTBOOK[name]("real")
    assert model.name == name
    *state, loss = jax.eval_shape(model.fn, *model.args)
    assert loss.shape == ()
    assert _shapes(tuple(state)) == _shapes(model.args[: len(state)])


@pytest.mark.parametrize("name", _names(SLOW))
def test_real_traces_without_allocating(name):
    model = MODELS[name]("real")
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(model.args))
    closed, results = jax.make_jaxpr(model.fn, return_shape=True)(*model.args)
    assert not closed.consts
    returned = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(results)]
    donated = [model.args[n] for n in model.donate_argnums]
    assert all((leaf.shape, leaf.dtype) in returned for leaf in jax.tree.leaves(donated))


def test_unknown_size_is_an_error():
    with pytest.raises(ValueError, match="'small' or 'real', got 'huge'"):
        MODELS["mlp"]("huge")
