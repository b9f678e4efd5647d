"""One form of a program: its best plans, in the time that is left for all forms that are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pbqp.deadline import Deadline
from planner.errors import InfeasibleError
from planner.options import GAP, Options, telling
from planner.pricing.mesh import Shape, ShapeKey
from planner.program.form import AS_WRITTEN, Form, form_text
from planner.program.jaxpr.remat.scopes import program_steps
from planner.program.tracing.traced import Program
from planner.search.best_on_mesh import WORTHWHILE
from planner.search.mesh_search import SearchOptions, SearchResult, search
from planner.search.problem import PlanningProblem
from planner.transforms.remat_choice import Choice, Front, Pinned
from planner.transforms.remat_prices import program_flops, program_seconds
from planner.transforms.remat_text import describe_remat
from planner.units import bytes_of
from planner.variants.problem_variants import ProblemVariants

GAIN = 0.02
"""What another form must gain to be taken in the place of that with which the search begins."""
HOPE = 0.01
"""Where the prices promise less than this part of the program's time, other forms are tried only if it does not fit."""
SPARED = 0.1
"""The part of the memory that another choice must spare to be tried though it promises less."""
FORM_GAP = 5e-3
"""What may be left between the best plan under a memory limit and the bound, where no other gap is asked for: forms differ
by more."""
HOST_PART, UNKNOWN_HOST_BYTES = 0.8, 16e9
"""The part of the memory of hosts that arrays may take, and the bytes of it for each device where it is not known."""
ON_GPUS = (
    ". XLA's GPU compiler is known to compute wrong gradients of values that loops leave on hosts (openxla/xla issue "
    "46231): compare results on the devices, plan.verify(*args)"
)
"""What is to be told of plans for GPUs with values on hosts."""
TIGHT = 0.8
"""From this part of the limit on, what is saved may be what keeps plans from being faster."""

FILLED = 0.9
"""The part of the room that a plan leaves in which more is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """The problem of a program in the form that is best, the best plans of it, and what is to be told of the form.

    `limit_bytes` is what the plans keep to; `none_fits` says why none is predicted to fit, where a compiler judges.
    `any_form` are seconds that no plan in any form is below; None where no other form may be chosen (`least_of_any_form`).
    `slower` is what the form takes, by the prices of `remat_choice`, beyond the fastest choice of what is saved.
    """

    problem: PlanningProblem
    result: SearchResult
    limit_bytes: float
    none_fits: InfeasibleError | None = None
    notes: tuple[str, ...] = ()
    slower: float = 0.0
    any_form: float | None = None

    @property
    def parts(self) -> int:
        """The number of microbatches."""
        return self.problem.program.form.microbatches

    @property
    def is_tight(self) -> bool:
        """Whether what is saved may be what keeps plans from being faster."""
        return self.result.candidates[0].peak_bytes >= TIGHT * self.limit_bytes

    @property
    def is_kept_back(self) -> bool:
        """Whether it is: where without a limit hardly any plan would be better, it is not."""
        return self.is_tight and value_of(self) * (1 - GAIN) > self.result.unlimited

    def gain_on_chips(self, times: int) -> float:
        """What would be gained of the best plan if its chips had so many times the room for arrays."""
        plan = self.result.candidates[0]
        mesh = plan.instance.mesh
        if not mesh.on_chip_bytes or times <= 1:
            return 0.0
        larger = self.problem.mesh(mesh.shape)
        roomier = self.problem.state(replace(larger, on_chip_bytes=times * larger.on_chip_bytes)).whole()
        return plan.of_kernels(plan.instance) - plan.of_kernels(roomier)


def value_of(searched: VariantResult | None) -> float:
    """The value of the best plan; inf where there is none."""
    return math.inf if searched is None else searched.result.candidates[0].value


@dataclass(frozen=True, kw_only=True)
class FormBounds:
    """What plans of the forms that were searched cost at the least, `free` of the memory limit and `limited` by it.

    `meshes` say the former by mesh. Of any form only plans `below` a value are sought, in as many microbatches as `parts`
    at the most.
    """

    below: float = math.inf
    parts: float = math.inf
    free: dict[Form, float] = field(default_factory=dict[Form, float])
    limited: dict[Form, float] = field(default_factory=dict[Form, float])
    meshes: dict[Form, Mapping[ShapeKey, float]] = field(default_factory=dict[Form, Mapping[ShapeKey, float]])

    def free_of(self, form: Form) -> float:
        """The bound of a form, with more arguments on hosts too: their copies take time, and what they spare is memory."""
        return max(self.free.get(form, -math.inf), self.free.get(replace(form, hosted=()), -math.inf))

    def of_meshes(self, form: Form) -> Mapping[ShapeKey, float]:
        """The bounds of a form by mesh, as those of `free_of`."""
        return self.meshes.get(form) or self.meshes.get(replace(form, hosted=()), {})

    def take(self, form: Form, found: SearchResult, below: float) -> None:
        """Takes over what a search for plans below a value found."""
        self.meshes[form] = found.free_bounds
        if found.candidates:
            self.free[form] = found.unlimited
            return
        bounds = self.limited if found.memory_bound else self.free
        bounds[form] = max(bounds.get(form, -math.inf), below)


@dataclass(kw_only=True)
class VariantSearch:
    """Searches forms of a program one after the other, each in the time that is left.

    `pinned` says by name what a user wants of values.
    """

    variants: ProblemVariants
    meshes: Sequence[Shape]
    options: Options
    pinned: Mapping[str, Pinned]
    deadline: Deadline
    bounds: FormBounds
    short: bool = False
    """Whether memory was too short for a form that was tried."""
    over: bool = False
    """Whether what would be better is over the limit in the form that was searched last."""
    found: list[VariantResult] = field(default_factory=list[VariantResult])
    """The best plans of the forms that were searched."""

    @property
    def late(self) -> bool:
        """Whether no time is left."""
        return self.deadline.passed

    @property
    def devices(self) -> int:
        """Those of the largest mesh."""
        return max(math.prod(mesh.values()) for mesh in self.meshes)

    def search(self, problem: PlanningProblem, *, below: float, worth: float = WORTHWHILE) -> VariantResult | None:
        """The best plans of a program in one form, None where there is none below a value within the limit.

        A mesh tried later must be better by a share of `worth`. Under a limit the search ends at a gap, where no other is
        asked for, wider than that of a single form; the certificate says at which. Where no time is left, none is sought
        that must be below another.
        """
        form, below = problem.program.form, min(below, self.bounds.below)
        if (self.late and math.isfinite(below)) or self.bounds.free_of(form) >= below:
            self.over = False
            return None
        limited = self.bounds.limited.get(form, -math.inf)
        if limited >= below:
            self.over, self.short = True, self.short or math.isinf(limited)
            return None
        limit = problem.roomy_limit
        gap = FORM_GAP if self.options.gap == GAP else self.options.gap
        options = replace(self.options, time_limit_s=self.deadline.left(1.0), gap=gap)
        if form != AS_WRITTEN:
            options = telling(options, form_text(form))
        try:
            found = search(
                self.meshes,
                problem,
                SearchOptions(
                    limit_bytes=limit,
                    options=options,
                    explained=False,
                    below=below,
                    worth=worth,
                    free_bounds=self.bounds.of_meshes(form),
                    tie_break_by_time=False,
                    planning=self.deadline,
                ),
            )
        except InfeasibleError:
            self.short = self.over = True
            self.bounds.limited[form] = math.inf
            return None
        self.over = found.memory_bound
        self.bounds.take(form, found, below)
        if not found.candidates:
            return None
        self.found.append(VariantResult(problem=problem, result=found, limit_bytes=limit))
        return self.found[-1]

    def may_fit(self, choice: Choice, parts: int = 1) -> bool:
        """Whether the arguments and what is saved, of one of these parts of the batch, fit, were all of it split evenly."""
        return choice.bytes / parts <= self.room

    @property
    def room(self) -> float:
        """The bytes of all devices that arguments leave."""
        written = self.variants.base
        return self.devices * written.roomy_limit - sum(leaf.aval.bytes for leaf in written.program.arguments)

    def filling(self, front: Front, choice: Choice, best: VariantResult) -> Choice | None:
        """The choice that also saves what the best plan with a choice leaves room for; None where that gains too little.

        Choices are offered in steps of half the bytes, so that the first that fits may leave half of the room.
        """
        if self.variants.request.objective != "time" or choice.bytes >= front.fastest.bytes:
            return None
        left = best.limit_bytes - best.result.candidates[0].peak_bytes
        found = front.within(choice.bytes + FILLED * left * self.devices / best.parts)
        gained = (choice.seconds - found.seconds) / self.devices
        return found if gained >= GAIN / 2 * value_of(best) else None

    @property
    def host_room(self) -> float:
        """The bytes of hosts that arguments leave for other arrays of all devices."""
        given = self.options.host_memory_limit
        limit = bytes_of(given) if isinstance(given, str) else given
        has = self.variants.request.topology.chip.host_memory_bytes
        waiting = sum(leaf.aval.host_bytes for leaf in self.variants.base.program.arguments)
        return self.devices * (limit or HOST_PART * has or UNKNOWN_HOST_BYTES) - waiting

    def hopes_for(self, front: Front) -> bool:
        """Whether another choice of what is saved promises enough to be tried before the program as it is written.

        Where that saves all, much memory is enough: compilers hide more behind computing where they have room.
        """
        # Where values are computed again, a choice that saves all may gain more than the prices know.
        start = front.everything.seconds if front.saves_all else max(front.everything.seconds, front.written.seconds)
        spared = (front.written.bytes - front.fastest.bytes) / self.devices if front.saves_all else 0.0
        much = spared >= SPARED * self.variants.request.memory_limit
        return much or start - front.fastest.seconds >= HOPE * self.written_seconds

    def is_slower(self, program: Program, best: VariantResult) -> bool:
        """Whether the operations that only a program repeats keep it from being as good as these plans."""
        more = program_flops(program_steps(program)) - program_flops(program_steps(best.problem.program))
        request = best.problem.request
        chip = request.topology.chip
        seconds = more / self.devices / max([chip.vector_flops_per_s, *chip.peak_flops_per_s.values()])
        return request.objective == "time" and best.result.unlimited + seconds > value_of(best) * (1 + FORM_GAP)

    @cached_property
    def written_seconds(self) -> float:
        """Seconds of the program as it is written, by the prices of the front, on one chip."""
        written = self.variants.base
        return program_seconds(program_steps(written.program), written.request.topology.chip)

    def slower(self, front: Front, choice: Choice) -> float:
        """The seconds that a choice takes beyond the fastest one, by the prices of the front, were all split evenly."""
        return (choice.seconds - front.fastest.seconds) / self.devices

    def front(self, form: Form) -> Front | None:
        """The choices of what is saved in the microbatches of a form; None where there are none."""
        chip, found = self.variants.request.topology.chip, self.variants.forms.crossings(form)
        return Front(found, chip, self.pinned, parts=form.microbatches) if found else None

    def with_choice(self, found: VariantResult, front: Front, choice: Choice) -> VariantResult:
        """Plans found with a choice of a front, and what is told of them."""
        parts = (self.variants.describe(found.parts),) if found.parts > 1 else ()
        return replace(found, notes=(*parts, self.remat_note(front, choice)), slower=self.slower(front, choice))

    def remat_note(self, front: Front, choice: Choice) -> str:
        """What a plan says of the values that are computed again, or wait on hosts."""
        beside = "without checkpoints" if self.variants.base_form.without_checkpoints else "as written"
        doubt = ON_GPUS if choice.offloaded and self.variants.request.topology.chip.platform == "gpu" else ""
        return describe_remat(front.crossings, choice, front.written, self.devices, beside=beside) + doubt
