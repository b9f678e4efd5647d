"""Intermediates and ops are named by the module of the user's model, else by the line of the user's own code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import PinError
from planner.pricing.candidates.pins import base_name
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.origins import module_of, own_line
from planner.program.tracing.trace import trace

X = jnp.ones((8, 16))
QUICK = planner.Options(check="never", remat="as written")


def graph_of(fn: Callable[..., Any], *args: Any) -> Graph:
    return build_graph(trace(fn, args))


def matmuls(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops if op.kind == "dot_general"]


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    return f"program/test_names.py:{1 + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize(
    ("stack", "module", "stage"),
    [
        ("", "", ""),
        ("jvp()", "", ""),
        ("MLP/Dense_0", "MLP/Dense_0", ""),
        ("jvp(MLP)/Dense_0", "MLP/Dense_0", ""),
        ("transpose(jvp(MLP))/Dense_0", "MLP/Dense_0", "backward"),
        ("vmap(transpose(jvp(MLP)))/attn/...qhd,...khd->...hqk", "MLP/attn", "backward"),
        ("jvp(vmap(eqx.nn.MLP))/vmap()/eqx.nn.Linear", "eqx.nn.MLP/eqx.nn.Linear", ""),
        ("transpose(jvp(M))/jvp(M)/rematted_computation/B_0/Dense_0", "M/B_0/Dense_0", "recomputed"),
        ("transpose(jvp(M))/B/jvp(M)/B/C", "M/B/C", "backward"),
        ("transpose(jvp(M/B))/C", "M/B/C", "backward"),
        ("block/block", "block/block", ""),
    ],
)
def test_name_stacks_are_read(stack: str, module: str, stage: str) -> None:
    assert module_of(stack) == (module, stage)


def test_own_code_is_that_outside_of_libraries_and_within_what_is_planned() -> None:
    library, own = "/venv/lib/python3.11/site-packages/flax/linen/linear.py:287", "/home/me/my model/net.py:12:8 (call)"
    assert own_line([library, own, "/home/me/train.py:3"]) == "my model/net.py:12"
    assert own_line([library, planner.__file__.replace("__init__", "program/tracing/trace") + ":1", own]) == ""
    assert (
        own_line([library, planner.__file__.replace("__init__", "program/tracing/libraries") + ":1", own])
        == "my model/net.py:12"
    )


@pytest.mark.parametrize("lifted", ["plain", "remat", "scan", "both"])
def test_matmuls_of_linen_are_named_by_their_module_and_stage(lifted: str) -> None:
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any = None) -> Any:
            return jnp.sin(nn.Dense(16)(x)), None

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            block = nn.remat(Block) if lifted in ("remat", "both") else Block
            if lifted in ("scan", "both"):
                block = nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            return block()(nn.Dense(16)(x))[0]

    net = Net()
    params = net.init(jax.random.key(0), X)
    graph = graph_of(jax.jit(jax.value_and_grad(lambda p, x: net.apply(p, x).sum())), params, X)
    block = {"plain": "Block_0", "remat": "CheckpointBlock_0", "scan": "ScanBlock_0", "both": "ScanCheckpointBlock_0"}
    inner = f"Net/{block[lifted]}/Dense_0"
    again = [f"{inner}/recomputed/dot_general"] if lifted in ("remat", "both") else []
    back = ["Net/Dense_0/backward/dot_general"]
    assert matmuls(graph) == [
        "Net/Dense_0/dot_general",
        f"{inner}/dot_general",
        *again,
        *[f"{inner}/backward/dot_general"] * 2,
        *back,
    ]
    assert {op.source.split(":")[0] for op in graph.ops} == {"program/test_names.py"}
    assert any("linen/linear.py:" in op.line for op in graph.ops)


def test_matmuls_of_equinox_are_named_by_their_classes() -> None:
    eqx = pytest.importorskip("equinox")
    arrays, static = eqx.partition(eqx.nn.MLP(16, 16, 16, 1, key=jax.random.key(0)), eqx.is_array)
    graph = graph_of(lambda a, x: jax.vmap(eqx.combine(a, static))(x), arrays, X)
    assert matmuls(graph) == ["eqx.nn.MLP/eqx.nn.Linear/dot_general"] * 2
    assert {op.source for op in graph.ops} == {line_of("jax.vmap(eqx.combine(a, static))")}


@pytest.mark.parametrize("lifted", ["called", "method", "remat", "scan", "merged"])
def test_matmuls_of_nnx_are_named_by_what_holds_the_modules(lifted: str) -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.parts = nnx.Dict(up=nnx.Linear(16, 16, rngs=rngs))

        def __call__(self, x: Any) -> Any:
            return jnp.sin(self.parts.up(x))

    class Net(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            stack = nnx.vmap(Block)(rngs.split(2)) if lifted == "scan" else [Block(rngs), Block(rngs)]
            self.blocks = stack if lifted == "scan" else nnx.List(stack)

        def __call__(self, x: Any) -> Any:
            if lifted == "scan":
                return nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.blocks)
            for block in self.blocks:
                x = nnx.remat(lambda block, x: block(x))(block, x) if lifted == "remat" else block(x)
            return x

        def decode(self, x: Any) -> Any:
            return self(x)

    net = Net(nnx.Rngs(0))
    if lifted == "merged":
        static, state = nnx.split(net)
        graph = graph_of(jax.grad(lambda state, x: nnx.merge(static, state)(x).sum()), state, X)
    else:
        method = "decode" if lifted == "method" else "__call__"
        graph = graph_of(nnx.grad(lambda net, x: getattr(net, method)(x).sum()), net, X)
    # Transformations of nnx make modules anew: what holds them is not known there.
    inner = {"remat": ["Net/Block"] * 2, "scan": ["Net/Block"]}.get(lifted, ["Net/blocks/0", "Net/blocks/1"])
    found = dict.fromkeys(name.removesuffix("/dot_general") for name in matmuls(graph))
    forward = [name for name in found if "backward" not in name and "recomputed" not in name]
    assert forward == list(dict.fromkeys(f"{name}/parts/up" for name in inner))
    assert {f"{name}/backward" for name in forward} <= set(found)


def test_classes_of_nnx_are_after_a_trace_what_they_were_before() -> None:
    nnx = pytest.importorskip("flax.nnx")
    layer, before = nnx.Linear(16, 16, rngs=nnx.Rngs(0)), vars(nnx.Linear)["__call__"]
    during: list[Any] = []

    def fn(layer: Any, x: Any) -> Any:
        during.append(vars(nnx.Linear)["__call__"])
        return layer(x).astype(jnp.int32)

    graph_of(fn, layer, X)
    with pytest.raises(planner.errors.TraceError, match="could not be traced"):
        graph_of(lambda layer, x: during.append(vars(nnx.Linear)["__call__"]) or layer(x)[:, 99:].missing, layer, X)
    assert len(during) == 2
    assert before not in during
    assert vars(nnx.Linear)["__call__"] is before


def test_a_logical_constraint_without_effect_is_noted() -> None:
    nn = pytest.importorskip("flax.linen")

    def fn(x: Any, rules: Any = None) -> Any:
        return nn.with_logical_constraint(jnp.sin(x), ("batch", "embed"), rules=rules)

    def notes(*rules: Any) -> list[str]:
        return [note for note in trace(lambda x: fn(fn(x, *rules), *rules), (X,)).notes if "with_logical" in note]

    without_rules, without_mesh = notes(), notes([("batch", "x"), ("embed", None)])
    assert len(without_rules) == len(without_mesh) == 1
    assert "(2 calls)" in without_rules[0]
    assert "(2 calls)" in without_mesh[0]
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    with nn.logical_axis_rules([("batch", "x"), ("embed", None)]), jax.set_mesh(mesh):
        assert not notes()


def test_what_has_no_module_is_named_by_the_users_own_line() -> None:
    optax = pytest.importorskip("optax")
    optimizer = optax.adam(1e-3)

    def step(layer: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(lambda layer: (x @ layer).sum())(layer)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(layer, updates), state

    layer = jnp.ones((16, 16))
    graph = graph_of(step, layer, optimizer.init(layer), X)
    assert matmuls(graph) == [f"{line_of('jax.grad(lambda layer')} backward dot_general"]
    own = {line_of(text) for text in ("jax.grad(lambda layer", "optimizer.update(grad", "optax.apply_updates(layer")}
    assert {op.source for op in graph.ops} == own


def test_names_are_unique_whatever_the_program_calls_its_own() -> None:
    def fn(x: Any) -> Any:
        for name in ("a", "a", "a#2", "a", "a#2"):
            x = jnp.sin(checkpoint_name(x, name))
        return x

    names = [tensor.name for tensor in graph_of(fn, X).tensors]
    assert len(set(names)) == len(names)
    assert [base_name(name) for name in names if name.startswith("a")] == ["a"] * 5


class TestPins:
    @staticmethod
    def net(params: Any, x: Any) -> Any:
        for i, kernel in enumerate(params):
            with jax.named_scope(f"layer_{i}"):
                x = jnp.sin(x @ kernel)
        return x

    ARGS = ([jnp.ones((16, 16))] * 3, X)

    def plan(self, pattern: str) -> planner.Plan:
        return planner.plan(
            self.net, self.ARGS, topology="v5e:2x2", mesh={"a": 2, "b": 2}, pins={pattern: P("a", "b")}, options=QUICK
        )

    @pytest.mark.parametrize("pattern", ["layer_1/dot_general", "*_1/dot_general", "layer_1/*"])
    def test_a_pattern_over_modules_pins(self, pattern: str) -> None:
        plan = self.plan(pattern)
        assert plan.constraints["layer_1/dot_general"] == P("a", "b")
        assert plan.explain("layer_1/dot_general").tensors[0].pinned

    def test_an_error_proposes_modules(self) -> None:
        with pytest.raises(PinError, match="names look like 'layer_1/dot_general'"):
            self.plan("layer1/dot_general")
