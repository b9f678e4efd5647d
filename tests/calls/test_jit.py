"""`planner.jit` has the ergonomics of `jax.jit`: a plan per types and static values, in one layout."""

from __future__ import annotations

import functools
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, MeshError
from tests.small import NEVER, assert_same, mlp, mlp_args, shapes, train_args, train_step

X = jnp.linspace(0.0, 1.0, 32 * 64).reshape(32, 64)
MESH = {"data": 4, "model": 2}


def jit(fn: Any = None, **more: Any) -> Any:
    return planner.jit(fn, **{"mesh": MESH, "options": NEVER, **more})


def test_a_plan_per_shapes_in_one_layout() -> None:
    step = jit(train_step, donate_argnums=0)
    state, batch = train_args()
    expected, _ = train_step(train_step(state, batch)[0], batch[:20])
    first = step.plan_for(state, batch)
    state, _ = step(state, batch)
    lies = jax.tree.map(lambda x: x.sharding, state)
    state, loss = step(state, batch[:20])
    assert jax.tree.map(lambda x: x.sharding, state) == lies
    assert_same(state, expected)
    assert loss.shape == ()
    assert len(step.plans) == 2
    assert step.plans[0] is first
    assert step.plans[1].in_specs[0] == first.in_specs[0]
    assert any("lie as in the plan of train_step" in note for note in step.plans[1].notes)
    step(state, batch)
    assert len(step.plans) == 2


def test_plans_without_common_arrays_are_free() -> None:
    f = jit(lambda x: jnp.tanh(x) @ x.T, mesh=None, axis_names=("a", "b"))
    for rows in (32, 16):
        assert_same(f(X[:rows]), jnp.tanh(X[:rows]) @ X[:rows].T)
    assert len(f.plans) == 2


def test_a_decorator_with_keywords() -> None:
    @planner.jit(mesh=MESH, options=NEVER, static_argnames="mode")
    def act(x: jax.Array, *, mode: str = "tanh", scale: float = 1.0) -> jax.Array:
        """Acts."""
        return getattr(jnp, mode)(x) * scale

    assert (act.__name__, act.__doc__) == ("act", "Acts.")
    assert_same(act(X), jnp.tanh(X))
    assert_same(act(X, mode="sin"), jnp.sin(X))
    assert_same(act(X, mode="sin", scale=2.0), jnp.sin(X) * 2)
    assert_same(act(X, scale=3.0, mode="sin"), jnp.sin(X) * 3)
    assert len(act.plans) == 3


def test_keywords_and_positions_are_one_call() -> None:
    f = jit(lambda x, y, *more, z: (x - y) * z + sum(more))
    expected = (X - 2) * 3
    assert_same(f(X, jnp.float32(2), z=jnp.float32(3)), expected)
    assert_same(f(y=jnp.float32(2), z=jnp.float32(3), x=X), expected)
    assert len(f.plans) == 1
    assert_same(f(X, jnp.float32(2), X, X, z=jnp.float32(3)), expected + 2 * X)
    assert [leaf.name for leaf in f.plans[1].decision.arguments] == ["x", "y", "more/0", "more/1", "z"]
    with pytest.raises(ArgumentError, match="missing a required argument: 'y'"):
        f(X, z=X)


def test_types_and_static_values_are_told_apart() -> None:
    f = jit(lambda x, s, flag: x * s if flag else x + s, static_argnums=2)
    narrow = X.astype(jnp.bfloat16)
    assert f(narrow, 2.0, True).dtype == jnp.bfloat16
    assert f(narrow, jnp.float32(2.0), True).dtype == jnp.float32
    assert f(narrow, 3.0, True).dtype == jnp.bfloat16
    assert_same(f(X, 2.0, False), X + 2.0)
    assert_same(f(np.asarray(X), 2.0, False), X + 2.0)
    assert_same(f(jax.device_put(X, f.plans[0].in_shardings[0]), 2.0, False), X + 2.0)
    assert len(f.plans) == 3


def test_pins_and_donation_by_name_of_what_keywords_give() -> None:
    f = jit(lambda x, *, bias: x + bias, pins={"bias": P("model")}, donate_argnames=("bias",))
    bias = jnp.array(X)
    assert_same(f(X, bias=bias), X + X)
    assert bias.is_deleted()
    assert f.plans[0].in_specs[1] == P("model")


def test_a_jitted_function_brings_its_static_and_donated_arguments() -> None:
    given = jnp.array(X)
    f = jit(jax.jit(lambda x, n: x * n, static_argnums=1, donate_argnums=0))
    assert_same(f(X + 0, 3), X * 3)
    assert_same(f(given, 2), X * 2)
    assert given.is_deleted()
    assert len(f.plans) == 2


def test_lower_trace_and_eval_shape() -> None:
    f = jit(mlp)
    params, x = mlp_args()
    assert f.eval_shape(params, x=x).shape == (32, 64)
    assert not f.plans
    assert f.lower(*shapes((params, x))).compile()(params, x).shape == (32, 64)
    assert f.trace(params, x=x).out_info.shape == (32, 64)
    assert len(f.plans) == 1


def test_under_transformations_of_jax() -> None:
    f = jit(mlp)
    params, x = mlp_args()
    found = jax.grad(lambda params: f(params, x).sum())(params)
    assert_same(found, jax.grad(lambda params: mlp(params, x).sum())(params))
    assert_same(jax.jit(lambda params: f(params, x=x))(params), mlp(params, x))
    assert len(f.plans) == 1


def test_under_a_mesh_with_explicit_axes() -> None:
    f = jit(lambda x: x * 2, mesh=None)
    plain = f(X)
    mesh = jax.make_mesh((8,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        placed = f(jax.device_put(X, jax.NamedSharding(mesh, P("rows"))))
        assert placed.sharding.spec[0] == "rows"
    assert_same(f(X), plain)
    assert len(f.plans) == 2


def test_threads_share_one_plan() -> None:
    f = jit(mlp)
    params, x = mlp_args()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: f(params, x), range(4)))
    assert len(f.plans) == 1
    for one in found:
        assert_same(one, mlp(params, x))


def test_methods() -> None:
    class Model:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @planner.jit(mesh=MESH, options=NEVER)
        def __call__(self, x: jax.Array) -> jax.Array:
            return x * self.scale

        @planner.jit(mesh=MESH, options=NEVER)
        def forward(self, x: jax.Array) -> jax.Array:
            return x + self.scale

    one, two = Model(2.0), Model(3.0)
    assert_same(one(X), X * 2)
    assert_same(two(X), X * 3)
    assert_same(one.forward(X), X + 2)
    assert one.forward.eval_shape(X).shape == X.shape
    assert one.forward.plan_for(X) is Model.forward.plans[0]
    assert (len(Model.__call__.plans), len(Model.forward.plans)) == (2, 1)


def test_another_function_follows_the_layout_of_the_first() -> None:
    step = jit(train_step)
    state, batch = train_args()
    evaluate = jit(lambda params, x: jnp.mean(mlp(params, x) ** 2), like=step, mesh=None)
    with pytest.raises(ArgumentError, match=r"0 plans>; call it"):
        evaluate(state["params"], batch)
    state, _ = step(state, batch)
    assert_same(evaluate(state["params"], batch), jnp.mean(mlp(state["params"], batch) ** 2))
    assert evaluate.plans[0].in_specs[0] == step.plans[0].in_specs[0]["params"]


def test_plans_are_found_again_on_disk(tmp_path: Path) -> None:
    options = planner.Options(check="never", cache=str(tmp_path))
    for _ in range(2):
        f = jit(lambda x, n: x * n, options=options, static_argnums=1)
        assert_same(f(X, 2), X * 2)
        assert_same(f(X, 3), X * 3)
    assert len(list(tmp_path.rglob("*.plan.json"))) == 2


def test_the_arrays_of_a_call_are_not_kept() -> None:
    f = jit(lambda x: x.sum())
    x = jnp.array(X)
    f(x)
    f(x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


def test_leaves_that_are_no_arrays_are_static() -> None:
    def apply(tree: dict[str, Any], x: jax.Array) -> dict[str, Any]:
        return {**tree, "y": tree["f"](x)}

    f = jit(apply)
    found = f({"f": jnp.tanh, "n": None}, X)
    assert found["f"] is jnp.tanh
    assert_same({"y": found["y"], "n": found["n"]}, {"y": jnp.tanh(X), "n": None})
    assert_same(f({"f": jnp.sin, "n": None}, X)["y"], jnp.sin(X))
    f({"f": jnp.sin, "n": None}, X)
    assert len(f.plans) == 2
    with pytest.raises(ArgumentError, match=r"tree/f is \{1\} of type set.*hash"):
        f({"f": {1}}, X)


def test_an_equinox_module_as_it_is() -> None:
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    model = eqx.nn.Sequential([eqx.nn.MLP(64, 64, 32, 1, key=jax.random.key(0)), eqx.nn.Dropout(0.0)])
    optimizer = optax.sgd(0.1)

    def step(model: Any, state: Any, x: jax.Array) -> Any:
        def loss(model: Any) -> jax.Array:
            keys = jax.random.split(jax.random.key(0), len(x))
            return jnp.mean(jax.vmap(lambda x, key: model(x, key=key))(x, keys) ** 2)

        value, grads = eqx.filter_value_and_grad(loss)(model)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(model, updates), state, value

    state = optimizer.init(eqx.filter(model, eqx.is_array))
    expected = step(model, state, X)
    train = jit(step, donate_argnums=(0, 1))
    found = train(jax.tree.map(lambda x: x + 0 if eqx.is_array(x) else x, model), state, X)
    assert found[0].layers[0].activation is model.layers[0].activation
    assert found[0].layers[1].p == 0.0
    assert isinstance(found[0].layers[1].inference, bool)
    assert_same(eqx.filter(found, eqx.is_array), eqx.filter(expected, eqx.is_array))
    found = train(*found[:2], X)
    assert len(train.plans) == 1
    assert any(leaf.name == "model/layers/0/layers/0/weight" for leaf in train.plans[0].decision.arguments)
    train(eqx.nn.inference_mode(found[0]), found[1], X)
    assert len(train.plans) == 2


def test_a_flax_nnx_module_as_it_is() -> None:
    nnx, optax = pytest.importorskip("flax.nnx"), pytest.importorskip("optax")

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.first, self.last = nnx.Linear(64, 64, rngs=rngs), nnx.Linear(64, 64, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.last(jax.nn.relu(self.first(x)))

    def step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
        value, grads = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, grads)
        return value

    def made() -> tuple[Any, Any]:
        model = Model(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    train, expected, found = jit(step), made(), made()
    for _ in range(2):
        assert_same(train(*found, X), step(*expected, X))
    assert_same(nnx.state(found), nnx.state(expected))
    train(*found, X[:20])
    assert len(train.plans) == 2
    first, second = (jax.tree.leaves(plan.in_specs[0]) for plan in train.plans)
    assert first == second


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"static_argnames": "mode"}, "static_argnames holds 'mode', and mlp has no argument of that name"),
        ({"donate_argnums": 2}, "holds 2, but there are 2 arguments"),
        ({"donate_argnames": 3}, "donate_argnames is 3; give the name"),
    ],
)
def test_marks_of_parameters_that_a_function_has_not(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        jit(mlp, **keywords)(*mlp_args())


def test_what_is_no_function() -> None:
    with pytest.raises(ArgumentError, match="fn must be a function, got int"):
        jit(3)
    with pytest.raises(ArgumentError, match="x is both static and donated"):
        jit(lambda x: x, static_argnums=0, donate_argnums=0)(1)
    with pytest.raises(ArgumentError, match=r"argument n is \(\[1\],\) of type tuple.*hash"):
        jit(lambda x, n: x, static_argnames="n")(X, n=([1],))
    with pytest.raises(MeshError):
        planner.jit(lambda x: x, mesh={"x": 64})(X)


def test_a_partial() -> None:
    f = jit(functools.partial(lambda x, y, *, scale: x @ y * scale, scale=3.0))
    assert_same(f(X, y=X.T), X @ X.T * 3)
