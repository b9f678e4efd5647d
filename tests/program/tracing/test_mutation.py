"""Functions that change their arguments in place: Flax nnx objects are updated, other changes are refused or told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import planner
from planner.errors import ArgumentError, TraceError
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

X = jnp.linspace(-1.0, 1.0, 64).reshape(8, 8)
NEVER = planner.Options(check="never")
ADAM = optax.adam(1e-2)


class Net(nnx.Module):
    """Parameters, running statistics and a random stream."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(16, 32, rngs=rngs)
        self.norm = nnx.BatchNorm(32, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(32, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.drop(nnx.relu(self.norm(self.first(x)))))


def step(model: Net, optimizer: nnx.Optimizer[Net], x: jax.Array, y: jax.Array) -> jax.Array:
    def loss_of(model: Net) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    loss, gradient = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradient)
    return loss


def fresh() -> tuple[Any, ...]:
    model = Net(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (64, 16))
    y = jax.random.randint(jax.random.key(1), (64,), 0, 8)
    return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param), x, y


def same(found: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], tuple[Any, ...]]:
    """The losses of five steps of `nnx.jit`, and what it makes of the arguments."""
    args, jitted = fresh(), nnx.jit(step)
    return [float(jitted(*args)) for _ in range(5)], args


# ---------------------------------------------------------------- Flax nnx


@pytest.mark.parametrize(
    ("fn", "donated"),
    [(step, ()), (step, (0, 1)), (nnx.jit(step), ()), (nnx.jit(step, donate_argnums=(0, 1)), (0, 1))],
    ids=["plain", "donated", "nnx.jit", "nnx.jit donated"],
)
def test_a_step_trains_as_under_nnx_jit(fn: Any, donated: tuple[int, ...], alone: Any) -> None:
    args = fresh()
    plan = planner.plan(fn, args, mesh={"x": 8}, donate_argnums=donated)
    assert {check.what: check.ok for check in plan.checked}["numerics"]
    assert any("updates model, optimizer in place" in note for note in plan.notes)
    losses = [float(plan(*args)) for _ in range(5)]
    np.testing.assert_allclose(losses, alone[0], rtol=1e-3)
    assert losses[-1] < losses[0]
    same(args, alone[1])
    assert args[0].first.kernel[...].sharding.spec == plan.in_specs[0].first.kernel.get_raw_value()


def test_the_jitted_function_updates_placed_objects(alone: Any) -> None:
    plan = planner.plan(step, fresh(), mesh={"x": 8}, options=NEVER)
    placed = plan.place(*fresh())
    np.testing.assert_allclose([float(plan.jit(*placed)) for _ in range(5)], alone[0], rtol=1e-3)
    same(placed, alone[1])
    assert plan.jit.eval_shape(*placed).shape == ()


def test_the_numeric_check_compares_the_updated_state() -> None:
    args = fresh()
    plan = planner.plan(step, args, mesh={"x": 8}, options=NEVER)
    names = {name for name, _, _ in plan.verify(*args).numerics.leaves}
    assert {"out", "updated/model/norm/mean/value", "updated/optimizer/opt_state/0/mu/last/bias/value"} <= names
    same(args[0], fresh()[0])  # checking trains nothing


def test_what_is_updated_is_fed_back_and_reuses_donated_buffers() -> None:
    program = trace(step, fresh(), donate_argnums=(0, 1))
    graph = build_graph(program)
    state = [i for i, leaf in enumerate(program.arguments) if leaf.name.startswith(("model", "optimizer"))]
    assert sorted(graph.feeds.values()) == state
    assert graph.aliases == graph.feeds
    assert len({*graph.output_names}) == len(program.results) == len(state) + 1


def test_a_saved_plan_trains_when_it_is_bound(tmp_path: Path, alone: Any) -> None:
    planner.plan(step, fresh(), mesh={"x": 8}, options=NEVER).save(tmp_path / "plan.json")
    args = fresh()
    bound = planner.load(tmp_path / "plan.json").bind(step, args)
    np.testing.assert_allclose([float(bound(*args)) for _ in range(5)], alone[0], rtol=1e-3)


def test_a_function_that_changes_nothing_has_no_further_results() -> None:
    program = trace(lambda layer, x: layer(x), (nnx.Linear(8, 8, rngs=nnx.Rngs(0)), X))
    assert (len(program.results), program.updates, program.notes) == (1, (), ())


def test_an_updated_object_that_is_returned_too_is_computed_once() -> None:
    def fn(layer: nnx.Linear, x: jax.Array) -> Any:
        layer.kernel[...] = layer.kernel[...] - x
        return layer, x.sum()

    layer = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    plan = planner.plan(fn, (layer, X), mesh={"x": 8}, options=NEVER)
    assert len(plan.decision.results) == 3
    returned, _ = plan(layer, X)
    assert returned.kernel[...] is layer.kernel[...]


def test_random_streams_metrics_and_variables_in_containers_are_updated() -> None:
    def fn(held: dict[str, Any], x: jax.Array) -> jax.Array:
        noisy = x + jax.random.normal(held["rngs"].params(), x.shape)
        held["metric"].update(loss=noisy.mean())
        held["count"][...] = held["count"][...] + 1
        return noisy

    def held() -> dict[str, Any]:
        metric = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
        return {"rngs": nnx.Rngs(7), "metric": metric, "count": nnx.Variable(jnp.zeros((), jnp.int32))}

    mine, its = held(), held()
    plan, jitted = planner.plan(fn, (mine, X), mesh={"x": 8}, options=NEVER), nnx.jit(fn)
    for _ in range(3):
        np.testing.assert_allclose(plan(mine, X), jitted(its, X), rtol=1e-5)
    same(mine, its)
    assert int(mine["count"][...]) == 3


class Tied(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(8, 8, rngs=rngs)
        self.second = self.first

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(jnp.tanh(self.first(x)))


def descend(model: Tied, x: jax.Array) -> jax.Array:
    loss, gradient = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
    model.first.kernel[...] -= 0.1 * gradient.first.kernel[...]
    return loss


def test_shared_variables_stay_shared() -> None:
    mine, its = Tied(nnx.Rngs(0)), Tied(nnx.Rngs(0))
    plan, jitted = planner.plan(descend, (mine, X), mesh={"x": 8}, options=NEVER), nnx.jit(descend)
    np.testing.assert_allclose([plan(mine, X) for _ in range(3)], [jitted(its, X) for _ in range(3)], rtol=1e-5)
    same(mine, its)
    assert mine.first.kernel is mine.second.kernel
    with pytest.raises(ArgumentError, match="at two places"):
        trace(descend, (mine, X), donate_argnums=(0,))


def adds_a_variable(layer: nnx.Linear, x: jax.Array) -> jax.Array:
    layer.seen = nnx.Variable(x)
    return layer(x)


def sets_an_attribute(dropout: nnx.Dropout, x: jax.Array) -> jax.Array:
    dropout.eval()
    return dropout(x)


@pytest.mark.parametrize(
    ("fn", "make"),
    [
        (adds_a_variable, lambda: nnx.Linear(8, 8, rngs=nnx.Rngs(0))),
        (sets_an_attribute, lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0))),
    ],
)
def test_a_change_of_structure_is_refused(fn: Any, make: Callable[[], Any]) -> None:
    with pytest.raises(TraceError, match=r"more of .* than its arrays"):
        trace(fn, (make(), X))


def test_an_object_that_the_function_closes_over_is_refused() -> None:
    norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    with pytest.raises(TraceError, match="make the object an argument"):
        trace(lambda x: norm(x), (X,))


# ---------------------------------------------------------------- other containers


def loses_its_state(state: dict[str, Any], x: jax.Array) -> jax.Array:
    state["w"] = state["w"] - 0.1 * x
    return (state["b"] * x).sum()


def appends(history: list[jax.Array], x: jax.Array) -> jax.Array:
    history.append(x @ x)
    return x.sum()


@pytest.mark.parametrize(
    ("fn", "arg", "name"), [(loses_its_state, {"w": X, "b": X}, "state/w"), (appends, [X], "history/1")]
)
def test_a_new_value_that_would_be_lost_is_refused(fn: Any, arg: Any, name: str) -> None:
    with pytest.raises(TraceError, match=f"{fn.__name__} changes {name} in place and does not return it"):
        planner.plan(fn, (arg, X), mesh={"x": 8}, options=NEVER)


def test_a_new_value_that_is_used_on_the_way_is_told() -> None:
    def fn(batch: dict[str, Any]) -> jax.Array:
        batch["x"] = batch["x"] / 2
        return batch["x"] @ batch.pop("y")

    batch = {"x": X, "y": X}
    plan = planner.plan(fn, (batch,), mesh={"x": 8}, options=NEVER)
    assert any("changes batch/x in place" in note for note in plan.notes)
    np.testing.assert_allclose(plan(batch), X / 2 @ X, rtol=1e-5, atol=1e-6)
    assert set(batch) == {"x", "y"}


def counted(state: dict[str, Any], x: jax.Array) -> dict[str, Any]:
    state["n"] = state["n"] + x.sum()
    return state


def stateful(state: equinox.nn.State, x: jax.Array) -> Any:
    return state.set(INDEX, state.get(INDEX) + x.sum())


class WithState(equinox.Module):
    index: equinox.nn.StateIndex[jax.Array]

    def __init__(self) -> None:
        self.index = equinox.nn.StateIndex(jnp.zeros(()))


MODEL, STATE = equinox.nn.make_with_state(WithState)()
INDEX = MODEL.index


@pytest.mark.parametrize(("fn", "state"), [(counted, {"n": 0.0}), (stateful, STATE)])
def test_what_a_function_returns_is_not_lost(fn: Any, state: Any) -> None:
    program = trace(fn, (state, X))
    assert (program.updates, program.notes, len(program.results)) == ((), (), 1)


def test_mutable_arrays_are_refused() -> None:
    ref = jax.new_ref(X)

    def writes(ref: Any, x: jax.Array) -> jax.Array:
        ref[...] = ref[...] + x
        return x.sum()

    for arg in (ref, nnx.Variable(X, ref=True), nnx.Variable(X, hijax=True)):
        with pytest.raises(ArgumentError, match="mutable array"):
            trace(writes, (arg, X))
    with pytest.raises(TraceError, match="closes over a mutable array"):
        trace(lambda x: writes(ref, x), (X,))


# ---------------------------------------------------------------- split into States


@pytest.mark.parametrize("copied", [True, False], ids=["copied", "shared"])
def test_objects_split_into_states_are_functional_whether_donated_or_not(copied: bool) -> None:
    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    x = jnp.ones((8, 16))

    def functional(params: Any, rest: Any, x: jax.Array) -> Any:
        net = nnx.merge(graph, params, rest, copy=copied)
        value = net(x).sum()
        return jax.tree.map(lambda p: 0.9 * p, params), nnx.state(net, nnx.BatchStat), value

    for donated in ((), (0, 1)):
        program = trace(functional, (params, rest, x), donate_argnums=donated)
        assert program.updates == ()
        assert len(program.results) == len(jax.tree.leaves(jax.eval_shape(functional, params, rest, x)))
        # The dropout's count is changed in what is merged, and not returned.
        assert any("rest" in note and "does not see" in note for note in program.notes) is not copied
