"""Every rule's text is the one in the table; the tables are complete, sorted, and loud about what they do not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from planner.program.graph import Aval
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.rules.choose import op_rule
from planner.rules.factors import fits
from planner.rules.primitive import Primitive
from planner.rules.primitives import PRIMITIVES, rule_of, rule_of_op, traits
from planner.rules.rule import factor_name, parse_rule
from tests.rules import rule_cases

RULED = sorted(kind for kind, row in PRIMITIVES.items() if row.rule is not None)

UNTESTED = {
    "all_gather_done": "only inside shard_map",
    "all_to_all_done": "only inside shard_map",
    "custom_partitioning": "its rules are those of users, and tested as such",
    "dot_product_attention_bwd_wrapper": "needs cuDNN, or to be made to believe so: see test_cudnn_attention",
    "dot_product_attention_fwd_wrapper": "needs cuDNN, or to be made to believe so: see test_cudnn_attention",
    "empty2": "only inside the transposition of loops, on scalars",
    "from_edtype": "float types of the user's own",
    "iota_2x32_shape": "only inside the lowering of random bits",
    "layout_constraint": "not reachable by public API",
    "nonbatchable": "a marker of equinox",
    "nondifferentiable_backward": "a marker of equinox",
    "nontraceable": "a marker of equinox",
    "pallas_call": "its rules are those of kernels, and tested as such",
    "pbroadcast_done": "only inside shard_map",
    "philox2x32": "not reachable by public API",
    "philox4x32": "not reachable by public API",
    "ppermute_done": "only inside shard_map",
    "preduced": "only inside shard_map",
    "psum_done": "only inside shard_map",
    "pvary": "only inside shard_map",
    "reduce_scatter_done": "only inside shard_map",
    "reduced_vary_cast": "only inside shard_map",
    "reduced_vary_cast_p": "only inside shard_map",
    "relayout": "not reachable by public API",
    "reshard": "needs a mesh with explicit axes",
    "select_and_scatter": "made by no public function",
    "select_if_vmap": "a marker of equinox",
    "shard_alike": "not reachable by public API",
    "stage": "not reachable by public API",
    "threefry4x32": "not reachable by public API",
    "tie": "not reachable by public API",
    "to_edtype": "float types of the user's own",
    "vary_unreduced_cast": "only inside shard_map",
    "vary_unreduced_cast_p": "only inside shard_map",
    "with_memory_space_constraint": "only inside kernels",
    "xla_metadata_value": "not reachable by public API",
    "zeros_like": "only while differentiating",
}
"""Primitives with a rule and without a case: why."""


def _aval(*shape: int) -> Aval:
    return Aval(shape=shape, dtype="float32", itemsize=4)


@pytest.mark.parametrize(("name", "function", "arrays", "text"), rule_cases.CASES, ids=[c[0] for c in rule_cases.CASES])
def test_text(name: str, function: Callable[..., Any], arrays: str, text: str) -> None:
    equation = rule_cases.equation(name, function, arrays)
    if equation is None:
        pytest.skip("this JAX has no such primitive")
    rule = rule_of(name.split()[0], equation.operands, equation.results, equation.params)
    assert str(rule) == text
    assert rule is not None
    assert fits(rule, equation.operands, equation.results)
    assert str(parse_rule(text)) == text, "factors are not named in order of first appearance"


def test_cases_are_sorted_and_unique() -> None:
    names = [name for name, *_ in rule_cases.CASES]
    assert names == sorted(set(names))


def test_every_rule_has_a_case_or_a_reason() -> None:
    tested = {name.split()[0] for name, *_ in rule_cases.CASES}
    assert tested | set(UNTESTED) == set(RULED)
    assert not tested & set(UNTESTED)


def test_the_table_is_sorted() -> None:
    assert list(PRIMITIVES) == sorted(PRIMITIVES)


def test_a_primitive_without_a_rule_is_a_collective_or_one_that_nobody_can_look_into() -> None:
    assert all(row.rule is not None or row.opaque or row.collective for row in PRIMITIVES.values())


def test_what_has_no_row_has_no_traits() -> None:
    assert traits("no such primitive") == traits("loop_const") == Primitive(None)


def test_an_op_is_emitted_by_hand_in_one_way() -> None:
    assert [kind for kind, row in PRIMITIVES.items() if row.slides is not None and row.by_hand is not None] == []


@pytest.mark.parametrize("kind", sorted(set(RULED) - {"empty", "empty2", "iota"}))
def test_params_of_an_unknown_form_do_not_raise(kind: str) -> None:
    operands, results = [_aval(4, 6)] * 3, [_aval(4, 6)] * 2
    for params in ({}, {"axes": 7, "dimension_numbers": None, "axis": 9, "dimension": "x", "padding": ()}):
        rule = rule_of(kind, operands, results, params)
        assert rule is None or fits(rule, operands, results)


def test_unknown_primitive_has_no_rule() -> None:
    assert rule_of("no such primitive", [_aval(4)], [_aval(4)], {}) is None


def test_op_without_results_has_no_rule() -> None:
    assert rule_of("add", [_aval(4)], [], {}) is None


def test_sizes_of_factors_are_those_of_the_arrays() -> None:
    rule = rule_of("reshape", [_aval(12, 5)], [_aval(4, 15)], {})
    assert rule is not None
    assert rule.sizes == (4, 3, 5)


def test_factors_beyond_the_letters_have_names() -> None:
    rule = rule_of("add", [_aval(*range(2, 112))] * 2, [_aval(*range(2, 112))], {})
    assert rule is not None
    text = str(rule)
    assert " Z a1 b1 " in text
    assert text.endswith(" e2 f2")
    sizes = {factor_name(n): size for n, size in enumerate(rule.sizes)}
    assert parse_rule(text, sizes) == rule


def test_what_is_returned_without_elements_stays_whole() -> None:
    graph = build_graph(trace(lambda x: lax.split(x, (6, 0), 1), (jnp.zeros((4, 6)),)))
    (op,) = graph.of_kinds(("split",))
    assert str(op_rule(graph, op)[0]) == "a b -> a c, d e | replicate b c d e"
    assert str(rule_of_op(graph, op)) == "a b -> a c, a d | replicate b c d"
