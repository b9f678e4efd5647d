"""Plans of several programs that are kept: one file for all of them, in the folder and by the rules of `kept_plans`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from cost_models import CostModelError
from planner.decision import Certificate, Decision
from planner.errors import PlanFileError
from planner.options import Options
from planner.plan_file.codec import as_json, from_json
from planner.plan_file.record import GROWN, decision_of, record_of
from planner.plan_file.store import DIGEST, digest_of, parsed
from planner.planning.driver import bound_kept_plan
from planner.planning.plan_cache import (
    ANOTHER,
    as_checked_at,
    folder_of_plans,
    keep,
    key_of_question,
    not_used,
    why_not_of,
)
from planner.plans.plan import Plan
from planner.pricing.mesh import shape_key
from planner.request.resolve import PlanRequest
from planner.request.shared_arrays import SharedArrays
from planner.studies.joint import Move, Programs
from planner.studies.joint_search import plans_of

ENDING = ".plans.json"
FORMAT = "meshwright plans of several programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsRecord:
    """What a file holds: what is told of all plans, and the record of every plan by the name of its program."""

    format: Literal["meshwright plans of several programs"] = FORMAT
    version: Literal[1] = 1
    certificate: Certificate
    moves: tuple[Move, ...]
    notes: tuple[str, ...]
    plans: Mapping[str, Any]


def planned_or_kept_together(
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

    if options.cache is None:
        return planned()
    folder, processes = folder_of_plans(options.cache), next(iter(requests.values())).target.processes
    told = {
        "programs": [(name, key_of_question(request)) for name, request in requests.items()],
        "calls": list(counts.items()),
        "own layouts": own_layouts,
        "pinned": [(name, list(patterns)) for name, patterns in shared.pinned.items()],
        "shared": [(name, list(numbers.items())) for name, numbers in shared.of.items()],
    }
    path = folder / f"{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:40]}{ENDING}"
    record, when, why_not = processes.decided(lambda: _read(path, requests))
    if record is not None:
        read, written_at = from_json(ProgramsRecord, record, grown=GROWN), datetime.fromtimestamp(when, UTC)
        return Programs(
            {
                name: _bound(as_checked_at(decision_of(plan), written_at), requests[name])
                for name, plan in read.plans.items()
            },
            calls=counts,
            shared=shared.count,
            moves=read.moves,
            certificate=read.certificate,
            notes=read.notes,
        )
    made = planned()
    failed = processes.decided(lambda: keep(path, _record_of(made, requests)))
    made.notes = (*made.notes, *([why_not] if why_not else []), *failed)
    return made


def _record_of(made: Programs, requests: Mapping[str, PlanRequest]) -> dict[str, Any]:
    plans = {name: record_of(plan.decision, requests[name].variants.program) for name, plan in made.items()}
    return as_json(ProgramsRecord(certificate=made.certificate, moves=made.moves, notes=made.notes, plans=plans))


def _read(path: Path, requests: Mapping[str, PlanRequest]) -> list[Any]:
    """The record in a file, when it was written, and "", or None, 0 and why it was not used where there is one."""
    try:
        told = parsed(path.read_text(encoding="utf-8"), str(path))
        record = {key: value for key, value in told.items() if key != DIGEST} if isinstance(told, dict) else {}
        read = from_json(ProgramsRecord, record, grown=GROWN)
        decisions = {name: decision_of(plan) for name, plan in read.plans.items()}
        when = path.stat().st_mtime
    except (OSError, ValueError, CostModelError, PlanFileError) as error:
        return [None, 0, not_used(path, str(error)) if path.exists() else ""]
    why_not = (
        _why_not(decisions, requests)
        if told.get(DIGEST) == digest_of(record)
        else "its digest is not that of its content"
    )
    return [None, 0, not_used(path, why_not)] if why_not else [record, when, ""]


def _why_not(decisions: Mapping[str, Decision], requests: Mapping[str, PlanRequest]) -> str:
    """Why decisions are not those of these requests on one mesh, or nothing."""
    if list(decisions) != list(requests) or len({shape_key(of.mesh_shape) for of in decisions.values()}) != 1:
        return ANOTHER
    for name, decision in decisions.items():
        wanted = requests[name].variants.request
        # Beside what was asked, what the programs share is pinned as it lies in all of them.
        if replace(decision.request, pins=wanted.pins) != wanted:
            return ANOTHER
        if why_not := why_not_of(decision, requests[name]):
            return why_not
    return ""


def _bound(decision: Decision, request: PlanRequest) -> Plan:
    """The plan of a decision whose request pins what its program shares."""
    return bound_kept_plan(replace(request, variants=request.variants.with_request(decision.request)), decision)
