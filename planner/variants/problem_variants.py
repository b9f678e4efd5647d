"""The sessions of one program: as it is written, and in every other form that is asked for."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import final

from planner.decision import Request
from planner.machine.target import Target
from planner.problem import Session
from planner.program.batch_parts import Batch
from planner.program.form import Form
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.traced import Program
from planner.transforms.apply import in_microbatches, with_values_saved
from planner.transforms.batch import Refused, batch_of


@final
class Sessions:
    """A session for each form of a program, on a target and for a request, made when it is first asked for.

    `made` are those that there are, for whatever is asked of them, `in_parts` the programs by their number of microbatches;
    `beginning` is the form to begin with.
    """

    def __init__(self, *, program: Program, target: Target, request: Request) -> None:
        self.program, self.target, self.request = program, target, request
        self.made: dict[Form, Session] = {}
        self.in_parts: dict[int, Program] = {1: program}
        self.beginning = program.form

    @property
    def written(self) -> Session:
        """That of the program as it is. Raises: PinError."""
        return self.of(self.program.form)

    @property
    def base(self) -> Session:
        """That of the form to begin with. Raises: PinError."""
        return self.of(self.beginning)

    @cached_property
    @paused()
    def batch(self) -> Batch | Refused:
        """How the program may be computed batch part by batch part, or why it cannot be."""
        return batch_of(self.program)

    def words(self, count: int) -> str:
        """What a plan says of so many microbatches."""
        size = "" if isinstance(self.batch, Refused) else f" of {self.batch.extent // count} examples"
        return f"runs as {count} microbatches{size}, whose sums are added up"

    @paused()
    def program_in(self, form: Form) -> Program:
        """The program in a form. Raises: ArgumentError where it cannot be computed so."""
        count = form.microbatches
        if count not in self.in_parts:
            self.in_parts[count] = in_microbatches(self.program, count, self.batch)
        return with_values_saved(self.in_parts[count], form)

    def of(self, form: Form) -> Session:
        """The session of the program in a form. Raises: ArgumentError where it cannot be computed so, PinError."""
        found = self.made.get(form)
        if found is None:
            found = Session(program=self.program_in(form), target=self.target, request=self.request)
            self.made[form] = found
        return found.asking(objective=self.request.objective, memory_limit=self.request.memory_limit)

    def starting(self, session: Session) -> Sessions:
        """The same sessions, for what another asks, beginning with its form."""
        found = copy.copy(self)
        found.request, found.beginning = session.request, session.program.form
        return found
