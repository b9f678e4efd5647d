"""The request that a call of `plan` makes: checked, traced, with the meshes to search."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import jax

from cost_models import OBJECTIVES
from pbqp.deadline import Deadline
from planner.decision import Request
from planner.errors import ArgumentError
from planner.machine.cores import memory_of_host
from planner.machine.target import Target
from planner.options import Options, Progress, tell
from planner.plans.process_parts import ProcessLocal, with_wholes
from planner.pricing.candidates.pins import check_pins, close_names, matcher
from planner.pricing.mesh import Shape
from planner.printing.progress import shown_in_ipython
from planner.program.form import Form
from planner.program.jaxpr.canonicalize.carried_stacks import with_stacks_carried
from planner.program.jaxpr.fingerprint import fingerprint
from planner.program.tracing.arguments import name_of
from planner.program.tracing.call import Call, call_of, marked
from planner.program.tracing.trace import trace_call
from planner.program.tracing.traced import Annotations, Program
from planner.request.layouts import check_own_mesh, laid_out
from planner.request.pins import LogicalRules, Pins
from planner.request.place import Like, Place
from planner.search.offered_meshes import offered_meshes
from planner.search.problem import PlanningProblem
from planner.units import bytes_of, quantity
from planner.variants.problem_variants import ProblemVariants, problem_variants


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanRequest:
    """What a user asks `plan` for, checked and traced: the program, its problems, the meshes to search, and the options.

    `variants` hold the program, the target, and the request proper (objective, memory limit, pins). `notes` are told by
    every plan. `has_values`: whether the arguments are arrays, on which a plan can be run, and not shapes. `args` are the
    example arguments in order, whole where processes bring parts of them. `limit_note` is told where nothing fits.
    """

    variants: ProblemVariants
    meshes: Sequence[Shape]
    notes: tuple[str, ...]
    has_values: bool
    args: tuple[Any, ...]
    options: Options
    limit_note: str = ""

    @property
    def target(self) -> Target:
        """Where the program will run."""
        return self.variants.target

    @property
    def problem(self) -> PlanningProblem:
        """The problem in the form that the user asks for: as the program is written where that is left to the planner.

        Raises: PinError.
        """
        return self.variants.of(_first_form(self.options))

    def check_pins(self) -> None:
        """Nothing; called on all processes. Raises: PinError for a pin that matches nothing in the program."""
        # It must fail on all, also on those that do not search.
        self.target.processes.gathered(lambda: bool(self.problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for beside the function, its arguments and the place: keywords of `planner.plan`."""

    objective: str
    memory_limit: float | str | None = None
    pins: Pins | None = None
    like: Like | None = None
    logical_rules: LogicalRules | None = None
    process_local: ProcessLocal = ()
    example_kwargs: Mapping[str, Any] | None = None
    donate_argnums: Sequence[int] | int = ()
    donate_argnames: Sequence[str] | str = ()
    static_argnums: Sequence[int] | int = ()
    static_argnames: Sequence[str] | str = ()

    def donated(self, call: Call) -> tuple[int, ...]:
        """The positions of donated arguments among those of a call in order. Raises: ArgumentError."""
        return marked(call, "donate", self.donate_argnums, self.donate_argnames)

    def static(self, call: Call) -> tuple[int, ...]:
        """The positions of static arguments among those of a call in order. Raises: ArgumentError."""
        return marked(call, "static", self.static_argnums, self.static_argnames)

    def traced(self, call: Call, annotations: Annotations = "keep") -> Program:
        """The program of a call. Raises: ArgumentError, TraceError."""
        return trace_call(call, donate=self.donated(call), static=self.static(call), annotations=annotations)


def resolve_request(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    place: Place,
    options: Options,
    wanted: Wanted,
    *,
    traced: Program | None = None,
    among_others: Mapping[str, Any] | None = None,
) -> PlanRequest:
    """The request of a call of `plan`, at a place.

    `traced` is the function traced for these arguments, where that was done for another place. `among_others`: pins common
    to several programs that are planned together; then others may have what this one has not of these, or of `like`.

    Raises: ArgumentError, TraceError, MeshError, PinError.
    """
    target, objective = place.target, wanted.objective
    if options.autotune != "never" and objective != "time":
        raise ArgumentError(
            f"Options(autotune={options.autotune!r}) compares seconds, but objective is {objective!r}; leave one of "
            "them out"
        )
    call = call_of(fn, example_args, wanted.example_kwargs)
    if traced is None:
        tell(options, f"tracing {name_of(fn)}")
    wholes = with_wholes(call, wanted.process_local, target, static=wanted.static(call))
    objective, memory_limit = _objective(objective), limit_of(wanted.memory_limit)
    limit_note = ""
    if memory_limit is None:
        memory_limit, limit_note = _default_limit(place)
    program = traced or wanted.traced(wholes.call, options.annotations)
    program = with_stacks_carried(program) if target.carries_stacks else program
    like = None if wanted.like is None else wanted.like.decision
    own = program.parallelism
    axes = own.shape if own is not None else place.axis_names if place.mesh is None else place.mesh
    specs, layout_notes = laid_out(
        program, wanted.pins, like, wanted.logical_rules, axes=list(axes), among_others=among_others
    )
    request = Request(
        topology=target.topology,
        platform=target.devices[0].platform if target.devices else None,
        objective=objective,
        memory_limit=memory_limit,
        pins=check_pins(specs),
        cost_model=options.cost_model,
        profile=options.profile,
        while_trips=options.while_trips,
        annotations=program.annotations,
        process_local=wholes.dims,
        inputs=_inputs(program, options.inputs),
    )
    check_own_mesh(program, target)
    variants = problem_variants(program=program, target=target, request=request)
    form = _first_form(options)
    variants.forms.program(form)  # raises where the program has no such form
    variant_notes = (f"{variants.describe(form.microbatches)}, as asked for",) if form.microbatches > 1 else ()
    meshes, notes = target.shared_by_all(
        offered_meshes(program, target, request, place.mesh, options.max_axes, place.axis_names)
    )
    shapes_only = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(list(call.args)))
    return PlanRequest(
        variants=variants,
        meshes=meshes,
        notes=(*layout_notes, *notes, *variant_notes),
        has_values=not shapes_only,
        args=wholes.call.args,
        options=options,
        limit_note=limit_note,
    )


def _first_form(options: Options) -> Form:
    """The form to begin with: as many microbatches as the user asks for, or as the program is written."""
    return Form(microbatches=1 if options.microbatches == "auto" else options.microbatches)


def resolve_request_by_all(
    call: str,
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    place: Place,
    options: Options,
    wanted: Wanted,
    *,
    traced: Program | None = None,
    more: Mapping[str, str] | None = None,
) -> PlanRequest:
    """The same where several processes make one call together: they must ask the same, and `more` beside it.

    Raises: as `resolve_request`, here or on another process; ProcessError.
    """
    return place.target.processes.same(
        lambda: resolve_request(fn, example_args, place, options, wanted, traced=traced),
        lambda request: {**question(request), **(more or {})},
        call,
    )


def question(of: PlanRequest) -> dict[str, str]:
    """The request as text: all processes that plan together must make the same."""
    program, request, target, options = of.variants.program, of.variants.request, of.target, of.options
    devices = target.devices or () if target.mesh is None else target.mesh.devices.flat
    facts: dict[str, object] = {
        "the JAX release": jax.__version__,
        "the list of devices": [device.id for device in devices],
        "the program": f"{program.function_name} {fingerprint(program)[:12]}",
        "the type of the arguments": [(leaf.name, leaf.aval) for leaf in program.arguments],
        **{field.name: getattr(request, field.name) for field in fields(request)},
        "mesh": [dict(mesh) for mesh in of.meshes],
        "donate_argnums": program.donate_argnums,
        "static_argnums": program.static_argnums,
        "arguments by keyword": program.keywords,
        **{f"Options.{field.name}": getattr(options, field.name) for field in fields(options)},
    }
    # Who is told of the progress is a matter of each process, and so are what searches, and where plans are kept.
    del facts["Options.progress"], facts["Options.workers"]
    facts["Options.cache"] = "a folder" if options.cache else None
    return {name: repr(value) for name, value in facts.items()}


def checked_options(options: Options | None) -> Options:
    """The options given, or the defaults; their progress is told with the seconds from now on. Raises: ArgumentError."""
    if options is not None and not isinstance(options, Options):
        raise ArgumentError(f"options is {options!r}; give planner.Options(...)")
    found, clock = options or Options(), Deadline.never()
    show = _bar() if found.progress == "auto" else found.progress
    if not callable(show):
        return replace(found, progress=None)

    def progress(seen: Progress) -> None:
        show(replace(seen, seconds=clock.elapsed, limit_s=found.time_limit_s))

    return replace(found, progress=progress)


def _bar() -> Callable[[Progress], object] | None:
    """What shows progress in IPython; None outside of it."""
    draw = shown_in_ipython()
    return None if draw is None else lambda seen: draw(str(seen), seen.tried, 0 if seen.doing else seen.total)


def _inputs(program: Program, requested: Literal["auto"] | Sequence[str]) -> Literal["auto"] | tuple[str, ...]:
    """The names of the arrays that a user calls inputs. Raises: ArgumentError for a name that no argument has."""
    if isinstance(requested, str):
        return "auto"
    names = [leaf.name for leaf in program.arguments if not leaf.constant]
    found: set[str] = set()
    for pattern in requested:
        is_meant = matcher(pattern)
        meant = [name for name in names if is_meant(name) or name.startswith(f"{pattern}/")]
        if not meant:
            raise ArgumentError(
                f"Options(inputs=...) names {pattern!r}, and no argument is called so; names look like "
                f"{close_names(pattern, [*program.parameters, *names])}"
            )
        found.update(meant)
    return tuple(name for name in names if name in found)


def _objective(name: str) -> str:
    known = (*OBJECTIVES, "memory")
    if name not in known:
        raise ArgumentError(f"objective is {name!r}; use one of {', '.join(map(repr, known))}")
    return name


def limit_of(memory_limit: float | str | None) -> float | None:
    """Bytes per device, None where none are given. Raises: ArgumentError."""
    if memory_limit is None:
        return None
    try:
        limit = bytes_of(memory_limit) if isinstance(memory_limit, str) else memory_limit
    except ValueError as error:
        raise ArgumentError(f"memory_limit: {error}") from None
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
        raise ArgumentError(f"memory_limit is {memory_limit!r}; give positive bytes per device, such as 14e9 or '14GB'")
    return float(limit)


def _default_limit(place: Place) -> tuple[float, str]:
    """The bytes per device where none are given, and what is to be told of them where nothing fits; "" for a chip's own."""
    target = place.target
    if place.of_devices and target.on_host and target.processes.alone and (memory := memory_of_host()):
        limit = memory / target.count
        why = (
            f"The limit is this machine's memory, {quantity(memory, 'B')}, over its {target.count} CPU devices; give a "
            "topology to plan for, or memory_limit"
        )
        return limit, why
    return float(target.topology.chip.hbm_bytes), ""
