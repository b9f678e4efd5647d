"""Lower bounds of plans in other forms: read off the program, without planning any of them.

An array between two kernels is written to memory and read from it where it is larger than what the chip has room for. One
of k parts of the batch has arrays of a k-th: what is moved is told again as if the chips had k times the room. What the
parts cost in turn, as every part reads the weights, only a plan of them tells.

What plans in any form take at the least is what is computed in all of them, split evenly: no form saves less than nothing,
or computes less than nothing again. And it is what the form takes on the best of the meshes that saves all, computes all of
the batch at once, and reads and writes memory in no time: every form computes as much, and communicates what that does. No
time for memory is what no number of microbatches and no other choice of what is saved can better.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pbqp.deadline import Deadline
from planner.decisions.decision_graph import Transfer
from planner.errors import ArgumentError, InfeasibleError, PinError
from planner.options import Options
from planner.pricing.build_instance import state
from planner.pricing.mesh import Shape
from planner.program.form import Form
from planner.program.graph import Graph, Op
from planner.program.jaxpr.origins import is_backward
from planner.search.best_on_mesh import look
from planner.search.mesh_search import solve_options
from planner.search.problem import PlanningProblem, terms_of
from planner.transforms.batch import Refused, part_counts
from planner.transforms.remat_choice import Front
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_result import VariantResult, value_of

MUCH = 0.15
"""The part of what fewer parts take at the least for which more are taken."""
NEARLY = 0.8
"""The part of what can be gained on the chips with which as few parts are taken as gain so much."""
MATTERS = 0.25
"""The part of a bound that computing without memory takes at the least where a bound without memory is sought."""
WORTHWHILE = 0.05
"""And the part of the plan's value by which that bound may be the higher one."""


SLACK = 0.002
"""The share by which plans may take less than were all split evenly: what stays on a chip is judged array by array, as if
all others were split as often (see `working_sets`)."""


class Floors:
    """What plans take at the least by the number of microbatches, were all of it split evenly over so many `devices`.

    `axes` are those that pins may name; `spared` are the seconds of one chip that another choice of what is saved may take
    less than the problem's program.
    """

    def __init__(self, problem: PlanningProblem, axes: Shape, devices: int, spared: float) -> None:
        self._problem, self._axes, self._devices = problem, tuple(axes), devices
        self._spared = spared if problem.request.objective == "time" else 0.0
        self._share = 1.0 if problem.request.objective == "energy" else 1.0 / devices

    def of(self, parts: int) -> float:
        """The least value in so many parts of the batch."""
        with suppress(PinError, InfeasibleError):  # of pins that do not fit these axes
            least = self._problem.least_pooled(self._axes, self._devices * parts)
            return ((1 - SLACK) * least - self._spared) * self._share
        return 0.0

    def least_parts(self, counts: Sequence[int], first: int, last: int) -> int:
        """The position of the least of these numbers, from `first` to `last`, that gains nearly as much as the last.

        The first one where none gains much.
        """
        before, after = self.of(counts[first]), self.of(counts[last])
        if after > (1 - MUCH) * before:
            return first
        enough = before - NEARLY * (before - after)
        return bisect_left(range(last), True, lo=first, key=lambda at: self.of(counts[at]) <= enough)


def least_of_any_form(
    variants: ProblemVariants, meshes: Sequence[Shape], options: Options, best: VariantResult
) -> float | None:
    """Seconds that no plan is below, whatever it saves, on devices or hosts, and in however many microbatches.

    The most of two bounds. What the program computes, split evenly over all devices, less what its form saves and computes
    again, as if the chips had the room of the most microbatches: of the forms tried of the whole batch, and that of the
    `best` plan, the one that tells the most. And `_least_communicating`. What loops within layers keep is as in that plan.
    None where no other form may be chosen, or not time is minimised.
    """
    found = best.problem
    if variants.request.objective != "time":
        return None
    chooses_saved = options.remat == "auto" or isinstance(options.remat, Mapping)
    saves = chooses_saved and bool(variants.forms.crossings(found.program.form))
    counts: Sequence[int] = ()
    # What parts of the batch spare is the room on chips: where there is none, they tell only whether there are other forms.
    if options.microbatches == "auto" and (variants.request.topology.chip.on_chip_bytes or not saves):
        batch = variants.forms.batch(found.program.form)
        counts = () if isinstance(batch, Refused) else part_counts(batch.extent)
    if not counts and not saves:
        return None
    devices = max(math.prod(mesh.values()) for mesh in meshes)

    def least(form: Form) -> float:
        spared = _of_choice(variants, form) if chooses_saved else 0.0
        parts = max([form.microbatches, *counts]) // form.microbatches
        return Floors(variants.made[form], meshes[0], devices, spared).of(parts)

    of = found.program.form
    computing = max(
        least(form)
        for form, problem in variants.made.items()
        if form.start == of.start and form.microbatches in (1, of.microbatches) and problem.analysis.is_modelled
    )
    if not variants.request.topology.chip.on_chip_bytes or variants.request.cost_model != "analytic":
        return computing
    if _without_memory(best) < computing + WORTHWHILE * value_of(best):
        return computing
    lifted = chooses_saved and (of.without_checkpoints or variants.forms.without_checkpoints is not None)
    saving_all = replace(of, microbatches=1, saved=() if chooses_saved else of.saved, offloaded=(), hosted=())
    with suppress(ArgumentError, PinError):
        problem = variants.of(replace(saving_all, without_checkpoints=lifted))
        return max(computing, _least_communicating(problem, meshes, options, best, known=computing))
    return computing


def _without_memory(best: VariantResult) -> float:
    """Seconds of the best plan if memory took none: no less than the best plan of any form takes so."""
    plan, problem = best.result.candidates[0], best.problem
    fast = problem.without_memory_traffic(problem.model)
    stated = state(problem.model, terms_of(fast, fast.mesh(plan.instance.mesh.shape)))
    return value_of(best) - plan.of_kernels(plan.instance) + plan.of_kernels(stated)


def _least_communicating(
    problem: PlanningProblem, meshes: Sequence[Shape], options: Options, best: VariantResult, *, known: float
) -> float:
    """Seconds that the problem of the form that saves all takes on the best of the meshes, if memory took none.

    What its backward pass reads of its forward pass is there as it wants it: a form that computes it again may have it so.
    At most the value of the `best` plan, and 0 where memory is all that matters beside the `known` bound, or that is about
    as high.
    """
    model, plan = problem.model, best.result.candidates[0]
    transfers = tuple(transfer for transfer in model.flow.transfers if not _crosses(model.graph, transfer))
    common = problem.without_memory_traffic(
        replace(model, flow=replace(model.flow, transfers=transfers), given_savings=model.savings)
    )
    solving, found, own = solve_options(options, Deadline.never()), plan.value, plan.instance.mesh
    devices = max(math.prod(mesh.values()) for mesh in meshes)
    evenly = Floors(common, meshes[0], devices, spared=0.0).of(1)
    if evenly < MATTERS * known:
        return 0.0
    for mesh in sorted(meshes, key=lambda mesh: (mesh != own.shape, -math.prod(mesh.values()))):
        if evenly * devices / math.prod(mesh.values()) < found:
            with suppress(PinError, InfeasibleError):  # of pins that do not fit the mesh
                found = look(common.state(common.mesh(mesh)), solving.afresh(), best=found).bound
        if found < known + WORTHWHILE * plan.value:
            return 0.0
    # Another form may have fewer kernels.
    return found - own.kernel_seconds * math.fsum(map(model.launches, model.grouping.groups))


def _crosses(graph: Graph, transfer: Transfer) -> bool:
    """Whether a transfer takes what the forward pass makes to where the backward pass reads it."""
    maker = graph.maker(transfer.tensor)
    if maker is None or not transfer.reads or _is_backward(graph, maker):
        return False
    return any(_is_backward(graph, graph.ops[reader]) for reader, _ in transfer.reads)


def _is_backward(graph: Graph, op: Op) -> bool:
    """Whether an op is of a backward pass: by its name, or as a loop around it goes through its slices from the last."""
    region: int | None = op.region
    while region is not None:
        if graph.regions[region].reverse:
            return True
        region = graph.regions[region].parent
    return is_backward(op.name)


def _of_choice(variants: ProblemVariants, form: Form) -> float:
    """Seconds of one chip for what a form saves and computes again."""
    found = variants.forms.crossings(form)
    if not found:
        return 0.0
    front = Front(found, variants.request.topology.chip, parts=form.microbatches)
    return front.settled(form.saved, form.offloaded).seconds
