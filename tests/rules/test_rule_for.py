"""Kernels with rules of the user's own: placed by them, right on eight devices, with and without a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import SdyShardingRule, custom_partitioning
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from cost_models import CHIPS
from planner.errors import ArgumentError, RuleError
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace
from planner.rules.kernels.kernel_parts import Parts, kernels
from planner.rules.kernels.rule_for import rule_for
from planner.rules.primitives import kinds_where
from planner.rules.rule import Rule, parse_rule
from planner.testing import assert_same_as_single_device

MESH = {"x": 4, "y": 2}


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def planned(fn: Callable[..., Any], args: tuple[Any, ...]) -> planner.Plan:
    """A plan that splits whatever it may, and that computes what the function does."""
    plan = assert_same_as_single_device(fn, args, mesh=MESH)
    found = plan.verify()
    assert found.collectives.ok is not False, found.collectives
    assert not found.collectives.differs, found.collectives
    assert plan.replicated == ()
    return plan


def is_split(plan: planner.Plan) -> bool:
    return any(entry is not None for spec in jax.tree.leaves(plan.in_specs) for entry in spec)


def pallas_dot(x: jax.Array, y: jax.Array) -> jax.Array:
    def kernel(x: Any, y: Any, out: Any) -> None:
        out[...] = x[...] @ y[...]

    shape = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x, y)


def called_back(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda v: np.tanh(np.asarray(v)), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


DOT = "b i, i j -> b j | reduce i"
dot = rule_for(pallas_dot, DOT)
dot_alike = rule_for(pallas_dot, like=lambda x, y: x @ y)
tanh = rule_for(called_back, "i j -> i j")
softmax = rule_for(jax.nn.softmax, like=jax.nn.softmax)
greatest = rule_for(lambda x: jnp.max(x, 1), "i j -> i | reduce(max) j")
any_of = rule_for(lambda x: jnp.any(x, 1), "i j -> i | reduce(or) j")
table = jnp.arange(32.0)
beside = rule_for(lambda x: x + table, "i j -> i j | replicate j")
flattened = rule_for(lambda x: x.reshape(-1) * 2, "i j -> (i j)")
scaled = rule_for(lambda x, factor: {"out": x * factor}, "i j, () -> i j")


@jax.custom_vjp
def differentiable(x: jax.Array, y: jax.Array) -> jax.Array:
    return dot(x, y)


differentiable.defvjp(lambda x, y: (dot(x, y), (x, y)), lambda saved, g: (dot(g, saved[1].T), dot(saved[0].T, g)))

X, Y = normal(16, 32), normal(32, 16)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pallas": (dot, (X, Y)),
    "pallas like jnp": (dot_alike, (X, Y)),
    "in a scan": (
        lambda x, y: jax.lax.scan(lambda c, _: (jnp.tanh(dot(c, y) @ y.T), None), x, None, length=3)[0],
        (X, Y),
    ),
    "differentiated": (jax.grad(lambda x, y: (differentiable(x, y) ** 2).sum(), argnums=(0, 1)), (X, Y)),
    "in a jit": (jax.jit(lambda x: softmax(x) + 1), (X,)),
    "callback": (lambda x: tanh(x * 2) + 1, (X,)),
    "callback in a loop": (lambda x: jax.lax.fori_loop(0, 3, lambda _, c: tanh(c * 2), x), (X,)),
    "greatest": (greatest, (normal(2, 32),)),
    "any": (lambda x: any_of(x > 2), (normal(2, 32),)),
    "closed over": (beside, (X,)),
    "product of factors": (flattened, (X,)),
    "tree and scalar": (lambda x: scaled(x, factor=3.0), (X,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_plans_of_kernels_are_split_and_right(name: str) -> None:
    assert is_split(planned(*PROGRAMS[name]))


def test_a_reduced_factor_is_summed_where_it_is_split() -> None:
    pins = {"x": P("x", "y"), "y": P("y", None), "out": P("x", None)}
    plan = assert_same_as_single_device(dot, (X, Y), mesh=MESH, pins=pins)
    found = plan.verify().collectives.by_kind
    assert found is not None
    assert found["all-reduce", ("y",)] == (256.0, 256.0)


@pytest.mark.parametrize("axes", [("x", "y"), ("data", "model")])
def test_a_sum_is_left_scattered_on_a_dim_that_another_axis_splits(axes: tuple[str, str]) -> None:
    graph = build_graph(trace(dot, (X, Y)))
    (op,) = graph.of_kinds(kinds_where(lambda row: row.by_hand == "kernel"))
    split = {
        ("operand", op.path, 0): (P(*axes),),
        ("operand", op.path, 1): (P(axes[1]),),
        ("result", op.path, 0): (P(axes),),
    }
    run = kernels(graph, split, jax.sharding.Mesh(np.reshape(jax.devices(), (4, 2)), axes))[op.path]
    text = str(jax.make_jaxpr(run)(X, Y))
    assert "reduce_scatter" in text
    assert "psum" not in text.replace("psum_scatter", "")


def test_a_plan_with_a_kernel_is_saved_and_loaded(tmp_path: Path) -> None:
    plan = planned(dot, (X, Y))
    plan.save(tmp_path / "plan.json")
    again = planner.load(tmp_path / "plan.json").bind(dot, (X, Y))
    np.testing.assert_allclose(again(X, Y), X @ Y, rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- without a plan


@pytest.mark.parametrize(
    "specs",
    [
        (P("x", "y"), P("y", None), P("x", None)),
        (P("x", None), P(None, "y"), P("x", "y")),
        (P("x", None), P(None, "x"), P(None, None)),
        (P(None, ("x", "y")), P(("x", "y"), None), P(None, None)),
        (P(None, None), P(None, None), P("y", "x")),
    ],
    ids=str,
)
def test_runs_under_any_shardings(specs: tuple[P, ...]) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    x, y, out = (NamedSharding(mesh, spec) for spec in specs)
    np.testing.assert_allclose(jax.jit(dot, in_shardings=(x, y), out_shardings=out)(X, Y), X @ Y, rtol=1e-4, atol=1e-4)


def test_a_callback_outside_of_a_plan_is_refused_in_words() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, P("x"))
    with pytest.raises(Exception, match="calls back to Python"):
        jax.jit(tanh, in_shardings=split, out_shardings=split)(X)


def test_runs_on_one_device() -> None:
    np.testing.assert_allclose(dot(X, Y), X @ Y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(jax.jit(tanh)(X), np.tanh(X), rtol=1e-5)


# ---------------------------------------------------------------- custom_partitioning of the user's own


def user_dot(rule: Any, **more: Any) -> Callable[..., Any]:
    """A dot by `jax.experimental.custom_partitioning`, rows split only."""

    def partition(mesh: Any, operands: Any, result: Any) -> Any:
        rows = operands[0].sharding.spec[0]
        lies = [NamedSharding(mesh, P(rows, None)), NamedSharding(mesh, P(None, None))]
        return mesh, jnp.dot, NamedSharding(mesh, P(rows, None)), tuple(lies)

    made = custom_partitioning(lambda x, y: x @ y)
    made.def_partition(partition, sharding_rule=rule, **more)
    return made


WHOLE = {"need_replication_factors": ("i", "j")}


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        ("b i, i j -> b j", WHOLE),
        ("... i, i j -> ... j", WHOLE),
        (SdyShardingRule((("b", "i"), ("i", "j")), (("b", "j"),), **WHOLE), {}),
        (lambda mesh, operands, results: ("b i, i j -> b j", WHOLE), {}),
    ],
    ids=["text", "ellipsis", "object", "function"],
)
def test_sharding_rules_of_custom_partitioning_are_read(rule: Any, more: Any) -> None:
    plan = planned(user_dot(rule, **more), (X, Y))
    assert plan.in_specs[0] == plan.out_specs == P(("x", "y"))


def test_custom_partitioning_without_a_rule_is_whole_and_listed() -> None:
    plan = assert_same_as_single_device(user_dot(None), (X, Y), mesh=MESH)
    assert [op.op for op in plan.replicated] == ["custom_partitioning"]


# ---------------------------------------------------------------- rules taken from plain functions


def while_any_positive(x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda c: jnp.any(c > 0), lambda c: c - 1, x)


LIKE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str]] = {
    "dot": (lambda x, y: x @ y, ((16, 32), (32, 8)), "a b, b c -> a c | reduce b"),
    "dot and bias": (lambda x, y, b: x @ y + b, ((16, 32), (32, 8), (8,)), "a b, b c, c -> a c | replicate b"),
    "softmax": (jax.nn.softmax, ((16, 32),), "a b -> a b | replicate b"),
    "sum": (lambda x: x.sum(0), ((16, 32),), "a b -> b | reduce a"),
    "greatest": (lambda x: x.max(0), ((16, 32),), "a b -> b | reduce(max) a"),
    # A kernel run on a part would divide by the extent of the part.
    "mean": (lambda x: x.mean(0), ((16, 32),), "a b -> b | replicate a"),
    "two sums": (lambda x: (x.sum(0), (x * x).sum(0)), ((16, 32),), "a b -> b, b | reduce a"),
    # The second result would be added up as well.
    "a sum and another": (lambda x, y: (x.sum(0), y), ((16, 4), (8,)), "a b, c -> b, c | replicate a"),
    # A part does not know which rows it has.
    "place": (lambda x: x + jnp.arange(16.0)[:, None], ((16, 32),), "a b -> a b | replicate a"),
    "constant": (lambda x: x + jnp.asarray(np.arange(32.0)), ((16, 32),), "a b -> a b | replicate b"),
    "embedding": (lambda x: x[jnp.array([1, 2])], ((16, 32),), "a b -> c b | replicate a c"),
    "attention": (
        lambda q, k, v: jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k)), v),
        ((4, 8, 16), (4, 8, 16), (4, 8, 16)),
        "a b c, a d c, a d e -> a b e | replicate c d",
    ),
    "split heads": (lambda x: x.reshape(16, 4, 8), ((16, 32),), "a (b c) -> a b c"),
    "loop": (lambda x: jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), x), ((16, 32),), "a b -> a b"),
    # The trips would differ from part to part.
    "steered loop": (while_any_positive, ((16, 32),), "a b -> a b | replicate a b"),
    "with itself": (lambda x: x @ x.T, ((16, 32),), "a b -> a a | replicate a | reduce b"),
    "transpose of itself": (lambda x: x + x.T, ((16, 16),), "a a -> a a | replicate a"),
}


@pytest.mark.parametrize("name", LIKE)
def test_rules_taken_from_plain_functions(name: str) -> None:
    function, shapes, text = LIKE[name]
    assert _canonical(rule_of_like(function, shapes)) == _canonical(parse_rule(text))


def rule_of_like(function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> Rule:
    """The rule that `rule_for(..., like=function)` uses, read from its equation."""
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    (eqn,) = jax.make_jaxpr(rule_for(function, like=function))(*structs).jaxpr.eqns
    parts = eqn.params["partition"]
    assert isinstance(parts, Parts)
    return parts.rule


def _canonical(rule: Rule) -> Rule:
    """The rule without sizes, which a text does not have."""
    return parse_rule(str(rule))


# ---------------------------------------------------------------- work


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k)), v)


def pallas_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    def kernel(q: Any, k: Any, v: Any, out: Any) -> None:
        out[...] = attention(q[...], k[...], v[...])

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype), interpret=True)(q, k, v)


def python_attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.pure_callback(attention, jax.ShapeDtypeStruct(q.shape, q.dtype), q, k, v)


HEADS = "h q d, h k d, h k e -> h q e | replicate k d"
QKV = tuple(jax.ShapeDtypeStruct((8, 32, 16), jnp.float32) for _ in range(3))
MATMULS = 2 * 2 * 8 * 32 * 32 * 16


def of_shapes(q: jax.ShapeDtypeStruct, k: jax.ShapeDtypeStruct, v: jax.ShapeDtypeStruct) -> float:
    return 4 * q.shape[0] * q.shape[1] * k.shape[1] * q.shape[2]


def plan_of(
    kernel: Callable[..., Any], mesh: dict[str, int] | None = None, topology: str = "v5e:4x2", **more: Any
) -> planner.Plan:
    """A plan of twelve runs of a kernel, for a real chip."""

    def model(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda c, _: (kernel(c, k, v), None), q, None, length=12)[0]

    options = planner.Options(check="never")
    return planner.plan(model, QKV, topology=topology, mesh=mesh, options=options, **more)


def test_work_that_is_guessed_is_told() -> None:
    plan = plan_of(rule_for(python_attention, HEADS))
    assert [(op.op, op.trips) for op in plan.guessed] == [("python_attention", 12)]
    assert "test_rule_for.py" in plan.guessed[0].source
    assert any("work of 1 op is guessed" in note and "python_attention (x12) at" in note for note in plan.notes)
    assert "work guessed as one operation per result element" in str(plan)
    assert plan.predicted.flops * plan.decision.mesh_shape["x"] == 12 * 8 * 32 * 16


@pytest.mark.parametrize("kernel", [attention, pallas_attention])
def test_work_that_can_be_counted_is_not_guessed(kernel: Any) -> None:
    whole, ruled = plan_of(kernel, {"x": 1}), plan_of(rule_for(kernel, HEADS), {"x": 1})
    assert whole.guessed == ruled.guessed == ()
    assert whole.predicted.flops == pytest.approx(ruled.predicted.flops)
    assert whole.predicted.flops > 12 * MATMULS


@pytest.mark.parametrize("flops", [MATMULS, of_shapes], ids=["number", "function"])
def test_work_that_is_said_is_priced_and_predicted(flops: Any) -> None:
    kernel = rule_for(pallas_attention, HEADS, flops=flops)
    whole, split = plan_of(kernel, {"x": 1}), plan_of(kernel, {"x": 8})
    assert whole.predicted.flops == 12 * MATMULS
    assert split.predicted.flops == 12 * MATMULS / 8
    assert whole.guessed == ()
    assert not any("guessed" in note for note in whole.notes)


def test_work_is_taken_from_a_plain_function() -> None:
    alike, plain = plan_of(rule_for(pallas_attention, like=attention), {"x": 8}), plan_of(attention, {"x": 8})
    assert alike.predicted.flops == pytest.approx(plain.predicted.flops)
    assert alike.guessed == ()
    said = plan_of(rule_for(pallas_attention, like=attention, flops=5 * MATMULS), {"x": 1})
    assert said.predicted.flops == 12 * 5 * MATMULS
    guessed = plan_of(rule_for(pallas_attention, like=rule_for(python_attention, HEADS)))
    assert [op.op for op in guessed.guessed] == ["pallas_attention"]


def test_bytes_that_are_said_are_its_memory_traffic() -> None:
    """Besides what the loop copies: no kernel writes its result over its operand, which the loop carries."""
    carried = plan_of(rule_for(pallas_attention, HEADS, flops=0, bytes=0), {"x": 8}).predicted.traffic_bytes
    usual = plan_of(rule_for(pallas_attention, HEADS, flops=0), {"x": 8}).predicted
    # So little stays on the chip.
    assert usual.traffic_bytes == carried
    copied, moved = (
        plan_of(rule_for(pallas_attention, HEADS, flops=0, bytes=said), {"x": 8}, "cpu:8").predicted.traffic_bytes
        for said in (0, None)
    )
    assert moved == copied + 12 * 4 * 4 * 32 * 16
    number = plan_of(rule_for(pallas_attention, HEADS, flops=0, bytes=8e9), {"x": 8}).predicted
    assert number.traffic_bytes == carried + 12 * 1e9
    chip = CHIPS["v5e"]
    reached = chip.attention_efficiency * chip.memory_bytes_per_s
    assert number.seconds == pytest.approx(12 * 1e9 / reached, rel=0.01)
    function = rule_for(pallas_attention, HEADS, flops=0, bytes=lambda q, k, v: 10 * q.size + k.size)
    assert plan_of(function, {"x": 8}).predicted.traffic_bytes == carried + 12 * 11 * 32 * 16


def test_a_kernel_of_much_work_is_split_where_a_guess_would_not() -> None:
    x, options = jax.ShapeDtypeStruct((3, 4096), jnp.float32), planner.Options(check="never")
    for flops, count in ((None, 1), (1e12, 8)):
        kernel = rule_for(lambda x: x.sum(1), "i j -> i | reduce j", flops=flops)
        plan = planner.plan(kernel, (x,), topology="v5e:4x2", options=options)
        assert plan.decision.mesh_shape == {"x": count}


def test_parts_may_have_less_work_than_the_whole_and_the_bound_holds() -> None:
    kernel = rule_for(pallas_attention, HEADS, flops=lambda q, k, v: 1e9 * q.shape[0] ** 3)
    plan = plan_of(kernel)
    assert plan.certificate.lower_bound <= plan.certificate.value
    assert plan.predicted.flops == 12 * 1e9
    assert plan.certificate.status == "optimal"


def test_what_is_guessed_is_saved(tmp_path: Path) -> None:
    plan, path = plan_of(rule_for(python_attention, HEADS)), tmp_path / "plan.json"
    assert plan.guessed
    plan.save(path)
    assert planner.load(path).decision.guessed == plan.guessed
    record = json.loads(path.read_text())
    del record["guessed"]
    path.write_text(json.dumps(record))
    assert planner.load(path).decision.guessed == (), "a file of an earlier planner"


def _fails(q: Any, k: Any, v: Any) -> float:
    raise ValueError("no such shape")


@pytest.mark.parametrize("what", ["flops", "bytes"])
@pytest.mark.parametrize(
    ("said", "message"),
    [
        (-1, "is -1; give a number, finite and not negative, or a function"),
        (float("nan"), "is nan"),
        (float("inf"), "is inf"),
        (True, "is True"),
        ("many", "is 'many'"),
        (lambda q, k, v: "many", r"pallas_attention gives 'many' for a part with the operands float32\[8, 32, 16\]"),
        (lambda q, k, v: -q.size, "gives -4096"),
        (lambda q, k, v: None, "gives None"),
        (_fails, "failed for a part with the operands .*ValueError: no such shape"),
        (lambda q: q.size, "failed .*TypeError"),
    ],
)
def test_a_work_that_is_none_is_refused_in_words(what: str, said: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=f"{what}= .*{message}"):
        plan_of(rule_for(pallas_attention, HEADS, **{what: said}), {"x": 1})


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("b i -> b", "has 1 operands, but the function has 2"),
        ("b i, i j -> b j, b", "has 2 results, but the function has 1"),
        ("b i, i -> b", "gives it 1 dims"),
        ("b i, b j -> b j", "factor b of .* is 16, but operand 1"),
        ("b (i k), (i k) j -> b j", "do not multiply"),
        ("b 1, i j -> b j", "do not multiply to 32"),
    ],
)
def test_a_rule_that_does_not_fit_says_why(rule: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        rule_for(pallas_dot, rule)(X, Y)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("b i, i j", "->"),
        ("b i, i j -> b j | reduce z", "'z'"),
        ("b i, i j -> b j | reduce b", "result still has"),
        ("b i, i j -> b j | permute i", "permutes"),
        ("b i, i j -> b j | reduce(mul) i", "'mul'"),
        ("b i, i ? -> b j", "no letter"),
    ],
)
def test_a_malformed_rule_is_refused_at_once(rule: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        rule_for(pallas_dot, rule)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="give one"):
        rule_for(pallas_dot)
    with pytest.raises(ArgumentError, match="give one"):
        rule_for(pallas_dot, DOT, like=jnp.dot)
    with pytest.raises(ArgumentError, match="must be a function"):
        rule_for(3, DOT)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="write it as text"):
        rule_for(pallas_dot, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuleError, match="results of shapes"):
        rule_for(pallas_dot, like=lambda x, y: (x @ y).T[:2])(X, Y)


@pytest.mark.parametrize(
    "like",
    [
        lambda x, u: jax.lax.dynamic_update_slice(x, u, (3, 0)),
        lambda x, u: x.at[jnp.array([3])].set(u),
        lambda x, u: x.at[jnp.array([3])].add(u),
        lambda x, u: jax.lax.conv_general_dilated(
            x[None], u[:, :, None] * jnp.ones((1, 8, 8)), (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )[0],
    ],
    ids=["update", "set", "add", "convolution"],
)
def test_what_depends_on_where_a_part_stands_is_not_split(like: Callable[..., Any]) -> None:
    x, u = normal(16, 8), normal(1, 8)
    planned_like = planner.rule_for(lambda x, u: like(x, u) + 0.0, like=like)
    assert_same_as_single_device(lambda x, u: planned_like(x * 2, u) + 1, (x, u), mesh=MESH)
