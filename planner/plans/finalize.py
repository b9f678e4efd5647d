"""What a choice means in the program's own terms: the decision that it makes, and the problem that a decision solves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import jax

from cost_models import Measured
from planner.compiler.emission.options import plan_options
from planner.compiler.release_notes import release_notes
from planner.compiler.targets.table import COMPILERS
from planner.decision import Certificate, Decision, OpNote
from planner.emit.constraints import place
from planner.emit.predict import predict
from planner.explain.whole_inputs import whole_inputs
from planner.plan_file.treedef import json_of_tree
from planner.prediction import Predicted
from planner.pricing.assignment import Chosen
from planner.pricing.candidates.strategies import SEARCHED_AXES
from planner.pricing.memory.donation import donations
from planner.pricing.mesh import Shape
from planner.printing.parts import count
from planner.program.graph import Graph
from planner.program.jaxpr.fingerprint import fingerprint
from planner.program.tracing.gc_pause import paused
from planner.report.logical_axes import logical_axes
from planner.rules.op_work import guessed_in, op_name
from planner.search.best_on_mesh import Candidate
from planner.search.problem import PlanningProblem
from planner.units import quantity

WORTH_TELLING = 0.01
"""The share of a call that reading must take that passes beside something else, to be told."""

WORTH_DONATING = 0.01
"""Part of the peak that the results of an argument must take for a note to say that it could be donated."""
MOST_NAMED = 4
"""Places of ops whose work is guessed that a note names."""


@paused()
def decide(
    problem: PlanningProblem,
    candidate: Candidate,
    *,
    bound: float,
    seconds: float,
    meshes: int,
    notes: Sequence[str],
    any_form: float | None = None,
) -> Decision:
    """A candidate in the program's own terms; the rest goes into its certificate and notes."""
    program, request, instance = problem.program, problem.request, candidate.instance
    graph, model = problem.graph, problem.model
    guessed = tuple(
        OpNote(op=op_name(op), name=op.name, source=op.source, trips=trips) for op, trips in guessed_in(graph)
    )
    chosen = Chosen(instance=instance, choice=candidate.choice, apart_above=candidate.peak_bytes)
    share = _guessed_share(chosen) if guessed and request.objective != "memory" else None
    placement = place(chosen, COMPILERS[problem.target.platform])
    predicted = predict(chosen, request.topology)
    intermediates = {
        t.name: chosen.stored(t.id)
        for t in graph.tensors
        if t.kind == "intermediate"
        and t.aval.size > 1
        and (model.compiled.materialized[t.id] or t.id in model.seen.source)
    }
    return Decision(
        function_name=program.function_name,
        fingerprint=fingerprint(program),
        topology=request.topology.name,
        request=request,
        choice=tuple(map(int, candidate.choice)),
        mesh_shape=placement.mesh_shape,
        arguments=program.as_written.arguments,
        results=program.as_written.results,
        in_tree=json_of_tree(program.in_tree),
        in_specs=placement.in_specs,
        out_specs=placement.out_specs,
        constraints=placement.constraints,
        refetched=placement.refetched,
        intermediates=intermediates,
        logical=logical_axes(program, chosen),
        named=tuple(
            graph.tensors[tensor].name
            for op in graph.of_kinds(("name",))
            for tensor in op.results
            if graph.tensors[tensor].name in intermediates
        ),
        predicted=predicted,
        certificate=Certificate(
            value=candidate.value,
            lower_bound=min(bound, candidate.value),
            unit="bytes" if request.objective == "memory" else instance.objective.unit,
            solve_seconds=seconds,
            meshes=meshes,
            guessed_share=share,
        ).with_any_form(any_form),
        replicated=tuple(_op_facts(graph, op) for op in model.grouping.unruled),
        by_shardy=tuple(_op_facts(graph, op) for op in model.grouping.by_shardy),
        guessed=guessed,
        checked=(),
        notes=(
            *graph.notes,
            *_guess_note(guessed, share),
            *_notes(problem, chosen, placement.mesh_shape, predicted),
            *release_notes(model.compiler),
            *notes,
        ),
        donate_argnums=program.donate_argnums,
        static_argnums=program.static_argnums,
        keywords=program.keywords,
        jax_version=jax.__version__,
        compiler_options=dict(
            plan_options(
                request.topology,
                offloads=program.form.uses_hosts,
                convolves=bool(graph.of_kinds(("conv_general_dilated",))),
            )
        ),
        form=program.form,
    )


def _notes(problem: PlanningProblem, chosen: Chosen, shape: Shape, predicted: Predicted) -> Iterator[str]:
    """What a plan says of its search, its devices, its arguments and its inputs, where that is worth a sentence."""
    instance, cost_model = chosen.instance, problem.analysis.cost_model
    if len(instance.mesh.sizes) > SEARCHED_AXES and not all(table.complete for table in instance.tables):
        yield (
            f"on a mesh of {len(instance.mesh.sizes)} axes larger than 1 not all splits of an op are looked at: those in "
            f"which neighbouring axes act as up to {SEARCHED_AXES}, and those by what pins and the program split by each "
            "axis"
        )
    if isinstance(cost_model, Measured):
        of = cost_model.profile
        yield f"prices are of a profile of {of.num_devices} x {of.device_kind}: {of.machine}, {of.date}"
    own = problem.program.parallelism
    # On a mesh that the program names itself devices lie as they please it.
    yield from problem.target.notes_for(shape) if own is None or own.mesh is None else problem.target.notes
    for one in donations(problem.program, chosen):
        if one.fed_back and one.bytes >= WORTH_DONATING * predicted.peak_bytes:
            yield str(one)
    yield from map(str, whole_inputs(chosen, predicted))
    if predicted.feed_seconds > predicted.seconds:
        yield (
            f"bringing the inputs from hosts takes {quantity(predicted.feed_seconds, 's')} per call, more than the "
            f"{quantity(predicted.seconds, 's')} of a call: devices will wait for them, however early they are fetched"
        )
    if chosen.refetched:
        held = float(chosen.memory.profile(chosen.choice, apart_above=math.inf).max())
        yield (
            f"for {count(len(chosen.refetched), 'later reader')} an array is fetched again, as there is no room to hold "
            f"what was fetched before: that would take {quantity(held, 'B')} per device"
        )
    spared = sum(chosen.prefetched_seconds.values())
    if spared >= WORTH_TELLING * predicted.seconds:
        yield (
            f"{quantity(spared, 's')} per call of reading weights pass beside collectives and products, as the compiler "
            "brings weights to the chip ahead of their use; the certificate is of seconds without that, as in every plan "
            "searched"
        )


def _op_facts(graph: Graph, op_id: int) -> OpNote:
    """What a plan says of an op: its primitive, its name, its source line, its runs per call."""
    op = graph.ops[op_id]
    return OpNote(op=op.kind, name=op.name, source=op.source, trips=graph.regions[op.region].trips)


def _guessed_share(chosen: Chosen) -> float:
    """The share of the memory traffic of a choice that ops of unknown work move: all that is known of what they take."""
    moved = chosen.total("traffic_bytes")
    return chosen.total("guessed_bytes") / moved if moved else 0.0


def _guess_note(guessed: Sequence[OpNote], share: float | None) -> tuple[str, ...]:
    """What the notes of a plan say of the ops whose work is guessed: one sentence, where there are any."""
    trips: dict[tuple[str, str], float] = {}
    for op in guessed:
        trips[op.op, op.source] = trips.get((op.op, op.source), 0.0) + op.trips
    if not trips:
        return ()
    named = [f"{op} (x{runs:g}) at {source}" for (op, source), runs in list(trips.items())[:MOST_NAMED]]
    more = [f"{len(trips) - MOST_NAMED} more"] if len(trips) > MOST_NAMED else []
    text = f"work of {len(guessed)} op{'' if len(guessed) == 1 else 's'} is guessed as one operation per result element"
    moved = "" if share is None else f" They move {100 * share:.2g} % of the bytes; what they compute is not known."
    return (f"{text}: {', '.join(named + more)}; planner.rule_for(flops=, bytes=) tells it.{moved}",)
