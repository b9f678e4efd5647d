"""The public entry points: `plan` a function, `load` a plan."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from cost_models import Topology
from planner.decision import Decision
from planner.emit.runner import Runner
from planner.explain.op_graph import OpGraph, program_graph
from planner.machine.processes import Processes
from planner.machine.target import resolve
from planner.one_mesh.pins import Pins
from planner.options import Options
from planner.plans.answer import Answer
from planner.plans.checks import check
from planner.plans.decide import alternatives
from planner.plans.loaded import LoadedPlan
from planner.plans.made_ready import Ready, checked_options, checked_positions, made_ready, question
from planner.plans.plan import Plan
from planner.plans.proposals import proposals
from planner.plans.sessions import Sessions
from planner.plans.store import decision_of, load_saved, record_of
from planner.program.trace import trace
from planner.program.traced import Program


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
    mesh: axis name to size, to fix the mesh; default: all factorizations into up to three axes are searched, and the
        use of fewer devices.
    objective: "time" (seconds), "energy" (joules) or "memory" (peak bytes).
    memory_limit: bytes per device; default what a device of the topology has.
    pins: shell-style pattern over names (`state/params/*/kernel`, `out/0`, a `checkpoint_name`) to PartitionSpec.
    donate_argnums, static_argnums: as in `jax.jit`.
    options: time limit, checks, cost model, seed; see `Options`.

    Where the devices are of several processes, all of these make the same call and get the same plan: the lowest of them
    searches, all check, and what one raises, all raise. Give `devices=jax.local_devices()` for a plan of one's own.

    Raises
    ------
    ArgumentError, TraceError, MeshError, PinError: bad input. InfeasibleError: nothing fits, with the least memory that
    would do. CompileError: the compiler rejected every plan that was tried, or they computed wrong numbers.
    ProcessError: another process asks for something else, failed, or does not come.
    """
    options = checked_options(options)
    target = resolve(devices, topology)

    def ready_here() -> Ready:
        return made_ready(
            fn,
            example_args,
            target,
            options,
            mesh=mesh,
            objective=objective,
            memory_limit=memory_limit,
            pins=pins,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
        )

    ready = target.processes.same(ready_here, lambda ready: question(ready, options), "planner.plan")
    sessions, program, args = Sessions(ready.session), ready.session.program, tuple(example_args)
    leaves = jax.tree.leaves([args[i] for i in program.dynamic_argnums])
    proposed = proposals(ready.session, ready.meshes, options, notes=ready.notes, values=(*leaves, *program.constants))

    def made(decision: Decision) -> Plan:
        session = sessions.of(decision.form)
        runner = Runner(
            program=session.program,
            decision=decision,
            target=target,
            static_args={i: args[i] for i in program.static_argnums},
            graph=session.graph,
        )
        return Plan(
            decision=decision, runner=runner, alternatives=lambda: alternatives(session, decision), seed=options.seed
        )

    answer: Answer | None = None
    kept: dict[object, Plan] = {}
    while True:
        decision = _decided(target.processes, proposed, answer, program)
        if _identity(decision) in kept:
            return kept[_identity(decision)].with_notes(decision.notes)
        operations = len(sessions.of(decision.form).graph.ops)
        checked, answer = check(made(decision), args, options, target, operations=operations)
        if answer.good and not kept:
            return checked
        if answer.dropped is None:
            kept[_identity(decision)] = checked


def _decided(
    processes: Processes, proposed: Generator[Decision, Answer], answer: Answer | None, program: Program
) -> Decision:
    """The next proposal, or again the one to hand over: the leading process's where there are several."""

    def following() -> Decision:
        return next(proposed) if answer is None else proposed.send(answer)

    if processes.alone:
        return following()
    return decision_of(processes.decided(lambda: record_of(following(), program)))


def _identity(decision: Decision) -> object:
    """What tells the proposals for one call apart."""
    return decision.form, tuple(decision.mesh_shape.items()), decision.choice, bool(decision.constraints)


def op_graph(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    options: Options | None = None,
) -> OpGraph:
    """The op graph of a function before anything is decided, a `networkx.MultiDiGraph`; `Plan.graph` has it decided.

    Nodes are arguments, constants, ops and results, edges are reads; `planner/explain/op_graph.py` lists their attributes.

    Parameters
    ----------
    fn, example_args, donate_argnums, static_argnums: as in `plan`.
    options: `while_trips` is used.

    Raises
    ------
    ArgumentError, TraceError: bad input.
    """
    options = checked_options(options)
    program = trace(
        fn,
        example_args,
        donate_argnums=checked_positions("donate_argnums", donate_argnums),
        static_argnums=checked_positions("static_argnums", static_argnums),
    )
    return program_graph(program, while_trips=options.while_trips)


def load(path: str | Path) -> LoadedPlan:
    """The plan saved in `path`; `bind` it to its function. Raises: PlanFileError."""
    return LoadedPlan(load_saved(Path(path)))
