"""Errors about the structure of arguments name what differs, and nothing else."""

from __future__ import annotations

import collections
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import struct

from planner.emit.call_arguments import structure_differences

Pair = collections.namedtuple("Pair", "x y")


class State(struct.PyTreeNode):
    params: Any
    tx: Any = struct.field(pytree_node=False)
    rate: float = struct.field(pytree_node=False, default=0.1)


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A node without names, whose static part is no tuple."""

    def __init__(self, leaf: Any, note: str) -> None:
        self.leaf, self.note = leaf, note

    def tree_flatten(self) -> tuple[tuple[Any], str]:
        return (self.leaf,), self.note

    @classmethod
    def tree_unflatten(cls, note: str, children: tuple[Any]) -> Opaque:
        return cls(children[0], note)


A = jnp.ones(2)
TX, OTHER = object(), object()
CASES = {
    "a key is missing": ({"x": A, "label": A}, {"x": A}, "batch: key 'label' is missing"),
    "a key is new": ({"x": A}, {"x": A, "y": A}, "batch: key 'y' was not planned"),
    "a list for a dict": (
        {"p": {"w": A, "b": A}},
        {"p": [A, A]},
        "batch/p was planned as a dict with the keys 'b', 'w', got a list",
    ),
    "an array for a tree": ((A, (A, A)), (A, A), "batch/1 was planned as a tuple, got an array"),
    "None for an array": ([A], [None], "batch/0 was planned as an array, got None"),
    "a shorter list": ([A, A], [A], "batch was planned with 2 items, got 1"),
    "deep in a named tuple": (
        Pair(A, {"k": A}),
        Pair(A, {"j": A}),
        "batch/y: key 'k' is missing; batch/y: key 'j' was not planned",
    ),
    "another object": (
        State({"w": A}, TX),
        State({"w": A}, OTHER),
        "batch.tx is another object than was planned; use the same object, or one that is equal",
    ),
    "another number": (
        State({"w": A}, TX),
        State({"w": A}, TX, 0.2),
        "batch.rate is planned as 0.1, got 0.2; use the same object, or one that is equal",
    ),
    "an unnamed static part": (
        Opaque(A, "a"),
        Opaque(A, "b"),
        "batch (Opaque) differs in what is no array of it: planned as 'a', got 'b'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_only_the_difference_is_told(case: str) -> None:
    planned, given, words = CASES[case]
    assert structure_differences(jax.tree.structure(planned), given, "batch") == words


def test_equal_structures_differ_in_nothing() -> None:
    assert structure_differences(jax.tree.structure({"x": A}), {"x": 2 * A}, "batch") == ""


def test_many_differences_are_counted() -> None:
    planned = jax.tree.structure({f"k{i}": A for i in range(9)})
    assert structure_differences(planned, {}, "batch").endswith("and 6 more differences")
