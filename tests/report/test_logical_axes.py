"""The indices that run through a program are found and named, and the rules that they make say what the plan says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.program.spec_entries import axes_of_spec

nn = pytest.importorskip("flax.linen")

BATCH, WIDTH, HIDDEN, DEPTH = 32, 16, 64, 3
X = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
QUICK = planner.Options(check="never", remat="as written", microbatches=1)
MESH = {"data": 2, "model": 2}
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def shapes(make: Callable[[], Any]) -> Any:
    return jax.eval_shape(make)


def trained(apply: Callable[[Any, Any], Any], params: Any) -> Step:
    def step(params: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(lambda p: ((apply(p, x) - y) ** 2).mean())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step, (params, X, X)


def stack(*, scanned: bool) -> Step:
    """Residual blocks, written out or scanned."""
    lead = (DEPTH,) if scanned else ()
    layer = {"up": jax.ShapeDtypeStruct((*lead, WIDTH, HIDDEN), jnp.float32)}
    layer["down"] = jax.ShapeDtypeStruct((*lead, HIDDEN, WIDTH), jnp.float32)

    def block(x: Any, layer: Any) -> Any:
        return x + jnp.tanh(x @ layer["up"]) @ layer["down"]

    def apply(params: Any, x: Any) -> Any:
        if scanned:
            return jax.lax.scan(lambda x, layer: (block(x, layer), None), x, params)[0]
        for layer in params.values():
            x = block(x, layer)
        return x

    return trained(apply, layer if scanned else {f"block_{i}": layer for i in range(DEPTH)})


def annotated() -> Step:
    def dense(features: int, *names: str) -> Any:
        return nn.Dense(features, False, kernel_init=nn.with_logical_partitioning(nn.initializers.ones, names))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = x + dense(WIDTH, "mlp", "embed")(jnp.tanh(dense(HIDDEN, "embed", "mlp")(x)))
            return nn.Dense(WIDTH)(x)

    net = Net()
    return trained(net.apply, shapes(lambda: net.init(jax.random.key(0), jnp.ones(X.shape))))


def square() -> Step:
    """A residual step by one square kernel: both of its dims are one index."""
    return trained(lambda w, x: x + jnp.tanh(x @ w), jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32))


STEPS: dict[str, Callable[[], Step]] = {
    "written out": lambda: stack(scanned=False),
    "scanned": lambda: stack(scanned=True),
    "annotated": annotated,
    "square": square,
}
TENSOR_PARALLEL = {"*up": P(None, "model"), "*down": P("model"), "x": P("data")}
MIXED = {"*up": P(None, "model"), "*block_1/up": P("model")}
CASES: list[tuple[str, dict[str, P]]] = [
    *((step, {}) for step in STEPS),
    ("written out", TENSOR_PARALLEL),
    ("written out", MIXED),
    ("scanned", {"*up": P(None, None, "model"), "*down": P(None, "data")}),
    ("annotated", {"*Dense_0/kernel*": P("data", "model"), "*Dense_1/kernel*": P("data")}),
    ("square", {"params": P(None, "model")}),
]


def planned(step: Step, pins: dict[str, P] | None = None) -> planner.Plan:
    fn, args = step
    return planner.plan(fn, args, topology="v5e:2x2", mesh=MESH, pins=pins, donate_argnums=(0,), options=QUICK)


@pytest.mark.parametrize(("step", "pins"), CASES)
def test_flax_reads_the_rules_as_the_plan_lies(step: str, pins: dict[str, P]) -> None:
    plan = planned(STEPS[step](), pins)
    logical = plan.logical_axes
    read = nn.logical_to_mesh(plan.logical_specs, logical.flax_rules)
    for leaf, spec, by_rules in zip(
        plan.decision.arguments,
        plan.decision.in_specs,
        jax.tree.leaves(read, is_leaf=lambda node: isinstance(node, P)),
        strict=True,
    ):
        rank = len(leaf.aval.shape)
        same = axes_of_spec(spec, rank) == axes_of_spec(by_rules, rank)
        assert same == (leaf.name not in logical.exceptions)
        assert same or logical.exceptions[leaf.name] == spec
    assert set(logical.rules) == {axis.name for axis in logical.axes}
    assert len(set(logical.rules)) == len(logical.axes)


def test_layers_that_are_alike_are_one_axis() -> None:
    logical = planned(STEPS["written out"](), TENSOR_PARALLEL).logical_axes
    assert logical.rules["block_0/down.0"] == ("model",)
    assert logical.rules["batch"] == ("data",)
    assert {logical.names[f"params/block_{i}/up"][1] for i in range(DEPTH)} == {"block_0/down.0"}
    assert {logical.names[f"params/block_{i}/down"][0] for i in range(DEPTH)} == {"block_0/down.0"}
    assert set(logical.exceptions) <= {"y"}
    assert logical.names["params/block_0/up"][0] == logical.names["x"][1] == logical.names["params/block_2/down"][1]
    assert logical.names["x"][0] == logical.names["y"][0] == "batch"
    assert {axis.name: axis.size for axis in logical.axes}["batch"] == BATCH


def test_layers_that_lie_otherwise_are_another() -> None:
    logical = planned(STEPS["written out"](), {**TENSOR_PARALLEL, "params/block_1/*": P()}).logical_axes
    assert logical.names["params/block_1/up"][1] != logical.names["params/block_0/up"][1]
    assert logical.names["params/block_0/up"][1] == logical.names["params/block_2/up"][1]


def test_what_loops_run_over_are_layers() -> None:
    logical = planned(STEPS["scanned"]()).logical_axes
    assert {names[0] for name, names in logical.names.items() if name.startswith("params")} == {"layers"}


def test_annotations_give_names_to_what_they_run_through() -> None:
    logical = planned(annotated()).logical_axes
    assert logical.names["params/params/Dense_0/kernel/value"] == ("mlp", "embed")
    assert logical.names["params/params/Dense_1/kernel/value"] == ("embed", "mlp")
    assert logical.names["params/params/Dense_2/kernel"][0] == "embed"
    assert logical.names["x"] == ("batch", "embed")


def test_annotations_of_nnx_give_names() -> None:
    nnx = pytest.importorskip("flax.nnx")
    metadata = {"out_sharding": ("embed", "mlp"), "eager_sharding": False}
    kernel = nnx.Param(jnp.ones((WIDTH, HIDDEN)), **metadata)
    plan = planned((lambda kernel, x: jnp.tanh(x @ kernel[...]), (kernel, jnp.ones(X.shape))))
    assert plan.logical_axes.names["kernel/value"] == ("embed", "mlp")


def test_no_batch_is_named_where_it_is_not_known() -> None:
    plan = planned(
        (lambda a, b: jnp.tanh(a).sum() + jnp.tanh(b).sum(), (X, jax.ShapeDtypeStruct((64, 8), jnp.float32)))
    )
    assert "batch" not in plan.logical_axes.rules


def test_the_rows_of_a_matrix_that_is_only_read_are_no_batch() -> None:
    plan = planned((lambda w, x: w @ x, (X, jax.ShapeDtypeStruct((WIDTH,), jnp.float32))), {"w": P("data")})
    assert plan.logical_axes.rules["w.0"] == ("data",)


def test_axes_are_printed_and_kept(tmp_path: Path) -> None:
    plan = planned(STEPS["written out"](), MIXED)
    plan.save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json")
    assert loaded.decision.logical == plan.logical_axes
    text = str(plan)
    assert "axes of the program" in text
    assert "block_0/down.0" in text
