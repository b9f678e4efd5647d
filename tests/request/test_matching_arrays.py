"""Arrays that two programs have in common are found by structure, names and types, wherever they stand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from planner.program.tracing.arguments import argument_leaf, joined
from planner.program.tracing.traced import Leaf
from planner.request.matching_arrays import same_arrays

W, B, STEP = jnp.ones((8, 4)), jnp.ones(4), jnp.ones((), jnp.int32)
LAYER = {"kernel": W, "bias": B}
PARAMS = {"first": LAYER, "second": LAYER, "head": {"kernel": jnp.ones((4, 2))}}
MOMENTS = ({"mu": PARAMS, "nu": PARAMS}, STEP)


def leaves(**named: Any) -> list[Leaf]:
    """The leaves of arguments, or of a result `out`, by name."""
    return [
        argument_leaf(joined(name, path), value)
        for name, tree in named.items()
        for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def found(mine: list[Leaf], theirs: list[Leaf]) -> dict[str, str]:
    same = same_arrays(mine, theirs)
    assert all(mine[i].aval == theirs[other].aval for i, other in same.of.items())
    return {mine[i].name: theirs[other].name for i, other in same.of.items()}


def test_the_same_names():
    ours = leaves(params=PARAMS, x=W)
    assert found(ours, leaves(params=PARAMS, x=W)) == {leaf.name: leaf.name for leaf in ours}


@pytest.mark.parametrize(
    ("mine", "theirs", "part", "as_part"),
    [
        ({"variables": PARAMS}, {"opt": MOMENTS, "params": PARAMS}, "variables", "params"),
        ({"variables": {"params": PARAMS}}, {"opt": MOMENTS, "params": PARAMS}, "variables/params", "params"),
        ({"params": PARAMS}, {"state": {"opt": MOMENTS, "params": PARAMS}}, "params", "state/params"),
        ({"out": PARAMS}, {"params": PARAMS, "opt": MOMENTS}, "out", "params"),
        ({"out": (MOMENTS, PARAMS)}, {"params": PARAMS, "opt": MOMENTS}, "out/1", "params"),
        ({"params": PARAMS}, {"key": STEP, "out": {"params": PARAMS, "opt": MOMENTS}}, "params", "out/params"),
        ({"params": PARAMS}, {"key": STEP, "out": (PARAMS, MOMENTS)}, "params", "out/0"),
        ({"params": [PARAMS, PARAMS]}, {"params": [PARAMS, PARAMS], "x": W}, "params/1", "params/1"),
    ],
)
def test_a_part_at_another_place_or_under_another_name(mine: Any, theirs: Any, part: str, as_part: str):
    pairs = found(leaves(**mine), leaves(**theirs))
    below = [leaf.name for leaf in leaves(**mine) if leaf.name.startswith(f"{part}/")]
    assert {name: pairs[name] for name in below} == {name: as_part + name.removeprefix(part) for name in below}


def test_the_optimizer_has_its_own_counterparts():
    pairs = found(leaves(params=PARAMS, opt=MOMENTS), leaves(state={"params": PARAMS, "opt": MOMENTS}))
    assert pairs["opt/0/mu/first/bias"] == "state/opt/0/mu/first/bias"
    assert len(set(pairs.values())) == len(pairs)


def test_what_a_larger_model_has_more_does_not_hide_the_rest():
    larger = {**PARAMS, "third": LAYER}
    pairs = found(leaves(params=larger), leaves(params=PARAMS))
    assert pairs == {leaf.name: leaf.name for leaf in leaves(params=PARAMS)}


def test_arguments_go_before_results():
    theirs = leaves(params=PARAMS, out=(PARAMS, STEP))
    assert set(found(leaves(weights=PARAMS), theirs).values()) == {leaf.name for leaf in leaves(params=PARAMS)}


def test_an_array_alone_counts_by_its_name():
    assert found(leaves(batch={"x": W, "y": B}), leaves(data={"x": W, "z": B})) == {"batch/x": "data/x"}
    assert found(leaves(x=W), leaves(y=W)) == {}
    assert found(leaves(x=W), leaves(x=B)) == {}
    assert found(leaves(a=(W,)), leaves(b=(W,))) == {}
    assert found(leaves(out=W), leaves(x=B, out=W)) == {}


def test_results_are_the_arguments_of_their_types_where_nothing_else_is_found():
    assert found(leaves(w=W, b=B, x=W), leaves(key=STEP, out=(W, B))) == {"b": "out/1"}
    assert found(leaves(key=STEP, out=(W, B)), leaves(w=W, b=B)) == {"out/0": "w", "out/1": "b"}
