"""What is predicted of ops emitted by hand is what is emitted: a choice and the constraints that it becomes agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from planner.compiler.emission.passes import CONSTRAIN_ANCHORS_ONLY
from planner.compiler.model import CompilerModel
from planner.compiler.targets.table import CPU
from planner.emit.by_hand import ADDING, How, by_hand, chosen_split, laid_split
from planner.emit.constraints import place
from planner.emit.halo_exchange import exchanges
from planner.emit.local_ops import local_calls
from planner.pricing.assignment import Chosen
from tests.hazards.hazard_cases import Case
from tests.hazards.hazard_trial import Bench

MESH = {"x": 4, "y": 2}


def conv(groups: int) -> Callable[..., Any]:
    def convolved(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups
        )

    return convolved


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], set[How | None]]] = {
    "conv": (conv(1), ((2, 16, 8), (3, 8, 8)), {None, "exchange"}),
    "conv in groups": (conv(4), ((2, 16, 8), (3, 2, 8)), {"exchange"}),
    "pool": (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), "VALID"), ((4, 16),), {None, "exchange"}),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), ((8, 6),), {"parts"}),
    "dynamic_update_slice": (lambda x, u: lax.dynamic_update_slice(x, u, (3, 0)), ((8, 4), (1, 4)), {"parts", None}),
    "scatter": (lambda x, u: x.at[3].set(u), ((8, 4), (4,)), {"barrier", None}),
    "ragged dot": (
        lambda x, w: lax.ragged_dot(x, w, jnp.array([3, 5])),
        ((8, 16), (2, 16, 8)),
        {None, "sums"},
    ),
    "matmul": (jnp.dot, ((8, 16), (16, 8)), {None}),
}
"""A program, the shapes of its arguments, and what its op may be emitted as where it is split."""
FEWER_CONSTRAINTS = replace(CPU, passes=(*CPU.passes, CONSTRAIN_ANCHORS_ONLY))


@pytest.mark.parametrize("compiler", [CPU, FEWER_CONSTRAINTS], ids=["all ops", "anchors only"])
@pytest.mark.parametrize("name", CASES)
def test_a_choice_and_its_constraints_agree_on_what_is_emitted_by_hand(name: str, compiler: CompilerModel) -> None:
    function, shapes, expected = CASES[name]
    types = ("f32",) * len(shapes)
    bench = Bench(Case(name=name, function=function, shapes=shapes, types=types, ends=(3,) * len(shapes)), MESH)
    instance, mesh = bench.instance, bench.target.jax_mesh(MESH)
    graph, group_of = instance.model.graph, instance.model.grouping.group_of
    seen: set[How | None] = set()
    for node, pick in bench.choices():
        chosen = Chosen(instance=instance, choice=tuple(bench.following(node, pick)))
        constraints = place(chosen, compiler).constraints
        written = {**exchanges(graph, constraints, mesh), **local_calls(graph, constraints, mesh, CPU)}
        for op in graph.ops:
            predicted = by_hand(graph, op, chosen_split(chosen, op))
            laid = by_hand(graph, op, laid_split(graph, op, constraints, mesh.size))
            assert (predicted in ADDING) == (laid in ADDING)
            assert (op.path in written) == (laid is not None)
            if group_of[op.id] == node and not instance.model.grouping.groups[node].fused:
                assert predicted == laid
                seen.add(laid)
    assert seen == expected
