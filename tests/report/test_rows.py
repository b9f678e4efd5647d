"""Rows of a printed plan: moments fold into their parameters whatever holds them, layers into one another."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from planner.folded import fold_numbers
from planner.program.tracing.trace import trace
from planner.report.rows import TableRow, rows_of

optax = pytest.importorskip("optax")

LAYERS = 12
State = namedtuple("State", "w m v step")


def params(name: Callable[[int], str]) -> dict[str, Any]:
    return {
        name(i): {"attn": {"query": {"kernel": jnp.ones((4, 4))}, "key": {"kernel": jnp.ones((4, 4))}}}
        for i in range(LAYERS)
    }


def as_list(w: dict[str, Any]) -> list[Any]:
    return list(w.values())


def train_state(w: Any) -> Any:
    module = pytest.importorskip("flax.training.train_state")
    return module.TrainState.create(apply_fn=None, params=w, tx=optax.chain(optax.clip(1.0), optax.adamw(1e-3)))


def masked(w: Any) -> Any:
    tx = optax.multi_transform({"a": optax.adam(1e-3)}, lambda w: jax.tree.map(lambda _: "a", w))
    return {"params": w, "opt": tx.init(w)}


NAMES: dict[str, Callable[[int], str]] = {"Block_": "Block_{}".format, "layers_": "layers_{}".format}
STATES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda w: {"params": w, "opt": optax.adam(1e-3).init(w)},
    "a TrainState": train_state,
    "chains in chains": lambda w: (
        w,
        optax.chain(optax.chain(optax.clip(1.0), optax.adam(1e-3)), optax.ema(0.9)).init(w),
    ),
    "labelled": masked,
    "a named tuple": lambda w: State(w, w, w, 0),
    "deep": lambda w: {"run": {"model": {"params": w}, "opt": [optax.adam(1e-3).init({"params": w})]}},
    "lists": lambda w: (as_list(w), optax.adam(1e-3).init(as_list(w))),
}


def rows(state: Any, specs: Callable[[str], P] = lambda name: P()) -> list[TableRow]:
    leaves = trace(lambda s: s, (state,)).arguments
    return rows_of(leaves, [specs(leaf.name) for leaf in leaves], {"x": 2})


@pytest.mark.parametrize("prefix", NAMES)
@pytest.mark.parametrize("state", STATES)
def test_moments_and_layers_fold_whatever_holds_them(state: str, prefix: str) -> None:
    found = [row for row in rows(STATES[state](params(NAMES[prefix]))) if "kernel" in row.name]
    assert [row.name.rpartition("}")[2] for row in found] == ["/attn/key/kernel", "/attn/query/kernel"]
    assert all("{0..11}" in row.name and row.count == LAYERS * (1 + len(row.also)) for row in found)
    assert all(len(row.also) >= 2 for row in found)


def test_what_lies_otherwise_stays_apart() -> None:
    def spec(name: str) -> P:
        return P("x") if "Block_3/attn/key" in name or ("/nu/" in name and "query" in name) else P()

    state = train_state(params("Block_{}".format))
    found = {row.name: [at.rpartition("/")[2] for at in row.also] for row in rows(state, spec) if "kernel" in row.name}
    start = "s/params/Block_"
    assert found == {
        f"{start}{{0..2,4..11}}/attn/key/kernel": ["mu", "nu"],
        f"{start}{{0..11}}/attn/query/kernel": ["mu"],
        f"{start}3/attn/key/kernel": ["mu", "nu"],
        "s/opt_state/1/0/nu/Block_{0..11}/attn/query/kernel": [],
    }


def test_parts_of_a_module_are_no_moments_of_one_another() -> None:
    alike = {"query": {"kernel": jnp.ones((4, 4))}, "key": {"kernel": jnp.ones((4, 4))}}
    assert [row.also for row in rows({"encoder": alike, "bias": jnp.ones(3)})] == [(), (), ()]


def test_names_fold_by_their_numbers() -> None:
    names = ["b_0/out", "b_1/out", "b_2/out", "sum", "sum#2", "max", "max#2"]
    assert [f.name for f in fold_numbers(names, [0] * 7)] == ["b_{0..2}/out", "sum", "max"]
    assert [f.name for f in fold_numbers(names, [0, 1, 0, 0, 0, 0, 1])] == [
        "b_{0,2}/out",
        "b_1/out",
        "sum",
        "max",
        "max#2",
    ]
    assert [f.name for f in fold_numbers(["a1/b0", "a1/b1", "a2/b0", "a2/b1", "a3/c0"], [0] * 5)] == [
        "a{1,2}/b{0,1}",
        "a3/c0",
    ]
