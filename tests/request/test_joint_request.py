"""What is asked of several programs at once: pins by program and for all, logical rules, names of axes, plans kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, MeshError, PinError
from planner.variants import problem_variants
from tests.small import NEVER, assert_same, train_args, train_step
from tests.studies.test_joint import SHAPE, WIDE, evaluate, programs


def asked(**more: Any) -> planner.Programs:
    return planner.plan_many(programs(), **{"mesh": SHAPE, "options": NEVER, **more})


# ---------------------------------------------------------------- pins


def test_pins_by_program_and_for_all():
    found = asked(pins={"eval": {"params/w0": P("x")}, "*params/w1": P(None, "y"), "x": P(("x", "y"))})
    for params in (found["train"].in_specs[0]["params"], found["init"].out_specs["params"], found["eval"].in_specs[0]):
        assert (params["w0"], params["w1"]) == (P("x"), P(None, "y"))
    assert found["train"].in_specs[1] == found["eval"].in_specs[1] == P(("x", "y"))


def test_pins_for_all_as_pytrees_by_argument():
    found = asked(pins={"params": {"w0": P("y"), "w1": None, "b0": P()}, "state": {"params": None, "m": P(), "v": P()}})
    assert found["train"].in_specs[0]["m"] == found["init"].out_specs["v"] == {"w0": P(), "w1": P(), "b0": P()}
    assert found["eval"].in_specs[0]["w0"] == P("y")


def test_a_program_s_own_pins_go_before_those_for_all():
    found = asked(pins={"train": {"x": P("y")}, "*": P()})
    assert found["train"].in_specs[1] == P("y")
    assert found["eval"].in_specs[1] == P()
    assert found["eval"].in_specs[0]["w0"] == P()


def test_shardings_among_the_pins_say_the_mesh():
    mesh = Mesh(np.array(jax.devices()[::-1]).reshape(4, 2), ("x", "y"))
    for pins in ({"x": NamedSharding(mesh, P("x"))}, {"eval": {"x": NamedSharding(mesh, P("x"))}}):
        found = asked(mesh=None, pins=pins)
        assert list(found["train"].mesh.devices.flat) == list(mesh.devices.flat)
        assert found["eval"].in_specs[1] == P("x")


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (
            {"parms/*": P()},
            "the pin 'parms/[*]' is neither one of the programs 'init', 'train', 'eval' nor matches .*names",
        ),
        ({"evl": {"params/w0": P()}}, "the pin 'evl' is neither one of the programs"),
        ({"eval": {"parms": P()}}, "the pin 'parms' matches no tensor"),
        ({"eval": P("x")}, "pins says .* of 'eval', which is a program; give a mapping"),
        ({0: P("x")}, "pins has the key 0, of no program; give the positions of arguments by program, such as"),
        ([P("x")], "pins is .*; give a mapping from names of programs"),
        ({"*params/w0": P("x"), "eval": {"params/w0": P("y")}}, "are one array, and are pinned as .*; pin them alike"),
    ],
)
def test_pins_that_match_nothing_or_contradict(pins: Any, words: str):
    with pytest.raises(PinError, match=words):
        asked(pins=pins)


def test_pins_of_one_program_in_one_place():
    given = programs()
    given["eval"] = (*given["eval"], {"pins": {"x": P()}})
    with pytest.raises(PinError, match="the program 'eval' has pins among its keywords and in pins=; give them in one"):
        planner.plan_many(given, pins={"eval": {"x": P()}}, mesh=SHAPE, options=NEVER)


# ---------------------------------------------------------------- logical rules, names of axes


def test_logical_rules_and_names_of_axes():
    rules = {"rows": "data", "wide": "model"}
    pins = {"x": P("rows"), "train": {"state/*/w0": P(None, "wide")}}
    found = asked(mesh=None, axis_names=("data", "model"), logical_rules=rules, pins=pins)
    assert set(found["train"].decision.mesh_shape) == {"data", "model"}
    assert found["train"].in_specs[1] == found["eval"].in_specs[1] == P("data")
    assert found["eval"].in_specs[0]["w0"] == found["init"].out_specs["params"]["w0"] == P(None, "model")


def test_pins_go_before_another_plan_in_all_programs():
    first = planner.plan(*programs()["train"][:2], mesh=SHAPE, pins={"state/*": P()}, options=NEVER)
    rest = {name: given for name, given in programs().items() if name != "train"}
    found = planner.plan_many(rest, like=first, pins={"eval": {"params/w0": P("y")}}, options=NEVER)
    assert found["eval"].in_specs[0]["w0"] == found["init"].out_specs["params"]["w0"] == P("y")
    assert found["eval"].in_specs[0]["w1"] == P()
    assert found.certificate.lower_bound <= found.certificate.value


def test_pins_go_before_names_of_dims_in_all_programs():
    nn = pytest.importorskip("flax.linen")
    kernel = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"))
    net, x = nn.Dense(32, use_bias=False, kernel_init=kernel), jax.ShapeDtypeStruct((16, 8), jnp.float32)
    params = jax.eval_shape(lambda: net.init(jax.random.key(0), jnp.ones(x.shape)))

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return net.apply(params, x)

    def twice(params: Any, x: jax.Array) -> jax.Array:
        return apply(params, x) * 2

    given = {"one": (apply, (params, x)), "two": (twice, (params, x))}
    for pins, spec in (({}, P(None, "y")), ({"two": {"params/*": P("x")}}, P("x"))):
        found = planner.plan_many(given, mesh=SHAPE, logical_rules={"mlp": "y"}, pins=pins, options=NEVER)
        for plan in found.values():
            assert jax.tree.leaves(plan.in_specs[0], is_leaf=lambda leaf: isinstance(leaf, P)) == [spec]


def test_bad_rules_and_names_of_axes():
    with pytest.raises(PinError, match="logical_rules has 'batch'"):
        asked(logical_rules=["batch"])
    with pytest.raises(MeshError, match=r"axis_names=.*names the axes of a mesh that is searched, but mesh="):
        asked(axis_names=("data",))


# ---------------------------------------------------------------- plans kept


def kept(folder: Path, **more: Any) -> planner.Programs:
    return asked(options=planner.Options(check="never", cache=str(folder)), calls={"train": 100}, **more)


@pytest.mark.parametrize("layouts", ["one", "own"])
def test_the_second_time_nothing_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layouts: Any):
    first = kept(tmp_path, layouts=layouts)
    assert len(list(tmp_path.iterdir())) == 1
    with monkeypatch.context() as patch:
        patch.setattr(problem_variants, "planning_problem", lambda **_: pytest.fail("made ready for a search"))
        second = kept(tmp_path, layouts=layouts)
    assert str(second) == str(first)
    assert (second.moves, second.certificate, second.shared) == (first.moves, first.certificate, first.shared)
    assert bool(second.moves) == (layouts == "own")
    for name, plan in first.items():
        assert replace(second[name].decision, checked=()) == replace(plan.decision, checked=())
        assert second[name].explain() == plan.explain()
    state, x = train_args(WIDE, 512)
    expected = train_step(state, x)[1]
    assert_same(second["train"](state, x)[1], expected)


def test_the_checks_of_kept_plans_say_when(tmp_path: Path):
    state, x = train_args(32, 16)
    given = {"train": (train_step, (state, x)), "eval": (evaluate, (state["params"], x))}
    options = planner.Options(cache=str(tmp_path))
    first, second = (planner.plan_many(given, mesh=SHAPE, options=options) for _ in range(2))
    for name, plan in first.items():
        for before, after in zip(plan.checked, second[name].checked, strict=True):
            assert ("when the plan was made" in after.detail) == (before.ok is not None)


OTHERWISE: dict[str, Callable[[Path], Any]] = {
    "other calls": lambda f: kept(f, pins=None, layouts="one", mesh={"x": 8}),
    "pins": lambda f: kept(f, pins={"x": P()}),
    "a pin of None, which keeps apart": lambda f: kept(f, pins={"eval": {"params": None}}),
    "layouts": lambda f: kept(f, layouts="own"),
    "another objective": lambda f: kept(f, objective="energy"),
}


def test_another_question_is_other_plans(tmp_path: Path):
    kept(tmp_path)
    for count, (name, ask) in enumerate(OTHERWISE.items(), start=2):
        ask(tmp_path)
        assert len(list(tmp_path.iterdir())) == count, name


def _edited(text: str) -> str:
    record = json.loads(text)
    record["notes"] = []
    return json.dumps(record)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON"),
        (lambda text: "[]", "format is missing"),
        (lambda text: text.replace('"mesh"', '"mush"'), "mesh is missing"),
        (_edited, "its digest is not that of its content"),
    ],
    ids=["truncated", "a list", "a field lacks", "edited"],
)
def test_a_damaged_entry_is_told_and_replaced(tmp_path: Path, change: Callable[[str], str], words: str):
    first = kept(tmp_path)
    (entry,) = tmp_path.iterdir()
    entry.write_text(change(entry.read_text()))
    told = [note for note in kept(tmp_path).notes if "was not used" in note]
    assert len(told) == 1
    assert words in told[0]
    assert str(kept(tmp_path)) == str(first)
    assert list(tmp_path.iterdir()) == [entry]


def test_a_folder_that_cannot_be_used(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"plans cannot be kept in .*give Options\(cache=...\) a folder"):
        kept(tmp_path / "file")


def test_what_is_kept_takes_little_time(tmp_path: Path):
    options = planner.Options(cache=str(tmp_path))
    seconds: list[float] = []
    for _ in range(2):
        began = time.process_time()
        planner.plan_many(programs(), options=options)
        seconds.append(time.process_time() - began)
    assert seconds[1] < seconds[0] / 4
