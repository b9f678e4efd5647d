"""Stating: the instance of a program on one mesh, from what every node may choose, pins and demands included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cost_models import CostModel, Objective
from planner.compiler.analysis import PLACED_BY_USER, Model
from planner.decisions.decision_graph import Node
from planner.decisions.logical_dims import LogicalDims
from planner.errors import InfeasibleError
from planner.pricing.bodies.body_costs import BodyCost, BodyCosts, body_cost, body_work, border_bytes
from planner.pricing.candidates.strategies import (
    SEARCHED_AXES,
    Demand,
    Kinds,
    Strategies,
    Used,
    group_strategies,
    tensor_strategies,
)
from planner.pricing.host_feeding import Feeding
from planner.pricing.instance import Instance
from planner.pricing.mesh import Mesh
from planner.pricing.op_cost import Work, group_work
from planner.pricing.reshards.reshard import Patterns
from planner.program.graph import Body
from planner.rules.op_work import body_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """What instances are stated of: a mesh, prices, and the specs that a user demands.

    `pins` maps a tensor, `output_pins` an output
    position, to the spec (a row of locations) it must have; `parts` maps a tensor to locations that it must have, its
    other axes being free. `patterns` are the reshards met on meshes of as many axes, `feeding` says how inputs
    come from hosts.
    """

    mesh: Mesh
    cost_model: CostModel
    objective: Objective
    hbm_bytes_per_s: float
    pins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    output_pins: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    parts: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    patterns: Patterns = field(default_factory=Patterns)
    feeding: Feeding | None = None


def state(model: Model, terms: Terms) -> Instance:
    """The instance of a model on the mesh of `terms`. Raises: InfeasibleError where pins conflict."""
    kinds = Kinds()
    demands: dict[int, list[Demand]] = {}
    names: dict[int, str] = {}
    for name, node, demand in (*_pinned(model, terms), *_placed(model, terms.mesh)):
        demands.setdefault(node, []).append(demand)
        names[node] = name
    used = _used(model, terms.mesh, demands)
    kind_of: list[int] = []
    for node in model.flow.nodes:
        own, pairs = tuple(dict.fromkeys(demands.get(node.id, ()))), used(node)
        kind = kinds.number(
            (_key(model, node), own, pairs),
            lambda node=node, own=own, pairs=pairs: _offered(model, terms, node, own, pairs),
        )
        if not len(kinds.tables[kind]):
            raise InfeasibleError(
                f"the pin on {names[node.id]} leaves {node.name} no strategy on the mesh {dict(terms.mesh.shape)}: it "
                "conflicts with another pin or with a dim that an op needs whole; relax the pin"
            )
        kind_of.append(kind)
    bodies = _bodies(model, terms)
    works = _works(model, terms, kinds, kind_of, bodies)
    instance = Instance(
        model=model,
        mesh=terms.mesh,
        objective=terms.objective,
        hbm_bytes_per_s=terms.hbm_bytes_per_s,
        pinned=frozenset(terms.pins),
        pinned_outputs=frozenset(terms.output_pins),
        patterns=terms.patterns,
        feeding=terms.feeding,
        tables=tuple(kinds.tables),
        kind_of=tuple(kind_of),
        works=works,
        node_values=(),
        body_memory={body: costs.in_memory.memory for body, costs in bodies.items()},
    )
    return replace(instance, node_values=tuple(instance.stated_values()))


def _key(model: Model, node: Node) -> tuple[object, ...]:
    """All that a node's strategies follow from, but for what is demanded."""
    if node.group is not None:
        return "group", model.alike[node.group]
    return "tensor", _shape(model, node)


def _shape(model: Model, node: Node) -> tuple[int, ...]:
    return model.graph.tensors[node.tensor].aval.shape if node.tensor is not None else ()


def _offered(model: Model, terms: Terms, node: Node, demands: Sequence[Demand], used: Used) -> Strategies:
    if node.group is None:
        return tensor_strategies(_shape(model, node), terms.mesh.sizes, demands, used)
    return strategies_of(model, terms.mesh, node.group, demands, used)


def strategies_of(
    model: Model, mesh: Mesh, number: int, demands: Sequence[Demand] = (), used: Used = frozenset()
) -> Strategies:
    """The strategies of a group under what is demanded of it."""
    group = model.grouping.groups[number]
    return group_strategies(model.grouping, group, mesh.sizes, model.factor_bytes(group), demands, used)


def _used(model: Model, mesh: Mesh, demands: Mapping[int, Sequence[Demand]]) -> Callable[[Node], Used]:
    """By node the pairs of an axis and a factor such that somewhere that index is demanded to be split by that axis.

    None where all strategies are offered anyway.
    """
    if len(mesh.sizes) <= SEARCHED_AXES or not demands:
        return lambda node: frozenset()
    dims = LogicalDims(model.graph, model.grouping, model.flow)
    axes_of: dict[int, set[int]] = {}
    for node, own in demands.items():
        for demand in own:
            for axis, dim in enumerate(demand.spec):
                for index in dims.indices(node, demand.dims[dim]) if dim >= 0 else ():
                    axes_of.setdefault(index, set()).add(axis)

    def of(node: Node) -> Used:
        count = len(_shape(model, node)) if node.group is None else len(model.grouping.groups[node.group].sizes)
        return frozenset(
            (axis, factor)
            for factor in range(count)
            for index in dims.indices(node.id, (factor,))
            for axis in axes_of.get(index, ())
        )

    return of


def _bodies(model: Model, terms: Terms) -> dict[Body, BodyCosts]:
    """What the bodies of ops that stay one op take: each as a program stated on a mesh of one device, twice."""

    def costs(inner: Model, *, border_on_chip: bool) -> BodyCost:
        on_one = Terms(
            mesh=terms.mesh.alone(border_on_chip=border_on_chip),
            cost_model=terms.cost_model,
            objective=terms.objective,
            hbm_bytes_per_s=terms.hbm_bytes_per_s,
        )
        return body_cost(state(inner, on_one))

    return {
        body: BodyCosts(
            in_memory=costs(inner, border_on_chip=False),
            on_chip=costs(inner, border_on_chip=True),
            border=border_bytes(inner),
        )
        for body, inner in model.bodies.items()
    }


def _works(
    model: Model, terms: Terms, kinds: Kinds, kind_of: list[int], bodies: Mapping[Body, BodyCosts]
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
                else body_work(model, op, body, bodies[body], strategies, terms.mesh, terms.objective)
            )
        works.append(known[key])
    return tuple(works)


def _pinned(model: Model, terms: Terms) -> Iterator[tuple[str, int, Demand]]:
    """What the pins demand, each at the home of its tensor or where its result is stored, and in whose name."""
    graph, flow = model.graph, model.flow
    for tensor, node, dims in flow.stored(terms.pins):
        yield graph.tensors[tensor].name, node, Demand(dims, terms.pins[tensor])
    for tensor, node, dims in flow.stored(terms.parts):
        of = graph.tensors[tensor]
        yield of.name, node, Demand(dims, terms.parts[tensor], free=tuple(range(len(of.aval.shape))))
    for position, node, dims in flow.returned(terms.output_pins):
        yield graph.output_names[position], node, Demand(dims, terms.output_pins[position])


def _placed(model: Model, mesh: Mesh) -> Iterator[tuple[str, int, Demand]]:
    """What constraints and `shard_map`s of the program demand, in the name of their source lines."""
    graph, grouping = model.graph, model.grouping
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
            if spec is None or not set(op.params["mesh"]) <= set(mesh.shape):
                continue
            location = mesh.locations({axis: dim for dim, axes in enumerate(spec) for axis in axes or ()})
            free = tuple(dim for dim, axes in enumerate(spec) if axes is None)
            yield op.name, grouping.group_of[op.id], Demand(dims, location, free)
