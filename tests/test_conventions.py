"""What a function may be and take, and what its arrays may be: planned to be split, run, and compared with the function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.tree_util import register_dataclass, register_pytree_node_class

import planner
from planner.testing import free_wires

X = jax.random.normal(jax.random.key(0), (16, 8))
W = jax.random.normal(jax.random.key(1), (8, 16))


def planned(fn: Callable[..., Any], *args: Any, example: tuple[Any, ...] | None = None, **more: Any) -> planner.Plan:
    """A plan that splits all it may; raises where it gives, twice, other values, types or structures than the function."""
    options = planner.Options(check="never")
    mesh = {"x": 4, "y": 2}
    made = planner.plan(
        fn, example or args, devices=jax.devices(), topology=free_wires(8), mesh=mesh, options=options, **more
    )
    wanted = fn(*args)
    for found in (made(*args), made.jit(*made.place(*args))):
        assert jax.tree.structure(found) == jax.tree.structure(wanted)
        for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert (got.shape, got.dtype) == (jnp.shape(want), jax.typeof(want).dtype)
            np.testing.assert_allclose(_plain(got), _plain(want), rtol=2e-3, atol=2e-3)
    return made


def _plain(array: Any) -> np.ndarray:
    """The values of an array of any type as numbers that numpy compares."""
    array = jnp.asarray(array) if not isinstance(array, np.ndarray) else array
    if array.dtype == jax.dtypes.float0:
        return np.zeros(array.shape)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    wide = np.asarray(array)
    return wide if wide.dtype.kind == "c" else wide.astype(np.float64)


# ---------------------------------------------------------------- pytrees


@functools.partial(register_dataclass, data_fields=["w", "b"], meta_fields=["name"])
@dataclass
class Layer:
    w: jax.Array
    b: jax.Array
    name: str = "dense"


class Pair(NamedTuple):
    left: Any
    right: Any


@register_pytree_node_class
class Box:
    """A node of the user's own, without keys."""

    def __init__(self, inside: Any, label: str) -> None:
        self.inside, self.label = inside, label

    def tree_flatten(self) -> tuple[tuple[Any, ...], str]:
        return (self.inside,), self.label

    @classmethod
    def tree_unflatten(cls, label: str, children: tuple[Any, ...]) -> Box:
        return cls(children[0], label)


def test_trees_of_every_kind() -> None:
    def fn(layer: Layer, pair: Pair, box: Box, nothing: None, words: dict[str, Any]) -> Any:
        y = pair.left @ layer.w + layer.b + box.inside[0]
        return Box(Pair(y, {"z": y + words["b"][0], "a": ()}), box.label), nothing, [Layer(y, layer.b, layer.name)]

    plan = planned(
        fn, Layer(W, jnp.ones(16)), Pair(X, None), Box([jnp.ones(16)], "b"), None, {"b": (jnp.ones(16),), "a": []}
    )
    assert set(plan.in_specs[4]) == {"a", "b"}


def test_a_flax_train_state() -> None:
    flax_linen = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")
    optax = pytest.importorskip("optax")
    model = flax_linen.Dense(16)
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=model.init(jax.random.key(0), X), tx=optax.adam(0.1)
    )

    def step(state: Any, x: jax.Array) -> Any:
        return state.apply_gradients(grads=jax.grad(lambda p: (state.apply_fn(p, x) ** 2).mean())(state.params))

    planned(step, state, X)


# ---------------------------------------------------------------- functions


class Model:
    def __init__(self) -> None:
        self.w = W

    def forward(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ self.w)

    def __call__(self, x: jax.Array, scale: float = 2.0) -> jax.Array:
        return self.forward(x) * scale


def scaled(x: jax.Array, w: jax.Array, *rest: jax.Array, scale: float = 1.0) -> jax.Array:
    return sum((x @ w + r for r in rest), x @ w) * scale


def in_jit(table: jax.Array) -> Callable[..., Any]:
    helper = jax.jit(lambda x: x @ table)
    return lambda x: helper(x) + helper(x + 1)


FUNCTIONS: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "partial with keywords": (functools.partial(scaled, scale=3.0), (X, W)),
    "partial with an array": (functools.partial(scaled, X), (W,)),
    "variable arguments": (scaled, (X, W, jnp.ones(16), jnp.ones(16))),
    "bound method": (Model().forward, (X,)),
    "callable object": (Model(), (X,)),
    "jitted": (jax.jit(scaled), (X, W)),
    "jitted with static argument names": (jax.jit(scaled, static_argnames="scale"), (X, W)),
    "wrapped": (functools.wraps(scaled)(lambda *args: scaled(*args)), (X, W)),
    "closes over a small array": (lambda x: x @ W, (X,)),
    "closes over a large array": (lambda x: x @ jnp.full((8, 4096), 0.1), (X,)),
    "closes over a large array in a jit": (in_jit(jnp.full((8, 4096), 0.1)), (X,)),
    "closes over numpy": (lambda x: x @ np.ones((8, 4096), np.float32), (X,)),
    "returns its arguments": (lambda x, w: (w, x), (X, W)),
    "returns constants": (lambda x: (jnp.arange(16), 3, np.float32(2), x.sum()), (X,)),
    "returns nothing": (lambda x: (), (X,)),
    "returns None among others": (lambda x: {"a": None, "b": x.T}, (X,)),
    "takes nothing": (lambda: jnp.ones((16, 8)) @ jnp.ones((8, 16)), ()),
    "ignores an argument": (lambda x, w: x * 2, (X, W)),
    "one result twice": (lambda x: [x.T, x.T], (X,)),
    "one array as two arguments": (lambda x, y: x @ y.T, (X, X)),
    "python numbers": (lambda x, a, b: x * a + b, (X, 2.0, 3)),
    "numpy arguments": (lambda x, w: x @ w, (np.asarray(X), np.asarray(W))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    planned(FUNCTIONS[name][0], *FUNCTIONS[name][1])


def test_static_arguments_and_donation() -> None:
    def fn(mode: str, x: jax.Array, repeat: int) -> jax.Array:
        return (jnp.tanh if mode == "tanh" else jnp.sin)(x) * repeat

    assert planned(fn, "tanh", X, 3, static_argnums=(0, 2)).in_specs[0] is None
    kept = jnp.array(X)
    plan = planner.plan(
        lambda x, w: (x + 1, w.sum()),
        (kept, W),
        devices=jax.devices(),
        topology=free_wires(8),
        donate_argnums=(0,),
        options=planner.Options(check="never"),
    )
    np.testing.assert_allclose(plan(kept, W)[0], X + 1)
    assert kept.is_deleted()


def test_shapes_for_arguments() -> None:
    abstract = jax.eval_shape(lambda: {"x": X, "w": W})
    planned(lambda tree: tree["x"] @ tree["w"], {"x": X, "w": W}, example=(abstract,))


# ---------------------------------------------------------------- arrays


def of(dtype: Any, shape: tuple[int, ...] = (16, 8)) -> jax.Array:
    return jnp.asarray(np.arange(np.prod(shape)).reshape(shape) % 3, jnp.dtype(dtype))


FLOAT8 = [name for name in dir(jnp) if name.startswith("float8_")]
DTYPES: Mapping[str, list[str]] = {
    "floats": ["float32", "bfloat16", "float16"],
    "floats of 8 bits": FLOAT8,
    "integers": ["int8", "int16", "int32", "uint8", "uint16", "uint32"],
    "narrow integers": ["int4", "uint4"],
    "complex and bool": ["complex64", "bool"],
}


@pytest.mark.parametrize("name", DTYPES)
def test_types(name: str) -> None:
    def fn(arrays: dict[str, jax.Array]) -> Any:
        return {n: (x.T, x if x.dtype == jnp.complex64 else x.astype(jnp.float32).sum(1)) for n, x in arrays.items()}

    planned(fn, {n: of(n) for n in DTYPES[name]})


def test_weak_types() -> None:
    plan = planned(lambda x, a: (x * a, a + 1), of("bfloat16"), 2.0)
    result = plan(of("bfloat16"), 2.0)
    assert (result[0].dtype, result[1].dtype) == (jnp.bfloat16, jnp.float32)


def test_keys_of_the_new_style() -> None:
    def fn(key: jax.Array, keys: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return first, jax.vmap(lambda k: jax.random.normal(k, (8,)))(keys), jax.random.bits(second, (16, 8)), keys[::2]

    planned(fn, jax.random.key(0), jax.random.split(jax.random.key(1), 16))
    planned(lambda key: jax.random.uniform(key, (16, 8)), jax.random.PRNGKey(0))


def test_arrays_without_elements_and_scalars() -> None:
    def fn(empty: jax.Array, scalar: jax.Array, x: jax.Array) -> Any:
        return empty, empty.sum(0) + scalar, jnp.concatenate([x, empty]), scalar * x, x[:0], empty @ x.T

    planned(fn, jnp.zeros((0, 8)), jnp.float32(3), X)


def test_pieces_without_elements_leave_the_rest_split() -> None:
    """The backward pass of an associative scan cuts off pieces of no steps, and its forward pass joins them."""

    def fn(x: jax.Array) -> Any:
        def loss(x: jax.Array) -> jax.Array:
            return jnp.sin(lax.associative_scan(jnp.multiply, x, axis=1)).sum()

        return jax.grad(loss)(x)

    x = jax.random.uniform(jax.random.key(0), (16, 8, 8), minval=0.5, maxval=1.5)
    assert planned(fn, x, pins={"x": jax.P(("x", "y"))}).predicted.collectives == ()


def test_cotangents_of_integers() -> None:
    def fn(x: jax.Array, n: jax.Array) -> Any:
        return jax.vjp(lambda x, n: x * n, x, n)[1](jnp.ones_like(x))

    plan = planned(fn, X, jnp.ones((16, 8), jnp.int32))
    assert plan(X, jnp.ones((16, 8), jnp.int32))[1].dtype == jax.dtypes.float0
