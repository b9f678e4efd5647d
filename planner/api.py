"""The public entry points: `plan` a function, `load` a plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from cost_models import OBJECTIVES, CostModel, Roofline, Topology, objective
from jax.sharding import PartitionSpec

from planner.decision import Certificate, Checked, Decision, Replicated
from planner.emit import place
from planner.errors import ArgumentError, CompileError, InfeasibleError, MeshError, PinError, PlanFileError
from planner.flow import build_flow
from planner.groups import group_ops
from planner.instance import Instance, Model
from planner.liveness import analyse
from planner.mesh import check_mesh, factorizations, make_mesh
from planner.options import Options
from planner.pins import Pins, axes_named, match_pins, pinned_location
from planner.plan import Plan, Reconstruction
from planner.predict import predict
from planner.profile import measured_model
from planner.search import Candidate, Found, search
from planner.specs import spec_of
from planner.store import load_decision
from planner.target import Target, resolve
from planner.trace import Program, build_graph, fingerprint, trace
from planner.verify import Verification, summary

FALLBACKS = 3
"""How many next best plans are tried when a check fails."""


def plan(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    devices: Sequence[jax.Device] | None = None,
    topology: str | Topology | None = None,
    mesh: Mapping[str, int] | None = None,
    objective: str = "time",
    memory_limit: float | None = None,
    pins: Pins | None = None,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    options: Options | None = None,
) -> Plan:
    """The best placement found of `fn` on many devices, ready to run.

    Parameters
    ----------
    fn: a function written for one device; anything `jax.jit` accepts.
    example_args: the tuple of its positional arguments, arrays or `jax.ShapeDtypeStruct`s.
    devices: to run on; default `jax.devices()`, or none where only a topology is given.
    topology: a name such as "v5e:4x4" or a `Topology`, to plan for; with `devices`, costs are the topology's and the
        program is emitted for the devices.
    mesh: axis name to size, to fix the mesh; default: all factorizations into up to three axes are searched, and the use
        of fewer devices.
    objective: "time" (seconds), "energy" (joules) or "memory" (peak bytes).
    memory_limit: bytes per device; default what a device of the topology has.
    pins: shell-style pattern over names (`state/params/*/kernel`, `out/0`, a `checkpoint_name`) to PartitionSpec.
    donate_argnums, static_argnums: as in `jax.jit`.
    options: time limit, checks, cost model, seed; see `Options`.

    Raises
    ------
    ArgumentError, TraceError, MeshError, PinError: bad input. InfeasibleError: nothing fits, with the least memory that
    would do. CompileError: the compiler rejected every plan that was tried.
    """
    options = _options(options)
    target = resolve(devices, topology)
    donate, static = _tuple(donate_argnums), _tuple(static_argnums)
    program = trace(fn, example_args, donate_argnums=donate, static_argnums=static)
    planner = _Planner(
        program=program, target=target, objective=objective, pins=dict(pins or {}), mesh=mesh, options=options
    )
    found = planner.search(_limit(memory_limit, target))
    static_args = {i: example_args[i] for i in range(len(example_args)) if i not in program.dynamic_argnums}
    args = tuple(example_args)
    failures: list[str] = []
    for candidate in found.candidates[: FALLBACKS + 1]:
        made = Plan(
            decision=planner.decision(candidate, found, donate, static),
            program=program,
            fn=fn,
            static_args=static_args,
            target=target,
            reconstruct=lambda c=candidate: Reconstruction(instance=c.instance, choice=c.choice),
            seed=options.seed,
        )
        verification, checked = _check(made, args, options)
        bad = [c for c in checked if c.ok is False and c.what in FATAL]
        if verification is not None and bad:
            failures.append(f"the plan on the mesh {candidate.instance.mesh.shape} was dropped: {bad[0].detail}")
            continue
        return made.with_checks(checked, failures)
    raise CompileError(
        "every plan that was tried failed its check: " + "; ".join(failures) + ". Fix another mesh, or report this "
        "program with the plan's text"
    )


FATAL = ("compiling", "numerics")
"""Checks whose failure drops a plan; differences in collectives or memory are told."""


class LoadedPlan:
    """A saved plan, not yet bound to a function."""

    def __init__(self, decision: Decision, in_tree: Any, num_args: int) -> None:
        self.decision = decision
        self._in_tree = in_tree
        self._num_args = num_args

    def bind(
        self,
        fn: Callable[..., Any],
        example_args: Sequence[Any] | None = None,
        *,
        devices: Sequence[jax.Device] | None = None,
    ) -> Plan:
        """The saved plan for `fn`, without a search.

        `example_args` are only needed where the saved pytrees hold containers of the user's own or static arguments.
        With no `devices`, `jax.devices()` serve if there are enough of them, else the plan can only be lowered.
        Raises: PlanFileError when `fn` traces to another program than the saved one; ArgumentError, MeshError.
        """
        saved = self.decision
        args = self._arguments(example_args)
        program = trace(fn, args, donate_argnums=saved.donate_argnums, static_argnums=saved.static_argnums)
        if program.arguments != saved.arguments:
            differing = next(
                (
                    f"{a.name}: {a.aval.dtype}{list(a.aval.shape)}, saved {b.name}: {b.aval.dtype}{list(b.aval.shape)}"
                    for a, b in zip(program.arguments, saved.arguments, strict=False)
                    if a != b
                ),
                f"{len(program.arguments)} leaves, saved {len(saved.arguments)}",
            )
            raise PlanFileError(
                f"the saved plan of {saved.function_name} has other arguments ({differing}); plan again"
            )
        if fingerprint(program) != saved.fingerprint:
            raise PlanFileError(
                f"{program.function_name} does not trace to the program the plan of {saved.function_name} was made for "
                "(another function, or another JAX release); plan again"
            )
        needed = math.prod(saved.mesh_shape.values())
        target = self._target(devices, needed)
        static_args = {i: args[i] for i in range(len(args)) if i not in program.dynamic_argnums}
        return Plan(
            decision=saved,
            program=program,
            fn=fn,
            static_args=static_args,
            target=target,
            reconstruct=lambda: _reconstruct(program, target, saved),
        )

    def _arguments(self, example_args: Sequence[Any] | None) -> tuple[Any, ...]:
        if example_args is not None:
            return tuple(example_args)
        if self._in_tree is None or self.decision.static_argnums:
            raise ArgumentError(
                f"the plan of {self.decision.function_name} has static arguments or containers that a file cannot tell; "
                "call bind(fn, example_args)"
            )
        leaves = [_example(leaf) for leaf in self.decision.arguments]
        return tuple(jax.tree.unflatten(self._in_tree, leaves))

    def _target(self, devices: Sequence[jax.Device] | None, needed: int) -> Target:
        topology = resolve(None, self.decision.topology).topology if _is_named(self.decision.topology) else None
        if devices is not None:
            chosen = tuple(devices)
            if len(chosen) < needed:
                raise MeshError(f"the plan needs {needed} devices, got {len(chosen)}; give at least {needed}")
            return resolve(chosen, None) if topology is None else Target(topology=topology, devices=chosen)
        here = tuple(jax.devices())
        if topology is None:
            return resolve(here, None)
        matches = here[0].platform == topology.chip.platform and len(here) >= needed
        return Target(topology=topology, devices=here if matches else None)


def load(path: str | Path) -> LoadedPlan:
    """The plan saved in `path`; `bind` it to its function. Raises: PlanFileError."""
    decision, in_tree, num_args = load_decision(Path(path))
    return LoadedPlan(decision, in_tree, num_args)


def _is_named(topology: str) -> bool:
    try:
        resolve(None, topology)
    except MeshError:
        return False
    return True


def _example(leaf: Any) -> Any:
    if leaf.aval.dtype.startswith("key<"):
        impl = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}[leaf.aval.dtype]
        dtype = jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype
        return jax.ShapeDtypeStruct(leaf.aval.shape, dtype)
    return jax.ShapeDtypeStruct(leaf.aval.shape, leaf.aval.dtype, weak_type=leaf.weak)


# ---------------------------------------------------------------- the pipeline


class _Planner:
    """One planning run: the program made ready, and instances of it for meshes."""

    def __init__(
        self,
        *,
        program: Program,
        target: Target,
        objective: str,
        pins: dict[str, PartitionSpec],
        mesh: Mapping[str, int] | None,
        options: Options,
    ) -> None:
        if objective not in (*OBJECTIVES, "memory"):
            known = ", ".join(map(repr, (*OBJECTIVES, "memory")))
            raise ArgumentError(f"objective is {objective!r}; use one of {known}")
        self.program, self.target, self.options, self.pins = program, target, options, pins
        self.objective_name = objective
        self.graph = build_graph(program, while_trips=options.while_trips)
        self.tensor_pins, self.output_pins = match_pins(pins, self.graph)
        grouping = group_ops(self.graph)
        flow = build_flow(self.graph, grouping, pinned_outputs=set(self.output_pins), kept=set(self.tensor_pins))
        self.model = Model(graph=self.graph, grouping=grouping, flow=flow, liveness=analyse(self.graph, grouping))
        self.meshes = self._meshes(mesh)
        self.cost_model = self._cost_model()

    def _meshes(self, mesh: Mapping[str, int] | None) -> list[dict[str, int]]:
        if mesh is not None:
            shape = check_mesh(mesh, self.target.count)
            if self.target.topology.links(tuple(shape.values())) is None:
                raise MeshError(
                    f"the mesh {shape} does not fit the topology {self.target.topology.name} "
                    f"of shape {self.target.topology.shape}; its axes must divide the physical dims"
                )
            return [shape]
        found = factorizations(self.target.topology, max_axes=self.options.max_axes)
        named = axes_named(self.pins)
        fitting = [shape for shape in found if named <= set(shape) and math.prod(shape.values()) <= self.target.count]
        if not fitting:
            raise PinError(
                f"the pins name the axes {sorted(named)}, but a searched mesh has the axes x, y, z; fix mesh={{...}} "
                "with the axes the pins name"
            )
        return fitting

    def _cost_model(self) -> CostModel:
        if self.options.cost_model == "measured":
            kind = self.target.devices[0].device_kind if self.target.devices else self.target.topology.chip.name
            return measured_model(self.options.profile, self.target.topology, kind)
        return Roofline(topology=self.target.topology)

    def instance(self, shape: Mapping[str, int]) -> Instance:
        """The instance on a mesh. Raises: PinError, InfeasibleError where the pins do not fit it."""
        topology = self.target.topology
        score = objective("time" if self.objective_name == "memory" else self.objective_name, topology.chip)
        mesh = make_mesh(shape, topology, self.cost_model, score)
        pins: dict[int, tuple[int, ...]] = {}
        for tensor, spec in self.tensor_pins.items():
            aval = self.graph.tensors[tensor]
            pins[tensor] = pinned_location(aval.name, spec, aval.aval.shape, shape)
        output_pins = {
            position: pinned_location(
                self.graph.output_names[position],
                spec,
                self.graph.tensors[self.graph.outputs[position]].aval.shape,
                shape,
            )
            for position, spec in self.output_pins.items()
        }
        return Instance(
            model=self.model,
            mesh=mesh,
            cost_model=self.cost_model,
            objective=score,
            hbm_bytes_per_s=topology.chip.hbm_bytes_per_s,
            pins=pins,
            output_pins=output_pins,
        )

    def search(self, limit_bytes: float) -> Found:
        """The plans for all meshes, best first."""
        fixed = len(self.meshes) == 1
        usable: list[dict[str, int]] = []
        refused: list[Exception] = []
        for shape in self.meshes:
            try:
                if self.tensor_pins or self.output_pins:
                    self.instance(shape)
            except (PinError, InfeasibleError) as error:
                if fixed:
                    raise
                refused.append(error)
                continue
            usable.append(shape)
        if not usable:
            raise refused[0]
        return search(
            usable,
            self.instance,
            limit_bytes=limit_bytes,
            minimise_memory=self.objective_name == "memory",
            time_limit_s=self.options.time_limit_s,
            seed=self.options.seed,
            progress=self.options.progress,  # pyright: ignore[reportArgumentType]
        )

    def decision(
        self, candidate: Candidate, found: Found, donate: tuple[int, ...], static: tuple[int, ...]
    ) -> Decision:
        """A candidate in the program's own terms."""
        graph, instance = self.graph, candidate.instance
        placement = place(instance, candidate.choice)
        unit = "bytes" if self.objective_name == "memory" else instance.objective.unit
        intermediates = {
            t.name: spec_of(instance.location(t.id, candidate.choice), len(t.aval.shape), instance.mesh.names)
            for t in graph.tensors
            if t.kind == "intermediate" and t.aval.size > 1 and self.model.liveness.materialised[t.id]
        }
        return Decision(
            function_name=self.program.function_name,
            fingerprint=fingerprint(self.program),
            topology=self.target.topology.name,
            mesh_shape=placement.mesh_shape,
            arguments=self.program.arguments,
            results=self.program.results,
            in_specs=placement.in_specs,
            out_specs=placement.out_specs,
            constraints=placement.constraints,
            intermediates=intermediates,
            predicted=predict(instance, candidate.choice, self.target.topology),
            certificate=Certificate(
                value=candidate.value,
                lower_bound=min(found.bound, candidate.value),
                unit=unit,
                solve_seconds=found.seconds,
                meshes=len(self.meshes),
            ),
            replicated=tuple(
                Replicated(
                    op=graph.ops[op].kind,
                    source=graph.ops[op].source,
                    trips=graph.regions[graph.ops[op].region].trips,
                )
                for op in self.model.grouping.unruled
            ),
            checked=(),
            notes=(*graph.notes, *found.notes),
            donate_argnums=donate,
            static_argnums=static,
        )


def _reconstruct(program: Program, target: Target, saved: Decision) -> Reconstruction:
    """The instance and choice behind a loaded plan: every argument pinned as saved, the rest solved again."""
    pins = {leaf.name: spec for leaf, spec in zip(saved.arguments, saved.in_specs, strict=True)}
    planner = _Planner(
        program=program, target=target, objective="time", pins=pins, mesh=saved.mesh_shape, options=Options()
    )
    best = planner.search(math.inf).candidates[0]
    free = _Planner(program=program, target=target, objective="time", pins={}, mesh=saved.mesh_shape, options=Options())
    instance = free.instance(saved.mesh_shape)
    del best
    found = search(
        [saved.mesh_shape],
        lambda _: instance,
        limit_bytes=math.inf,
        minimise_memory=False,
        time_limit_s=60.0,
        seed=0,
    )
    return Reconstruction(instance=instance, choice=found.candidates[0].choice)


def _options(options: Options | None) -> Options:
    if options is not None and not isinstance(options, Options):
        raise ArgumentError(f"options is {options!r}; give planner.Options(...)")
    return options or Options()


def _tuple(positions: Sequence[int] | int) -> tuple[int, ...]:
    return (positions,) if isinstance(positions, int) else tuple(positions)


def _limit(memory_limit: float | None, target: Target) -> float:
    if memory_limit is None:
        return float(target.topology.chip.hbm_bytes)
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, (int, float)) or not memory_limit > 0:
        raise ArgumentError(f"memory_limit is {memory_limit!r}; give positive bytes per device, such as 14e9")
    return float(memory_limit)


# ---------------------------------------------------------------- checks before a plan is handed over


def _check(made: Plan, args: tuple[Any, ...], options: Options) -> tuple[Verification | None, list[Checked]]:
    """What `Options.check` asks for, and what of it could not be done, and why."""
    if options.check == "never":
        return None, [Checked(what="checks", ok=None, detail="Options(check='never')")]
    if made.mesh_is_abstract:
        why = f"the topology {made.decision.topology} has no devices here; verify() compiles for it where it can"
        return None, [Checked(what=what, ok=None, detail=why) for what in ("compiling", "numerics")]
    concrete = not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    flops = made.predicted.flops * math.prod(made.decision.mesh_shape.values())
    affordable = flops <= options.affordable_flops or options.check == "always"
    verification = made.verify(*(args if concrete and affordable else ()))
    checked = [Checked(what=what, ok=ok, detail=detail) for what, ok, detail in summary(verification)]
    if not concrete or not affordable:
        why = (
            "the arguments are shapes only"
            if not concrete
            else (f"running it on one device takes about {flops:.2g} operations; Options(check='always') does it")
        )
        checked = [c if c.what != "numerics" else Checked(what="numerics", ok=None, detail=why) for c in checked]
    compiled = not verification.collectives.reason.startswith("the plan does not compile")
    detail = "compiled for its devices" if compiled else verification.collectives.reason
    return verification, [Checked(what="compiling", ok=compiled, detail=detail), *checked]
