"""Attempts: the plans to try one after the other, until one passes its checks.

Compilers reject or miscompile what was not foreseen; then the next best mesh is tried, and at last the best plan without
constraints inside. Of a plan that does not fit by its compiler, one that promises to take less is sought, on any mesh.
Where nothing is predicted to fit, plans that come near it are proposed if a compiler judges them. A plan that is only
doubted is kept while others are tried that may be faster; the fastest by its compiler's schedule is proposed again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from pbqp.deadline import Deadline
from planner.decision import Decision
from planner.errors import CompileError, InfeasibleError, PinError
from planner.options import Options
from planner.planning.checks import why_not_compiled
from planner.planning.finalize import decide
from planner.pricing.mesh import Shape, ShapeKey, mesh_words, shape_key
from planner.problem import Session
from planner.search.fewer_devices import on_fewer_devices
from planner.search.mesh_search import Found
from planner.units import quantity
from planner.variants.memory_limits import room_note
from planner.variants.problem_variants import Sessions
from planner.variants.variant_search import searched
from planner.variants.verdict import Answer

FALLBACKS = 3
"""How many next best plans are tried when a check fails."""
JUDGED = "nothing is predicted to fit: the compiler finds that this plan does, and may compute values again for it"
"""What a plan above the limit says, which is handed over only if the compiler finds so."""


def attempts(
    sessions: Sessions,
    meshes: Sequence[Shape],
    options: Options,
    *,
    notes: Sequence[str],
) -> Generator[Decision, Answer]:
    """The decisions to try, best first, each answered (`send`); the last is one of them again, to be handed over.

    Raises: PinError, InfeasibleError where there is none, or none that fits by its compiler; CompileError once all were
    dropped.
    """
    run = _Run(
        sessions=sessions,
        session=sessions.base,
        meshes=meshes,
        options=options,
        notes=tuple(notes),
        deadline=Deadline.after(options.time_limit_s),
    )
    found: Found | None = run.first()
    while found is not None and len(run.tried) <= FALLBACKS:
        answer = yield run.decision(found)
        run.learn(answer)
        found = None if answer.good or run.hopeless(answer) else run.next_best(answer)
    if run.kept:
        yield run.fastest()
    if run.none_fits is not None or (run.short and len(run.short) == len(run.tried)):
        raise run.nothing_fits()
    # Some programs run on one device only, for no reason that could be read in them.
    alone = run.again([{"x": 1}]) if {"x": 1} in meshes else None
    if alone is not None:
        run.learn((yield run.decision(alone)))
    # What a compiler gets wrong is mostly one constraint: the best plan's borders alone leave the rest to it.
    if not run.kept and run.tried[0].constraints:
        run.learn((yield run.without_constraints()))
    if run.kept:
        yield run.fastest()
    raise CompileError(
        f"every plan that was tried was dropped: {'; '.join(run.told)}. Fix another mesh, or report this program with the "
        "plan's text"
    )


@dataclass(kw_only=True)
class _Run:
    """What was tried in one call, and what became of it; `session` is that of the form in which the program is planned.

    `limit_bytes` is what the next plan may promise to take, `most_bytes` what any may. `none_fits` says why none is
    predicted to fit, where a compiler is asked about plans above the limit. `dropped` says by mesh why nothing more is
    tried there; `told` is what the notes of later plans say; `kept` are the plans that may be handed over, with the
    seconds of their schedules; `short` the bytes that those would need which do not fit.
    """

    sessions: Sessions
    session: Session
    meshes: Sequence[Shape]
    options: Options
    notes: tuple[str, ...]
    deadline: Deadline
    limit_bytes: float = 0.0
    most_bytes: float = 0.0
    none_fits: InfeasibleError | None = None
    bound: float = 0.0
    tried: list[Decision] = field(default_factory=list[Decision])
    dropped: dict[ShapeKey, str] = field(default_factory=dict[ShapeKey, str])
    told: list[str] = field(default_factory=list[str])
    kept: list[tuple[float, Decision]] = field(default_factory=list[tuple[float, Decision]])
    short: list[float] = field(default_factory=list[float])

    def first(self) -> Found:
        """The best plans, in the best form. Raises: PinError, InfeasibleError."""
        target, options = self.session.target, self.options
        best = searched(
            self.sessions,
            self.meshes,
            options,
            # The CPU's compiler has no limit to keep to, and its peak is not trustworthy.
            judged=lambda: target.platform != "cpu" and not why_not_compiled(target, options),
        )
        self.session, self.limit_bytes, self.none_fits = best.session, best.limit_bytes, best.none_fits
        self.notes = (*self.notes, *best.notes)
        self.most_bytes = max(self.limit_bytes, self.session.request.memory_limit)
        self.bound = best.found.bound
        return best.found

    def decision(self, found: Found) -> Decision:
        """The best plan found, in the program's own terms."""
        left = [shape for shape in self.meshes if shape_key(shape) not in self.dropped]
        best, why = on_fewer_devices(
            found.candidates[0],
            left or self.meshes,
            self.session.instance,
            limit_bytes=self.limit_bytes,
            objective=self.session.request.objective,
            bound=self.bound,
        )
        made = decide(
            self.session,
            best,
            bound=self.bound,
            seconds=self.deadline.elapsed,
            meshes=len(self.meshes),
            notes=(*self.notes, *found.notes, *(() if self.told else why), *self.told),
        )
        room = room_note(self.session, self.limit_bytes, made.predicted.peak_bytes)
        beyond = () if self.none_fits is None else (JUDGED,)
        made = replace(made, notes=(*made.notes, *room, *beyond), tried=found.tried)
        self.tried.append(made)
        return made

    def without_constraints(self) -> Decision:
        """The best plan of all, with the places of its arguments and results alone."""
        note = "emitted without constraints inside: the compiler may place that differently from the prediction"
        bare = replace(self.tried[0], constraints={}, notes=(*self.tried[0].notes, *self.told, note))
        self.tried.append(bare)
        return bare

    def learn(self, answer: Answer) -> None:
        """Takes note of what became of the plan proposed last."""
        decision = self.tried[-1]
        if answer.dropped is None:
            self.kept.append((answer.seconds or 0.0, decision))
        if answer.good:
            return
        shape = dict(decision.mesh_shape)
        verb = "is doubted" if answer.dropped is None else "failed"
        self.told.append(f"the plan on the mesh {shape} {verb}: {answer.dropped or answer.doubt}")
        if answer.memory_share is None:
            self.dropped[shape_key(shape)] = self.told[-1]
        else:
            self.short.append(decision.predicted.peak_bytes / answer.memory_share)

    def hopeless(self, answer: Answer) -> bool:
        """Whether nothing else is to be tried: nothing is predicted to fit, and the compiler did not say by how much."""
        return self.none_fits is not None and answer.memory_share is None

    def next_best(self, answer: Answer) -> Found | None:
        """The best of the plans left; None where there are none, or none that may be faster than what is kept."""
        if answer.memory_share is not None:
            self.limit_bytes = self.session.request.memory_limit * answer.memory_share
            found = self.again(self.meshes)
            if found is not None:
                return found
            # No plan promises to take so little: on another mesh the compiler may need what was promised.
            self.limit_bytes = self.most_bytes
            self.dropped[shape_key(self.tried[-1].mesh_shape)] = self.told[-1]
        if answer.doubt is not None and self.deadline.passed:
            return None
        found = self.again(self.meshes)
        fastest = min((seconds for seconds, _ in self.kept), default=None)
        if found is None or (fastest is not None and found.candidates[0].value >= fastest):
            return None
        return found

    def again(self, candidates: Sequence[Shape]) -> Found | None:
        """The next best plans for these meshes, in the time that is left; None where there are none."""
        try:
            return self.session.search(
                candidates,
                limit_bytes=self.limit_bytes,
                options=replace(self.options, time_limit_s=self.deadline.left(1.0)),
                without=self.dropped,
                explained=False,
            )
        except (InfeasibleError, PinError):
            return None

    def fastest(self) -> Decision:
        """The plan to hand over: the fastest by the compiler's schedule, the earliest of several."""
        seconds, best = min(self.kept, key=lambda pair: pair[0])
        if len(self.kept) == 1:
            return replace(best, notes=tuple(dict.fromkeys((*best.notes, *self.told))))
        others = ", ".join(
            f"{mesh_words(decision.mesh_shape)} {quantity(other, 's')}"
            for other, decision in self.kept
            if decision is not best
        )
        taken = quantity(seconds, "s")
        note = f"the fastest of {len(self.kept)} plans by the compiler's schedule, {taken} (others: {others})"
        return replace(best, notes=tuple(dict.fromkeys((*best.notes, *self.told, note))))

    def nothing_fits(self) -> InfeasibleError:
        """The error that says so."""
        tried = "; ".join(self.told)
        if self.none_fits is not None:
            return InfeasibleError(
                f"{self.none_fits}. Nor does the compiler, which may compute values again, say that a plan fits that is "
                f"predicted to need little more: {tried}",
                least_bytes=self.none_fits.least_bytes,
                conflict=self.none_fits.conflict,
                offers=self.none_fits.offers,
            )
        return InfeasibleError(
            f"no plan fits {quantity(self.session.request.memory_limit, 'B')} per device by the compiler, of the "
            f"{len(self.short)} that were tried the least needs {quantity(min(self.short), 'B')}: {tried}. Use more "
            "devices, or recompute more (jax.checkpoint); Options(check='never') gives the plan as predicted"
        )
