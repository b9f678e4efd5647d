"""The session: a program made ready once, stated as a problem for every mesh that is asked for, and searched."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from jax.sharding import PartitionSpec

from cost_models import CostModel, Objective, Roofline, objective
from cost_models.hardware import Platform
from pbqp.deadline import Deadline
from planner.compiler.analysis import Model, model_of
from planner.compiler.fusion.instruction_fusion import ON_GPU, ON_TPU, Fusion
from planner.compiler.targets import flops_that_hide
from planner.decision import Request
from planner.decisions.host_inputs import Input, concluded_inputs, named_inputs
from planner.errors import PinError
from planner.machine.cores import usable_cores
from planner.machine.device_profile import measured_model
from planner.machine.target import Target
from planner.options import Options, Unit
from planner.pricing.build_instance import Terms, state
from planner.pricing.candidates.pins import match_pins, pinned_dims
from planner.pricing.host_feeding import Feeding, feeding_of
from planner.pricing.instance import Instance
from planner.pricing.mesh import Mesh, Shape, ShapeKey, make_mesh
from planner.pricing.reshard import Patterns
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.traced import Program
from planner.search.best_on_mesh import WORTHWHILE
from planner.search.mesh_search import Asked, Found, search
from planner.search.offered_meshes import fitting_meshes
from planner.search.shared_layers import Members, SharedInstance, members

FUSIONS: Mapping[Platform, Fusion] = {"tpu": ON_TPU, "gpu": ON_GPU}
"""How the compiler of a platform fuses, where it is known."""

UNITS: Mapping[str, Unit] = {"time": "s", "energy": "J", "memory": "B"}
"""The units of what is minimised, by objective."""


class Session:
    """A program and what is asked of it: instances of it for meshes, and the search over them."""

    @paused()
    def __init__(self, *, program: Program, target: Target, request: Request) -> None:
        self.program, self.target, self.request = program, target, request
        self.graph = build_graph(program, while_trips=request.while_trips)
        self.tensor_pins, self.output_pins = match_pins(request.pins, self.graph)
        self.parts = self._parts()
        self._patterns: dict[int, Patterns] = {}

    @cached_property
    @paused()
    def model(self) -> Model:
        """The model of the program, which every mesh is stated of."""
        topology = self.request.topology
        return model_of(
            self.graph,
            pinned_outputs=set(self.output_pins),
            kept={*self.tensor_pins, *self.parts},
            fusion=FUSIONS.get(topology.chip.platform),
            hiding=flops_that_hide(topology),
        )

    def asking(self, *, objective: str, memory_limit: float) -> Session:
        """The session of the same program, made ready once, for another objective and memory limit."""
        request = replace(self.request, objective=objective, memory_limit=memory_limit)
        if request == self.request:
            return self
        _ = self.members  # found once for all of them
        other = copy.copy(self)
        other.request = request
        return other

    @cached_property
    def cost_model(self) -> CostModel:
        """The cost model that was asked for. Raises: ArgumentError where there is no profile for it."""
        if self.request.cost_model == "measured":
            devices, topology = self.target.devices, self.request.topology
            return measured_model(
                self.request.profile, topology, devices[0].device_kind if devices else topology.chip.name
            )
        return Roofline(topology=self.request.topology)

    @property
    def pinned(self) -> bool:
        """Whether the user pins anything, or processes bring parts of arguments."""
        return bool(self.tensor_pins or self.output_pins or self.parts)

    def _parts(self) -> dict[int, int]:
        """The arguments of which processes bring parts, and along which dim."""
        dims = {} if self.target.processes.alone else self.request.host_local
        names = (leaf.name for leaf in self.program.arguments)
        return {tensor: dims[name] for tensor, name in zip(self.graph.inputs, names, strict=True) if name in dims}

    @cached_property
    def inputs(self) -> Mapping[int, Input]:
        """The inputs that hosts bring at every call by tensor: those that come in parts, and those named, or concluded."""
        model, program, asked, local = self.model, self.program, self.request.inputs, self.request.host_local
        named = {leaf.name: tensor for leaf, tensor in zip(program.arguments, self.graph.inputs, strict=True)}
        known: dict[int, int | None] = {}
        if asked == "auto":
            found = concluded_inputs(self.graph, model.grouping, model.flow, program.leaves.values(), program.donated)
        else:
            found = ()
            known |= {tensor: None for name, tensor in named.items() if name in asked}
        known |= {tensor: local[name] for name, tensor in named.items() if name in local}
        found += named_inputs(self.graph, model.grouping, model.flow, known) if known else ()
        return {one.tensor: one for one in found}

    @cached_property
    def members(self) -> Members | None:
        """One member of each class of nodes, of which pins ask the same; None where sharing would lose something."""
        return members(self.model, self._pinned_at())

    def _pinned_at(self) -> dict[int, list[Hashable]]:
        """What is asked of the nodes where arrays are stored, by pins and by those who bring them."""
        flow, found = self.model.flow, defaultdict[int, list[Hashable]](list)
        # Inputs are told apart, as those of one batch want to be split alike.
        fed = {tensor: ("fed", tensor) for tensor in self.inputs}
        for asked in (self.tensor_pins, self.parts, fed):
            for tensor, node, dims in flow.stored(asked):
                found[node].append((dims, asked[tensor]))
        for position, node, dims in flow.returned(self.output_pins):
            found[node].append((dims, self.output_pins[position]))
        return found

    def shared(self, shape: Shape) -> SharedInstance | None:
        """The problem on one mesh with one decision for all copies of a layer; None where there are no `members`."""
        found = None if self.members is None else self._stated(self._terms(shape))
        return found if isinstance(found, SharedInstance) else None

    def alone(self, shape: Shape, devices: int) -> Instance | SharedInstance:
        """The problem on one device with nothing moved that could stay on the chips of so many, however it is split.

        To compute it takes no more than to compute its parts on all of them together.
        """
        terms = self._terms(shape)
        return self._stated(replace(terms, mesh=replace(terms.mesh, stands_for=devices)))

    def instance(self, shape: Shape) -> Instance:
        """The problem on one mesh. Raises: PinError, InfeasibleError where the pins do not fit it."""
        return self._stated(self._terms(shape)).whole()

    def with_room_on_chips(self, shape: Shape, times: int) -> Instance:
        """The problem on one mesh of chips that have so many times the room for arrays."""
        terms = self._terms(shape)
        mesh = replace(terms.mesh, on_chip_bytes=times * terms.mesh.on_chip_bytes)
        return self._stated(replace(terms, mesh=mesh)).whole()

    def _stated(self, terms: Terms) -> Instance | SharedInstance:
        """The problem of these terms, with one decision for all copies of a layer where there are `members`."""
        found = self.members
        if found is None:
            return state(self.model, terms)
        return SharedInstance(members=found, instance=state(found.model, terms))

    def on_more(self, times: int, shape: Shape) -> Instance:
        """The problem on a mesh of so many times as many devices.

        Raises: MeshError, PinError, InfeasibleError.
        """
        other = copy.copy(self)
        other.request = replace(self.request, topology=self.request.topology.multiplied(times))
        return other.instance(shape)

    @property
    def _score(self) -> Objective:
        """What values are in: seconds where bytes are minimised."""
        name = "time" if self.request.objective == "memory" else self.request.objective
        return objective(name, self.request.topology.chip)

    def mesh(self, shape: Shape) -> Mesh:
        """A mesh with the prices of its collectives. Raises: MeshError where the topology cannot hold it."""
        return make_mesh(shape, self.request.topology, self.cost_model, self._score)

    def _terms(self, shape: Shape) -> Terms:
        """What the problem on one mesh is stated of. Raises: PinError."""
        topology, graph, mesh = self.request.topology, self.graph, self.mesh(shape)

        def pinned(name: str, tensor: int, spec: PartitionSpec) -> tuple[int, ...]:
            return mesh.locations(pinned_dims(name, spec, graph.tensors[tensor].aval.shape, shape))

        return Terms(
            mesh=mesh,
            cost_model=self.cost_model,
            objective=self._score,
            hbm_bytes_per_s=topology.chip.hbm_bytes_per_s,
            tiled=topology.chip.platform == "tpu",
            pins={t: pinned(graph.tensors[t].name, t, spec) for t, spec in self.tensor_pins.items()},
            output_pins={
                position: pinned(graph.output_names[position], graph.outputs[position], spec)
                for position, spec in self.output_pins.items()
            },
            parts={t: mesh.locations(self._across(t, dim, shape)) for t, dim in self.parts.items()},
            patterns=self._patterns.setdefault(len(mesh.sizes), Patterns()),
            feeding=self._feeding(shape, mesh),
        )

    def _feeding(self, shape: Shape, mesh: Mesh) -> Feeding | None:
        """How inputs come from hosts on a mesh."""
        if not self.inputs:
            return None
        topology = self.request.topology
        least = self.model.matmul_flops / (mesh.num_devices * mesh.matmul_flops_per_s)
        hosts = self.target.hosts(shape, topology).reshape(mesh.sizes)
        return feeding_of(self.inputs, topology, hosts, least)

    def _across(self, tensor: int, dim: int, shape: Shape) -> dict[str, int]:
        """The dim that the axes that cross processes split: this one, all of them. Raises: PinError."""
        name, extent = self.graph.tensors[tensor].name, self.graph.tensors[tensor].aval.shape[dim]
        crossing = self.target.crossing(shape)
        parts = math.prod(shape[axis] for axis in crossing)
        if extent % parts:
            raise PinError(
                f"{name} comes in parts from {len(self.target.processes.members)} processes, across which the mesh "
                f"{dict(shape)} has {parts} devices, but {extent} along dim {dim} is not divisible by {parts}; give every "
                "process a multiple of its devices, or another mesh"
            )
        return dict.fromkeys(crossing, dim)

    def search(
        self,
        meshes: Sequence[Shape],
        *,
        limit_bytes: float,
        options: Options,
        without: Collection[ShapeKey] = (),
        explained: bool = True,
        below: float = math.inf,
        worth: float = WORTHWHILE,
        hastened: bool = True,
        planning: Deadline | None = None,
    ) -> Found:
        """The plans for these meshes, best first, but for those in `without`, and for those not `below` a value.

        A mesh tried later must be better by a share of `worth`. Of plans of the least peak the best is sought
        if `hastened`. `planning` starts when planning began, where that is before this search.

        Raises: PinError, InfeasibleError where the pins fit no mesh, or nothing fits the limit; why is sought if
        `explained`.
        """
        usable = fitting_meshes(meshes, without=without, stated=self.instance if self.pinned else None)
        asked = Asked(
            limit_bytes=limit_bytes,
            minimise_memory=self.request.objective == "memory",
            time_limit_s=options.time_limit_s,
            gap=options.gap,
            seed=options.seed,
            progress=options.progress,
            unit=UNITS[self.request.objective],
            share=options.share_layers,
            explained=explained,
            below=below,
            worth=worth,
            workers=usable_cores() if options.workers is None else options.workers,
            hastened=hastened,
            planning=planning or Deadline.never(),
        )
        return search(usable, self, asked)
