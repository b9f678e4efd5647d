"""Proposals: the decisions to offer one after the other, those that compilers or runs prefer before all others."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.options import Options
from planner.planning.autotune.judges import CompilerJudge, Emits, Judge, why_no_compiler
from planner.planning.autotune.measuring import MeasuringJudge, why_not_measured
from planner.planning.autotune.prospects import Prospects
from planner.planning.autotune.rounds import Clock, Result, refine
from planner.planning.candidates import FALLBACKS, attempts
from planner.rules.op_work import flops_of
from planner.variants.problem_variants import Sessions
from planner.variants.variant_search import searched
from planner.variants.verdict import Answer
from planner.verify.compile_pool import CompilePool
from planner.verify.kept_reports import KeptReports

REFINING_SHARE = 0.5
"""Part of the time limit after which nothing more is tried, if there is a plan by then."""


def proposals(
    sessions: Sessions,
    meshes: Sequence[Mapping[str, int]],
    options: Options,
    *,
    notes: Sequence[str],
    values: Sequence[Any],
) -> Generator[Decision, Answer]:
    """The decisions to try, best first, each answered (`send`); the last is one of them again, to be handed over.

    `values` are the flat arguments, or shapes. Raises: what `attempts` raises.
    """
    how = options.refine
    if how == "never":
        yield from attempts(sessions, meshes, options, notes=notes)
        return
    refined = _refined(sessions, meshes, options, values, how)
    if isinstance(refined, str):
        yield from attempts(sessions, meshes, options, notes=(*notes, refined))
        return
    dropped: list[str] = []
    for decision in refined.decisions[: FALLBACKS + 1]:
        proposed = replace(decision, notes=(*decision.notes, *notes, *dropped))
        answer = yield proposed
        if answer.dropped is None:
            # Compilers or runs have preferred it to the others already.
            yield proposed
        dropped.append(f"the plan on the mesh {dict(decision.mesh_shape)} failed: {answer.dropped}")
    note = f"none of the plans tried is taken ({refined.refined.ended}): this is the best by predictions alone"
    rest = attempts(sessions, meshes, options, notes=(*notes, *dropped, note))
    following = next(rest)
    while True:
        following = rest.send((yield replace(following, refined=refined.refined)))


def _refined(
    sessions: Sessions,
    meshes: Sequence[Mapping[str, int]],
    options: Options,
    values: Sequence[Any],
    how: Literal["compile", "measure"],
) -> Result | str:
    """The plans tried, best first; or why none could be."""
    hard, session = Deadline.after(options.time_limit_s), sessions.base
    limit = session.request.memory_limit
    why = why_no_compiler(session.target) if how == "compile" else ""
    if how == "measure":
        why = why_not_measured(session.program, session.target, flops_of(session.graph), options)
    if why:
        return f"the plan is not refined: {why}"
    best = searched(sessions, meshes, options, judged=lambda: how == "compile")
    session, found = best.session, best.found
    emits = Emits(program=session.program, target=session.target, graph=session.graph)
    clock = Clock(soft=hard.share(REFINING_SHARE), hard=hard)
    prospects = Prospects(session, options, limit_bytes=limit, meshes=len(meshes))
    with ExitStack() as stack:
        judge: Judge
        if how == "compile":
            pool = stack.enter_context(CompilePool(KeptReports(options.cache)))
            judge = CompilerJudge(emits, pool, clock.hard)
        else:
            judge = MeasuringJudge(emits, values, clock.soft)
        result = refine(found.candidates, meshes, prospects, judge, clock, how=how, limit_bytes=limit)
    told = [prospects.certified(decision, found) for decision in result.decisions[: FALLBACKS + 1]]
    return replace(result, decisions=tuple(replace(one, notes=(*one.notes, *best.notes)) for one in told))
