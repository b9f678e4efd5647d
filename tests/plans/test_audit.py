"""`planner.audit` prices the shardings a user has, and finds what was put wrong into them on purpose."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, PinError
from tests.small import mlp, shapes, train_args, train_step

MESH = {"data": 4, "model": 2}
ARGS = shapes(train_args(width=512, batch=8192))
STATE = {"params": P(None, "model"), "m": P(None, "model"), "v": P(None, "model")}


def named(tree: Any) -> Any:
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("data", "model"))
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), tree, is_leaf=lambda leaf: isinstance(leaf, P))


def audited(**more: Any) -> planner.Audit:
    return planner.audit(train_step, ARGS, **{"mesh": MESH, "topology": "cpu:8", "donate_argnums": 0, **more})


@pytest.fixture(scope="module")
def replicated() -> planner.Audit:
    """Everything held whole, the batch too: what nobody should do."""
    return audited(in_shardings=P(), out_shardings=P())


def test_the_shardings_given_are_those_priced(replicated: planner.Audit) -> None:
    assert set(replicated.own.in_specs) == {P()}
    assert set(replicated.own.out_specs) == {P()}
    assert dict(replicated.own.mesh_shape) == MESH
    pinned = planner.plan(
        train_step,
        ARGS,
        mesh=MESH,
        topology="cpu:8",
        donate_argnums=0,
        pins={0: P(), 1: P(), "out": P()},
        options=planner.Options(check="never", recompute="as written", microbatches=1),
    )
    assert replicated.own.predicted == pinned.predicted


def test_what_is_held_whole_is_found_and_what_its_split_saves(replicated: planner.Audit) -> None:
    assert replicated.free is not None
    assert replicated.free.predicted.seconds <= replicated.own.predicted.seconds
    assert [one.name for one in replicated.whole] == ["x"], "the others are small beside a device's memory"
    large = planner.audit(
        lambda w, x: x @ w,
        shapes((jnp.zeros((1 << 15, 1 << 13), jnp.bfloat16), jnp.zeros((64, 1 << 15), jnp.bfloat16))),
        in_shardings=(P(), P("data")),
        mesh=MESH,
        topology="v5e:2x4",
    )
    assert [one.name for one in large.whole] == ["w"]
    assert large.whole[0].axes == ("data", "model")
    assert large.whole[0].bytes == 2**29
    assert large.whole[0].saved == 2**29 * 7 / 8
    (gain,) = [gain for gain in large.gains if gain.name == "w"]
    assert gain.seconds >= 0 < gain.bytes
    assert "held whole" in str(large)


def test_a_wrong_sharding_is_a_surprise_with_its_line_and_leaving_it_to_the_planner_gains() -> None:
    good = planner.plan(
        mlp,
        shapes((train_args(512)[0]["params"], jnp.zeros((8192, 512)))),
        mesh=MESH,
        topology="cpu:8",
        pins={"x": P("data")},
        options=planner.Options(check="never"),
    )
    found = planner.audit(
        mlp,
        shapes((train_args(512)[0]["params"], jnp.zeros((8192, 512)))),
        in_shardings=({"w0": P("data"), "b0": None, "w1": None}, P("data")),
        mesh=MESH,
        topology="cpu:8",
    )
    assert found.own.predicted.seconds >= good.predicted.seconds
    (gather, *_) = [one for one in found.surprises if one.tensor.startswith("params/w0")]
    assert "small.py:" in gather.source
    assert gather.axes == ("data",)
    assert gather.seconds is not None
    gain = next(gain for gain in found.gains if gain.name == "params/w0")
    assert gain.spec == P("data")
    assert gain.better != P("data")
    assert gain.seconds > 0
    text = str(found)
    assert "collectives that the free plan does without" in text
    assert "best completion" in text


def test_jitted_functions_and_shardings_bring_their_mesh() -> None:
    given = ({"params": P(), "m": P(), "v": P()}, P("data"))
    specs = planner.audit(train_step, ARGS, in_shardings=given, mesh=MESH)
    shardings = planner.audit(train_step, ARGS, in_shardings=named(given))
    jitted = planner.audit(jax.jit(train_step, in_shardings=named(given)), ARGS)
    for other in (shardings, jitted):
        assert other.own.in_specs == specs.own.in_specs
        assert other.own.predicted == specs.own.predicted


def test_a_program_that_names_shardings_inside_is_priced_as_it_is() -> None:
    sharding = named(P("data"))

    def constrained(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jax.lax.with_sharding_constraint(x, sharding) @ w)

    found = planner.audit(constrained, shapes((jnp.zeros((64, 64)), jnp.zeros((512, 64)))))
    assert found.free is None
    assert any("names its mesh" in note for note in found.notes)
    assert str(found)


def test_shardings_that_do_not_fit_are_priced_and_told() -> None:
    found = audited(in_shardings=P(), out_shardings=P(), memory_limit=20e6)
    assert found.own.predicted.peak_bytes > 20e6
    assert any("nothing is predicted to fit" in note for note in found.notes)


def test_it_is_data_for_programs(replicated: planner.Audit) -> None:
    told = json.loads(json.dumps(replicated.summary, allow_nan=False))
    assert told["own"]["predicted"]["seconds"] == replicated.own.predicted.seconds
    assert len(told["surprises"]) == len(replicated.surprises)


def test_bad_input_is_told() -> None:
    with pytest.raises(ArgumentError, match="nothing is sharded"):
        planner.audit(train_step, ARGS, mesh=MESH)
    with pytest.raises(ArgumentError, match="give mesh="):
        planner.audit(train_step, ARGS, in_shardings=P("data"), topology="cpu:8")
    with pytest.raises(ArgumentError, match="has 3 entries, but there are 2 arguments"):
        audited(in_shardings=(P(), P(), P()))
    with pytest.raises(ArgumentError, match="shardings of its own"):
        planner.audit(jax.jit(train_step, in_shardings=named((P(), P()))), ARGS, out_shardings=P())
    with pytest.raises(PinError, match="axis 'absent'"):
        audited(in_shardings=(None, P("absent")))
