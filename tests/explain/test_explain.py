"""`Plan.explain` shows, for a tensor, what every other spec would cost; a loaded plan explains itself the same way."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from planner.explain.breakdown import differences
from planner.explain.explanation import MOST_ALTERNATIVES
from planner.pricing.assignment import Chosen
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
    found = limited.explain("state/*")
    assert found.limited
    assert "memory limit" in str(found)
    reasons = [a.reason for tensor in found.tensors for a in tensor.alternatives if a.reason is not None]
    over = [reason for reason in reasons if reason.kind == "memory"]
    assert over
    assert all("than the memory limit" in reason.text and reason.more > 0 for reason in over)


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


WIDE = (*train_args(width=512, batch=4096),)


@pytest.fixture(scope="module", params=["time", "energy", "TPUs"])
def wide(request: pytest.FixtureRequest) -> planner.Plan:
    more = {"objective": "energy"} if request.param == "energy" else {}
    more = {"topology": "v5e:2x4"} if request.param == "TPUs" else more
    return planner.plan(train_step, shapes(WIDE), mesh=MESH, donate_argnums=0, options=NEVER, **more)  # pyright: ignore


def test_what_differs_adds_up_to_what_alternatives_cost_more(wide: planner.Plan) -> None:
    stated = wide.alternatives
    instance, mine = stated.instance, stated.chosen
    for node in range(0, len(instance.strategies), 3):
        for pick in (0, len(instance.strategies[node]) - 1):
            choice = (*mine.choice[:node], pick, *mine.choice[node + 1 :])
            other = Chosen(instance=instance, choice=choice)
            more = instance.problem.evaluate(choice) - instance.problem.evaluate(mine.choice)
            found = math.fsum(sign * part.value for part, sign in differences(mine, other))
            assert found == pytest.approx(more, rel=1e-9, abs=1e-12 * abs(stated.value))


def test_every_dearer_alternative_told_has_its_reason_in_the_unit_minimised(wide: planner.Plan) -> None:
    unit = "J" if wide.decision.request.objective == "energy" else "s"
    told = 0
    for tensor in wide.explain("state/*/w?").tensors:
        (mine,) = [a for a in tensor.alternatives if a.chosen]
        for of in tensor.alike[1 : MOST_ALTERNATIVES + 1]:
            reason = of[0].reason
            assert reason is not None
            assert reason.unit == unit == tensor.unit
            # The largest of several differences is no less than all of them together over their number.
            assert reason.more > 0
            assert not reason.at or reason.at in reason.text
            assert reason.more >= 0.05 * (of[0].value - mine.value)
            told += 1
    assert told > 8


def test_what_a_pinned_gather_costs_is_the_reason() -> None:
    """The weights of a matmul stored split are gathered: that is what an alternative costs more than storing them whole."""
    p = planner.plan(
        lambda x, w: x @ w,
        (jnp.zeros((4096, 64)), jnp.zeros((64, 64))),
        mesh={"data": 8},
        topology="cpu:8",
        pins={"x": P("data"), "out": P("data")},
        options=NEVER,
    )
    (tensor,) = p.explain("w").tensors
    assert tensor.alternatives[0].spec == P()
    for other in tensor.alternatives[1:]:
        assert other.reason is not None
        assert (other.reason.kind, other.reason.axes) == ("all-gather", ("data",))
        assert other.reason.more == pytest.approx(other.value - tensor.alternatives[0].value, rel=0.01)
        assert "all-gather of 16.4 kB over data more, at explain/test_explain.py:" in str(tensor)
    assert " or " in str(tensor), "rows and columns cost the same"


def test_least_memory_is_explained_in_bytes() -> None:
    p = planner.plan(train_step, shapes(WIDE), mesh=MESH, donate_argnums=0, objective="memory", options=NEVER)
    found = p.explain("state/params/w0")
    assert found.unit == "bytes"
    (tensor,) = found.tensors
    (mine,) = [a for a in tensor.alternatives if a.chosen]
    assert mine.value == pytest.approx(p.predicted.peak_bytes)
    dearer = [of[0] for of in tensor.alike[: MOST_ALTERNATIVES + 1] if of[0].value > mine.value]
    assert dearer
    for other in dearer:
        assert other.reason is not None
        assert (other.reason.kind, other.reason.unit) == ("memory", "B")
        assert other.reason.more == pytest.approx(other.value - mine.value)


def test_it_says_which_pass_materialized_a_value_and_from_which_release_the_pass_was_read() -> None:
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqd,bkd->bqk", q, k).astype(jnp.float32) / 8.0
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, -1).astype(v.dtype), v)

    args = [jax.ShapeDtypeStruct((8, 256, 64), jnp.bfloat16)] * 3
    q = planner.plan(attention, args, topology="v5e:2x2", mesh={"data": 4}, options=NEVER)
    (centred,) = q.explain("*sub*").tensors
    assert centred.memory == "materialized: softmax-window (libtpu 0.0.42)"
    assert centred.memory in str(centred)
    (argument,) = q.explain("q").tensors
    assert argument.memory == "", "arguments are in memory whatever the compiler does"
    (result,) = q.explain("out").tensors
    assert result.memory == "materialized: materialization (libtpu 0.0.42)"
