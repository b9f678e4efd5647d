"""Plans that are kept: a folder in which `plan` finds again what it decided for the same program and the same question.

An entry is a plan file, named by a digest of all that the plan follows from: the program, what was asked of it, and the
releases of this package, of JAX and of its compilers. It is written whole or not at all, and read as any plan file is.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from planner.decision import Decision
from planner.errors import ArgumentError, PlanFileError
from planner.files import write_whole
from planner.machine.device_profile import measured_model
from planner.plan_file.record import decision_of, record_of
from planner.plan_file.store import load_saved, written
from planner.planning.driver import best_plan, bound_kept_plan
from planner.plans.plan import Plan
from planner.program.jaxpr.fingerprint import fingerprint
from planner.request.resolve import PlanRequest, question
from planner.verify.kept_reports import releases

ENDING = ".plan.json"
ANOTHER = "it is of another program or another question"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a folder has for a question: a decision, or none, and why where there is something."""

    decision: Decision | None = None
    why_not: str = ""


@final
class KeptPlans:
    """Plans by question in a folder. Raises: ArgumentError where it cannot be made."""

    def __init__(self, folder: str) -> None:
        self._folder = folder_of_plans(folder)

    def plan(self, request: PlanRequest) -> Plan:
        """The plan that is kept for a request, else its best one, which is then kept; notes say what failed.

        Of several processes the leading one reads and writes.
        """
        program, processes = request.variants.program, request.target.processes
        path = self._folder / f"{key_of_question(request)[:40]}{ENDING}"

        def told_to_all() -> list[Any]:
            found = _found(path, request)
            return [found.decision and record_of(found.decision, program), found.why_not]

        if processes.alone:
            found = _found(path, request)
        else:
            record, why_not = processes.decided(told_to_all)
            found = Found(decision=record and decision_of(record), why_not=why_not)
        if found.decision is not None:
            return bound_kept_plan(request, found.decision)
        request.check_pins()
        made = best_plan(request)
        told = [found.why_not] if found.why_not else []
        told += processes.decided(lambda: keep(path, record_of(made.decision, program)))
        return made.with_notes((*made.notes, *told)) if told else made


def planned_or_kept(request: PlanRequest) -> Plan:
    """The best plan for a request, kept where its options say so. Raises: what `best_plan` raises, ArgumentError."""
    if request.options.cache is not None:
        return KeptPlans(request.options.cache).plan(request)
    request.check_pins()
    return best_plan(request)


def folder_of_plans(folder: str) -> Path:
    """The folder, made where there is none. Raises: ArgumentError where it cannot be made."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"plans cannot be kept in {folder}: {error}; give Options(cache=...) a folder that can be written, or None"
        ) from error
    return Path(folder)


def key_of_question(request: PlanRequest) -> str:
    """A digest of all that a plan follows from."""
    variants, target, options = request.variants, request.target, request.options
    topology = variants.request.topology
    profile = None
    if options.cost_model == "measured":
        kind = target.devices[0].device_kind if target.devices else topology.chip.name
        profile = measured_model(options.profile, topology, kind).profile
    told = {
        **question(request),
        "fingerprint": fingerprint(variants.program),
        "results": repr([(leaf.name, leaf.aval) for leaf in variants.program.results]),
        "devices": [(device.device_kind, target.why_not_run) for device in target.devices or ()],
        "target": target.notes,
        "processes": target.processes.members,
        "has values": request.has_values,
        "profile": repr(profile),
        "releases": [importlib.metadata.version("meshwright"), *releases()],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _found(path: Path, request: PlanRequest) -> Found:
    """What a file has for a question."""
    try:
        saved = load_saved(path)
        made = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, PlanFileError) as error:
        return Found(why_not=not_used(path, str(error)) if path.exists() else "")
    if saved.edited:
        return Found(why_not=not_used(path, "its digest is not that of its content"))
    why_not = why_not_of(saved.decision, request)
    if not why_not and saved.decision.request != request.variants.request:
        why_not = ANOTHER
    if why_not:
        return Found(why_not=not_used(path, why_not))
    return Found(decision=as_checked_at(saved.decision, made))


def why_not_of(decision: Decision, request: PlanRequest) -> str:
    """Why a decision that was kept is not one of this program and its meshes, or nothing."""
    try:
        program = request.variants.forms.program(decision.form)
    except ArgumentError as error:
        return str(error)
    same = (
        decision.fingerprint == fingerprint(program)
        and (decision.arguments, decision.results) == (program.arguments, program.results)
        and (decision.donate_argnums, decision.static_argnums) == (program.donate_argnums, program.static_argnums)
        and any(decision.mesh_shape == mesh for mesh in request.meshes)
    )
    return "" if same else ANOTHER


def as_checked_at(decision: Decision, made: datetime) -> Decision:
    """A decision that was kept then, whose checks say so."""
    when = f"when the plan was made, {made:%Y-%m-%d}, and not repeated"
    checked = tuple(
        check if check.ok is None else replace(check, detail=f"{check.detail} ({when})") for check in decision.checked
    )
    return replace(decision, checked=checked)


def not_used(path: Path, why: str) -> str:
    """What is told of a file that is no use."""
    return f"the plan kept in {path} was not used: {why}"


def keep(path: Path, record: dict[str, Any]) -> list[str]:
    """Writes a record, and says why where that failed."""
    try:
        write_whole(path, written(record).encode())
    except OSError as error:
        return [f"the plan could not be kept in {path.parent}: {error}"]
    return []
