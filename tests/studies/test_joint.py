"""Several programs on one mesh share one layout, or move between their own; what is claimed of their sum holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, InfeasibleError, PinError
from planner.request.matching_arrays import shared_arrays
from tests.request.test_matching_arrays import PARAMS, W, leaves
from tests.small import NEVER, assert_same, mlp, mlp_params, shapes, train_args, train_step

WIDE = 256
SHAPE = {"x": 4, "y": 2}


def init(key: jax.Array) -> dict[str, Any]:
    params = jax.tree.map(lambda p: jax.random.normal(key, p.shape), shapes(mlp_params(WIDE)))
    return {"params": params, "m": jax.tree.map(jnp.zeros_like, params), "v": jax.tree.map(jnp.zeros_like, params)}


def evaluate(params: Any, x: jax.Array) -> jax.Array:
    return jnp.mean(mlp(params, x) ** 2)


def programs() -> dict[str, Any]:
    state, x = train_args(WIDE, 512)
    return {
        "init": (init, (jax.random.key(0),)),
        "train": (train_step, (state, x), {"donate_argnums": 0}),
        "eval": (evaluate, (state["params"], x[:8])),
    }


@pytest.fixture(scope="module")
def found() -> planner.Programs:
    return planner.plan_many(programs(), calls={"train": 1000, "eval": 10}, mesh=SHAPE, options=NEVER)


def test_what_is_shared_lies_alike_from_birth_on(found: planner.Programs):
    assert list(found) == ["init", "train", "eval"]
    train = found["train"]
    assert found["init"].out_specs == train.in_specs[0] == train.out_specs[0]
    assert found["eval"].in_specs[0] == train.in_specs[0]["params"]
    assert len({plan.mesh for plan in found.values()}) == 1
    assert found.shared == 9
    assert not found.moves


def test_programs_pass_their_arrays_on_as_they_lie(found: planner.Programs):
    _, x = train_args(WIDE, 512)
    expected = init(jax.random.key(0))
    state = found["init"](jax.random.key(0))
    assert_same(state, expected)
    for _ in range(2):
        assert jax.tree.map(lambda leaf: leaf.sharding, state) == found["train"].in_shardings[0]
        state, loss = found["train"].jit(state, *found["train"].place(expected, x)[1:])
        expected, wanted = jax.jit(train_step)(expected, x)
        np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    np.testing.assert_allclose(found["eval"](state["params"], x[:8]), evaluate(expected["params"], x[:8]), rtol=1e-4)


def total(calls: Mapping[str, float], plans: Mapping[str, planner.Plan]) -> float:
    return sum(calls[name] * plan.certificate.value for name, plan in plans.items())


def test_the_certificate_is_of_the_sum_of_all_calls(found: planner.Programs):
    certificate = found.certificate
    assert certificate.value == pytest.approx(total(found.calls, found), rel=1e-9)
    given = programs()
    free = {name: planner.plan(*given[name][:2], mesh=SHAPE, options=NEVER) for name in given}
    assert certificate.value >= total(found.calls, free) * (1 - 1e-3)
    assert certificate.lower_bound <= certificate.value
    assert certificate.unit == "seconds"


def test_the_layout_is_that_of_the_calls_that_count(found: planner.Programs):
    """Eval alone wants its parameters whole: with enough calls of it they are, in all programs."""
    other = planner.plan_many(programs(), calls={"eval": 1e6}, mesh=SHAPE, options=NEVER)
    alone = planner.plan(*programs()["eval"], mesh=SHAPE, options=NEVER)
    assert other["train"].in_specs[0]["params"] == alone.in_specs[0]
    usual = planner.plan_many(programs(), calls={"train": 1e6}, mesh=SHAPE, options=NEVER)
    assert usual["eval"].in_specs[0] != alone.in_specs[0]
    assert any(note.startswith("eval takes") for note in usual.notes)
    assert "what they share lies as is best for eval" in other.notes


def test_layouts_of_their_own_are_moved_between_and_that_is_priced():
    calls = {"train": 1000.0, "eval": 10.0, "init": 1.0}
    own = planner.plan_many(programs(), calls=calls, layouts="own", mesh=SHAPE, options=NEVER)
    for name, given in programs().items():
        keywords = given[2] if len(given) == 3 else {}
        alone = planner.plan(*given[:2], **keywords, mesh=SHAPE, options=NEVER)
        assert own[name].in_specs == alone.in_specs
    moved = sum(calls[move.program] * move.value for move in own.moves)
    assert own.certificate.value == pytest.approx(total(calls, own) + moved, rel=1e-9)
    params = [move for move in own.moves if move.program == "eval"]
    assert {move.array for move in params} <= {"params/w0", "params/w1", "params/b0"}
    for move in params:
        name = move.array.removeprefix("params/")
        assert move.source == own["train"].in_specs[0]["params"][name]
        assert move.target == own["eval"].in_specs[0][name]
        assert move.seconds > 0
    assert "moved at every call" in str(own)


def test_the_mesh_is_searched_for_all_of_them():
    state, x = train_args()
    given = {"train": (train_step, (state, x)), "eval": (evaluate, (state["params"], x))}
    found = planner.plan_many(given, calls={"eval": 3}, options=NEVER)
    assert found.certificate.meshes > 1
    for mesh in ({"x": 8}, {"x": 4, "y": 2}):
        fixed = planner.plan_many(given, calls={"eval": 3}, mesh=mesh, options=NEVER)
        assert found.certificate.value <= fixed.certificate.value * (1 + 1e-6)
        assert found.certificate.lower_bound <= fixed.certificate.value


def test_what_is_printed(found: planner.Programs):
    text = str(found)
    assert text.startswith("3 programs for cpu:8 on the mesh ")
    assert "9 arrays shared, in one layout" in text
    assert all(name in text for name in found)
    assert "planned together with init, eval on one mesh, in one layout" in str(found["train"])


def test_pins_of_one_program_hold_for_all():
    given = programs()
    given["eval"] = (*given["eval"], {"pins": {"params": {"w0": P("x"), "w1": None, "b0": P()}}})
    p = planner.plan_many(given, mesh=SHAPE, options=NEVER)
    assert p["train"].in_specs[0]["params"]["w0"] == p["init"].out_specs["params"]["w0"] == P("x")
    given["train"] = (*given["train"][:2], {"pins": {"state/params/w0": P("y")}})
    with pytest.raises(PinError, match=r"w0 of .* are one array, and are pinned as .*; pin them alike"):
        planner.plan_many(given, mesh=SHAPE, options=NEVER)
    given["eval"] = (*given["eval"][:2], {"pins": {"params": None}})
    apart = planner.plan_many(given, mesh=SHAPE, options=NEVER)
    assert apart["train"].in_specs[0]["params"]["w0"] == P("y")


def test_like_another_plan_on_a_mesh_of_devices():
    mesh = Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("x", "y"))
    first = planner.plan(*programs()["train"][:2], mesh=mesh, pins={"state/*": P()}, options=NEVER)
    rest = {name: given for name, given in programs().items() if name != "train"}
    found = planner.plan_many(rest, like=first, options=NEVER)
    assert found["eval"].in_specs[0] == first.in_specs[0]["params"]
    assert list(found["init"].mesh.devices.flat) == list(mesh.devices.flat)


def test_the_peak_is_the_greatest_of_all():
    p = planner.plan_many(programs(), objective="memory", mesh={"x": 2}, calls={"eval": 1e9}, options=NEVER)
    assert p.certificate.unit == "bytes"
    assert p.certificate.value == max(plan.certificate.value for plan in p.values())


def test_what_fits_no_program_is_an_error():
    with pytest.raises(InfeasibleError, match="no plan fits"):
        planner.plan_many(programs(), memory_limit=1000.0, options=NEVER)


@pytest.mark.parametrize(
    ("given", "more", "words"),
    [
        ([], {}, r"programs is \[\]; give a mapping"),
        ({"a": mlp}, {}, "the program 'a' is .*; give .fn, example_args."),
        ({1: (mlp, ())}, {}, "programs has the name 1; give text"),
        ({"a": (mlp, (), {"mesh": SHAPE})}, {}, "of its own it may have example_kwargs, donate_argnums, .*, pins, "),
        ({"a": (mlp, {})}, {}, "the program 'a' has the arguments dict; give the tuple"),
        ({"a": (mlp, ())}, {"calls": {"b": 1}}, "calls has 'b', which is none of the programs 'a'"),
        ({"a": (mlp, ())}, {"calls": {"a": 0}}, "says that 'a' is called 0 times; give a number above 0"),
        ({"a": (mlp, ())}, {"calls": 3}, "calls is 3; give a mapping"),
        ({"a": (mlp, ())}, {"layouts": "two"}, "layouts is 'two'; use one of 'one', 'own'"),
    ],
)
def test_bad_input(given: Any, more: dict[str, Any], words: str):
    with pytest.raises(ArgumentError, match=words):
        planner.plan_many(given, **more)


def test_an_array_is_shared_once():
    """A program that has two arguments of one array's kind shares one of them."""
    of = shared_arrays(
        {
            "train": leaves(params=PARAMS, target=PARAMS, out=PARAMS),
            "eval": leaves(variables=PARAMS, x=W),
            "init": leaves(out=PARAMS),
        },
        {"train": (), "eval": (), "init": ()},
    )
    count = len(leaves(params=PARAMS))
    assert of.count == count
    assert of.names("train") == ["params", "out"]
    assert of.names("eval") == ["variables"]
    for name in of.of:
        numbers = list(of.of[name].values())
        assert len(set(numbers)) == count
