"""The best plans whose optimizer state, and parameters, wait in the memory of hosts, where memory is short.

What waits there is a program of its own, whose best form is sought as that of the one that was written: first with the
state on hosts, and where no plan of that fits, with the parameters and their gradients as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace

from planner.errors import ArgumentError, InfeasibleError, Offer, PinError
from planner.explain.saved_values import naming
from planner.options import Options
from planner.transforms.host_arguments import may_wait
from planner.units import quantity
from planner.variants.problem_variants import ProblemVariants
from planner.variants.variant_result import GAIN, ON_GPUS, VariantResult, value_of

Sought = Callable[[ProblemVariants], VariantResult]
"""What seeks the best form of a program. Raises: InfeasibleError."""


def named_on_hosts(variants: ProblemVariants, options: Options) -> ProblemVariants:
    """The variants of the program with those of its arguments on hosts that the options name, if they name any.

    Raises: ArgumentError where none of those that a pattern names may wait there.
    """
    if not isinstance(options.offload, dict):
        return variants
    program, wanted = variants.program, set[int]()
    named = {
        pattern: [i for i, leaf in enumerate(program.arguments) if naming(pattern)(leaf.name)]
        for pattern in options.offload
    }
    if not any(named.values()):
        return variants
    may = may_wait(program)
    for pattern, positions in named.items():
        waiting = {*may.state, *may.parameters}.intersection(positions)
        if positions and not waiting:
            raise ArgumentError(
                f"Options(offload={{{pattern!r}: 'host'}}) names arguments that cannot wait on hosts "
                f"({', '.join(program.arguments[i].name for i in positions[:3])}): they are not given away, or something "
                "reads them otherwise than slice by slice along their leading dim; name the state of an optimizer, which "
                "donate_argnums gives away"
            )
        wanted |= waiting
    # Parameters wait only where the state that is updated with them does.
    wanted |= set(may.state) if wanted & set(may.parameters) else set()
    return variants.on_hosts(sorted(wanted))


def with_arguments_on_hosts(
    variants: ProblemVariants, best: VariantResult | InfeasibleError, options: Options, sought: Sought
) -> VariantResult:
    """The best plans with arguments on hosts, where that is left open and lets a plan fit, or gains enough.

    Else those given. Raises: the error given, which offers on GPUs what would do.
    """
    request = variants.request
    left_open = options.offload == "auto" and request.objective == "time"
    platform, fits = request.topology.chip.platform, isinstance(best, VariantResult)
    short = not isinstance(best, VariantResult) or best.is_kept_back
    if left_open and short and platform != "cpu" and (platform == "tpu" or not fits):
        for hosted in _levels(variants, best):
            with suppress(InfeasibleError, ArgumentError, PinError):
                found = sought(hosted)
                if platform == "gpu":
                    best = _offered(best, found)
                    break
                if not isinstance(best, VariantResult) or value_of(found) < value_of(best) * (1 - GAIN):
                    return replace(found, notes=(*found.notes, hosts_note(found)))
    if isinstance(best, InfeasibleError):
        raise best
    return best


def _levels(variants: ProblemVariants, best: VariantResult | InfeasibleError) -> Iterator[ProblemVariants]:
    """What may wait on hosts, from little to much: where plans fit already the state alone, if its copies leave a gain."""
    may = may_wait(variants.program)
    if not may.state:
        return
    if isinstance(best, VariantResult):
        chip = variants.request.topology.chip
        devices = math.prod(best.result.candidates[0].instance.mesh.shape.values())
        moved = 2 * sum(variants.program.arguments[i].aval.bytes for i in may.state) / devices
        if best.result.unlimited + moved / chip.host_link_bytes_per_s > value_of(best) * (1 - GAIN):
            return
    yield variants.on_hosts(may.state)
    if may.parameters and isinstance(best, InfeasibleError):
        yield variants.on_hosts((*may.state, *may.parameters))


def _offered(error: VariantResult | InfeasibleError, found: VariantResult) -> VariantResult | InfeasibleError:
    """An error that says what Options(offload=...) would do."""
    if isinstance(error, VariantResult):
        return error
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


def hosts_note(found: VariantResult) -> str:
    """What a plan says of its arguments on hosts."""
    program = found.problem.program
    named = _names([program.arguments[i].name for i in program.form.hosted])
    doubt = ON_GPUS if found.problem.request.topology.chip.platform == "gpu" else ""
    return (
        f"{named} wait in the memory of hosts, and are updated slice by slice: place arguments with plan.place(...), or "
        f"call the plan, which does it{doubt}"
    )


def _names(names: Collection[str]) -> str:
    """Arguments by their roots, with how many arrays of each."""
    roots: dict[str, int] = {}
    for name in names:
        roots[name.split("/")[0]] = roots.get(name.split("/")[0], 0) + 1
    return " and ".join(f"{count} arrays of {root}" for root, count in roots.items())
