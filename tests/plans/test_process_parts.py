"""Arguments of which processes bring parts: named rightly or refused; on one process the part is the whole.

`tests/machine/test_processes.py` has several processes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import planner
from planner.emit.call_arguments import Part, as_planned
from planner.errors import ArgumentError
from planner.machine.host_parts import crossing_axes
from planner.program.tracing.arguments import argument_leaf
from tests.small import NEVER, assert_same, mlp, mlp_args, shapes


def test_on_one_process_the_part_is_the_whole(tmp_path: Path):
    args = mlp_args()
    p = planner.plan(mlp, args, process_local=("x",))
    free = planner.plan(mlp, shapes(args), options=NEVER)
    assert p.in_specs == free.in_specs
    assert p.decision.request.process_local == {"x": 0}
    assert_same(p(*args), mlp(*args))
    p.save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json")
    assert loaded.decision.request == p.decision.request
    assert_same(loaded.bind(mlp, args)(*args), mlp(*args))


def test_names_patterns_and_dims():
    def fn(batch: Any, x: jax.Array) -> jax.Array:
        return batch["a"].sum() + batch["b"].sum() + x.sum()

    args = ({"a": jnp.ones((8, 4)), "b": jnp.ones((8, 2))}, jnp.ones((4, 8)))
    for process_local, dims in (
        (("batch",), {"batch/a": 0, "batch/b": 0}),
        (["*/a"], {"batch/a": 0}),
        ({"batch": 1, "batch/b": 0, "x": 1}, {"batch/a": 1, "batch/b": 0, "x": 1}),
        ((), {}),
    ):
        p = planner.plan(fn, args, process_local=process_local, options=NEVER)
        assert p.decision.request.process_local == dims


@pytest.mark.parametrize(
    ("process_local", "words"),
    [
        (("batch",), "process_local names 'batch', and no argument is called so; names look like"),
        ("x", r"process_local is 'x'; give a tuple of names of arguments, such as \('batch',\)"),
        ({"x": -1}, "process_local is .*; give a tuple of names"),
        ({"x": 2}, "process_local names x, which has 2 dims and no dim 2"),
        (3, "process_local is 3; give a tuple of names"),
    ],
)
def test_what_names_no_parts(process_local: Any, words: str):
    with pytest.raises(ArgumentError, match=words):
        planner.plan(mlp, mlp_args(), process_local=process_local, options=NEVER)


def test_a_part_is_checked_for_its_own_shape():
    leaf, part = argument_leaf("x", np.ones((32, 4), np.float32)), Part(dim=0, count=4)
    mine = np.ones((8, 4), np.float32)
    assert as_planned(leaf, mine, part) is mine
    for wrong in (np.ones((32, 4), np.float32), np.ones((8, 4), np.int32)):
        with pytest.raises(ArgumentError, match=r"the part of this process, one of 4 of float32\[32, 4\] along dim 0"):
            as_planned(leaf, wrong, part)
    with pytest.raises(ArgumentError, match=r"was planned as float32\[32, 4\], got float32\[8, 4\]"):
        as_planned(leaf, mine)


class Owned:
    """A device of a process."""

    def __init__(self, process: int) -> None:
        self.process_index = process


def test_the_axes_that_cross_processes():
    class Laid:
        def __init__(self, owners: Any, names: tuple[str, ...]) -> None:
            self.devices = np.vectorize(Owned, otypes=[object])(np.asarray(owners))
            self.axis_names = names

    for owners, crossing in (
        ([[0, 0], [1, 1]], ("a",)),
        ([[0, 1], [0, 1]], ("b",)),
        ([[0, 1], [2, 3]], ("a", "b")),
        ([[0, 0], [0, 0]], ()),
        ([[0, 0], [0, 1]], ("a", "b")),
    ):
        laid: Any = Laid(owners, ("a", "b"))
        assert crossing_axes(laid) == crossing
