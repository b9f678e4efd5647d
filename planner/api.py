"""The public entry points: `plan` a function, `load` a plan."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from cost_models import OBJECTIVES, Topology
from planner.checks import check, failure
from planner.decision import Decision, Request
from planner.errors import ArgumentError, CompileError, InfeasibleError, PinError
from planner.loaded import LoadedPlan
from planner.options import Options
from planner.pins import Pins, check_pins
from planner.pipeline import Pipeline, mesh_words
from planner.plan import Plan
from planner.search import Found
from planner.store import load_saved
from planner.target import Target, resolve
from planner.trace import trace

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
    mesh: axis name to size, to fix the mesh; default: all factorizations into up to three axes are searched, and the
        use of fewer devices.
    objective: "time" (seconds), "energy" (joules) or "memory" (peak bytes).
    memory_limit: bytes per device; default what a device of the topology has.
    pins: shell-style pattern over names (`state/params/*/kernel`, `out/0`, a `checkpoint_name`) to PartitionSpec.
    donate_argnums, static_argnums: as in `jax.jit`.
    options: time limit, checks, cost model, seed; see `Options`.

    Raises
    ------
    ArgumentError, TraceError, MeshError, PinError: bad input. InfeasibleError: nothing fits, with the least memory that
    would do. CompileError: the compiler rejected every plan that was tried, or they computed wrong numbers.
    """
    options = _options(options)
    target = resolve(devices, topology)
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
    donate, static = _positions("donate_argnums", donate_argnums), _positions("static_argnums", static_argnums)
    program = trace(fn, example_args, donate_argnums=donate, static_argnums=static)
    pipeline = Pipeline(program=program, target=target, request=request)
    meshes = pipeline.meshes(mesh, options.max_axes)
    args = tuple(example_args)

    def made(decision: Decision) -> Plan:
        return Plan(
            decision=decision,
            program=program,
            static_args={i: args[i] for i in range(len(args)) if i not in program.dynamic_argnums},
            target=target,
            graph=lambda: pipeline.graph,
            alternatives=lambda: pipeline.alternatives(decision),
            seed=options.seed,
        )

    start, dropped = time.monotonic(), dict[str, str]()
    first = found = pipeline.search(meshes, limit_bytes=request.memory_limit, options=options)
    decisions: list[Decision] = []

    def again(candidates: Sequence[Mapping[str, int]]) -> Found | None:
        """The next best plans for these meshes, in the time that is left; None where there are none."""
        left = replace(options, time_limit_s=max(options.time_limit_s - (time.monotonic() - start), 1.0))
        try:
            return pipeline.search(candidates, limit_bytes=request.memory_limit, options=left, without=dropped)
        except (InfeasibleError, PinError):
            return None

    def attempt(found: Found) -> Plan | None:
        """The best plan found, checked; None where it fails, which is recorded."""
        best, why_alone = pipeline.without_idle_devices(found.candidates[0], meshes)
        decisions.append(
            pipeline.decision(
                best,
                bound=first.bound,
                seconds=time.monotonic() - start,
                meshes=len(meshes),
                notes=(*found.notes, *(() if dropped else why_alone), *dropped.values()),
                donate_argnums=donate,
                static_argnums=static,
            )
        )
        checked, why = _checked(made(decisions[-1]), args, options)
        if why is None:
            return checked
        dropped[mesh_words(best.instance.mesh.shape)] = f"the plan on the mesh {best.instance.mesh.shape} failed: {why}"
        return None

    while found is not None and len(decisions) <= FALLBACKS:
        if (checked := attempt(found)) is not None:
            return checked
        found = again(meshes)
    # Some programs run on one device only, for no reason that could be read in them.
    alone = again([{"x": 1}]) if {"x": 1} in meshes else None
    if alone is not None and (checked := attempt(alone)) is not None:
        return checked
    # What a compiler gets wrong is mostly one constraint: the best plan's borders alone leave the rest to it.
    note = "emitted without constraints inside: the compiler may place that differently from the prediction"
    bare = replace(decisions[0], constraints={}, notes=(*first.notes, *dropped.values(), note))
    checked, why = _checked(made(bare), args, options)
    if why is not None:
        raise CompileError(
            f"every plan that was tried was dropped: {'; '.join(dropped.values())}; without constraints inside: {why}. "
            "Fix another mesh, or report this program with the plan's text"
        )
    return checked


def _checked(made: Plan, args: tuple[Any, ...], options: Options) -> tuple[Plan, str | None]:
    """A plan with its checks on record, and why it must be dropped, or None."""
    found = check(made, args, options)
    return made.with_checks(found), failure(found)


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
