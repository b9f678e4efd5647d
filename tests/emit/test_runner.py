"""Calls of a plan: what is in place goes straight to the compiled program, all else is placed or told, every time."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.emit import runner
from planner.errors import ArgumentError
from tests.small import NEVER, assert_same, mlp, mlp_args, train_args, train_step

X = jnp.arange(64.0).reshape(8, 8)


@jax.tree_util.register_pytree_node_class
class Picky:
    """A container that holds arrays only, and so no shardings."""

    def __init__(self, value: Any) -> None:
        if not hasattr(value, "shape"):
            raise TypeError("not an array")
        self.value = value

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Picky:
        return cls(children[0])


@pytest.fixture
def running() -> planner.Plan:
    """A plan that has run before."""
    p = planner.plan(mlp, mlp_args(), mesh={"data": 8}, options=NEVER)
    p(*mlp_args())
    return p


def test_arguments_in_place_are_not_looked_at(running: planner.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = running.place(*mlp_args())
    monkeypatch.setattr(runner, "checked_leaves", lambda *_: pytest.fail("looked at every leaf"))
    assert_same(running(*placed), mlp(*mlp_args()))
    assert_same(running(*mlp_args()), mlp(*mlp_args()))


def test_what_lies_elsewhere_is_placed_at_every_call(running: planner.Plan) -> None:
    params, x = mlp_args()
    whole = NamedSharding(running.mesh, P())
    ways = {
        "on one device": jax.device_put(x, jax.devices()[3]),
        "on the mesh otherwise": jax.device_put(x, whole),
        "on another mesh": jax.device_put(x, NamedSharding(jax.make_mesh((2,), ("a",)), P("a"))),
        "on none": np.asarray(x),
        "64 bits": np.asarray(x, np.float64),
        "in place": running.place(params, x)[1],
    }
    expected = mlp(params, x)
    for _ in range(2):
        for value in ways.values():
            assert_same(running(params, value), expected)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda p, x: (p, x[:4]),
            r"got float32\[4, 64\]; make a plan for these shapes as well, or, if it is the last part of a batch, drop it "
            "or pad dim 0 from 4 to 32",
        ),
        (lambda p, x: (p, x[:, :4]), "pad dim 1 from 4 to 64"),
        (lambda p, x: (p, jnp.concatenate([x, x])), r"got float32\[64, 64\]; make a plan for these shapes$"),
        (lambda p, x: (p, x[:4, :4]), r"got float32\[4, 4\]; make a plan for these shapes$"),
        (lambda p, x: (p, x[0]), r"got float32\[64\]; make a plan for these shapes$"),
        (lambda p, x: (p, x.astype(jnp.int32)), r"got int32\[32, 64\]"),
        (lambda p, x: (p, "text"), "got 'text' of type str; give an array"),
        (lambda p, x: ({**p, "more": x}, x), "params: key 'more' was not planned"),
        (lambda p, x: (p,), "planned for 2 arguments, got 1"),
    ],
)
def test_what_was_not_planned_for_is_told_at_every_call(running: planner.Plan, change: Any, words: str) -> None:
    for _ in range(2):
        with pytest.raises(ArgumentError, match=words):
            running(*change(*mlp_args()))
    assert_same(running(*mlp_args()), mlp(*mlp_args()))


def test_static_arguments_and_scalars() -> None:
    def fn(x: jax.Array, n: int, scale: Any) -> jax.Array:
        return x[:n] * scale

    p = planner.plan(fn, (X, 4, 2.0), mesh={"data": 4}, static_argnums=1, options=NEVER)
    for scale in (2.0, 3, np.float32(4), True):
        assert_same(p(X, 4, scale), X[:4] * scale)
    with pytest.raises(ArgumentError, match="static argument 1 was planned as 4, got 5"):
        p(X, 5, 2.0)
    with pytest.raises(ArgumentError, match="argument scale was planned as float32"):
        p(X, 4, 1j)


def test_transformations_after_a_run(running: planner.Plan) -> None:
    params, x = mlp_args()
    assert_same(jax.jit(running)(params, x), mlp(params, x))
    grads = jax.grad(lambda params: running(params, x).sum())(params)
    assert_same(grads, jax.grad(lambda params: mlp(params, x).sum())(params))


def test_donated_arguments_are_consumed_wherever_they_lie() -> None:
    p = planner.plan(train_step, train_args(), mesh={"data": 8}, donate_argnums=0, options=NEVER)
    states = [jax.tree.map(jnp.copy, train_args()[0]) for _ in range(3)]
    states.append(jax.device_put(states.pop(), jax.devices()[1]))
    x = train_args()[1]
    for state in states:
        p(state, x)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    state = p.place(*train_args())[0]
    for _ in range(3):
        before, (state, _) = state, p(state, x)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    split = planner.plan(lambda x: x + 1, (X,), mesh={"x": 8}, donate_argnums=0, options=NEVER)
    assert split.in_specs == (P("x"),)
    for _ in range(3):
        copied = jnp.copy(X)
        split(copied)
        assert copied.is_deleted(), "JAX copies it to split it, and keeps the original"
    numpy_state = jax.tree.map(np.asarray, train_args()[0])
    assert_same(p(numpy_state, x), p(numpy_state, x))
    assert not x.is_deleted()


def test_an_argument_that_was_donated_is_told_by_name() -> None:
    p = planner.plan(train_step, train_args(), mesh={"data": 8}, donate_argnums=0, options=NEVER)
    state, x = p.place(*train_args())
    gone = r"argument state/\w+/.* was donated to an earlier call and is gone; give what that call returned"
    for _ in range(3):  # the second call takes the short way
        before, (state, _) = state, p(state, x)
        for use in (p, p.place):
            with pytest.raises(ArgumentError, match=gone):
                use(before, x)
    with pytest.raises(ArgumentError, match=r"argument state/m/.* was donated"):
        p({**state, "m": before["m"]}, x)
    wanted = train_step(state, x)[1]
    assert_same(p(state, x)[1], wanted)


@pytest.mark.parametrize("devices", [1, 8])
def test_an_array_that_another_function_consumed_is_told_by_name(devices: int) -> None:
    place: Any = {"mesh": {"x": devices}, "devices": jax.devices()[:devices], "options": NEVER}
    p = planner.plan(lambda x: x * 2, (X,), **place)
    other = planner.plan(lambda x: x + 1, (X,), donate_argnums=0, **place)
    (x,) = p.place(jnp.copy(X))
    for _ in range(3):
        assert_same(p(x), X * 2)
    other(x)
    with pytest.raises(ArgumentError, match="argument x was donated to an earlier call and is gone"):
        p(x)


def test_containers_that_hold_arrays_only() -> None:
    p = planner.plan(lambda own: Picky(own.value * 2), (Picky(X),), mesh={"x": 8}, options=NEVER)
    for _ in range(3):
        assert_same(p(Picky(X)).value, X * 2)
    assert p.verify(Picky(X)).as_promised


def test_large_constants_are_passed_along() -> None:
    table = jnp.arange(2.0**16).reshape(256, 256)
    p = planner.plan(lambda x: x @ table, (jnp.ones((8, 256)),), mesh={"x": 8}, donate_argnums=0, options=NEVER)
    for _ in range(3):
        assert_same(p(jnp.ones((8, 256))), jnp.ones((8, 256)) @ table)
    assert not table.is_deleted()


def test_a_program_that_fails_is_run_once() -> None:
    ran = []

    def host(x: Any) -> Any:
        ran.append(1)
        if len(ran) > 1:
            raise ValueError("on the host")
        return x

    def fn(x: jax.Array) -> jax.Array:
        return jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    p = planner.plan(fn, (X,), mesh={"x": 1}, options=NEVER)
    jax.block_until_ready(p(X))
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape("on the host")):
        jax.block_until_ready(p(X))
    assert len(ran) == 2
