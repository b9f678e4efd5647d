"""Plans of several programs that are kept: one file for all of them, in the folder and by the rules of `plan_cache`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from planner.content_store import ContentStore, digest_of_all
from planner.decision import Certificate, Decision
from planner.options import Options
from planner.plan_file.codec import as_json, from_json
from planner.plan_file.record import decision_of, record_of
from planner.plan_file.store import content_of, digest_of, written
from planner.planning.driver import bound_plan
from planner.planning.plan_cache import (
    ANOTHER,
    EDITED,
    as_checked_at,
    check_answers,
    found_or_made,
    key_of_question,
)
from planner.plans.plan import Plan
from planner.pricing.mesh import shape_key
from planner.request.matching_arrays import SharedArrays
from planner.request.resolve import PlanRequest
from planner.studies.joint import LayoutMove, Programs
from planner.studies.joint_search import plans_of

ENDING = ".plans.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsRecord:
    """What a file holds: what is known of all plans together, and the record of every plan by the name of its program."""

    format: Literal["meshwright plans of several programs"]
    version: Literal[1]
    certificate: Certificate
    moves: tuple[LayoutMove, ...]
    notes: tuple[str, ...]
    plans: Mapping[str, Any]


def planned_or_kept_jointly(
    requests: Mapping[str, PlanRequest],
    shared: SharedArrays,
    options: Options,
    *,
    counts: Mapping[str, float],
    own_layouts: bool,
) -> Programs:
    """The plans of programs that are called so often each, kept where the options say so.

    Of several processes the leading one reads and writes. Raises: what `plans_of` raises, ArgumentError.
    """

    def planned() -> Programs:
        return plans_of(requests, shared, options, counts=counts, own_layouts=own_layouts)

    def read(content: bytes, written_at: datetime) -> Programs:
        record, digest = content_of(content.decode(), "it")
        programs = from_json(ProgramsRecord, record)
        decisions = {name: decision_of(plan) for name, plan in programs.plans.items()}
        if digest != digest_of(record):
            raise ValueError(EDITED)
        _check_answers(decisions, requests)
        return Programs(
            {name: _bound(as_checked_at(decision, written_at), requests[name]) for name, decision in decisions.items()},
            calls=counts,
            shared=shared.count,
            moves=programs.moves,
            certificate=programs.certificate,
            notes=programs.notes,
        )

    if options.cache is None:
        return planned()
    key = digest_of_all(
        [(name, key_of_question(request)) for name, request in requests.items()],
        list(counts.items()),
        own_layouts,
        [(name, list(patterns)) for name, patterns in shared.pinned.items()],
        [(name, list(numbers.items())) for name, numbers in shared.of.items()],
    )
    store = ContentStore(options.cache, kind="plan", ending=ENDING)
    processes = next(iter(requests.values())).target.processes
    programs, notes = found_or_made(store, key, processes, read=read, make=planned, write=_text_of)
    programs.notes = (*programs.notes, *notes)
    return programs


def _text_of(programs: Programs) -> str:
    record = ProgramsRecord(
        format="meshwright plans of several programs",
        version=1,
        certificate=programs.certificate,
        moves=programs.moves,
        notes=programs.notes,
        plans={name: record_of(plan.decision) for name, plan in programs.items()},
    )
    return written(as_json(record))


def _check_answers(decisions: Mapping[str, Decision], requests: Mapping[str, PlanRequest]) -> None:
    """Raises: ValueError, ArgumentError where decisions are not those of these requests on one mesh."""
    if list(decisions) != list(requests) or len({shape_key(of.mesh_shape) for of in decisions.values()}) != 1:
        raise ValueError(ANOTHER)
    for name, decision in decisions.items():
        request = requests[name].variants.request
        # The plans pin what the programs share as it lies in all of them, beside the user's own pins.
        if replace(decision.request, pins=request.pins) != request:
            raise ValueError(ANOTHER)
        check_answers(decision, requests[name])


def _bound(decision: Decision, request: PlanRequest) -> Plan:
    """The plan of a decision whose request pins what its program shares."""
    return bound_plan(replace(request, variants=request.variants.with_request(decision.request)), decision)
