"""`Plan.explain` shows, for a tensor, what every other spec would cost; a loaded plan explains itself the same way."""

from __future__ import annotations

from pathlib import Path

import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from tests.small import NEVER, mlp, mlp_args, shapes, train_args, train_step

MESH = {"data": 4, "model": 2}


@pytest.fixture(scope="module")
def p() -> planner.Plan:
    return planner.plan(train_step, shapes(train_args()), mesh=MESH, donate_argnums=0, options=NEVER)


def test_the_chosen_spec_is_the_plans_and_the_best(p: planner.Plan) -> None:
    found = p.explain()
    specs = {"state/params/w0": p.in_specs[0]["params"]["w0"], "x": p.in_specs[1]}
    assert set(specs) <= {tensor.name for tensor in found.tensors}
    for tensor in found.tensors:
        chosen = [a for a in tensor.alternatives if a.chosen]
        assert len(chosen) == 1
        assert chosen[0].value == pytest.approx(p.certificate.value, rel=1e-6)
        assert chosen[0].value <= min(a.value for a in tensor.alternatives) * (1 + 1e-6)
        assert [a.value for a in tensor.alternatives] == sorted(a.value for a in tensor.alternatives)
        assert len({a.spec for a in tensor.alternatives}) == len(tensor.alternatives) > 1
        if tensor.name in specs:
            assert chosen[0].spec == specs[tensor.name]
    assert not found.limited
    assert found.unit == "seconds"


def test_the_value_of_an_alternative_is_that_of_the_plan_that_has_it(p: planner.Plan) -> None:
    (tensor,) = p.explain("x").tensors
    other = next(a for a in tensor.alternatives if not a.chosen)
    pinned = planner.plan(
        train_step, shapes(train_args()), mesh=MESH, donate_argnums=0, pins={"x": other.spec}, options=NEVER
    )
    assert pinned.in_specs[1] == other.spec
    assert pinned.certificate.value == pytest.approx(other.value, rel=1e-2)


def test_bytes_are_those_of_the_shard(p: planner.Plan) -> None:
    (tensor,) = p.explain("state/m/w0").tensors
    sizes = {str(a.spec): a.bytes for a in tensor.alternatives}
    assert sizes[str(P())] == 64 * 64 * 4
    assert sizes[str(P("data"))] == 64 * 64


def test_names_are_patterns_over_arguments_results_and_intermediates(p: planner.Plan) -> None:
    assert len(p.explain("state/*/w0").tensors) == 3
    assert p.explain("out/0/params/w0").tensors[0].shape == (64, 64)
    assert p.explain("*tanh*") if "tanh" in str(p.constraints) else p.explain(next(iter(p.constraints)))
    with pytest.raises(ArgumentError, match=r"no tensor is named 'state/w0'; names look like 'state/./w0'"):
        p.explain("state/w0")
    with pytest.raises(ArgumentError, match="path is 3; give"):
        p.explain(3)  # pyright: ignore[reportArgumentType]


def test_it_reads_as_text(p: planner.Plan) -> None:
    text = str(p.explain("x"))
    assert "seconds per call" in text
    assert "x [32, 64], decided at" in text
    assert "->" in text
    assert "%)" in text


def test_a_pinned_tensor_has_no_alternative() -> None:
    q = planner.plan(mlp, mlp_args(), mesh=MESH, pins={"x": P("model"), "out": P("data")}, options=NEVER)
    for name, spec in (("x", P("model")), ("out", P("data"))):
        (tensor,) = q.explain(name).tensors
        assert tensor.pinned
        assert [a.spec for a in tensor.alternatives] == [spec]
        assert "pinned" in str(tensor)


def test_the_memory_limit_is_named_where_it_decided(p: planner.Plan) -> None:
    args = shapes(train_args())
    limited = planner.plan(
        train_step,
        args,
        mesh=MESH,
        donate_argnums=0,
        memory_limit=0.7 * p.predicted.peak_bytes,
        options=NEVER,
    )
    assert limited.certificate.value > p.certificate.value
    assert limited.explain().limited
    assert "memory limit" in str(limited.explain())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"pins": {"params/w0": P(None, "model"), "out": P("data")}},
        {"objective": "energy"},
        {"objective": "memory"},
        {"memory_limit": 30_000},
        {"topology": "h100:8"},
    ],
    ids=["plain", "pins", "energy", "memory", "limit", "topology"],
)
def test_a_loaded_plan_explains_itself_as_before(tmp_path: Path, more: dict[str, object]) -> None:
    made = planner.plan(mlp, mlp_args(), mesh=MESH, options=NEVER, **more)  # pyright: ignore[reportArgumentType]
    made.save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json").bind(mlp)
    assert loaded.explain() == made.explain()
    assert loaded.explain("out") == made.explain("out")


def test_a_plan_of_another_release_says_that_it_cannot_be_explained(tmp_path: Path) -> None:
    made = planner.plan(mlp, mlp_args(), mesh=MESH, options=NEVER)
    made.save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    start, stop = text.index('"choice": [') + len('"choice": ['), text.index('"replicated"')
    (tmp_path / "plan.json").write_text(text[:start] + "0], " + text[stop:])
    loaded = planner.load(tmp_path / "plan.json").bind(mlp)
    with pytest.raises(ArgumentError, match=r"another release.*plan again"):
        loaded.explain()
