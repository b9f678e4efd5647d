"""The public entry points: `plan` a function, `load` a plan."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax

from cost_models import OBJECTIVES, Topology
from planner.any_mesh.groups import group_ops
from planner.any_mesh.liveness import analyse
from planner.decision import Decision, Request
from planner.emit.runner import Runner
from planner.errors import ArgumentError
from planner.explain.op_graph import OpGraph, undecided
from planner.machine.processes import Processes
from planner.machine.target import Target, resolve
from planner.one_mesh.pins import Pins, check_pins
from planner.options import Options
from planner.plans.attempts import attempts
from planner.plans.checks import check, failure
from planner.plans.decide import alternatives
from planner.plans.loaded import LoadedPlan
from planner.plans.plan import Plan
from planner.plans.store import decision_of, load_saved, record_of
from planner.program.jaxpr.fingerprint import fingerprint
from planner.program.jaxpr.flatten import build_graph
from planner.program.trace import trace
from planner.program.traced import Program
from planner.search.offered_meshes import offered_meshes
from planner.session import Session


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
    options = _options(options)
    target = resolve(devices, topology)

    def prepared() -> _Prepared:
        request = Request(
            topology=target.topology,
            platform=target.devices[0].platform if target.devices else None,
            objective=_objective(objective),
            memory_limit=_limit(memory_limit, target),
            pins=check_pins(pins),
            cost_model=options.cost_model,
            profile=options.profile,
            while_trips=options.while_trips,
        )
        program = trace(
            fn,
            example_args,
            donate_argnums=_positions("donate_argnums", donate_argnums),
            static_argnums=_positions("static_argnums", static_argnums),
        )
        session = Session(program=program, target=target, request=request)
        meshes, notes = target.shared_by_all(offered_meshes(program, target, request, mesh, options.max_axes))
        return _Prepared(session=session, meshes=meshes, notes=notes)

    ready = target.processes.same(prepared, lambda ready: _question(ready, options), "planner.plan")
    session, program, args = ready.session, ready.session.program, tuple(example_args)
    proposals = attempts(session, ready.meshes, options, notes=ready.notes)

    def made(decision: Decision) -> Plan:
        runner = Runner(
            program=program,
            decision=decision,
            target=target,
            static_args={i: args[i] for i in program.static_argnums},
            graph=session.graph,
        )
        return Plan(
            decision=decision, runner=runner, alternatives=lambda: alternatives(session, decision), seed=options.seed
        )

    why = None
    while True:
        decision = _decided(target.processes, proposals, why, program)
        checked, why = _checked(made(decision), args, options, target.processes)
        if why is None:
            return checked


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """A program made ready, the meshes to search, and notes on them."""

    session: Session
    meshes: Sequence[Mapping[str, int]]
    notes: tuple[str, ...]


def _question(ready: _Prepared, options: Options) -> dict[str, str]:
    """What is asked for, in words: all processes that plan together must ask the same."""
    program, request = ready.session.program, ready.session.request
    devices = ready.session.target.devices or ()
    told = {
        "the JAX release": jax.__version__,
        "the list of devices": [device.id for device in devices],
        "the program": f"{program.function_name} {fingerprint(program)[:12]}",
        "the type of the arguments": [(leaf.name, leaf.aval) for leaf in program.arguments],
        **{field.name: getattr(request, field.name) for field in fields(request)},
        "mesh": [dict(mesh) for mesh in ready.meshes],
        "donate_argnums": program.donate_argnums,
        "static_argnums": program.static_argnums,
        **{f"Options.{field.name}": getattr(options, field.name) for field in fields(options)},
    }
    # Who is told of the progress is a matter of each process.
    return {name: repr(value) for name, value in told.items() if name != "Options.progress"}


def _decided(
    processes: Processes, proposals: Generator[Decision, str | None], why: str | None, program: Program
) -> Decision:
    """The next proposal: the leading process's where there are several."""
    if processes.alone:
        return proposals.send(why)
    return decision_of(processes.decided(lambda: record_of(proposals.send(why), program)))


def _checked(made: Plan, args: tuple[Any, ...], options: Options, processes: Processes) -> tuple[Plan, str | None]:
    """A plan with its checks on record, and why it must be dropped, or None."""
    found = check(made, args, options, processes)
    return made.with_checks(found), failure(found)


def op_graph(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    options: Options | None = None,
) -> OpGraph:
    """The op graph of a function before anything is decided, a `networkx.MultiDiGraph`; `Plan.graph` has it decided.

    Nodes are arguments, constants, ops and results, edges are reads; see `planner/op_graph.py` for their attributes.

    Parameters
    ----------
    fn, example_args, donate_argnums, static_argnums: as in `plan`.
    options: `while_trips` is used.

    Raises
    ------
    ArgumentError, TraceError: bad input.
    """
    options = _options(options)
    donate, static = _positions("donate_argnums", donate_argnums), _positions("static_argnums", static_argnums)
    program = trace(fn, example_args, donate_argnums=donate, static_argnums=static)
    graph = build_graph(program, while_trips=options.while_trips)
    grouping = group_ops(graph)
    return undecided(graph, grouping, analyse(graph, grouping), name=program.function_name)


def load(path: str | Path) -> LoadedPlan:
    """The plan saved in `path`; `bind` it to its function. Raises: PlanFileError."""
    return LoadedPlan(load_saved(Path(path)))


def _options(options: Options | None) -> Options:
    if options is not None and not isinstance(options, Options):
        raise ArgumentError(f"options is {options!r}; give planner.Options(...)")
    return options or Options()


def _objective(name: str) -> str:
    known = (*OBJECTIVES, "memory")
    if name not in known:
        raise ArgumentError(f"objective is {name!r}; use one of {', '.join(map(repr, known))}")
    return name


def _positions(what: str, positions: Sequence[int] | int) -> tuple[int, ...]:
    if isinstance(positions, int):
        return (positions,)
    if not isinstance(positions, (tuple, list, range)):
        raise ArgumentError(f"{what} is {positions!r}; give the position of an argument, or a tuple of positions")
    return tuple(positions)


def _limit(memory_limit: float | None, target: Target) -> float:
    if memory_limit is None:
        return float(target.topology.chip.hbm_bytes)
    if isinstance(memory_limit, bool) or not isinstance(memory_limit, (int, float)) or not memory_limit > 0:
        raise ArgumentError(f"memory_limit is {memory_limit!r}; give positive bytes per device, such as 14e9")
    return float(memory_limit)
