"""The best plans whose optimizer state, and parameters, wait in the memory of hosts, where memory is short.

What waits there is a program of its own, whose best form is sought as that of the one that was written: first with the
state on hosts, and where no plan of that fits, with the parameters and their gradients as well.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from planner.errors import ArgumentError, InfeasibleError, Offer
from planner.explain.saved_values import naming
from planner.options import Options
from planner.program.tracing.traced import Program
from planner.search.infeasible import with_reason
from planner.transforms.host_arguments import may_wait
from planner.transforms.remat_choice import Front
from planner.units import quantity
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_result import GAIN, ON_GPUS, VariantResult, value_of

STEEPER = 2.0
"""Up to how many times more than the prices of memory say a little more of it may gain."""


def named_on_hosts(variants: ProblemVariants, options: Options) -> ProblemVariants:
    """The variants of the program with those of its arguments on hosts that the options name and that may wait there."""
    if not isinstance(options.offload, Mapping):
        return variants
    program, patterns = variants.program, [naming(pattern) for pattern in options.offload]
    named = {i for i, leaf in enumerate(program.arguments) if any(matches(leaf.name) for matches in patterns)}
    if not named:
        return variants
    may = may_wait(program)
    wanted = named & {*may.state, *may.parameters}
    # Parameters wait only where the state that is updated with them does.
    wanted |= set(may.state) if wanted & set(may.parameters) else set()
    return variants.on_hosts(sorted(wanted)) if wanted else variants


def names_on_hosts(program: Program, pattern: str) -> bool:
    """Whether a pattern names arguments on hosts. Raises: ArgumentError where it names only such as are not there."""
    named = [i for i, leaf in enumerate(program.arguments) if naming(pattern)(leaf.name)]
    if named and not set(named) & set(program.form.hosted):
        raise ArgumentError(
            f"Options(offload={{{pattern!r}: 'host'}}) names arguments that cannot wait on hosts "
            f"({', '.join(program.arguments[i].name for i in named[:3])}): they are not given away, or are read "
            "otherwise than slice by slice along their leading dim; name the state of an optimizer, which donate_argnums "
            "gives away"
        )
    return bool(named)


def may_use_hosts(variants: ProblemVariants, options: Options) -> bool:
    """Whether arguments may go to hosts without being named, or that may be offered, where nothing fits."""
    request = variants.request
    platform = request.topology.chip.platform
    return options.offload == "auto" and request.objective == "time" and platform in ("tpu", "gpu")


def with_more_on_hosts(
    variants: ProblemVariants, best: VariantResult | InfeasibleError, options: Options
) -> Iterator[ProblemVariants]:
    """The variants with arguments on hosts, from little to much, where that is left open and may gain."""
    is_tpu = variants.request.topology.chip.platform == "tpu"
    short = is_tpu and best.is_kept_back if isinstance(best, VariantResult) else True
    if not may_use_hosts(variants, options) or not short:
        return
    if isinstance(best, InfeasibleError):
        yield from levels_on_hosts(variants)
    else:
        yield from _state_alone(variants, best)


def better_on_hosts(best: VariantResult | InfeasibleError, found: VariantResult) -> VariantResult | InfeasibleError:
    """The plans found with arguments on hosts, where they gain enough; on GPUs an error that offers them."""
    if isinstance(best, InfeasibleError):
        return _offered(with_reason(best), found) if found.problem.request.topology.chip.platform == "gpu" else found
    return found if value_of(found) < value_of(best) * (1 - GAIN) else best


def levels_on_hosts(variants: ProblemVariants) -> Iterator[ProblemVariants]:
    """What may wait on hosts, from little to much: the state of an optimizer, then the parameters as well."""
    may = may_wait(variants.program)
    if may.state:
        yield variants.on_hosts(may.state)
    if may.parameters:
        yield variants.on_hosts((*may.state, *may.parameters))


def _state_alone(variants: ProblemVariants, best: VariantResult) -> Iterator[ProblemVariants]:
    """Where plans fit already: the state alone, if what its memory may gain is more than its copies take."""
    program, chip, form = variants.program, variants.request.topology.chip, best.problem.program.form
    plan, enough = best.result.candidates[0], GAIN * value_of(best)
    devices = math.prod(plan.instance.mesh.shape.values())
    by_room, copied = STEEPER * plan.per_byte / devices, 2 / (devices * chip.host_link_bytes_per_s)
    crossings = variants.forms.crossings(form)
    front = Front(crossings, chip, parts=form.microbatches) if crossings else None
    saved = front.settled(form.saved, form.offloaded) if front is not None else None

    def saving(state: float) -> float:
        """Seconds that are spared where so many bytes more are saved for the backward pass."""
        if front is None or saved is None:
            return 0.0
        more = front.within(saved.bytes + state / form.microbatches)
        return max(0.0, saved.seconds - more.seconds) / devices

    # Which arguments may wait is worked out on the whole program, which is of no use where all of them would not gain.
    most = sum(program.arguments[i].aval.bytes for i in program.donated)
    if max(0.0, by_room - copied) * most + saving(most) < enough:
        return
    may = may_wait(program, parameters=False)
    if not may.state:
        return
    state = sum(program.arguments[i].aval.bytes for i in may.state)
    gained = min(value_of(best) - best.result.unlimited, by_room * state) + saving(state)
    if gained < copied * state + enough:
        return
    # What was better without its checkpoints is so with arguments on hosts.
    lifted = form.without_checkpoints
    yield ((variants.without_checkpoints() if lifted else None) or variants).on_hosts(may.state)


def _offered(error: InfeasibleError, found: VariantResult) -> InfeasibleError:
    """An error that says what Options(offload=...) would do."""
    program = found.problem.program
    roots = sorted({program.arguments[i].name.split("/")[0] for i in program.form.hosted})
    asked = "{" + ", ".join(f'"{root}/*": "host"' for root in roots) + "}"
    needs = found.result.candidates[0].peak_bytes
    text = f"let {', '.join(roots)} wait in the memory of hosts: Options(offload={asked})"
    more = error.with_sentence(f"A plan fits in {quantity(needs, 'B')} per device if you {text}")
    return InfeasibleError(
        str(more),
        least_bytes=error.least_bytes,
        conflict=error.conflict,
        offers=(*error.offers, Offer(text=text, needs_bytes=needs)),
    )


def hosts_notes(found: VariantResult) -> tuple[str, ...]:
    """What a plan says of its arguments on hosts, if it has any there."""
    program = found.problem.program
    if not program.form.hosted:
        return ()
    named = _names([program.arguments[i].name for i in program.form.hosted])
    doubt = ON_GPUS if found.problem.request.topology.chip.platform == "gpu" else ""
    return (
        f"{named} wait in the memory of hosts, and are updated slice by slice: place arguments with plan.place(...), or "
        f"call the plan, which does it{doubt}",
    )


def _names(names: Collection[str]) -> str:
    """Arguments by their roots, with how many arrays of each."""
    roots: dict[str, int] = {}
    for name in names:
        roots[name.split("/")[0]] = roots.get(name.split("/")[0], 0) + 1
    return " and ".join(f"{count} arrays of {root}" for root, count in roots.items())
