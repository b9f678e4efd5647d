"""The op graph is a networkx graph that tells a program before anything is decided, and a plan in its own figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError
from tests.problems import small_model
from tests.rules.halo_cases import normal
from tests.small import NEVER, mlp, mlp_args, shapes, train_args, train_step

MESH = {"data": 4, "model": 2}
OF_NODES = {
    "label": str,
    "op": str,
    "source": str,
    "region": str,
    "trips": float,
    "group": int,
    "rule": str,
    "flops": float,
    "bytes": float,
    "strategy": str,
    "seconds": float,
}
OF_EDGES = {
    "position": int,
    "tensor": str,
    "type": str,
    "tensor_bytes": float,
    "spec_from": str,
    "partial": str,
    "spec_to": str,
    "collective": str,
    "axes": str,
    "bytes": float,
    "seconds": float,
}


def layers(params: jax.Array, x: jax.Array) -> jax.Array:
    """A scan over layers, with a branch after it and the largest of what comes out."""

    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jnp.tanh(x @ w)
        return y, y.sum()

    y, sums = jax.lax.scan(layer, x, params)
    y = jax.lax.cond(sums.sum() > 0, lambda y: y * 2, lambda y: y @ params[0], y)
    return jnp.argmax(y, axis=1)


LAYERS = (jax.ShapeDtypeStruct((3, 64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32))


def convolution(image: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def summed_by_hand(x: jax.Array, w: jax.Array) -> jax.Array:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("data", "model"), P("model", None))
    by_hand = jax.shard_map(lambda x, w: jax.lax.psum(x @ w, "model"), mesh=mesh, in_specs=specs, out_specs=P("data"))
    return jnp.tanh(by_hand(x, w))


def nodes(graph: Any, key: str) -> list[Any]:
    return [attributes[key] for _, attributes in graph.nodes(data=True)]


def edges(graph: Any, key: str) -> list[Any]:
    return [attributes[key] for *_, attributes in graph.edges(data=True)]


def planned(fn: Callable[..., Any], args: Any, **more: Any) -> planner.Plan:
    return planner.plan(fn, shapes(args), options=NEVER, **({"mesh": MESH, "topology": "cpu:8"} | more))


PLANS: dict[str, Callable[[], planner.Plan]] = {
    "a train step": lambda: planned(
        train_step,
        train_args(batch=65536),
        donate_argnums=0,
        pins={"x": P("data"), "state/params/w0": P(None, "model")},
    ),
    "on TPUs": lambda: planned(
        train_step, train_args(), topology="v5e:2x4", donate_argnums=0, pins={"x": P("data"), "state/*": P("model")}
    ),
    "loops and branches": lambda: planned(layers, LAYERS, pins={"x": P("data", "model")}),
    "a pinned result": lambda: planned(mlp, mlp_args(), pins={"x": P("data"), "out": P(None, "model")}),
    "space with halos": lambda: planned(
        convolution, (normal(0, (2, 16, 16, 4)), normal(1, (3, 3, 4, 8))), pins={"image": P(None, "data", "model")}
    ),
    "a shard_map": lambda: planned(summed_by_hand, (normal(0, (8, 16)), normal(1, (16, 8))), mesh=None),
    "one device": lambda: planned(mlp, mlp_args(), mesh={"x": 1}),
}


@pytest.fixture(scope="module", params=list(PLANS))
def p(request: pytest.FixtureRequest) -> planner.Plan:
    return PLANS[request.param]()


def test_the_figures_of_nodes_and_edges_add_up_to_what_the_plan_predicts(p: planner.Plan) -> None:
    graph, predicted = p.graph, p.predicted
    assert math.fsum(nodes(graph, "flops")) == pytest.approx(predicted.flops, rel=1e-9)
    assert math.fsum(nodes(graph, "bytes")) == pytest.approx(predicted.traffic_bytes, rel=1e-9)
    assert math.fsum(nodes(graph, "seconds") + edges(graph, "seconds")) == pytest.approx(predicted.seconds, rel=1e-9)
    own = {op["label"] for _, op in graph.nodes(data=True) if op["op"] == "shard_map"}
    moved = math.fsum(c.count * c.bytes for c in predicted.collectives if c.tensor not in own)
    assert math.fsum(edges(graph, "bytes")) == pytest.approx(moved, rel=1e-9)


def test_attributes_are_of_the_standard_types_and_the_order_is_that_of_the_program(p: planner.Plan) -> None:
    graph = p.graph
    for wanted, found in ((OF_NODES, graph.nodes(data=True)), (OF_EDGES, graph.edges(data=True))):
        for *_, attributes in found:
            assert {key: type(value) for key, value in attributes.items()} == wanted
    rank = {node: position for position, node in enumerate(graph)}
    assert all(rank[source] < rank[target] for source, target in graph.edges())


def test_the_specs_of_the_borders_are_those_of_the_plan(p: planner.Plan) -> None:
    graph, decision = p.graph, p.decision
    for kind, specs in (("argument", decision.in_specs), ("result", decision.out_specs)):
        of_kind = [attributes for _, attributes in graph.nodes(data=True) if attributes["op"] == kind]
        leaves = decision.arguments if kind == "argument" else decision.results
        assert [node["label"] for node in of_kind] == [leaf.name for leaf in leaves]
        assert [node["strategy"] for node in of_kind] == [f"P({', '.join(map(repr, spec))})" for spec in specs]


def test_what_moves_says_how() -> None:
    plan = PLANS["a train step"]()
    graph = plan.graph
    assert plan.predicted.collectives
    assert all(edge["collective"] or not edge["bytes"] for *_, edge in graph.edges(data=True))
    made = [edge for *_, edge in graph.edges(data=True) if edge["partial"] and edge["collective"]]
    assert made, "a batch that is split leaves partial sums of gradients"
    assert all(edge["collective"].startswith("all-reduce") for edge in made)
    assert any("| reduce data" in strategy for strategy in nodes(graph, "strategy"))


def test_a_halo_is_on_the_edge_of_the_operand_that_it_is_a_part_of() -> None:
    graph = PLANS["space with halos"]().graph
    (edge,) = [edge for *_, edge in graph.edges(data=True) if "collective-permute" in edge["collective"]]
    assert edge["tensor"] == "image"
    assert edge["bytes"] > 0 < edge["seconds"]


def test_what_serves_several_readers_is_charged_to_the_first() -> None:
    plan = planned(lambda x, a, b: (x @ a, x @ b), (jnp.ones((64, 64)),) * 3, pins={"x": P("data"), "out/*": P()})
    ways = [edge for _, _, edge in plan.graph.out_edges("argument0", data=True)]
    assert [edge["collective"] for edge in ways] == ["all-gather", "all-gather"]
    assert [bool(edge["seconds"]) for edge in ways] == [True, False]
    (tensor,) = plan.explain("x").tensors
    assert [move.reader.split()[-1] for move in tensor.moves] == ["dot_general", "dot_general"]
    assert "moved by all-gather to P() for explain/test_op_graph.py:" in str(tensor)
    assert str(tensor).count("run for an earlier reader") == 1


def test_an_op_tells_its_specs_and_its_group_is_one_decision() -> None:
    graph = planned(mlp, mlp_args(), pins={"x": P("data"), "params/*": P()}).graph
    first = next(name for name, node in graph.nodes(data=True) if node["op"] == "dot_general")
    spec = graph.edges["argument3", first, 0]["spec_to"]
    assert graph.nodes[first]["strategy"] == f"{spec}, P() -> {spec}"
    for _, reader, edge in graph.out_edges(first, data=True):
        assert (edge["spec_from"], edge["spec_to"], edge["collective"]) == (spec, spec, "")
        assert graph.nodes[reader]["strategy"].startswith(spec)
    groups = Counter(node["group"] for _, node in graph.nodes(data=True) if node["op"] in ("add", "max"))
    assert list(groups.values()) == [2]


def test_loops_are_regions_that_multiply_what_their_ops_cost() -> None:
    whole, once = (
        planner.op_graph(layers, (jax.ShapeDtypeStruct((trips, 64, 64), jnp.float32), LAYERS[1])) for trips in (3, 1)
    )
    found = [node for _, node in whole.nodes(data=True) if node["op"] == "dot_general"]
    assert [node["trips"] for node in found] == [3.0, 1.0]
    assert found[0]["region"].startswith("program/scan ")
    assert found[0]["flops"] == 3 * 2 * 32 * 64 * 64
    other = next(node for _, node in once.nodes(data=True) if node["op"] == "dot_general")
    assert found[0]["bytes"] == 3 * other["bytes"]


def test_undecided_is_the_same_graph_with_the_figures_of_one_device() -> None:
    before = planner.op_graph(mlp, shapes(mlp_args()))
    after = PLANS["one device"]().graph
    assert sorted(before.edges(keys=True)) == sorted(after.edges(keys=True))
    for name, node in before.nodes(data=True):
        assert node["flops"] == after.nodes[name]["flops"]
        assert node["bytes"] == after.nodes[name]["bytes"]
        assert node["strategy"] == ""
        assert math.isnan(node["seconds"])
    for *_, edge in before.edges(data=True):
        assert (edge["spec_from"], edge["spec_to"], edge["collective"]) == ("", "", "")
        assert edge["bytes"] == edge["tensor_bytes"]
        assert math.isnan(edge["seconds"])


@pytest.mark.parametrize("name", ["gpt", "resnet", "moe"])
def test_undecided_graphs_of_whole_programs_are_acyclic_and_complete(name: str) -> None:
    model = small_model(name)
    graph = planner.op_graph(model.fn, model.args, donate_argnums=model.donate_argnums)
    assert nx.is_directed_acyclic_graph(graph)
    kinds = Counter(nodes(graph, "op"))
    assert kinds["argument"] == len(jax.tree.leaves(model.args))
    assert kinds["result"] == len(jax.tree.leaves(jax.eval_shape(model.fn, *model.args)))
    assert graph.number_of_nodes() == len({node["label"] + name for name, node in graph.nodes(data=True)})
    reached = set().union(*(nx.ancestors(graph, node) | {node} for node in graph if node.startswith("result")))
    assert all(node in reached for node in graph if node.startswith("op")), "what nothing reads is left out"


def test_ops_without_a_rule_are_those_that_the_plan_lists() -> None:
    def opaque(x: jax.Array) -> jax.Array:
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda x: x, out, jnp.sin(x))

    plan = planned(opaque, (jnp.ones((8, 8)),))
    told = [node["op"] for _, node in plan.graph.nodes(data=True) if node["rule"] == "none"]
    assert told == [op.op for op in plan.replicated]
    assert told


def test_the_graph_exports_to_graphml_and_comes_back_the_same(p: planner.Plan, tmp_path: Path) -> None:
    nx.write_graphml(p.graph, tmp_path / "plan.graphml")
    back = nx.read_graphml(tmp_path / "plan.graphml", force_multigraph=True)
    assert dict(back.nodes(data=True)) == dict(p.graph.nodes(data=True))
    assert sorted(back.edges(keys=True)) == sorted(p.graph.edges(keys=True))
    assert all(back.edges[edge] == p.graph.edges[edge] for edge in p.graph.edges(keys=True))


# pydot's own parser uses names that pyparsing has deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
# Its parser takes seconds for a large graph.
@pytest.mark.parametrize("p", ["loops and branches", "a pinned result"], indirect=True)
def test_the_graph_exports_to_dot_and_comes_back_with_all_values(p: planner.Plan, tmp_path: Path) -> None:
    nx.nx_pydot.write_dot(p.graph, tmp_path / "plan.dot")
    back = nx.nx_pydot.read_dot(tmp_path / "plan.dot")
    assert set(back) == set(p.graph)
    assert Counter(back.edges()) == Counter(p.graph.edges())
    for name, node in p.graph.nodes(data=True):
        assert {key: value.strip('"') for key, value in back.nodes[name].items()} == {
            key: str(value) for key, value in node.items()
        }


def test_an_undecided_graph_exports_too(tmp_path: Path) -> None:
    graph = planner.op_graph(mlp, shapes(mlp_args()))
    nx.write_graphml(graph, tmp_path / "program.graphml")
    back = nx.read_graphml(tmp_path / "program.graphml", force_multigraph=True)
    assert all(math.isnan(node["seconds"]) for _, node in back.nodes(data=True))


def test_a_loaded_plan_has_the_same_graph(tmp_path: Path) -> None:
    plan = PLANS["a train step"]()
    plan.save(tmp_path / "plan.json")
    loaded = planner.load(tmp_path / "plan.json").bind(train_step)
    assert nx.utils.graphs_equal(loaded.graph, plan.graph)


def test_the_graph_of_a_plan_is_made_once_and_cannot_be_changed_by_accident() -> None:
    plan = PLANS["one device"]()
    assert plan.graph is plan.graph
    with pytest.raises(nx.NetworkXError, match=r"[Ff]rozen"):
        plan.graph.remove_node("op0")
    copy = plan.graph.copy()
    copy.remove_node("op0")
    assert "op0" in plan.graph


def test_bad_input_is_refused_as_by_plan() -> None:
    with pytest.raises(ArgumentError, match="donate_argnums is 'x'"):
        planner.op_graph(mlp, mlp_args(), donate_argnums="x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="options is 3"):
        planner.op_graph(mlp, mlp_args(), options=3)  # pyright: ignore[reportArgumentType]
