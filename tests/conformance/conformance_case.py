"""One primitive case of JAX's own (`jax._src.internal_test_util.test_harnesses`, in every wheel): planned, run, compared.

A case is planned on a topology with free wires and slow devices, so that everything is split that can be, on a mesh whose
axes divide its dims; it runs on virtual devices and is compared with the single device twice: by the planner's own
verification, and by a plain comparison of the results, elementwise with a tolerance by type, against `jax.jit` of the
untouched function. Both must agree. What `jax.jit` on one device rejects is no case.

`only_plan` compiles nothing: a case is planned, the mesh searched over eight devices, and the plan printed.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

import jax
import numpy as np
from jax._src.internal_test_util import test_harnesses

import planner
from planner.decisions.groups import Grouping, group_ops
from planner.errors import PlannerError
from planner.machine.target import resolve
from planner.plans.alternatives import alternatives
from planner.program.graph import Graph, Op
from planner.program.jaxpr.flatten import build_graph
from planner.program.slots import BOUNDARY
from planner.program.tracing.trace import trace
from planner.search.problem import planning_problem
from planner.testing import free_wires
from planner.verify.numerics import compare_numerics

MESHES: Sequence[tuple[int, ...]] = (
    (4, 2),
    (2, 2, 2),
    (2, 4),
    (8,),
    (7,),
    (2, 3),
    (3, 2),
    (6,),
    (5,),
    (2, 2),
    (4,),
    (3,),
    (2,),
)
"""Shapes of meshes of up to eight devices; the first of those that split a case into the most parts serves it."""
NAMES = ("x", "y", "z")
ROUNDINGS: Mapping[str, float] = {"float32": 128.0, "float64": 128.0}
"""How many roundings of a type a result may be off in the plain comparison; of narrower types `FEW_ROUNDINGS`."""
FEW_ROUNDINGS = 4.0
SLACK_BYTES, SLACK = 64.0, 0.05
"""Compiled collectives beyond the predicted ones that do not count (see `test_programs`)."""

Status = Literal["ok", "wrong", "crash", "died", "rejected", "refused"]
Placed = Literal["ours", "shardy", "no rule", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one case.

    `placed` says how its own op is placed, where it was run: split by our rule, split by Shardy's, whole for lack of a
    rule, or whole although there is one. `divisible`: whether some dim of the op could be divided by some axis at all.
    `extra_bytes`: compiled collectives beyond the predicted. "rejected" is what JAX rejects, "refused" what the planner
    refuses in words.
    """

    name: str
    group: str
    status: Status
    reason: str = ""
    mesh: tuple[int, ...] = ()
    placed: Placed | None = None
    divisible: bool = False
    extra_bytes: float = 0.0
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        """The outcome as JSON keeps it."""
        return asdict(self)


@cache
def harnesses() -> Mapping[str, Any]:
    """All cases by name, in the order of JAX's table."""
    return {h.fullname: h for h in test_harnesses.all_harnesses}


def sample() -> list[str]:
    """A fixed choice of cases: at least three of every group that has them, more of larger groups, evenly spaced."""
    groups: dict[str, list[str]] = {}
    for name, harness in harnesses().items():
        groups.setdefault(harness.group_name, []).append(name)
    chosen: list[str] = []
    for names in groups.values():
        count = min(len(names), max(3, math.isqrt(len(names)) // 2))
        chosen += [names[i * len(names) // count] for i in range(count)]
    return chosen


def run(name: str, objective: str = "time") -> Outcome:
    """The outcome of one case. Never raises; a compiler that aborts takes the process with it."""
    start = time.monotonic()
    harness = harnesses()[name]
    group, function = str(harness.group_name), harness.dyn_fun
    single = jax.jit(function)
    try:
        args = tuple(harness.dyn_args_maker(np.random.RandomState(0)))
        leaves, tree = jax.tree.flatten(args)
        placed = [jax.device_put(x, jax.devices()[0]) if hasattr(x, "dtype") else x for x in leaves]
        with jax.default_device(jax.devices()[0]):  # as the verification runs it, so that it is compiled once
            expected = jax.block_until_ready(single(*jax.tree.unflatten(tree, placed)))
    except Exception as error:
        return Outcome(name=name, group=group, status="rejected", reason=_words(error))
    sizes: tuple[int, ...] = ()
    try:
        program = trace(function, args)
        graph = build_graph(program)
        grouping = group_ops(graph)
        ops = own_ops(graph, group)
        sizes = choose_mesh(graph, grouping, ops, turn=len(name))
        plan = planner.plan(
            function,
            args,
            devices=jax.devices(),
            topology=free_wires(math.prod(sizes)),
            mesh=dict(zip(NAMES, sizes, strict=False)),
            objective=objective,
            options=planner.Options(check="never"),
        )
        found = plan(*args)
        numerics = compare_numerics(
            plan.decision,
            program,
            resolve(jax.devices(), plan.decision.request.topology),
            lambda *_: jax.tree.leaves(found),
            tuple(leaves),
            seed=0,
            reference=lambda *flat: jax.tree.leaves(single(*jax.tree.unflatten(tree, flat))),
        )
        verdict = plan.verify().collectives
        where = placement(plan, program, ops)
    except Exception as error:
        return Outcome(name=name, group=group, status="crash", reason=_words(error), mesh=sizes)
    reasons = differences(found, expected)
    if numerics.ok is not True:
        reasons.append(f"verify: {numerics.reason}")
    if verdict.by_kind is None:
        reasons.append(f"verify: {verdict.reason}")
    extra = verdict.compiled_bytes - verdict.predicted_bytes * (1 + SLACK) - SLACK_BYTES
    return Outcome(
        name=name,
        group=group,
        status="wrong" if reasons else "ok",
        reason="; ".join(reasons),
        mesh=sizes,
        placed=where,
        divisible=any(any(e % s == 0 for s in sizes) for e in _extents(graph, ops)),
        extra_bytes=max(0.0, extra),
        seconds=time.monotonic() - start,
    )


def only_plan(name: str, objective: str = "time") -> Outcome:
    """The outcome of planning one case on eight devices and printing the plan. Never raises; compiles no plan."""
    start = time.monotonic()
    harness = harnesses()[name]
    group, options = str(harness.group_name), planner.Options(check="never")
    try:
        args = tuple(harness.dyn_args_maker(np.random.RandomState(0)))
        jax.eval_shape(harness.dyn_fun, *args)
    except Exception as error:
        return Outcome(name=name, group=group, status="rejected", reason=_words(error))
    try:
        plan = planner.plan(harness.dyn_fun, args, topology=free_wires(8), objective=objective, options=options)
        _ = str(plan)
    except PlannerError as error:
        return Outcome(name=name, group=group, status="refused", reason=_words(error))
    except Exception as error:
        return Outcome(name=name, group=group, status="crash", reason=_words(error))
    sizes = tuple(plan.decision.mesh_shape.values())
    return Outcome(name=name, group=group, status="ok", mesh=sizes, seconds=time.monotonic() - start)


def own_ops(graph: Graph, group: str) -> list[Op]:
    """The ops that a case is about: those of its name; where there are none, all."""
    inner = [op for op in graph.ops if op.kind not in BOUNDARY]
    wanted = group.replace("reduce_window_add", "reduce_window_sum")
    named = [op for op in inner if op.kind.replace("-", "_") == wanted]
    return named or inner


def choose_mesh(graph: Graph, grouping: Grouping, ops: Sequence[Op], *, turn: int) -> tuple[int, ...]:
    """The mesh that splits the factors of these ops into the most parts; `turn` decides among equals.

    Where no factor may be split, the one that divides most of the arrays' dims.
    """
    groups = {grouping.group_of[op.id] for op in ops}
    free = [
        [size for f, size in enumerate(grouping.groups[g].sizes) if f not in grouping.groups[g].whole] for g in groups
    ]
    extents = max(free, key=math.prod, default=[]) or _extents(graph, graph.ops)
    parts = [_parts(mesh, extents) for mesh in MESHES]
    best = [mesh for mesh, count in zip(MESHES, parts, strict=True) if count == max(parts)]
    return best[turn % len(best)]


def _extents(graph: Graph, ops: Sequence[Op]) -> list[int]:
    tensors = {t for op in ops for t in (*op.operands, *op.results)}
    return sorted({extent for t in tensors for extent in graph.tensors[t].aval.shape if extent > 1})


def _parts(mesh: Sequence[int], extents: Sequence[int]) -> int:
    """Into how many parts a mesh splits an array of these extents, every axis used once where it divides."""
    left, parts = list(extents), 1
    for axis in sorted(mesh, reverse=True):
        place = next((i for i, extent in enumerate(left) if extent and extent % axis == 0), None)
        if place is not None:
            left[place] //= axis
            parts *= axis
    return parts


def placement(plan: planner.Plan, program: Any, ops: Sequence[Op]) -> Placed:
    """How the plan places these ops: the best of them counts."""
    target = resolve(jax.devices(), plan.decision.request.topology)
    problem = planning_problem(program=program, target=target, request=plan.decision.request)
    found = alternatives(problem, plan.decision)
    grouping = problem.model.grouping
    by_shardy = set(getattr(grouping, "by_shardy", ()))
    for op in ops:
        group, dims = grouping.group_of[op.id], grouping.placements[op.id]
        chosen = found.instance.strategies[group].assignment[found.choice[group]]
        factors = {f for array in (*dims.operands, *dims.results) for dim in array for f in dim}
        if factors & set(map(int, chosen)):
            return "shardy" if op.id in by_shardy else "ours"
    return "no rule" if any(op.id in grouping.unruled for op in ops) else "whole"


def differences(found: Any, expected: Any) -> list[str]:
    """Where two results differ by more than roundings of their types, in words."""
    left, right = jax.tree.flatten(found), jax.tree.flatten(expected)
    if left[1] != right[1]:
        return [f"the result has the structure {left[1]}, not {right[1]}"]
    reasons: list[str] = []
    for i, (a, b) in enumerate(zip(left[0], right[0], strict=True)):
        a, b = _array(a), _array(b)
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            reasons.append(f"result {i} is {a.dtype}{a.shape}, not {b.dtype}{b.shape}")
            continue
        try:
            _assert_close(a, b)
        except AssertionError as error:
            reasons.append(f"result {i}: {' '.join(str(error).split())[:300]}")
    return reasons


def _assert_close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    if not jax.dtypes.issubdtype(b.dtype, np.inexact):
        np.testing.assert_array_equal(a, b)
        return
    info = jax.numpy.finfo(b.dtype)
    tolerance = ROUNDINGS.get(str(info.dtype), FEW_ROUNDINGS) * float(info.eps)
    wide = np.complex128 if jax.dtypes.issubdtype(b.dtype, np.complexfloating) else np.float64
    left, right = a.astype(wide), b.astype(wide)
    finite = np.abs(right[np.isfinite(right)])
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance * float(finite.max(initial=0.0)))


def _array(value: Any) -> np.ndarray[Any, Any]:
    if jax.dtypes.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _words(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]} ({place})"
