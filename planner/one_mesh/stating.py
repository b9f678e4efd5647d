"""Stating: the instance of a program on one mesh, from what every node may choose, pins and demands included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models import CostModel, Objective
from planner.any_mesh.flow import Node
from planner.any_mesh.program_model import PLACED_BY_USER, Model
from planner.errors import InfeasibleError
from planner.one_mesh.body_costs import BodyCost, body_cost, body_work
from planner.one_mesh.costs import Work, group_work
from planner.one_mesh.instance import Instance
from planner.one_mesh.mesh import Mesh
from planner.one_mesh.reshard import Patterns
from planner.one_mesh.strategies import Kinds, Strategies, group_strategies, tensor_strategies
from planner.program.graph import Body
from planner.rules.op_work import body_of
from planner.rules.rule import Dims


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """What instances are stated of: a mesh, prices, and the specs that a user demands.

    `tiled`: arrays are stored in tiles, as on TPUs (see `tpu_tiles`). `pins` maps a tensor, `output_pins` an output
    position, to the spec (a row of locations) it must have; `parts` maps a tensor to locations that it must have, its
    other axes being free. `patterns` are the reshards met on meshes of as many axes.
    """

    mesh: Mesh
    cost_model: CostModel
    objective: Objective
    hbm_bytes_per_s: float
    tiled: bool
    pins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    output_pins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    parts: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    patterns: Patterns = field(default_factory=Patterns)


def state(model: Model, terms: Terms) -> Instance:
    """The instance of a model on the mesh of `terms`. Raises: InfeasibleError where pins conflict."""
    kinds = Kinds()
    kind_of = [
        kinds.number(_key(model, node), lambda node=node: _offered(model, terms, node)) for node in model.flow.nodes
    ]
    _pin(model, terms, kinds, kind_of)
    bodies = _bodies(model, terms)
    works = _works(model, terms, kinds, kind_of, bodies)
    instance = Instance(
        model=model,
        mesh=terms.mesh,
        objective=terms.objective,
        hbm_bytes_per_s=terms.hbm_bytes_per_s,
        tiled=terms.tiled,
        pinned=frozenset(terms.pins),
        pinned_outputs=frozenset(terms.output_pins),
        patterns=terms.patterns,
        tables=tuple(kinds.tables),
        kind_of=tuple(kind_of),
        works=works,
        node_values=(),
        temporary_bytes={body: cost.temporary_bytes for body, cost in bodies.items()},
    )
    return replace(instance, node_values=tuple(instance.stated_values()))


def _key(model: Model, node: Node) -> tuple[object, ...]:
    """All that a node's strategies follow from."""
    if node.group is not None:
        return "group", model.alike[node.group]
    return "tensor", _shape(model, node)


def _shape(model: Model, node: Node) -> tuple[int, ...]:
    return model.graph.tensors[node.tensor].aval.shape if node.tensor is not None else ()


def _offered(model: Model, terms: Terms, node: Node) -> Strategies:
    if node.group is None:
        return tensor_strategies(_shape(model, node), terms.mesh.sizes)[0]
    return strategies_of(model, terms.mesh, node.group)


def strategies_of(model: Model, mesh: Mesh, number: int) -> Strategies:
    """The strategies of a group without pins."""
    group = model.grouping.groups[number]
    return group_strategies(model.grouping, group, mesh.sizes, model.factor_bytes(group))


def _bodies(model: Model, terms: Terms) -> dict[Body, BodyCost]:
    """What the bodies of ops that stay one op take: each as a program stated on a mesh of one device."""
    on_one = Terms(
        mesh=terms.mesh.alone(),
        cost_model=terms.cost_model,
        objective=terms.objective,
        hbm_bytes_per_s=terms.hbm_bytes_per_s,
        tiled=terms.tiled,
    )
    return {body: body_cost(state(inner, on_one)) for body, inner in model.bodies.items()}


def _works(
    model: Model, terms: Terms, kinds: Kinds, kind_of: list[int], bodies: Mapping[Body, BodyCost]
) -> tuple[Work | None, ...]:
    """The work of every node's strategies; None for tensors of their own."""
    known: dict[tuple[int, int], Work] = {}
    works: list[Work | None] = []
    for node in model.flow.nodes:
        if node.group is None:
            works.append(None)
            continue
        key = (model.alike[node.group], kind_of[node.id])
        if key not in known:
            group, strategies = model.grouping.groups[node.group], kinds.tables[kind_of[node.id]]
            op = model.graph.ops[group.ops[0]]
            body = body_of(op)
            known[key] = (
                group_work(model, group, strategies, terms.cost_model, terms.mesh)
                if body is None
                else body_work(model, op, body, bodies[body], strategies, terms.mesh)
            )
        works.append(known[key])
    return tuple(works)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """A spec that a tensor with these dims must have at a node, and in whose name; dims in `free` may be split anyhow."""

    name: str
    node: int
    dims: Dims
    spec: tuple[int, ...]
    free: tuple[int, ...] = ()


def _pin(model: Model, terms: Terms, kinds: Kinds, kind_of: list[int]) -> None:
    """Keeps, at every node where a spec is demanded, the strategies that give it."""
    for demand in (*_pinned(model, terms), *_placed(model, terms.mesh)):
        node, old = demand.node, kinds.tables[kind_of[demand.node]]
        found, spec = old.locations(demand.dims), np.asarray(demand.spec, np.int8)
        keep = ((found == spec) | ((spec < 0) & np.isin(found, demand.free))).all(axis=1)
        if not keep.any():
            raise InfeasibleError(
                f"the pin on {demand.name} leaves {model.flow.nodes[node].name} no "
                f"strategy on the mesh {terms.mesh.shape}: it conflicts with another pin or with a dim that an op "
                "needs whole; relax the pin"
            )
        kind_of[node] = kinds.number((kind_of[node], keep.tobytes()), lambda old=old, keep=keep: old.keep(keep))


def _pinned(model: Model, terms: Terms) -> list[_Demand]:
    """What the pins demand, each at the home of its tensor or where its result is stored."""
    graph, flow = model.graph, model.flow
    found: list[_Demand] = []
    for tensor, node, dims in flow.stored(terms.pins):
        found.append(_Demand(name=graph.tensors[tensor].name, node=node, dims=dims, spec=terms.pins[tensor]))
    for tensor, node, dims in flow.stored(terms.parts):
        of, spec = graph.tensors[tensor], terms.parts[tensor]
        found.append(_Demand(name=of.name, node=node, dims=dims, spec=spec, free=tuple(range(len(of.aval.shape)))))
    for position, node, dims in flow.returned(terms.output_pins):
        name, spec = graph.output_names[position], terms.output_pins[position]
        found.append(_Demand(name=name, node=node, dims=dims, spec=spec))
    return found


def _placed(model: Model, mesh: Mesh) -> list[_Demand]:
    """What constraints and `shard_map`s of the program demand, in the name of their source lines."""
    found: list[_Demand] = []
    graph, grouping, names = model.graph, model.grouping, mesh.names
    for op in graph.of_kinds(PLACED_BY_USER):
        # One that could not be read as a rule is placed whole, and told as such.
        if op.id in grouping.unruled:
            continue
        placement = grouping.placements[op.id]
        for dims, spec in zip(
            (*placement.operands, *placement.results),
            (*op.params["operand_specs"], *op.params["result_specs"]),
            strict=True,
        ):
            if spec is None or not set(op.params["mesh"]) <= set(names):
                continue
            location = [-1] * len(names)
            for dim, axes in enumerate(spec):
                for axis in axes or ():
                    if mesh.shape[axis] > 1:
                        location[names.index(axis)] = dim
            found.append(
                _Demand(
                    name=op.name,
                    node=grouping.group_of[op.id],
                    dims=dims,
                    spec=tuple(location),
                    free=tuple(dim for dim, axes in enumerate(spec) if axes is None),
                )
            )
    return found
