"""Another choice of what is saved, where a compiled plan computes longer than promised.

What a layer saves may cost more than two passes over it: where the backward pass wants it in other tiles than the forward
pass made it in, a compiler cuts the slice out of its stack and copies it. The prices do not know which values those are.
So all that the plan computes beyond its promise is charged to what it saves, in equal parts of its bytes, and the choice
that is the fastest at that price is one more candidate. Whether it is faster the compiler says: a transformer for speech on
v5p:4x4x4 that saves all is promised 81 ms and takes 100 by its schedule, and 85 with a tenth of that saved; triangles of a
protein's pairs on v5e:4x4 take 243 ms for 215 promised, and 237 with a seventh saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pbqp.deadline import Deadline
from planner.options import Options
from planner.pricing.mesh import Shape
from planner.search.problem import PlanningProblem
from planner.variants.host_arguments import hosts_notes
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_result import FormBounds, VariantResult, VariantSearch


def with_dearer_saving(
    variants: ProblemVariants,
    planned: PlanningProblem,
    meshes: Sequence[Shape],
    options: Options,
    *,
    seconds: float,
    below: float,
    deadline: Deadline,
) -> VariantResult | None:
    """The best plans of a value `below` this in the form that is `planned`, but for what it saves.

    `seconds` are those of a call, on each device, that a compiled plan computed beyond its promise. None where what is
    saved is not left to the planner, where the same choice stays the fastest, and where no plan is below.

    Raises: ArgumentError, PinError.
    """
    form = planned.program.form
    if options.remat != "auto" or form.offloaded:
        return None
    search = VariantSearch(
        variants=replace(variants, base_form=form.start),
        meshes=meshes,
        options=options,
        pinned={},
        deadline=deadline,
        bounds=FormBounds(below=below),
    )
    front = search.front(form)
    if front is None:
        return None
    before = front.settled(form.saved)
    choice = front.charged(before, seconds * search.devices)
    if choice.saved == before.saved:
        return None
    found = search.search(variants.of(choice.of(form)), below=below)
    if found is None:
        return None
    best = search.with_choice(found, front, choice)
    return replace(best, notes=(*best.notes, *hosts_notes(best)))
