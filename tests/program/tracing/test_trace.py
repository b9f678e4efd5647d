"""Reading programs into graphs (regions, trips, names, sources, ties, aliases, feeds) and rewriting them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from planner.errors import ArgumentError, TraceError
from planner.program.graph import Graph
from planner.program.jaxpr.canonicalize.widen import narrowest_float
from planner.program.jaxpr.fingerprint import fingerprint
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.rewrite import constrained, plain
from planner.program.slots import operand_slot, result_slot
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program

X = jnp.linspace(-1.0, 1.0, 64).reshape(8, 8)
W = jnp.linspace(0.5, -0.5, 64).reshape(8, 8)


def graph_of(fn: Callable[..., Any], *args: Any, **options: Any) -> Graph:
    return build_graph(trace(fn, args, **options))


def kinds(graph: Graph) -> list[str]:
    return [op.kind for op in graph.ops]


def trips(graph: Graph, kind: str) -> list[float]:
    return [graph.regions[op.region].trips for op in graph.ops if op.kind == kind]


# ---------------------------------------------------------------- control flow


def scanned(w: jax.Array, xs: jax.Array) -> tuple[jax.Array, jax.Array]:
    def body(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jnp.tanh(carry @ w) + x
        return carry, carry * 2

    return lax.scan(body, jnp.zeros((8, 8)), xs)


def test_a_scan_is_a_region_with_its_length_and_crossings() -> None:
    graph = graph_of(scanned, W, jnp.ones((5, 8, 8)))
    assert trips(graph, "dot_general") == [5.0]
    assert [r.kind for r in graph.regions] == ["program", "scan"]
    assert [k for k in kinds(graph) if "_" in k and k.split("_")[0] == "loop"] == [
        "loop_const",
        "loop_carry_in",
        "loop_slice",
        "loop_carry_out",
        "loop_stack",
    ]
    (inside, outside), *more = graph.ties
    assert not more
    assert graph.ops[graph.tensors[inside].producer or 0].kind == "loop_carry_in"
    assert graph.ops[graph.tensors[outside].producer or 0].kind == "loop_carry_out"
    assert [graph.tensors[t].aval.shape for t in graph.outputs] == [(8, 8), (5, 8, 8)]


def test_nested_loops_multiply_their_trips() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 3, lambda i, c: lax.fori_loop(0, 4, lambda j, d: jnp.sin(d), c) @ c, x)

    graph = graph_of(fn, X)
    assert trips(graph, "sin") == [12.0]
    assert trips(graph, "dot_general") == [3.0]
    inner = next(r for r in graph.regions if r.trips == 12)
    assert (inner.length, graph.regions[inner.parent or 0].trips) == (4, 3)


def test_a_while_loop_has_the_assumed_trips_and_a_note() -> None:
    def fn(x: jax.Array, bound: jax.Array) -> jax.Array:
        return lax.while_loop(lambda c: jnp.sum(c) < bound, lambda c: c * 1.5 + x, x)

    program = trace(fn, (X, 10.0))
    graph = build_graph(program, while_trips=7)
    assert trips(graph, "mul") == [7.0]
    assert trips(graph, "reduce_sum") == [7.0]
    assert kinds(graph).count("loop_test") == 1
    assert any("while" in note and "7" in note for note in graph.notes)


def test_branches_are_regions_that_run_once_and_share_their_results() -> None:
    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.cond(x.sum() > 0, lambda a, b: a @ b, lambda a, b: jnp.sort(a) + b, x, y)

    graph = graph_of(fn, X, W)
    assert sorted(r.kind for r in graph.regions) == ["cond", "cond", "program"]
    assert trips(graph, "dot_general") == trips(graph, "sort") == [1.0]
    (out,) = [op for op in graph.ops if op.kind == "branch_out"]
    assert len(out.operands) == 2
    assert out.results == tuple(graph.outputs)
    tied = [{graph.ops[graph.tensors[t].producer or 0].kind for t in pair} for pair in graph.ties]
    assert tied == [{"branch_in"}] * 2


def test_switch_has_a_region_per_branch() -> None:
    graph = graph_of(lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), 1, X)
    assert [r.kind for r in graph.regions].count("cond") == 3
    assert {"sin", "cos", "tanh"} <= set(kinds(graph))


@jax.custom_vjp
def halved(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


halved.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (0.5 * g * jnp.cos(x),))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: jax.jit(jnp.tanh)(x) + jax.jit(jnp.tanh)(x), "tanh"),
        (lambda x: jax.checkpoint(lambda y: jnp.sin(y @ y))(x), "dot_general"),
        (lambda x: jax.nn.relu(x), "max"),
        (lambda x: jax.nn.logsumexp(x, axis=0), "exp"),
        (halved, "sin"),
    ],
    ids=["jit", "remat", "custom_jvp", "logsumexp", "custom_vjp"],
)
def test_calls_are_expanded_in_place(fn: Callable[..., Any], expected: str) -> None:
    graph = graph_of(fn, X)
    assert expected in kinds(graph)
    assert len(graph.regions) == 1
    assert not {"jit", "pjit", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call"} & set(kinds(graph))


def test_gradients_of_loops_and_custom_rules_are_read() -> None:
    graph = graph_of(jax.grad(lambda w, xs: halved(scanned(w, xs)[0]).sum()), W, jnp.ones((5, 8, 8)))
    assert [r.kind for r in graph.regions].count("scan") == 2
    assert trips(graph, "dot_general") == [5.0] * 3
    assert trips(graph, "tanh") == [5.0]


def test_what_no_result_needs_is_left_out() -> None:
    graph = graph_of(lambda x: (jnp.sort(x), jnp.sin(x))[1], X)
    assert kinds(graph) == ["sin"]


def test_a_loop_keeps_only_the_carries_that_reach_a_result() -> None:
    def fn(x: jax.Array) -> jax.Array:
        kept, _ = lax.fori_loop(0, 3, lambda i, c: (jnp.sin(c[0]), jnp.cos(c[1])), (x, x))
        return kept

    assert "cos" not in kinds(graph_of(fn, X))


# ---------------------------------------------------------------- names and sources


def test_arguments_and_results_are_named_by_their_paths() -> None:
    def fn(state: dict[str, Any], *batch: jax.Array) -> dict[str, Any]:
        return {"loss": (state["w"] @ batch[0]).sum(), "both": (batch[1], state["b"])}

    graph = graph_of(fn, {"w": W, "b": jnp.ones(8)}, X, X)
    names = [graph.tensors[t].name for t in graph.inputs]
    assert names == ["state/b", "state/w", "batch/0", "batch/1"]
    assert graph.output_names == ("out/both/0", "out/both/1", "out/loss")


def test_intermediates_are_named_by_checkpoint_name_and_source() -> None:
    graph = graph_of(lambda x: jnp.sin(checkpoint_name(x @ x, "hidden")), X)
    names = [t.name for t in graph.tensors if t.kind == "intermediate"]
    assert "hidden" in names
    assert all("tracing/test_trace.py:" in op.source for op in graph.ops)
    lines = {op.source for op in graph.ops}
    assert len(lines) == 1


def test_repeated_names_are_told_apart() -> None:
    graph = graph_of(lambda x: checkpoint_name(checkpoint_name(x @ x, "h") @ x, "h"), X)
    assert {"h", "h#2"} <= {t.name for t in graph.tensors}
    assert len({t.name for t in graph.tensors}) == len(graph.tensors)


def test_ops_of_a_library_bear_the_line_of_the_call() -> None:
    graph = graph_of(lambda x: jax.nn.softmax(x), X)
    assert all("test_trace.py:" in op.source for op in graph.ops)


def test_closed_over_arrays_are_constants() -> None:
    table = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    for fn in (lambda x: x + table, jax.jit(lambda x: x + table)):
        graph = graph_of(fn, X)
        assert [t.aval.shape for t in graph.tensors if t.kind == "constant" and t.aval.shape] == [(8, 8)]


# ---------------------------------------------------------------- aliases and feeds


def test_donated_states_are_aliased_and_fed_back() -> None:
    def step(state: dict[str, Any], x: jax.Array) -> tuple[dict[str, Any], jax.Array]:
        return {"n": state["n"] + 1, "w": state["w"] - x}, x.sum()

    state = {"n": jnp.zeros((), jnp.int32), "w": W}
    graph = graph_of(step, state, X, donate_argnums=(0,))
    assert graph.aliases == {0: 0, 1: 1}
    assert graph.feeds == {0: 0, 1: 1}
    assert graph_of(step, state, X).aliases == {}
    assert graph_of(step, state, X).feeds == {0: 0, 1: 1}


def test_a_donated_array_is_reused_by_a_result_of_its_kind() -> None:
    graph = graph_of(lambda x, y: (y.sum(), x + y), X, X, donate_argnums=(0,))
    assert graph.aliases == {1: 0}
    assert graph_of(lambda x: x.astype(jnp.bfloat16), X, donate_argnums=(0,)).aliases == {}


# ---------------------------------------------------------------- unusual leaves and errors


def test_scalars_keys_and_empty_trees() -> None:
    def fn(scale: float, key: jax.Array, nothing: None, x: jax.Array) -> tuple[Any, ...]:
        return x * scale + jax.random.normal(key, x.shape), None, key

    program = trace(fn, (2.0, jax.random.key(0), None, X))
    assert [leaf.name for leaf in program.arguments] == ["scale", "key", "x"]
    assert program.arguments[0].weak
    assert program.arguments[1].aval.dtype == "key<fry>"
    graph = build_graph(program)
    assert graph.outputs[1] == graph.inputs[1]


def test_static_arguments_are_not_arguments_of_the_program() -> None:
    program = trace(lambda n, x: x * n if n > 1 else x, (3, X), static_argnums=(0,))
    assert [leaf.name for leaf in program.arguments] == ["x"]
    assert program.dynamic_argnums == (1,)


@pytest.mark.parametrize(
    ("fn", "args", "options", "error", "words"),
    [
        (lambda x: x, X, {}, ArgumentError, "tuple"),
        (3, (X,), {}, ArgumentError, "function"),
        (lambda x: x, ("text",), {}, ArgumentError, "static_argnums"),
        (lambda x: x, (X,), {"donate_argnums": (2,)}, ArgumentError, "donate_argnums"),
        (lambda x: x, (X,), {"donate_argnums": (0,), "static_argnums": (0,)}, ArgumentError, "both"),
        (lambda x: x if x.sum() > 0 else -x, (X,), {}, TraceError, "TracerBoolConversionError"),
    ],
)
def test_bad_input_is_refused_in_words(
    fn: Any, args: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        trace(fn, args, **options)


def test_the_fingerprint_tells_programs_apart() -> None:
    def digest(fn: Callable[..., Any], *args: Any) -> str:
        return fingerprint(trace(fn, args))

    assert digest(jnp.sin, X) == digest(jnp.sin, X + 1)
    different = {
        digest(jnp.sin, X),
        digest(jnp.cos, X),
        digest(jnp.sin, X[:4]),
        digest(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x), X),
    }
    assert len(different) == 4


def test_the_narrowest_float_is_found_in_bodies() -> None:
    def fn(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 2, lambda i, c: (c.astype(jnp.bfloat16) * 2).astype(jnp.float32), x)

    assert narrowest_float(trace(fn, (X,))) == "bfloat16"
    assert narrowest_float(trace(lambda i: i + 1, (1,))) is None


# ---------------------------------------------------------------- rewriting


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def everywhere(program: Program) -> tuple[Callable[..., list[Any]], list[int]]:
    """The program with every matrix constrained, twice, wherever it can be, and how often that was asked for."""
    graph = build_graph(program)
    first = NamedSharding(mesh(), PartitionSpec("x"))
    second = NamedSharding(mesh(), PartitionSpec("x", "y"))
    places: dict[Any, tuple[NamedSharding, ...]] = {}
    for op in graph.ops:
        for tensors, slot in ((op.operands, operand_slot), (op.results, result_slot)):
            for position, tensor in enumerate(tensors):
                shape = graph.tensors[tensor].aval.shape
                if len(shape) >= 2 and shape[0] % 4 == 0 and shape[1] % 2 == 0:
                    places[slot(op, position)] = (first, second)
    asked: list[int] = []

    def edits(slot: Any) -> Sequence[Any]:
        if slot in places:
            asked.append(1)
        return places.get(slot, ())

    return constrained(program, edits), asked


def remat_scan(w: jax.Array, x: jax.Array) -> jax.Array:
    layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))
    return lax.scan(lambda c, _: (layer(w, c), None), x, None, length=3)[0]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "branch": (lambda x, y: lax.cond(x[0, 0] < 0, lambda a, b: a @ b, lambda a, b: jnp.sin(a) + b, x, y), (X, W)),
    "calls": (lambda x: jax.jit(lambda y: jnp.tanh(y) @ y)(x) + jax.nn.relu(x), (X,)),
    "constant": (jax.jit(lambda x: x @ np.ones((8, 8), np.float32)), (X,)),
    "custom_vjp": (lambda x: halved(x @ x), (X,)),
    "remat": (remat_scan, (W, X)),
    "returned": (lambda x, y: (x, y @ x, x), (X, W)),
    "scan": (scanned, (W, jnp.ones((4, 8, 8)))),
    "same twice": (lambda x: x @ x, (X,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rewriting_keeps_results_and_gradients(name: str) -> None:
    fn, args = PROGRAMS[name]
    program = trace(fn, args)
    rewritten, asked = everywhere(program)
    assert asked or name == "returned"

    def both(call: Callable[..., list[Any]]) -> Any:
        def loss(*flat: Any) -> tuple[Any, list[Any]]:
            results = call(*flat)
            return sum(jnp.sum(out * out) for out in results), results

        return jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(args))), has_aux=True))(*args)

    expected, found = (jax.tree.leaves(both(call)) for call in (plain(program), rewritten))
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_rewritten_program_holds_the_constraints_inside_bodies() -> None:
    program = trace(*PROGRAMS["remat"])
    rewritten, _ = everywhere(program)
    text = str(jax.make_jaxpr(rewritten)(*PROGRAMS["remat"][1]))
    loop = text[text.index("scan[") :]
    assert loop.count("sharding_constraint") >= 4
    assert "checkpoint" in loop or "remat" in loop


def test_vmap_and_forward_mode_pass_through_the_constraints() -> None:
    program = trace(*PROGRAMS["calls"])
    rewritten, _ = everywhere(program)
    (value,), (tangent,) = jax.jvp(lambda x: tuple(rewritten(x)), (X,), (X,))
    (plain_value,), (plain_tangent,) = jax.jvp(lambda x: tuple(plain(program)(x)), (X,), (X,))
    np.testing.assert_allclose(value, plain_value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tangent, plain_tangent, rtol=1e-5, atol=1e-6)


def test_nothing_to_lay_leaves_the_program_as_it_is() -> None:
    program = trace(*PROGRAMS["scan"])
    kept = constrained(program, lambda slot: ())
    args = PROGRAMS["scan"][1]
    assert str(jax.make_jaxpr(kept)(*args)) == str(jax.make_jaxpr(plain(program))(*args))
