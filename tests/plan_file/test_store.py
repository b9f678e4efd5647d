"""A saved plan comes back in another process without a search, and every file that is none says so in a sentence."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

import planner
from cost_models import Topology
from planner.errors import ArgumentError, MeshError, PlanFileError
from planner.plan_file.store import written
from tests.fork_server import python
from tests.small import NEVER, assert_same, mlp, mlp_args, shapes, train_args, train_step

MESH = {"data": 4, "model": 2}
ROOT = Path(__file__).resolve().parents[2]


class Pair(NamedTuple):
    """A container that a file tells by name."""

    a: jax.Array
    b: jax.Array


@jax.tree_util.register_pytree_node_class
class Own:
    """A container that only its own code can rebuild."""

    def __init__(self, value: Any) -> None:
        if not hasattr(value, "shape"):
            raise TypeError("not an array")
        self.value = value

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Own:
        return cls(children[0])


@pytest.fixture(scope="module")
def made() -> planner.Plan:
    return planner.plan(train_step, train_args(), mesh=MESH, donate_argnums=0, options=NEVER)


@pytest.fixture
def path(made: planner.Plan, tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    made.save(tmp_path / "folder" / "plan.json")
    return tmp_path / "folder" / "plan.json"


def test_a_loaded_plan_is_the_saved_one(made: planner.Plan, path: Path) -> None:
    loaded = planner.load(path)
    assert loaded.decision == made.decision
    assert str(loaded) == str(made)
    assert "train_step" in repr(loaded)
    bound = loaded.bind(train_step)
    assert bound.in_shardings == made.in_shardings
    assert bound.out_shardings == made.out_shardings
    assert bound.predicted == made.predicted
    assert bound.certificate == made.certificate
    assert str(bound) == str(made)
    state, x = train_args()
    assert_same(bound(*jax.tree.map(jnp.copy, (state, x))), train_step(state, x))


PROGRAM = """
import json, sys
import planner
from tests.small import assert_same, mlp, mlp_args
path, args = sys.argv[1], mlp_args()
told = []
for given in (None, args):
    bound = planner.load(path).bind(mlp, given)
    assert_same(bound(*args), mlp(*args))
    told.append([str(bound.in_specs), str(bound.explain("x"))])
bound.save(path + ".again")
print(json.dumps(told))
"""


def test_it_runs_in_another_process(tmp_path: Path) -> None:
    made, path = planner.plan(mlp, mlp_args(), mesh=MESH, options=NEVER), tmp_path / "plan.json"
    made.save(path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*python(), "-c", PROGRAM, str(path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[str(made.in_specs), str(made.explain("x"))]] * 2
    assert (tmp_path / "plan.json.again").read_text() == path.read_text()


def _without_seconds(path: Path) -> str:
    return re.sub(r'"solve_seconds": [^,\n]+', "", path.read_text())


def test_the_same_input_twice_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        planner.plan(train_step, shapes(train_args()), donate_argnums=0, options=NEVER).save(tmp_path / name)
    assert _without_seconds(tmp_path / "a") == _without_seconds(tmp_path / "b")


def test_lines_do_not_hang_on_the_digits_of_the_seconds(path: Path) -> None:
    record = json.loads(path.read_text())
    del record["digest"]

    def lines(seconds: float) -> int:
        return written({**record, "certificate": {**record["certificate"], "solve_seconds": seconds}}).count("\n")

    assert lines(1.0) == lines(1.0 + 1e-15) == lines(1.23456789e-300)


def test_pytrees_are_told_in_words(tmp_path: Path) -> None:
    def fn(tree: Any, key: jax.Array, scale: Any) -> Any:
        noise = jax.random.normal(key, (8, 8))
        return tree["pair"].a * scale + tree["list"][0] + noise, tree["none"]

    args = (
        {
            "pair": Pair(jnp.ones((8, 8)), jnp.ones(3)),
            "list": [jnp.ones((8, 8)), (jnp.ones(2),)],
            "none": None,
            "0": {7: jnp.ones(4)},
        },
        jax.random.key(0),
        2.0,
    )
    made = planner.plan(fn, args, mesh={"x": 8}, options=NEVER)
    made.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(fn)
    assert jax.tree.structure(bound.in_shardings) == jax.tree.structure(args)
    assert_same(bound(*args), fn(*args))


@pytest.mark.parametrize(
    ("fn", "args", "static"),
    [
        (lambda own: own.value * 2, (Own(jnp.ones(8)),), ()),
        (lambda x, n: x[:n], (jnp.ones(8), 4), (1,)),
    ],
    ids=["a container of one's own", "static arguments"],
)
def test_what_a_file_cannot_tell_is_asked_for(tmp_path: Path, fn: Any, args: Any, static: tuple[int, ...]) -> None:
    made = planner.plan(fn, args, mesh={"x": 8}, static_argnums=static, options=NEVER)
    made.save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json")
    with pytest.raises(ArgumentError, match=r"static arguments, or containers.*call bind\(fn, example_args\)"):
        loaded.bind(fn)
    assert_same(loaded.bind(fn, args)(*args), fn(*args))
    with pytest.raises(ArgumentError, match=r"must be the tuple of positional arguments"):
        loaded.bind(fn, args[0])


def test_a_topology_of_ones_own_is_kept(tmp_path: Path) -> None:
    own = Topology.custom(
        name="v5e:4x2",  # a name that means other figures
        shape=(8,),
        link_bytes_per_s=(1e9,),
        flops_per_s=1e12,
        hbm_bytes=1e9,
        hbm_bytes_per_s=1e11,
    )
    for topology in (own, "v4:2x2x2", "h100:2x8"):
        made = planner.plan(mlp, shapes(mlp_args()), topology=topology, options=NEVER)
        made.save(tmp_path / "plan.json")
        loaded = planner.load(tmp_path / "plan.json")
        assert loaded.decision == made.decision
        assert loaded.bind(mlp).explain("x") == made.explain("x")


def test_devices_to_bind_to(tmp_path: Path) -> None:
    args = mlp_args()
    planner.plan(mlp, args, topology="h100:4", mesh={"x": 4}, options=NEVER).save(tmp_path / "alone")
    loaded = planner.load(tmp_path / "alone")
    assert isinstance(loaded.bind(mlp).mesh, AbstractMesh), "these devices are none that were planned for"
    assert_same(loaded.bind(mlp, devices=jax.devices()[2:6])(*args), mlp(*args))
    with pytest.raises(MeshError, match=r"\{'x': 4\} of the plan needs 4 devices, got 2; give"):
        loaded.bind(mlp, devices=jax.devices()[:2])
    with pytest.raises(MeshError, match="give a non-empty sequence"):
        loaded.bind(mlp, devices=[])
    tried = {"topology": "h100:4", "devices": jax.devices()[:4]}
    planner.plan(mlp, args, mesh={"x": 4}, options=NEVER, **tried).save(tmp_path / "tried")
    assert_same(planner.load(tmp_path / "tried").bind(mlp)(*args), mlp(*args))


# ---------------------------------------------------------------- programs that are another


def _swapped(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """As `mlp`, the weights swapped: the same equations, wired otherwise."""
    return jax.nn.relu(x @ params["w1"] + params["b0"]) @ params["w0"]


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (lambda params, x: x * 2, None, "does not trace to the program the plan of mlp was made for.*plan again"),
        (_swapped, None, "_swapped does not trace to the program the plan of mlp"),
        (
            mlp,
            lambda p, x: (p, x[:16]),
            r"other arguments than mlp \(x: float32\[16, 64\], saved x: float32\[32, 64\]\)",
        ),
        (mlp, lambda p, x: ({**p, "b1": x}, x), "other arguments .*b1"),
        (lambda parameters, x: mlp(parameters, x), None, "parameters/b0.*saved params/b0.*plan again"),
    ],
    ids=["another function", "other wires", "other shapes", "other leaves", "other names"],
)
def test_a_plan_is_bound_to_its_program_only(
    tmp_path: Path, fn: Callable[..., Any], args: Callable[..., Any] | None, words: str
) -> None:
    planner.plan(mlp, mlp_args(), mesh=MESH, options=NEVER).save(tmp_path / "plan.json")
    with pytest.raises(PlanFileError, match=words):
        planner.load(tmp_path / "plan.json").bind(fn, args(*mlp_args()) if args else None)


# ---------------------------------------------------------------- files that are none


def _damaged(text: str, change: Callable[[dict[str, Any]], None]) -> str:
    record = json.loads(text)
    change(record)
    return json.dumps(record)


DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "a choice below zero": (lambda t: _damaged(t, lambda r: r["choice"].__setitem__(0, -1)), "garbles a field"),
    "a field lacks": (
        lambda t: _damaged(t, lambda r: r.pop("mesh")),
        "garbles a field .*mesh is missing.*save the plan again",
    ),
    "a field of another type": (lambda t: _damaged(t, lambda r: r.update(mesh=3)), "garbles a field"),
    "a list": (lambda t: "[1, 2]", "not a saved plan.*give a file written by Plan.save"),
    "a number": (lambda t: "3", "not a saved plan"),
    "a spec of another axis": (
        lambda t: _damaged(t, lambda r: r["arguments"][1].update(spec=[["z"]])),
        "garbles a field .*'z'",
    ),
    "an indivisible spec": (
        lambda t: _damaged(t, lambda r: r["arguments"][0].update(shape=[3], spec=[["data"]])),
        "garbles a field .*not divisible by its spec.*save the plan again",
    ),
    "another format": (lambda t: _damaged(t, lambda r: r.update(format="recipe")), "format is not 'meshwright plan'"),
    "another version": (lambda t: _damaged(t, lambda r: r.update(version=99)), "has version 99.*plan again"),
    "foreign json": (lambda t: '{"a": {"b": 1}}', "not a saved plan"),
    "nothing": (lambda t: "", "not JSON.*save the plan again"),
    "text": (lambda t: "once upon a time", "not JSON.*save the plan again"),
    "truncated": (lambda t: t[: len(t) // 2], "not JSON.*damaged, save the plan again"),
}


@pytest.mark.parametrize("name", sorted(DAMAGE))
def test_damaged_and_foreign_files(path: Path, name: str) -> None:
    change, words = DAMAGE[name]
    path.write_text(change(path.read_text()))
    with pytest.raises(PlanFileError, match=words):
        planner.load(path)


def test_files_that_cannot_be_read_or_written(made: planner.Plan, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "none.json", tmp_path / "bytes"):
        with pytest.raises(PlanFileError, match=r"cannot be read.*give the path of a saved plan"):
            planner.load(path)
    with pytest.raises(ArgumentError, match=r"cannot be saved as .*give a path"):
        made.save(tmp_path / "bytes" / "plan.json")
    with pytest.raises(ArgumentError, match=r"there is no folder '.*none'"):
        made.save(tmp_path / "none" / "plan.json")
    with pytest.raises(ArgumentError, match=r"there is no folder '.*none'"):
        made.report(tmp_path / "none" / "plan.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ArgumentError, match="cannot be saved"):
        made.save(tmp_path / "taken")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bytes", "taken"], "nothing half-written is left"


def test_a_file_imports_nothing(path: Path) -> None:
    before = set(sys.modules)
    record = json.loads(path.read_text())
    assert len(record["arguments"]) == 10
    for module, name in (("antigravity", "Flight"), ("planner", "plan"), ("concurrent.futures", "ProcessPoolExecutor")):
        record["in_tree"] = {"namedtuple": [module, name], "items": ["*"] * 10}
        path.write_text(json.dumps(record))
        with pytest.raises(ArgumentError, match=r"call bind\(fn, example_args\)"):
            planner.load(path).bind(train_step)
    assert not {"antigravity", "concurrent.futures.process"} & set(sys.modules) - before, (
        "a module's __getattr__ has run"
    )
    assert planner.load(path).bind(train_step, train_args()).in_specs


def test_pins_survive(tmp_path: Path) -> None:
    pins = {"params/w0": P(None, ("data", "model")), "out": P("data")}
    planner.plan(mlp, mlp_args(), mesh=MESH, pins=pins, options=NEVER).save(tmp_path / "plan.json")
    assert planner.load(tmp_path / "plan.json").decision.request.pins == pins


def test_the_form_of_a_program_is_kept(made: planner.Plan, path: Path) -> None:
    record = json.loads(path.read_text())
    assert record["form"] == {
        "microbatches": 1,
        "saved": [],
        "offloaded": [],
        "hosted": [],
        "without_checkpoints": False,
    }
    del record["form"]
    path.write_text(json.dumps(record))
    found = planner.load(path).decision
    as_made = replace(found, checked=made.decision.checked, notes=made.decision.notes)
    assert as_made == made.decision, "files of earlier planners are of programs as written"


def test_a_form_that_the_program_cannot_take_is_told(path: Path) -> None:
    record = json.loads(path.read_text())
    record["form"]["microbatches"] = 3
    path.write_text(json.dumps(record))
    with pytest.raises(PlanFileError, match=r"train_step does not trace to the program .* microbatches"):
        planner.load(path).bind(train_step)


# ---------------------------------------------------------------- files that people read, edit and compare


def test_a_file_is_one_row_a_line_and_ends_with_what_changes(path: Path) -> None:
    lines = path.read_text().splitlines()
    starts = [line[2 : line.index('"', 2)] for line in lines if line.startswith(' "')]
    assert starts[:3] == ["format", "version", "function"]
    assert starts[-8:] == ["predicted", "certificate", "checked", "notes", "refined", "tried", "jax", "digest"]
    rows = [line for line in lines if line.startswith('  {"name": "state/params/w0"')]
    assert [json.loads(row.strip().rstrip(","))["shape"] for row in rows] == [[64, 64]]
    assert max(map(len, lines)) < 250


def test_a_file_has_the_permissions_of_any_file(made: planner.Plan, tmp_path: Path) -> None:
    for mask, expected in ((0o022, 0o644), (0o027, 0o640)):
        before = os.umask(mask)
        try:
            made.save(tmp_path / "plan.json")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == expected


def test_an_edited_plan_is_taken_and_says_so(made: planner.Plan, path: Path) -> None:
    record = json.loads(path.read_text())
    row = next(row for row in record["arguments"] if row["name"] == "x")
    row["spec"] = [["model"]]
    path.write_text(json.dumps(record, indent=4))
    loaded = planner.load(path)
    assert any("was changed after it was saved" in note for note in loaded.decision.notes)
    assert all(check.ok is None for check in loaded.decision.checked)
    bound = loaded.bind(train_step)
    assert bound.in_specs[1] == P("model")
    state, x = train_args()
    assert_same(bound(*jax.tree.map(jnp.copy, (state, x))), train_step(state, x))
    bound.save(path)
    assert sum("was changed" in note for note in planner.load(path).decision.notes) == 1
    del record["digest"]
    path.write_text(json.dumps(record))
    assert any("does not say whether" in note for note in planner.load(path).decision.notes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r["constraints"][0].update(path=[999]), "lays specs at a place that"),
        (
            lambda r: r["constraints"][0].update(specs=[[["data"], ["model"], [], [], []]]),
            "lays .* on an array of shape",
        ),
        (lambda r: r["results"][0].update(weak=True), "other results"),
    ],
)
def test_edits_that_fit_no_place_are_told_when_bound(path: Path, change: Callable[[Any], None], words: str) -> None:
    path.write_text(_damaged(path.read_text(), change))
    with pytest.raises(PlanFileError, match=words):
        planner.load(path).bind(train_step)
