"""The planning problem: a program and what is asked for it, from which its problem on any mesh is stated."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jax.sharding import PartitionSpec

from cost_models import CostModel, Objective, Roofline, objective
from pbqp.smaller.smaller import floor_of
from planner.compiler.analysis import Model, model_of
from planner.compiler.model import CompilerModel, PassName
from planner.compiler.targets.table import compiler_of, flops_that_hide
from planner.decision import Request
from planner.decisions.host_inputs import Input, concluded_inputs, named_inputs
from planner.errors import PinError
from planner.machine.device_profile import measured_model
from planner.machine.target import Target
from planner.pricing.build_instance import Terms, state
from planner.pricing.candidates.pins import Pins, match_pins, pinned_dims
from planner.pricing.host_feeding import Feeding, feeding_of
from planner.pricing.instance import Instance
from planner.pricing.mesh import Mesh, Shape, make_mesh
from planner.pricing.reshards.reshard import Patterns
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.traced import Program
from planner.search.shared_layers import Members, SharedInstance, members

MatchedPins = tuple[Mapping[int, PartitionSpec], Mapping[int, PartitionSpec]]
"""Pinned specs by tensor, and by position of an output."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Meshes:
    """The meshes that problems of one target and cost model were stated on, and the reshards met by numbers of axes."""

    known: dict[Hashable, Mesh] = field(default_factory=dict[Hashable, Mesh])
    patterns: dict[int, Patterns] = field(default_factory=dict[int, Patterns])


@dataclass(frozen=True, kw_only=True, eq=False)
class Analysis:
    """What is found once in a program on a target, whatever is minimised within whatever memory.

    `request` names the topology, the prices, the pins and the inputs; its objective and its memory limit are not read.
    `tensor_pins` and `output_pins` are the pinned specs by tensor and by position of an output, `parts` the arguments of
    which processes bring parts, with the dim along which. `without` are passes of the compiler that are switched off, to
    measure what they are worth. The costly columns are worked out when they are first read: a
    process that does not search never needs them. `meshes` are those that problems were stated on. `given_model` is the
    model where it is some of another's, `given_cost_model` the cost model where it is not that of the request.
    """

    program: Program
    target: Target
    request: Request
    graph: Graph
    tensor_pins: Mapping[int, PartitionSpec]
    output_pins: Mapping[int, PartitionSpec]
    parts: Mapping[int, int]
    without: tuple[PassName, ...] = ()
    meshes: Meshes = field(default_factory=Meshes)
    pooled: dict[Hashable, float] = field(default_factory=dict[Hashable, float])
    """What `PlanningProblem.least_pooled` has found."""
    given_model: Model | None = None
    given_cost_model: CostModel | None = None

    @property
    def compiler(self) -> CompilerModel:
        """The compiler model of the target."""
        return compiler_of(self.request.topology.chip).without(*self.without)

    @cached_property
    @paused()
    def model(self) -> Model:
        """The model of the program, from which the problem on every mesh is stated."""
        if self.given_model is not None:
            return self.given_model
        topology = self.request.topology
        return model_of(
            self.graph,
            pinned_outputs=set(self.output_pins),
            kept={*self.tensor_pins, *self.parts},
            compiler=self.compiler,
            hiding=flops_that_hide(topology),
        )

    @property
    def is_modelled(self) -> bool:
        """Whether the model has been made."""
        return "model" in vars(self)

    @cached_property
    def cost_model(self) -> CostModel:
        """The cost model of the request. Raises: ArgumentError where there is no profile for it."""
        if self.given_cost_model is not None:
            return self.given_cost_model
        if self.request.cost_model == "measured":
            devices, topology = self.target.devices, self.request.topology
            return measured_model(
                self.request.profile, topology, devices[0].device_kind if devices else topology.chip.name
            )
        return Roofline(topology=self.request.topology)

    @cached_property
    def inputs(self) -> Mapping[int, Input]:
        """The inputs that hosts bring at every call by tensor: those that come in parts, and those named, or concluded."""
        model, program, wanted, local = self.model, self.program, self.request.inputs, self.request.process_local
        named = {leaf.name: tensor for leaf, tensor in zip(program.arguments, self.graph.inputs, strict=True)}
        known: dict[int, int | None] = {}
        if wanted == "auto":
            found = concluded_inputs(self.graph, model.grouping, model.flow, program.leaves.values(), program.donated)
        else:
            found = ()
            known |= {tensor: None for name, tensor in named.items() if name in wanted}
        known |= {tensor: local[name] for name, tensor in named.items() if name in local}
        found += named_inputs(self.graph, model.grouping, model.flow, known) if known else ()
        return {one.tensor: one for one in found}

    @cached_property
    def members(self) -> Members | None:
        """One member of each class of nodes, of which pins ask the same; None where sharing would lose something."""
        flow, pinned = self.model.flow, defaultdict[int, list[Hashable]](list)
        # Inputs are told apart, as those of one batch want to be split alike.
        fed = {tensor: ("fed", tensor) for tensor in self.inputs}
        for demands in (self.tensor_pins, self.parts, fed):
            for tensor, node, dims in flow.stored(demands):
                pinned[node].append((dims, demands[tensor]))
        for position, node, dims in flow.returned(self.output_pins):
            pinned[node].append((dims, self.output_pins[position]))
        return members(self.model, pinned)


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanningProblem:
    """A program on a target, with what is minimised within how much memory (`request`)."""

    analysis: Analysis
    request: Request

    @property
    def program(self) -> Program:
        """The program."""
        return self.analysis.program

    @property
    def target(self) -> Target:
        """Where the program will run."""
        return self.analysis.target

    @property
    def graph(self) -> Graph:
        """The op graph of the program."""
        return self.analysis.graph

    @property
    def model(self) -> Model:
        """See `Analysis.model`."""
        return self.analysis.model

    @property
    def pinned(self) -> bool:
        """Whether the user pins anything, or processes bring parts of arguments."""
        found = self.analysis
        return bool(found.tensor_pins or found.output_pins or found.parts)

    def with_objective(self, objective: str, memory_limit: float) -> PlanningProblem:
        """The same program for another objective and memory limit, in bytes per device; its analysis is shared."""
        return replace(self, request=replace(self.request, objective=objective, memory_limit=memory_limit))

    def mesh(self, shape: Shape) -> Mesh:
        """A mesh with the prices of its collectives, in seconds where bytes are minimised.

        Raises: MeshError where the topology cannot hold it.
        """
        score, topology, known = _score(self.request), self.request.topology, self.analysis.meshes.known
        key = tuple(shape.items()), topology, score.name
        if key not in known:
            known[key] = make_mesh(shape, topology, self.analysis.cost_model, score, self.analysis.compiler)
        return known[key]

    def state(self, mesh: Mesh) -> Instance | SharedInstance:
        """The problem on a mesh, with one decision for all copies of a layer where that loses nothing.

        Raises: PinError, InfeasibleError where the pins do not fit the mesh.
        """
        found = self.analysis.members
        if found is None:
            return state(self.model, terms_of(self, mesh))
        return SharedInstance(members=found, instance=state(found.model, terms_of(self, mesh)))

    def instance(self, shape: Shape) -> Instance:
        """The problem on one mesh, with every decision. Raises: PinError, InfeasibleError where the pins do not fit it."""
        return self.state(self.mesh(shape)).whole()

    def least_pooled(self, axes: Iterable[str], devices: int) -> float:
        """The least that all nodes take on a device that stands for so many (`Mesh.pooled_devices`), each at its cheapest.

        `axes` are those that pins may name. Raises: PinError, InfeasibleError.
        """
        request, axes = self.request, tuple(axes)
        key = request.objective, request.topology, axes, devices
        if key not in self.analysis.pooled:
            one = replace(self.mesh(dict.fromkeys(axes, 1)), pooled_devices=devices)
            self.analysis.pooled[key] = floor_of(self.state(one).node_values)
        return self.analysis.pooled[key]

    def pinned_instance(self, pins: Pins, mesh: Mesh) -> Instance:
        """The problem on a mesh with these pins in the place of the user's, on the same model of the program.

        Raises: PinError, InfeasibleError where the pins do not fit the mesh.
        """
        matched = match_pins(pins, self.graph)
        inside = [tensor for tensor in matched[0] if self.model.flow.home[tensor] is None]
        if inside:
            raise PinError(
                f"{self.graph.tensors[inside[0]].name} is computed inside of a kernel and has no placement of its own; "
                "plan with this pin, which keeps it"
            )
        return state(self.model, terms_of(self, mesh, matched))

    def without(self, *names: PassName) -> PlanningProblem:
        """The same problem with passes of the compiler switched off, to measure what they are worth."""
        return replace(self, analysis=replace(self.analysis, without=names, meshes=Meshes(), pooled={}))

    def without_memory_traffic(self, model: Model) -> PlanningProblem:
        """The same problem with this model of its program, on chips that read and write their memories in no time."""
        topology = self.request.topology
        fast = replace(topology, chip=replace(topology.chip, hbm_bytes_per_s=math.inf))
        analysis = replace(self.analysis, given_model=model, given_cost_model=Roofline(topology=fast), pooled={})
        return replace(self, analysis=analysis)

    @property
    def roomy_limit(self) -> float:
        """The bytes per device up to which the compiler leaves a program as it is: it makes those slower that take more."""
        chip = self.request.topology.chip
        return min(self.request.memory_limit, compiler_of(chip).room * chip.hbm_bytes)

    def takes_all(self, limit: float) -> bool:
        """Whether plans that keep to so many bytes may take all of the memory there is, where none leaves room."""
        return self.request.memory_limit <= self.request.topology.chip.hbm_bytes and limit > self.roomy_limit

    def on_more_devices(self, times: int) -> PlanningProblem:
        """The same program for so many times as many devices."""
        return replace(self, request=replace(self.request, topology=self.request.topology.multiplied(times)))


@paused()
def planning_problem(
    *, program: Program, target: Target, request: Request, meshes: Meshes | None = None
) -> PlanningProblem:
    """The problem of planning a program on a target, whose forms share `meshes`.

    Raises: PinError for a pin that matches nothing.
    """
    graph = build_graph(program, while_trips=request.while_trips)
    tensor_pins, output_pins = match_pins(request.pins, graph)
    dims = {} if target.processes.alone else request.process_local
    names = (leaf.name for leaf in program.arguments)
    analysis = Analysis(
        program=program,
        target=target,
        request=request,
        graph=graph,
        tensor_pins=tensor_pins,
        output_pins=output_pins,
        parts={tensor: dims[name] for tensor, name in zip(graph.inputs, names, strict=True) if name in dims},
        meshes=meshes or Meshes(),
    )
    return PlanningProblem(analysis=analysis, request=request)


def _score(request: Request) -> Objective:
    """What values are in: seconds where bytes are minimised."""
    name = "time" if request.objective == "memory" else request.objective
    return objective(name, request.topology.chip)


def terms_of(problem: PlanningProblem, mesh: Mesh, pins: MatchedPins | None = None) -> Terms:
    """What the problem on one mesh is stated of; `pins` in the place of the user's. Raises: PinError."""
    analysis, topology, graph, shape = problem.analysis, problem.request.topology, problem.graph, mesh.shape
    tensor_pins, output_pins = (analysis.tensor_pins, analysis.output_pins) if pins is None else pins

    def pinned(name: str, tensor: int, spec: PartitionSpec) -> tuple[int, ...]:
        return mesh.locations(pinned_dims(name, spec, graph.tensors[tensor].aval.shape, shape))

    return Terms(
        mesh=mesh,
        cost_model=analysis.cost_model,
        objective=_score(problem.request),
        hbm_bytes_per_s=topology.chip.memory_bytes_per_s,
        pins={t: pinned(graph.tensors[t].name, t, spec) for t, spec in tensor_pins.items()},
        output_pins={
            position: pinned(graph.output_names[position], graph.outputs[position], spec)
            for position, spec in output_pins.items()
        },
        parts={t: mesh.locations(_across(problem, t, dim, shape)) for t, dim in analysis.parts.items()},
        patterns=analysis.meshes.patterns.setdefault(len(mesh.sizes), Patterns()),
        feeding=_feeding(problem, mesh),
    )


def _feeding(problem: PlanningProblem, mesh: Mesh) -> Feeding | None:
    """How inputs come from hosts on a mesh; to a device that stands for several for nothing."""
    inputs, topology = problem.analysis.inputs, problem.request.topology
    if not inputs or mesh.pooled_devices > 1:
        return None
    least = problem.model.matmul_flops / (mesh.num_devices * mesh.matmul_flops_per_s)
    hosts = problem.target.hosts(mesh.shape, topology).reshape(mesh.sizes)
    return feeding_of(inputs, topology, hosts, least)


def _across(problem: PlanningProblem, tensor: int, dim: int, shape: Shape) -> dict[str, int]:
    """The dim that the axes that cross processes split: this one, all of them. Raises: PinError."""
    of, target = problem.graph.tensors[tensor], problem.target
    extent, crossing = of.aval.shape[dim], target.crossing(shape)
    parts = math.prod(shape[axis] for axis in crossing)
    if extent % parts:
        raise PinError(
            f"{of.name} comes in parts from {len(target.processes.members)} processes, across which the mesh "
            f"{dict(shape)} has {parts} devices, but {extent} along dim {dim} is not divisible by {parts}; give every "
            "process a multiple of its devices, or another mesh"
        )
    return dict.fromkeys(crossing, dim)
