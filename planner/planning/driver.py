"""The driver: takes a candidate, checks it, tells the verdict, until a plan is handed over; and binds plans."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from planner.decision import Decision
from planner.errors import InfeasibleError
from planner.options import UNITS, tell
from planner.plan_file.record import decision_of, record_of
from planner.planning.candidates import Candidates
from planner.planning.checks import check
from planner.plans.plan import Plan, bound
from planner.pricing.assignment import Chosen
from planner.pricing.mesh import mesh_text, shape_key
from planner.request.resolve import PlanRequest
from planner.search.problem import PlanningProblem
from planner.units import quantity


def best_plan(
    request: PlanRequest, candidates: Candidates | None = None, *, not_checked: str = "", not_run: str = ""
) -> Plan:
    """The first plan that passes its checks, or else the best of those that are only suspicious.

    Of several processes the leading one proposes; all check, and get the same plan. `candidates`: those to try; None for
    all that the request allows. `not_checked`, `not_run`: why nothing is to be checked, or no plan to be run for a check.

    Raises: PinError, InfeasibleError where nothing fits, CompileError where every plan was rejected.
    """
    processes, options = request.target.processes, request.options
    tell(options, "modelling the program")
    request.check_pins()
    candidates = candidates or Candidates(request, request.problem, request.options)
    plans: dict[object, Plan] = {}
    while True:
        with _with_limit_note(request.limit_note):
            if processes.alone:
                candidate = candidates.propose()
            else:
                candidate = decision_of(processes.decided(lambda: record_of(candidates.propose())))
        key = _key(candidate)
        if key in plans:
            # It was proposed before, and is the best of those that passed or are suspicious: it is handed over.
            tell(options, _found(candidate))
            return plans[key].with_notes(tuple(dict.fromkeys((*candidate.notes, *plans[key].notes))))
        problem = problem_of(request, candidate)
        found = _found(candidate)
        tell(options, f"checking {found}")
        plan, verdict = check(
            bound_plan(request, candidate, problem),
            request.args,
            request.options,
            request.target,
            operations=len(problem.graph.ops),
            not_checked=not_checked,
            not_run=not_run,
        )
        if verdict.accepted and not plans:
            tell(options, found)
            return plan
        tell(options, f"{found}: {verdict.rejected or verdict.suspicious or 'passed'}")
        if verdict.rejected is None:
            plans[key] = plan
        if processes.leads:
            candidates.feedback(verdict)


@contextmanager
def _with_limit_note(note: str) -> Generator[None]:
    """Adds to the error of a plan that does not fit where its limit came from; nothing where `note` is ""."""
    try:
        yield
    except InfeasibleError as error:
        if not note:
            raise
        raise error.with_sentence(note) from error


def _found(decision: Decision) -> str:
    """A plan in a line of progress: what the searches minimised, and how near to the best that is."""
    value = quantity(decision.certificate.value, UNITS[decision.request.objective])
    return f"the plan on {mesh_text(decision.mesh_shape)}: {value}, {decision.certificate.status}"


def _key(decision: Decision) -> object:
    """What tells the candidates of one request apart."""
    return decision.form, shape_key(decision.mesh_shape), decision.choice, bool(decision.constraints)


def bound_plan(request: PlanRequest, decision: Decision, problem: PlanningProblem | None = None) -> Plan:
    """A decision bound to the function and the devices.

    `problem` is what it solves; of a decision that was kept it is not stated until `explain` needs it.
    """
    program = request.variants.forms.program(decision.form) if problem is None else problem.program
    return bound(
        decision,
        program,
        request.target,
        request.args,
        # A plan outlives the arrays that it was made for.
        partial(problem_of, replace(request, args=()), decision),
        seed=request.options.seed,
        graph=None if problem is None else problem.graph,
    )


def problem_of(request: PlanRequest, decision: Decision) -> PlanningProblem:
    """The problem that a decision solves. Raises: PinError."""
    answered = decision.request
    return request.variants.of(decision.form).with_objective(answered.objective, answered.memory_limit)


def chosen(request: PlanRequest, decision: Decision) -> Chosen:
    """What a decision chose, with the problem of its mesh."""
    instance = problem_of(request, decision).instance(decision.mesh_shape)
    return Chosen(instance=instance, choice=decision.choice, apart_above=decision.apart_above)
