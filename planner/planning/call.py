"""A call: what a user handed to `plan` or `pareto`, made ready, and how a proposed decision becomes the plan of it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from typing import final

import jax

from planner.decision import Decision
from planner.emit.runner import Runner
from planner.machine.processes import Processes
from planner.options import Options
from planner.plan_file.record import decision_of, record_of
from planner.planning.checks import check
from planner.planning.proposals import proposals
from planner.plans.alternatives import alternatives
from planner.plans.plan import Plan
from planner.pricing.assignment import Chosen
from planner.pricing.mesh import shape_key
from planner.problem import Session
from planner.program.graph import Graph
from planner.program.tracing.traced import Program
from planner.request.resolve import Ready
from planner.variants.microbatch_choice import first_form, in_first_form, in_form_between
from planner.variants.verdict import Answer


@final
class Call:
    """A program made ready, with its example arguments, and the options; `sessions` are those of what was asked for.

    `session` is that of the form that is asked for: as the program is written where that is left to the planner.
    """

    def __init__(self, ready: Ready, options: Options) -> None:
        self.ready, self.args, self.options = ready, ready.args, options
        self.sessions = ready.sessions

    @cached_property
    def session(self) -> Session:
        """See the class. Raises: PinError."""
        return self.sessions.of(first_form(self.options))

    def make_ready(self) -> None:
        """Nothing; makes the session, on all processes, and fails on all where that fails on one. Raises: PinError."""

        def made() -> None:
            _ = self.session

        self.processes.gathered(made)

    @property
    def processes(self) -> Processes:
        """Those that make the call together."""
        return self.sessions.target.processes

    def proposed_in_any_form(self, session: Session, options: Options) -> Generator[Decision, Answer]:
        """The decisions to try for what a session asks, in the first form in which a plan fits."""
        return in_first_form(self.sessions, session, self.ready.meshes, options, self.proposed)

    def proposed_between(
        self, session: Session, options: Options, *, fewest: int, most: int
    ) -> Generator[Decision, Answer]:
        """The decisions to try for what a session asks, in the best form of so many microbatches."""
        return in_form_between(
            self.sessions, session, self.ready.meshes, options, self.proposed, fewest=fewest, most=most
        )

    def proposed(self, session: Session, options: Options, notes: Sequence[str] = ()) -> Generator[Decision, Answer]:
        """The decisions to try for what a session asks, as `proposals` has them, with further notes."""
        program = session.program
        leaves = jax.tree.leaves([self.args[i] for i in program.dynamic_argnums])
        values = (*leaves, *program.constants)
        notes = (*self.ready.notes, *notes)
        return proposals(self.sessions.starting(session), self.ready.meshes, options, notes=notes, values=values)

    def plan_of(self, decision: Decision) -> Plan:
        """A decision bound to the function and the devices."""
        session = self._session_of(decision)
        return self._plan(decision, session.program, session.graph)

    def kept(self, decision: Decision) -> Plan:
        """A decision that was kept, bound without a session, which only `explain` asks for."""
        return self._plan(decision, self.sessions.program_in(decision.form), None)

    def _plan(self, decision: Decision, program: Program, graph: Graph | None) -> Plan:
        runner = Runner(
            program=program,
            decision=decision,
            target=self.sessions.target,
            static_args={i: self.args[i] for i in program.static_argnums},
            graph=graph,
        )
        return Plan(
            decision=decision,
            runner=runner,
            alternatives=lambda: alternatives(self._session_of(decision), decision),
            seed=self.options.seed,
        )

    def _session_of(self, decision: Decision) -> Session:
        request = decision.request
        session = self.sessions.of(decision.form)
        return session.asking(objective=request.objective, memory_limit=request.memory_limit)

    def chosen(self, decision: Decision) -> Chosen:
        """What a decision chose, with the problem that it solves."""
        return Chosen(instance=self._session_of(decision).instance(decision.mesh_shape), choice=decision.choice)

    def handed_over(self, proposed: Generator[Decision, Answer], *, not_checked: str = "", not_run: str = "") -> Plan:
        """The plan of the first proposal that passes its checks, or of the one proposed again; the same on all processes.

        `proposed` is asked on the leading process only. `not_checked`, `not_run`: why nothing is to be checked, or no
        plan to be run to check it. Raises: what `proposed` raises.
        """
        answer: Answer | None = None
        kept: dict[object, Plan] = {}
        while True:
            decision = self._decided(proposed, answer)
            if _identity(decision) in kept:
                known = kept[_identity(decision)]
                return known.with_notes(tuple(dict.fromkeys((*decision.notes, *known.notes))))
            checked, answer = check(
                self.plan_of(decision),
                self.args,
                self.options,
                self.session.target,
                operations=len(self.sessions.of(decision.form).graph.ops),
                not_checked=not_checked,
                not_run=not_run,
            )
            if answer.good and not kept:
                return checked
            if answer.dropped is None:
                kept[_identity(decision)] = checked

    def _decided(self, proposed: Generator[Decision, Answer], answer: Answer | None) -> Decision:
        """The next proposal, or again the one to hand over: the leading process's where there are several."""

        def following() -> Decision:
            return next(proposed) if answer is None else proposed.send(answer)

        if self.processes.alone:
            return following()
        return decision_of(self.processes.decided(lambda: record_of(following(), self.sessions.program)))


def _identity(decision: Decision) -> object:
    """What tells the proposals for one call apart."""
    return decision.form, shape_key(decision.mesh_shape), decision.choice, bool(decision.constraints)
