"""Plans that are kept: a folder in which `plan` finds again what it decided for the same program and the same question.

An entry is a plan file, named by a digest of all that the plan follows from: the program, what was asked of it, and the
releases of this package, of JAX and of its compilers. It is read as any plan file is.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import astuple, replace
from datetime import UTC, datetime
from typing import TypeVar

from planner.content_store import ContentStore, Found, digest_of_all
from planner.decision import Decision
from planner.machine.device_profile import measured_model
from planner.machine.processes import Processes
from planner.plan_file.record import record_of
from planner.plan_file.store import read_saved, written
from planner.planning.driver import best_plan, bound_plan
from planner.plans.plan import Plan
from planner.program.jaxpr.fingerprint import fingerprint
from planner.request.resolve import PlanRequest, question
from planner.verify.kept_reports import releases

ENDING = ".plan.json"
ANOTHER = "it is of another program or another question"
EDITED = "its digest is not that of its content"

T = TypeVar("T")


def planned_or_kept(request: PlanRequest) -> Plan:
    """The best plan for a request, out of the folder `Options.cache` where it is there, else put there.

    Raises: what `best_plan` raises; ArgumentError where the folder cannot be made.
    """
    if request.options.cache is None:
        return best_plan(request)

    def read(content: bytes, written_at: datetime) -> Plan:
        saved = read_saved(content.decode(), "it")
        if saved.edited:
            raise ValueError(EDITED)
        check_answers(saved.decision, request)
        if saved.decision.request != request.variants.request:
            raise ValueError(ANOTHER)
        return bound_plan(request, as_checked_at(saved.decision, written_at))

    plan, notes = found_or_made(
        ContentStore(request.options.cache, kind="plan", ending=ENDING),
        key_of_question(request),
        request.target.processes,
        read=read,
        make=lambda: best_plan(request),
        write=lambda plan: written(record_of(plan.decision)),
    )
    return plan.with_notes((*plan.notes, *notes)) if notes else plan


def found_or_made(
    store: ContentStore,
    key: str,
    processes: Processes,
    *,
    read: Callable[[bytes, datetime], T],
    make: Callable[[], T],
    write: Callable[[T], str],
) -> tuple[T, list[str]]:
    """What a store has for a key, or what `make` gives, which is then kept; and notes on what could not be used or kept.

    Of several processes the leading one reads and writes files, and all read its content.
    """
    found = store.find(key, read) if processes.alone else _found_by_all(store, key, processes, read)
    if found.value is not None:
        return found.value, []
    made = make()
    failed = processes.decided(lambda: store.keep(key, write(made).encode()))
    return made, [note for note in (found.why_not, failed) if note]


def _found_by_all(
    store: ContentStore, key: str, processes: Processes, read: Callable[[bytes, datetime], T]
) -> Found[T]:
    """What the leading process finds, read by all. Only that one decides whether an entry serves, so all do the same."""

    def checked(content: bytes, written_at: datetime) -> tuple[str, float]:
        read(content, written_at)
        return content.decode(), written_at.timestamp()

    entry, why_not = processes.decided(lambda: astuple(store.find(key, checked)))
    value = None if entry is None else read(entry[0].encode(), datetime.fromtimestamp(entry[1], UTC))
    return Found(value=value, why_not=why_not)


def key_of_question(request: PlanRequest) -> str:
    """A digest of all that a plan follows from."""
    variants, target, options = request.variants, request.target, request.options
    topology = variants.request.topology
    profile = None
    if options.cost_model == "measured":
        kind = target.devices[0].device_kind if target.devices else topology.chip.name
        profile = measured_model(options.profile, topology, kind).profile
    return digest_of_all(
        question(request),
        fingerprint(variants.program),
        [(leaf.name, leaf.aval) for leaf in variants.program.results],
        [(device.device_kind, target.why_not_run) for device in target.devices or ()],
        target.notes,
        target.processes.members,
        request.has_values,
        profile,
        [importlib.metadata.version("meshwright"), *releases()],
    )


def check_answers(decision: Decision, request: PlanRequest) -> None:
    """Raises: ValueError, ArgumentError where a decision is not one of this program and its meshes."""
    program = request.variants.forms.program(decision.form)
    same = (
        decision.fingerprint == fingerprint(program)
        and (decision.arguments, decision.results) == (program.arguments, program.results)
        and (decision.donate_argnums, decision.static_argnums) == (program.donate_argnums, program.static_argnums)
        and decision.keywords == program.keywords
        and any(decision.mesh_shape == mesh for mesh in request.meshes)
    )
    if not same:
        raise ValueError(ANOTHER)


def as_checked_at(decision: Decision, made: datetime) -> Decision:
    """A decision that was kept then, whose checks say so."""
    when = f"when the plan was made, {made:%Y-%m-%d}, and not repeated"
    checked = tuple(
        check if check.ok is None else replace(check, detail=f"{check.detail} ({when})") for check in decision.checked
    )
    return replace(decision, checked=checked)
