"""The public entry points: `plan` a function, or a `pareto` front of it, `compare_topologies` for it, `load` a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import jax
from jax.sharding import AbstractMesh, Mesh

from cost_models import Topology
from planner.decision import Decision
from planner.errors import ArgumentError, PlannerError
from planner.explain.op_graph import OpGraph, program_graph
from planner.former_names import renamed
from planner.machine.target import Target
from planner.options import Options, telling
from planner.plan_file.store import load_saved
from planner.planning.named_or_freed import planned_as_named_or_freed
from planner.planning.plan_cache import planned_or_kept
from planner.plans.loaded import LoadedPlan
from planner.plans.plan import Plan
from planner.plans.process_parts import ProcessLocal
from planner.program.tracing.call import call_of, marked
from planner.program.tracing.own_frames import leave_own_frames_out, without_own_frames
from planner.program.tracing.trace import trace_call
from planner.report.compare import compare_decisions
from planner.report.comparison import Comparison
from planner.request.joint_request import (
    Given,
    all_pins,
    call_counts,
    check_common_pins,
    check_layouts,
    requested_programs,
    shared_by,
)
from planner.request.pins import LogicalRules, Pins
from planner.request.place import (
    Like,
    Place,
    RequestedMesh,
    checked_names,
    requested_mesh,
    requested_place,
    requested_shape,
)
from planner.request.resolve import (
    PlanRequest,
    Wanted,
    checked_options,
    limit_of,
    question,
    resolve_request,
    resolve_request_by_all,
)
from planner.studies.audit import Audit
from planner.studies.audit_search import audit_request, audited, pins_of
from planner.studies.compiled_shardings import compiled_alone
from planner.studies.fallbacks.record import Fallbacks
from planner.studies.fallbacks.search import fallbacks_of
from planner.studies.joint import Programs
from planner.studies.joint_cache import planned_or_kept_jointly
from planner.studies.pareto import Front, check_front
from planner.studies.pareto_search import front_of
from planner.studies.serving import Serving, calls_of, check_batches, served
from planner.studies.topology_search import compared, targets_of
from planner.studies.topology_table import TopologyComparison
from planner.verify.aot import AotReport

P = ParamSpec("P")
T = TypeVar("T")

WITHIN = 0.05
"""The share of its time that a fallback may take longer, unless the user says so."""


def _public(fn: Callable[P, T]) -> Callable[P, T]:
    """A public function: it takes former keywords, and its errors come without frames of the planner."""

    @wraps(fn)
    def public(*args: Any, **kwargs: Any) -> T:
        try:
            return fn(*args, **renamed(kwargs, levels=1))
        except PlannerError as error:
            leave_own_frames_out(error)
            raise

    return public


@_public
def plan(
    fn: Callable[..., Any],
    example_args: Sequence[Any] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    devices: Sequence[jax.Device] | None = None,
    topology: str | Topology | None = None,
    mesh: RequestedMesh | None = None,
    axis_names: Sequence[str] | None = None,
    objective: str = "time",
    memory_limit: float | str | None = None,
    pins: Pins | None = None,
    logical_rules: LogicalRules | None = None,
    like: Like | None = None,
    process_local: ProcessLocal = (),
    donate_argnums: Sequence[int] | int = (),
    donate_argnames: Sequence[str] | str = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    options: Options | None = None,
) -> Plan:
    """The best placement found of `fn` on many devices, ready to run.

    Parameters
    ----------
    fn: a function written for one device; anything `jax.jit` accepts. One for Explicit mesh axes is planned under its mesh,
        `with jax.set_mesh(mesh):`; what the types of its arguments and results say of placements are pins, and `pins` go
        before them.
    example_args: the tuple of its positional arguments, arrays or `jax.ShapeDtypeStruct`s.
    example_kwargs: its arguments by keyword. The plan is called as the function is, by position or by keyword.
    devices: to run on; default `jax.devices()`, or none where only a topology is given.
    topology: a name such as "v5e:4x4" or a `Topology`, to plan for; with `devices`, costs are the topology's and the
        program is emitted for the devices.
    mesh: axis name to size, or a `jax.sharding.Mesh`, to fix the mesh, which then lies on its devices as it is; default:
        all factorizations into up to three axes are searched, and the use of fewer devices.
    axis_names: names for the axes of a searched mesh, at most as many axes as names; default x, y, z.
    objective: "time" (seconds), "energy" (joules) or "memory" (peak bytes).
    memory_limit: per device, in bytes or as text, such as "14GB" or "15.75GiB"; default what a device of the topology has,
        or this machine's memory over the number of its CPU devices, where these are planned for without a topology.
    pins: shell-style pattern over names (`state/params/*/kernel`, `out/0`, a `checkpoint_name`) to PartitionSpec; or the
        name or position of an argument, or `out`, to a pytree like it of PartitionSpecs or NamedShardings, prefixes as in
        `jax.jit`, None for what is free. The mesh of shardings is the plan's.
    logical_rules: name of a dim to mesh axes, as Flax's logical axis rules say it: names in `pins` are read by these, and
        those that boxed parameters (`nn.with_logical_partitioning`) and nnx variables bring are pins as well, before
        `pins`. Default: such names are no pins.
    like: a plan, or a loaded one: this one has its mesh, and lays out as it does what both have, arguments or results,
        found by structure, names and types. The notes say what that is. `pins` go before it.
    process_local: names of arguments, such as ("batch",), or patterns over names, of which every process brings its own
        part, here and in calls: what it holds of a batch along dim 0, or along the dim that a mapping from names says. The
        layout is one by which its devices hold just that part; the whole are the parts together. On one process it says
        nothing.
    donate_argnums, donate_argnames, static_argnums, static_argnames: as in `jax.jit`, by position or by name, however the
        argument is given.
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
    place = requested_place(devices=devices, topology=topology, mesh=mesh, pins=pins, like=like, axis_names=axis_names)
    wanted = Wanted(
        objective=objective,
        memory_limit=memory_limit,
        pins=pins,
        like=like,
        logical_rules=logical_rules,
        process_local=process_local,
        example_kwargs=example_kwargs,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )

    def resolve(chosen: Options) -> PlanRequest:
        return resolve_request_by_all("planner.plan", fn, example_args, place, chosen, wanted)

    if options.annotations == "free":
        return planned_as_named_or_freed(resolve, options)
    return planned_or_kept(resolve(options))


@_public
def pareto(
    fn: Callable[..., Any],
    example_args: Sequence[Any] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    points: int = 7,
    devices: Sequence[jax.Device] | None = None,
    topology: str | Topology | None = None,
    mesh: RequestedMesh | None = None,
    axis_names: Sequence[str] | None = None,
    objective: str = "time",
    memory_limit: float | str | None = None,
    pins: Pins | None = None,
    logical_rules: LogicalRules | None = None,
    like: Like | None = None,
    process_local: ProcessLocal = (),
    donate_argnums: Sequence[int] | int = (),
    donate_argnames: Sequence[str] | str = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    options: Options | None = None,
) -> Front:
    """The placements of `fn` along peak memory against time: from the least memory to the least time, none dominated.

    Parameters
    ----------
    points: about how many plans, both ends included; fewer where less is to be traded.
    objective: what is weighed against memory: "time" (seconds of a call) or "energy" (joules).
    options: as in `plan`, for the whole front: `time_limit_s` is for all its searches, and what they did not finish is
        told. The two ends are checked as a plan is; those between are with check="auto" compiled while that takes less than
        `affordable_compile_s` in all, and not run. `autotune` is for single plans.
    All others as in `plan`, also where devices are of several processes.

    Raises
    ------
    As `plan`.
    """
    options = checked_options(options)
    check_front(points, objective, options)
    place = requested_place(devices=devices, topology=topology, mesh=mesh, pins=pins, like=like, axis_names=axis_names)
    wanted = Wanted(
        objective=objective,
        memory_limit=memory_limit,
        pins=pins,
        like=like,
        logical_rules=logical_rules,
        process_local=process_local,
        example_kwargs=example_kwargs,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )
    more = {"points": repr(points)}
    return front_of(
        resolve_request_by_all("planner.pareto", fn, example_args, place, options, wanted, more=more), points
    )


@without_own_frames
def plan_many(
    programs: Mapping[str, Given],
    *,
    calls: Mapping[str, float] | None = None,
    layouts: Literal["one", "own"] = "one",
    devices: Sequence[jax.Device] | None = None,
    topology: str | Topology | None = None,
    mesh: RequestedMesh | None = None,
    axis_names: Sequence[str] | None = None,
    objective: str = "time",
    memory_limit: float | str | None = None,
    pins: Pins | None = None,
    logical_rules: LogicalRules | None = None,
    like: Like | None = None,
    options: Options | None = None,
) -> Programs:
    """The best placements found of several programs on one mesh, the arrays that they share in one layout: plans by name.

    `init`, a train step, `eval` and `decode` then pass their arrays to one another as they lie. Which arguments and results
    are one array is found by structure, names and types, as for `like=` of `plan`; the notes of every plan say it.

    Parameters
    ----------
    programs: name to (fn, example_args), or (fn, example_args, keywords) with `example_kwargs`, `donate_argnums`,
        `donate_argnames`, `static_argnums`, `static_argnames`, `pins`, `process_local` and `memory_limit` of its own, as in
        `plan`. A pin of one holds for all that have the array; None
        keeps an array apart.
    calls: name to how often the program is called beside the others, default 1 each. What is minimised is the sum over all
        calls, or of `objective="memory"` the greatest peak.
    layouts: "one", or "own": each program lays out what they share as is best for it, and what moves it from the layout of
        the program that costs most, and back, is priced, told (`Programs.moves`) and part of the sum.
    pins: name of a program to its pins, as in `plan`; every other key is a name or a pattern over names of arguments and
        results, and what it says holds for all programs that have such. A program's own go before these.
    options: as in `plan`, for all of it: `time_limit_s` is for all its searches, and `cache` keeps all plans as one.
    All others as in `plan`.

    Raises
    ------
    As `plan`; PinError also where programs pin one array differently.
    """
    options = checked_options(options)
    check_layouts(layouts)
    given, common = requested_programs(programs, pins)
    counts = call_counts(calls, given)
    place = requested_place(
        devices=devices,
        topology=topology,
        mesh=mesh,
        pins=all_pins(given, common),
        like=like,
        axis_names=axis_names,
    )

    wanted = Wanted(objective=objective, memory_limit=memory_limit, like=like, logical_rules=logical_rules)

    def ready_here() -> dict[str, PlanRequest]:
        made = {
            name: resolve_request(
                program.fn,
                program.args,
                place,
                options,
                replace(wanted, **program.keywords),
                among_others=common,
            )
            for name, program in given.items()
        }
        check_common_pins(common, made)
        return made

    def question_of_all(ready: Mapping[str, PlanRequest]) -> dict[str, str]:
        questions = {f"{name}: {what}": value for name in ready for what, value in question(ready[name]).items()}
        return {**questions, "calls": repr(counts), "layouts": layouts}

    ready = place.target.processes.same(ready_here, question_of_all, "planner.plan_many")
    shared = shared_by(given, common, ready)
    return planned_or_kept_jointly(ready, shared, options, counts=counts, own_layouts=layouts == "own")


@without_own_frames
def serving(
    programs: Callable[[int], Mapping[str, Given]],
    batch_sizes: Sequence[int],
    *,
    tokens: int = 256,
    topology: str | Topology | None = None,
    devices: Sequence[jax.Device] | None = None,
    mesh: RequestedMesh | None = None,
    memory_limit: float | str | None = None,
    options: Options | None = None,
) -> Serving:
    """Latency per token against tokens per second over batch sizes, as a record that prints: with the knee between both.

    For each batch size the programs are planned together, as by `plan_many`: weights and cache lie alike in all of them.

    Parameters
    ----------
    programs: gives for a batch size the programs by name, as `plan_many` takes them. "decode" makes one token of every
        request; all others, such as "prefill", are called once per batch of requests. Quantized weights are arguments of
        their own type.
    batch_sizes: requests that are served side by side.
    tokens: that a request makes: how often "decode" is called for one call of the others.
    options: as in `plan`, for all of it: each batch size has an equal part of `time_limit_s` and `affordable_compile_s`.
    All others as in `plan`.

    Raises
    ------
    As `plan_many`; InfeasibleError only where no batch size fits.
    """
    options = checked_options(options)
    check_batches(batch_sizes, tokens)
    count = len(batch_sizes)
    part = replace(
        options, time_limit_s=options.time_limit_s / count, affordable_compile_s=options.affordable_compile_s / count
    )

    def planned(batch: int) -> Programs:
        given = programs(batch)
        return plan_many(
            given,
            calls=calls_of(given, tokens),
            topology=topology,
            devices=devices,
            mesh=mesh,
            memory_limit=memory_limit,
            options=telling(part, f"batch {batch}"),
        )

    return served(planned, batch_sizes, tokens)


@without_own_frames
def compare_topologies(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    topologies: Sequence[str | Topology],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | AbstractMesh | None = None,
    axis_names: Sequence[str] | None = None,
    objective: str = "time",
    memory_limit: float | str | None = None,
    pins: Pins | None = None,
    logical_rules: LogicalRules | None = None,
    donate_argnums: Sequence[int] | int = (),
    donate_argnames: Sequence[str] | str = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    options: Options | None = None,
) -> TopologyComparison:
    """The best placements found of `fn` on each of several topologies, and on one device of each of their chips.

    Printed, it is a table: what a call takes, on how many devices, what is left of their memory, what limits it, and where
    one device or the CPU is enough. A topology on which nothing fits has its row, too, with the reason.

    Parameters
    ----------
    topologies: names such as "v5e:4x4", "h100:8" and "cpu:8", or `Topology`s, none of which need be here.
    mesh: axis name to size, to fix the mesh on all; then no single devices are planned for.
    options: as in `plan`, for all of it: each topology has an equal part of `time_limit_s` and `affordable_compile_s`.
        Plans for one device are not compiled.
    All others as in `plan`.

    Raises
    ------
    As `plan`; InfeasibleError only where nothing fits any of the topologies.
    """
    options = checked_options(options)
    targets, shape = targets_of(topologies), requested_shape(mesh, pins)
    names = checked_names(axis_names, fixed=shape is not None)
    wanted = Wanted(
        objective=objective,
        memory_limit=memory_limit,
        pins=pins,
        logical_rules=logical_rules,
        example_kwargs=example_kwargs,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
    )
    traced = wanted.traced(call_of(fn, example_args, example_kwargs), options.annotations)

    def ready_for(target: Target, shared: Options) -> PlanRequest:
        place = Place(target=target, mesh=shape, axis_names=names)
        return resolve_request(fn, example_args, place, shared, wanted, traced=traced)

    return compared(ready_for, targets, options, objective=objective)


@without_own_frames
def audit(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    devices: Sequence[jax.Device] | None = None,
    topology: str | Topology | None = None,
    mesh: RequestedMesh | None = None,
    objective: str = "time",
    memory_limit: float | str | None = None,
    donate_argnums: Sequence[int] | int = (),
    donate_argnames: Sequence[str] | str = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    options: Options | None = None,
) -> Audit:
    """What your own shardings of `fn` cost, as a record that prints: beside the plan found without them.

    Parameters
    ----------
    in_shardings, out_shardings: as in `jax.jit`, PartitionSpecs or NamedShardings, prefixes too; None is left open. Those
        of a jitted function are taken from it, and what the function names inside (`with_sharding_constraint`) counts, too.
    mesh: that of the PartitionSpecs; shardings and programs that name a mesh bring their own.
    options: as in `plan`, for each of the searches: that of your shardings, that without them, and one for each lot of
        alike arguments left free. The program is priced in the form in which it is written; `check` says whether it is
        compiled as it stands. Nothing is run.
    All others as in `plan`.

    What is priced is the best completion of the shardings. Beside it stands what the compiler makes of the function with
    them alone, where it may be asked: the seconds of its schedule, its peak, the collectives that the best completion
    does without, and the lines at which devices compute more than there. The record has the collectives that the free
    plan does without, large arrays held whole that could be split, and what leaving one sharding to the planner saves.

    Raises
    ------
    As `plan`; ArgumentError also where nothing is sharded, or PartitionSpecs come without their mesh.
    """
    options = checked_options(options)
    chosen = replace(options, check="never", autotune="never", remat="as written", microbatches=1)
    call = call_of(fn, example_args)
    request = audit_request(fn, len(call.args), in_shardings, out_shardings)
    call = replace(call, fn=request.fn)
    wanted = Wanted(
        objective=objective,
        memory_limit=memory_limit,
        donate_argnums=(*marked(call, "donate", donate_argnums, donate_argnames), *request.donated),
        static_argnums=(*marked(call, "static", static_argnums, static_argnames), *request.static),
    )
    pins = pins_of(request, len(call.args), wanted.static(call))
    on_mesh = requested_mesh(mesh, pins)
    traced = wanted.traced(call)
    named = traced.parallelism is not None
    if not pins and not named:
        raise ArgumentError(
            "nothing is sharded: give in_shardings or out_shardings, or a function that names shardings itself"
        )
    if on_mesh is None and not named:
        raise ArgumentError("PartitionSpecs name axes of a mesh; give mesh=, or NamedShardings")

    def planned(those: Mapping[Any, Any] | None, limit: float | None) -> Plan:
        own = devices
        given = on_mesh if traced.parallelism is None else traced.parallelism.mesh
        if devices is None and topology is None and isinstance(given, Mesh):
            own = tuple(given.devices.flat) if those is None else None
        laid = None if those is None else on_mesh
        place = requested_place(devices=own, topology=topology, mesh=laid, pins=those or None, like=None)
        asks = replace(wanted, pins=those or None, memory_limit=limit)
        free = named and those is None
        how = replace(chosen, annotations="free") if free else chosen
        of_program = None if free else traced
        return planned_or_kept(
            resolve_request_by_all("planner.audit", request.fn, example_args, place, how, asks, traced=of_program)
        )

    def standing(best: Plan) -> AotReport:
        return compiled_alone(traced, best, options)

    return audited(pins, planned, standing, limit_bytes=limit_of(memory_limit))


@without_own_frames
def op_graph(
    fn: Callable[..., Any],
    example_args: Sequence[Any] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Sequence[int] | int = (),
    donate_argnames: Sequence[str] | str = (),
    static_argnums: Sequence[int] | int = (),
    static_argnames: Sequence[str] | str = (),
    options: Options | None = None,
) -> OpGraph:
    """The op graph of a function before anything is decided, a `networkx.MultiDiGraph`; `Plan.graph` has it decided.

    Nodes are arguments, constants, ops and results, edges are reads; `planner/explain/op_graph.py` lists their attributes.

    Parameters
    ----------
    fn, example_args, example_kwargs, donate_argnums, donate_argnames, static_argnums, static_argnames: as in `plan`.
    options: `while_trips` is used.

    Raises
    ------
    ArgumentError, TraceError: bad input.
    """
    options = checked_options(options)
    call = call_of(fn, example_args, example_kwargs)
    donate = marked(call, "donate", donate_argnums, donate_argnames)
    static = marked(call, "static", static_argnums, static_argnames)
    return program_graph(trace_call(call, donate=donate, static=static), while_trips=options.while_trips)


@without_own_frames
def fallbacks(
    plan: Plan,
    topologies: Sequence[str | Topology],
    *,
    within: float = WITHIN,
    compile_ahead: bool = True,
    options: Options | None = None,
) -> Fallbacks:
    """Plans of the same program for what may be left of its devices, and what moving its state there takes.

    Printed, it is a table: for each topology the time of a call, how much of the state stays in place, and what comes over
    the chip network, the data-centre network and from hosts, in bytes and seconds. A topology on which nothing fits has its
    row, too. Each plan is one as `plan` returns it, of the same arguments with the same batch; `save` keeps them all, and
    `Plan.abstract_arguments` restores a checkpoint in their layout.

    Parameters
    ----------
    plan: today's, bound to its function.
    topologies: names such as "v5e:8x16" and "v5e:16x16*3", or `Topology`s. One that is part of the plan's is planned on the
        devices of the plan that are left, where it has such.
    within: the share of its time per call that a fallback may take longer than the fastest, where its state takes less to
        move.
    compile_ahead: whether the programs of fallbacks whose devices are here are compiled: for this process, and, where
        `jax_compilation_cache_dir` is set, for others that see the same devices. In one that sees fewer devices JAX (0.10)
        compiles again.
    options: as in `plan`, for all of it: each topology has an equal part of `time_limit_s` and `affordable_compile_s`.
        Plans are not looked up in `cache`, and `autotune` is for single plans.

    Raises
    ------
    ArgumentError for topologies or options that are none; as `Plan.explain` does. What keeps a topology from having a plan
    is told in its row.
    """
    options = checked_options(options)
    if not isinstance(plan, Plan):
        raise ArgumentError(f"plan is {plan!r:.80}; give a plan, or a saved one that is bound to its function")
    if isinstance(within, bool) or not isinstance(within, (int, float)) or not within >= 0:
        raise ArgumentError(f"within is {within!r}; give a share of 0 or more, such as 0.05")
    return fallbacks_of(plan, targets_of(topologies), options, within=within, compile_ahead=compile_ahead)


@without_own_frames
def load(path: str | Path) -> LoadedPlan:
    """The plan saved in `path`; `bind` it to its function. Raises: PlanFileError."""
    return LoadedPlan(load_saved(Path(path)))


@without_own_frames
def compare(a: Plan | LoadedPlan | str | Path, b: Plan | LoadedPlan | str | Path) -> Comparison:
    """Where two plans differ, and what that costs: a record that prints as a table.

    Parameters
    ----------
    a, b: plans, saved plans as `load` gives them, or the paths of their files. Of different functions, or for different
        chips, they are compared as far as that means something, and the notes of the record say so.

    Raises
    ------
    ArgumentError: one of them is none of these. PlanFileError: a file holds no plan.
    """
    return compare_decisions(_decision("a", a), _decision("b", b))


def _decision(what: str, plan: Any) -> Decision:
    if isinstance(plan, (str, Path)):
        return load(plan).decision
    if not isinstance(plan, (Plan, LoadedPlan)):
        raise ArgumentError(f"{what} is {plan!r:.80}; give a plan, planner.load(...) of one, or the path of its file")
    return plan.decision
