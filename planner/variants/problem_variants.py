"""The problems of one program: as it is written, and in every other form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from planner.decision import Request
from planner.machine.target import Target
from planner.program.batch_parts import Batch
from planner.program.form import Form
from planner.program.jaxpr.remat.residuals import Crossing
from planner.program.jaxpr.remat.scopes import Scope, scope_of
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.traced import Program
from planner.search.problem import Meshes, PlanningProblem, planning_problem
from planner.transforms.apply import finished, in_microbatches, started, with_values_saved, without_checkpoints
from planner.transforms.batch import Refused, batch_of
from planner.transforms.host_arguments import with_arguments_on_host


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramForms:
    """A program as it is `written`, and in other forms.

    `starts` are those made so far by the starts of their forms, `in_parts` by these in so many microbatches, `batches` how
    the starts may be taken in parts, and `scopes` and `crossed` what crosses between the loops of these.
    """

    written: Program
    starts: dict[Form, Program] = field(default_factory=dict[Form, Program])
    in_parts: dict[Form, Program] = field(default_factory=dict[Form, Program])
    batches: dict[Form, Batch | Refused] = field(default_factory=dict[Form, "Batch | Refused"])
    scopes: dict[Form, Scope] = field(default_factory=dict[Form, Scope])
    crossed: dict[Form, tuple[Crossing, ...]] = field(default_factory=dict[Form, tuple[Crossing, ...]])

    @paused()
    def batch(self, form: Form) -> Batch | Refused:
        """How the program in the start of a form may be computed batch part by batch part, or why it cannot be."""
        if form.start not in self.batches:
            self.batches[form.start] = batch_of(self.start(form))
        return self.batches[form.start]

    @cached_property
    @paused()
    def without_checkpoints(self) -> Program | None:
        """The program without its checkpoints; None where it is written so."""
        return without_checkpoints(self.written.as_written)

    @paused()
    def program(self, form: Form) -> Program:
        """The program in a form. Raises: ArgumentError where it cannot be computed so."""
        return finished(with_values_saved(self._in_parts(form), form, lambda: self._scope(form)))

    @paused()
    def crossings(self, form: Form) -> tuple[Crossing, ...]:
        """Of what a form chooses which values are saved: what crosses between the loops of its microbatches."""
        parts = replace(form.start, microbatches=form.microbatches)
        if parts not in self.crossed:
            self.crossed[parts] = self._scope(form).crossed()
        return self.crossed[parts]

    def _scope(self, form: Form) -> Scope:
        """The same, with the programs in which it crosses."""
        parts = replace(form.start, microbatches=form.microbatches)
        if parts not in self.scopes:
            self.scopes[parts] = scope_of(self._in_parts(form))
        return self.scopes[parts]

    def _in_parts(self, form: Form) -> Program:
        """The program in the microbatches of a form, with everything saved as in its start."""
        parts = replace(form.start, microbatches=form.microbatches)
        if parts == form.start:
            return self.start(form)
        if parts not in self.in_parts:
            self.in_parts[parts] = in_microbatches(self.start(form), form.microbatches, self.batch(form))
        return self.in_parts[parts]

    def start(self, form: Form) -> Program:
        """The program in the start of a form. Raises: ArgumentError where it cannot be computed so."""
        if form.start == self.written.form.start:
            return self.written
        if form.start not in self.starts:
            if form.hosted:
                made = with_arguments_on_host(self.start(replace(form, hosted=())), form.hosted)
            else:
                lifted = self.without_checkpoints if form.without_checkpoints else None
                made = lifted or started(self.written.as_written, form)
            self.starts[form.start] = made
        return self.starts[form.start]


@dataclass(frozen=True, kw_only=True, eq=False)
class ProblemVariants:
    """The problem of a program in each form, for a target and a request, made when it is first needed.

    `base_form` is the form to begin with. `made` are the problems there are, for any objective and memory limit, `meshes`
    those that they were stated on.
    """

    forms: ProgramForms
    target: Target
    request: Request
    base_form: Form
    made: dict[Form, PlanningProblem] = field(default_factory=dict[Form, PlanningProblem])
    meshes: Meshes = field(default_factory=Meshes)

    @property
    def program(self) -> Program:
        """The program as it is written."""
        return self.forms.written

    @property
    def batch(self) -> Batch | Refused:
        """See `ProgramForms.batch`."""
        return self.forms.batch(self.base_form)

    @property
    def base(self) -> PlanningProblem:
        """The problem of the form to begin with. Raises: ArgumentError, PinError."""
        return self.of(self.base_form)

    def of(self, form: Form) -> PlanningProblem:
        """The problem in a form. Raises: ArgumentError where the program cannot be computed so, PinError."""
        if form not in self.made:
            program = self.forms.program(form)
            self.made[form] = planning_problem(
                program=program, target=self.target, request=self.request, meshes=self.meshes
            )
        return self.made[form].with_objective(self.request.objective, self.request.memory_limit)

    def without_checkpoints(self) -> ProblemVariants | None:
        """The same problems, beginning with the form without checkpoints; None where the program is written so."""
        if self.base_form.without_checkpoints or self.forms.without_checkpoints is None:
            return None
        return replace(self, base_form=replace(self.base_form, without_checkpoints=True))

    def in_microbatches(self, problem: PlanningProblem, count: int) -> PlanningProblem:
        """The same problem for the program in so many microbatches. Raises: ArgumentError, PinError."""
        request = problem.request
        form = replace(problem.program.form.start, microbatches=count)
        return self.of(form).with_objective(request.objective, request.memory_limit)

    def starting(self, problem: PlanningProblem) -> ProblemVariants:
        """The same problems, for what one of them minimises, and beginning with its form."""
        return replace(self, request=problem.request, base_form=problem.program.form)

    def on_hosts(self, positions: Sequence[int]) -> ProblemVariants:
        """The same problems, beginning with the form that has these of its arguments on hosts."""
        return replace(self, base_form=replace(self.base_form, hosted=tuple(sorted(positions))))

    def with_request(self, request: Request) -> ProblemVariants:
        """The same program for a request that may have other pins."""
        return replace(self, request=request, made={})

    def describe(self, count: int) -> str:
        """What a plan says of so many microbatches."""
        size = "" if isinstance(self.batch, Refused) else f" of {self.batch.extent // count} examples"
        return f"runs as {count} microbatches{size}, whose sums are added up"


def problem_variants(*, program: Program, target: Target, request: Request) -> ProblemVariants:
    """The problems of a program, beginning with the form in which it is written."""
    return ProblemVariants(forms=ProgramForms(written=program), target=target, request=request, base_form=program.form)
