"""The pipeline: a program made ready once, stated as a problem for every mesh, searched, put in its own terms."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from jax.sharding import PartitionSpec

from cost_models import CostModel, Roofline, objective
from planner.any_mesh.alike_groups import alike
from planner.any_mesh.flow import build_flow
from planner.any_mesh.groups import group_ops
from planner.any_mesh.liveness import analyse
from planner.any_mesh.program_model import Model
from planner.decision import OPTIMAL_GAP, Certificate, Decision, Guessed, Replicated, Request, Ruled
from planner.emit.constraints import place
from planner.emit.predict import predict
from planner.errors import ArgumentError, InfeasibleError, MeshError, PinError
from planner.explain.explain import Alternatives
from planner.machine.device_profile import measured_model
from planner.machine.processes import words_of
from planner.machine.target import Target
from planner.one_mesh.chosen import Chosen
from planner.one_mesh.instance import Instance
from planner.one_mesh.mesh import Shape, check_mesh, factorizations, make_mesh, mesh_words
from planner.one_mesh.pins import axes_named, match_pins, pinned_location
from planner.one_mesh.reshard import Patterns
from planner.one_mesh.stating import Terms, state
from planner.options import Options
from planner.program.gc_pause import paused
from planner.program.jaxpr.fingerprint import fingerprint
from planner.program.jaxpr.flatten import build_graph
from planner.program.traced import Program
from planner.rules.op_work import is_guessed, op_name
from planner.search.best_on_mesh import Candidate
from planner.search.fewer_devices import FewerDevices, unused_axes, why_no_more
from planner.search.meshes import Asked, Found, search
from planner.search.one_per_class import Members, SharedInstance, members

MOST_NAMED = 4
"""Places of ops whose work is guessed that a note names."""


class Pipeline:
    """A program and what is asked of it: instances of it for meshes, the search over them, decisions from choices."""

    @paused()
    def __init__(self, *, program: Program, target: Target, request: Request) -> None:
        self.program, self.target, self.request = program, target, request
        self.graph = build_graph(program, while_trips=request.while_trips)
        self.tensor_pins, self.output_pins = match_pins(request.pins, self.graph)
        grouping = group_ops(self.graph)
        flow = build_flow(self.graph, grouping, pinned_outputs=set(self.output_pins), kept=set(self.tensor_pins))
        liveness = analyse(self.graph, grouping)
        groups = alike(self.graph, grouping, liveness)
        self.model = Model(graph=self.graph, grouping=grouping, flow=flow, liveness=liveness, alike=groups)
        self._patterns: dict[int, Patterns] = {}

    @cached_property
    def cost_model(self) -> CostModel:
        """The cost model that was asked for. Raises: ArgumentError where there is no profile for it."""
        if self.request.cost_model == "measured":
            devices, topology = self.target.devices, self.request.topology
            return measured_model(
                self.request.profile, topology, devices[0].device_kind if devices else topology.chip.name
            )
        return Roofline(topology=self.request.topology)

    # ------------------------------------------------------------ meshes

    def meshes(self, mesh: Shape | None, max_axes: int) -> list[dict[str, int]]:
        """The mesh a user fixed, or all that may be searched. Raises: MeshError, PinError."""
        topology = self.request.topology
        mesh = self._demanded_mesh(mesh)
        if mesh is not None:
            shape = check_mesh(mesh, self.target.count)
            if topology.links(tuple(shape.values())) is None:
                raise MeshError(
                    f"the mesh {shape} does not fit the topology {topology.name} of shape {topology.shape}; "
                    "make its axes divide the physical dims"
                )
            return [shape]
        found = factorizations(topology, max_axes=max_axes)
        named = axes_named(self.request.pins)
        fitting = [shape for shape in found if named <= set(shape) and math.prod(shape.values()) <= self.target.count]
        if not fitting:
            raise PinError(
                f"the pins name the axes {sorted(named)}, but a searched mesh has up to {max_axes} of x, y, z; "
                "fix mesh={...} with the axes the pins name"
            )
        return fitting

    def _demanded_mesh(self, mesh: Shape | None) -> Shape | None:
        """The mesh that the program allows: its own where it names one, of one device for ordered effects, else any."""
        own, name = self.program.parallelism, self.program.function_name
        if self.program.effects.ordered:
            if mesh is not None and math.prod(mesh.values()) > 1:
                raise MeshError(
                    f"{name} has ordered side effects, which run on one device only, but mesh={dict(mesh)} was given; "
                    "make its prints and callbacks unordered, or leave mesh out"
                )
            if not self.target.processes.alone:
                raise MeshError(
                    f"{name} has ordered side effects, which run on one device only, but the devices are of "
                    f"{words_of(self.target.processes.members)}; make its prints and callbacks unordered, or give "
                    "devices=jax.local_devices() for a plan of each process's own"
                )
            return {"x": 1}
        if own is None:
            return mesh
        if mesh is not None and dict(mesh) != dict(own.shape):
            raise MeshError(
                f"{name} names the mesh {dict(own.shape)} itself, but mesh={dict(mesh)} was given; leave mesh out, or "
                "give the same"
            )
        if math.prod(own.shape.values()) > self.target.count:
            raise MeshError(
                f"{name} names the mesh {dict(own.shape)} itself, but there are {self.target.count} devices; plan for "
                "as many as it needs, or take its constraints out"
            )
        return own.shape

    @cached_property
    def members(self) -> Members | None:
        """One member of each class of nodes; None where sharing would lose something, or pins tell nodes apart."""
        return None if self.tensor_pins or self.output_pins else members(self.model)

    def shared(self, shape: Shape) -> SharedInstance | None:
        """The problem on one mesh with one decision for all copies of a layer; None where there are no `members`."""
        found = self.members
        return None if found is None else SharedInstance(members=found, instance=state(found.model, self._terms(shape)))

    def instance(self, shape: Shape) -> Instance:
        """The problem on one mesh. Raises: PinError, InfeasibleError where the pins do not fit it."""
        shared = self.shared(shape)
        return state(self.model, self._terms(shape)) if shared is None else shared.whole()

    def _terms(self, shape: Shape) -> Terms:
        """What the problem on one mesh is stated of. Raises: PinError."""
        topology, graph = self.request.topology, self.graph
        score = objective("time" if self.request.objective == "memory" else self.request.objective, topology.chip)
        return Terms(
            mesh=make_mesh(shape, topology, self.cost_model, score),
            cost_model=self.cost_model,
            objective=score,
            hbm_bytes_per_s=topology.chip.hbm_bytes_per_s,
            tiled=topology.chip.platform == "tpu",
            pins={t: self._pinned(graph.tensors[t].name, t, spec, shape) for t, spec in self.tensor_pins.items()},
            output_pins={
                position: self._pinned(graph.output_names[position], graph.outputs[position], spec, shape)
                for position, spec in self.output_pins.items()
            },
            patterns=self._patterns.setdefault(len(shape), Patterns()),
        )

    def _pinned(self, name: str, tensor: int, spec: PartitionSpec, shape: Shape) -> tuple[int, ...]:
        return pinned_location(name, spec, self.graph.tensors[tensor].aval.shape, shape)

    # ------------------------------------------------------------ search

    def search(
        self, meshes: Sequence[Shape], *, limit_bytes: float, options: Options, without: Collection[str] = ()
    ) -> Found:
        """The plans for these meshes, best first, but for those named in `without`.

        Raises: PinError, InfeasibleError where the pins fit no mesh, or nothing fits the limit.
        """
        usable: list[Shape] = []
        refused: list[PinError | InfeasibleError] = []
        for shape in meshes:
            if mesh_words(shape) in without:
                continue
            try:
                if self.tensor_pins or self.output_pins:
                    self.instance(shape)
            except (PinError, InfeasibleError) as error:
                refused.append(error)
                continue
            usable.append(shape)
        if not usable:
            raise refused[0] if refused else InfeasibleError("no other mesh is left; fix another mesh")
        asked = Asked(
            limit_bytes=limit_bytes,
            minimise_memory=self.request.objective == "memory",
            time_limit_s=options.time_limit_s,
            seed=options.seed,
            progress=options.progress,
            share=options.share_layers,
        )
        return search(usable, self, asked)

    def on_fewer_devices(
        self, best: Candidate, meshes: Sequence[Shape], *, bound: float
    ) -> tuple[Candidate, tuple[str, ...]]:
        """The plan, or an equal one on one of these meshes of fewer devices; and why it uses no more, or an axis nothing.

        `bound` is that of the search.
        """
        objective = self.request.objective
        if len(meshes) > 1:
            fewer = FewerDevices(
                meshes=meshes,
                make_instance=self.instance,
                limit_bytes=self.request.memory_limit,
                minimise_memory=objective == "memory",
            )
            best = fewer.of(best)
        used = best.instance.mesh.num_devices
        finest = max(meshes, key=lambda shape: (math.prod(shape.values()), len(shape)))
        offered = used > 1 or any(len(strategies) > 1 for strategies in self.instance(finest).strategies)
        proven = bound >= best.value * (1 - OPTIMAL_GAP)
        why = why_no_more(used, meshes, objective, offered=offered, proven=proven)
        return best, (*((why,) if why else ()), *unused_axes(best))

    # ------------------------------------------------------------ what a choice means

    @paused()
    def decision(
        self,
        candidate: Candidate,
        *,
        bound: float,
        seconds: float,
        meshes: int,
        notes: Sequence[str],
    ) -> Decision:
        """A candidate in the program's own terms; the rest goes into its certificate and notes."""
        graph, instance = self.graph, candidate.instance
        guessed = tuple(replace(Guessed(**self._told(op.id)), op=op_name(op)) for op in graph.ops if is_guessed(op))
        chosen = Chosen(instance=instance, choice=candidate.choice)
        placement = place(chosen, sum_whole=self.target.platform != "tpu")
        intermediates = {
            t.name: chosen.stored(t.id)
            for t in graph.tensors
            if t.kind == "intermediate" and t.aval.size > 1 and self.model.liveness.materialised[t.id]
        }
        return Decision(
            function_name=self.program.function_name,
            fingerprint=fingerprint(self.program),
            topology=self.request.topology.name,
            request=self.request,
            choice=tuple(map(int, candidate.choice)),
            mesh_shape=placement.mesh_shape,
            arguments=self.program.arguments,
            results=self.program.results,
            in_specs=placement.in_specs,
            out_specs=placement.out_specs,
            constraints=placement.constraints,
            intermediates=intermediates,
            predicted=predict(chosen, self.request.topology),
            certificate=Certificate(
                value=candidate.value,
                lower_bound=min(bound, candidate.value),
                unit="bytes" if self.request.objective == "memory" else instance.objective.unit,
                solve_seconds=seconds,
                meshes=meshes,
            ),
            replicated=tuple(Replicated(**self._told(op)) for op in self.model.grouping.unruled),
            by_shardy=tuple(Ruled(**self._told(op)) for op in self.model.grouping.by_shardy),
            guessed=guessed,
            checked=(),
            notes=(*graph.notes, *_guess_note(guessed), *self._told_of_devices(placement.mesh_shape), *notes),
            donate_argnums=self.program.donate_argnums,
            static_argnums=self.program.static_argnums,
        )

    def _told_of_devices(self, shape: Shape) -> tuple[str, ...]:
        """What a plan says of its devices; on a mesh that the program names itself they lie as they please it."""
        own = self.program.parallelism
        return self.target.told(shape) if own is None or own.mesh is None else self.target.notes

    def _told(self, op_id: int) -> dict[str, Any]:
        """What a plan says of an op: its primitive, its source line, its runs per call."""
        op = self.graph.ops[op_id]
        return {"op": op.kind, "source": op.source, "trips": self.graph.regions[op.region].trips}

    def alternatives(self, decision: Decision) -> Alternatives:
        """The problem that a decision solves, stated again, with what was chosen.

        Raises: ArgumentError where this planner states another problem for the program than the one that made the plan.
        """
        instance, choice = self.instance(decision.mesh_shape), decision.choice
        counts = [len(strategies) for strategies in instance.strategies]
        fits = len(choice) == len(counts) and all(pick < count for pick, count in zip(choice, counts, strict=True))
        chosen = Chosen(instance=instance, choice=choice)
        if not fits or tuple(map(chosen.stored, self.graph.inputs)) != decision.in_specs:
            raise ArgumentError(
                f"the plan of {decision.function_name} was made by another release of this planner, and cannot be "
                "explained by this one; plan again"
            )
        return Alternatives(
            instance=instance,
            choice=choice,
            minimised=self.request.objective,
            function_name=decision.function_name,
            platform=self.request.topology.chip.platform,
        )


def _guess_note(guessed: Sequence[Guessed]) -> tuple[str, ...]:
    """What the notes of a plan say of the ops whose work is guessed: one sentence, where there are any."""
    trips: dict[tuple[str, str], float] = {}
    for op in guessed:
        trips[op.op, op.source] = trips.get((op.op, op.source), 0.0) + op.trips
    if not trips:
        return ()
    named = [f"{op} (x{runs:g}) at {source}" for (op, source), runs in list(trips.items())[:MOST_NAMED]]
    more = [f"{len(trips) - MOST_NAMED} more"] if len(trips) > MOST_NAMED else []
    words = (
        f"work of {len(guessed)} op{'' if len(guessed) == 1 else 's'} is guessed as one operation per result element"
    )
    return (f"{words}: {', '.join(named + more)}; planner.rule_for(flops=, bytes=) tells it",)
