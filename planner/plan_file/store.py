"""Plan files: JSON that is stable to compare, can be edited by hand, and is checked field by field when it is read.

What was decided comes first, what is predicted and changes from run to run last; a row stands on one line. A digest ends
the file: an edited plan is taken, and says that its promises are those of the plan before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cost_models import CostModelError
from planner.decision import Checked, Decision
from planner.errors import ArgumentError, PlanFileError
from planner.files import write_whole
from planner.plan_file.record import FORMAT, VERSION, decision_of, record_of

DIGEST = "digest"
ROW = 160
"""Letters of a row that is written on one line."""
NUMBERS = 32
"""Numbers on a line, where a list of them takes more than one."""
EDITED = (
    "the file of this plan was changed after it was saved: what it predicts and certifies is of the plan as it was; "
    "verify() checks it as it is"
)
UNSURE = "the file of this plan does not say whether it was changed after it was saved; verify() checks it as it is"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a file holds: a decision, and whether it is not known to be the one that was saved."""

    decision: Decision
    edited: bool


def save_decision(decision: Decision, path: Path) -> None:
    """Writes a decision to `path`, whole or not at all. Raises: ArgumentError where nothing can be written there."""
    text = written(record_of(decision))
    try:
        write_whole(path, text.encode())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"the plan cannot be saved as {path}: {error}; give a path that can be written") from error


def written(record: dict[str, Any]) -> str:
    """The text of a file that holds a record."""
    return "".join(_lines({**record, DIGEST: digest_of(record)}, "")) + "\n"


def digest_of(record: dict[str, Any]) -> str:
    """That of all but the seconds of the search, which are others for the same plan."""
    lasting = {key: value for key, value in record["certificate"].items() if key != "solve_seconds"}
    return hashlib.sha256(json.dumps({**record, "certificate": lasting}, separators=(",", ":")).encode()).hexdigest()


def _lines(value: Any, indent: str) -> Iterator[str]:
    """The text of a value, in parts: a row on one line, of a container of rows or of more than a line each item.

    Of numbers as many as usual stand on a line. Where lines end does not hang on the digits of the seconds of the search.
    """
    line = json.dumps(value)
    lasting = {**value, "solve_seconds": 0} if isinstance(value, dict) and "solve_seconds" in value else value
    held: Sequence[Any] = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    rows = any(isinstance(item, dict) for item in held)
    if not held or (len(json.dumps(lasting)) <= ROW and not rows):
        yield line
        return
    if isinstance(value, list) and not any(isinstance(item, (dict, list, str)) for item in held):
        lines = [json.dumps(held[i : i + NUMBERS])[1:-1] for i in range(0, len(held), NUMBERS)]
        yield f"[\n{indent} " + f",\n{indent} ".join(lines) + f"\n{indent}]"
        return
    start, end = "{}" if isinstance(value, dict) else "[]"
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(held)
    yield start
    for i, (key, item) in enumerate(zip(keys, held, strict=True)):
        yield f"{',' if i else ''}\n{indent} {key}"
        yield from _lines(item, indent + " ")
    yield f"\n{indent}{end}"


# ---------------------------------------------------------------- reading


def load_saved(path: Path) -> Saved:
    """What the file of a saved plan holds. Raises: PlanFileError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise PlanFileError(f"the plan file {path} cannot be read: {error}; give the path of a saved plan") from error
    return read_saved(text, f"the plan file {path}")


def read_saved(text: str, what: str) -> Saved:
    """What the text of a saved plan holds; `what` is what it is called. Raises: PlanFileError."""
    record, digest = content_of(text, what)
    if record.get("format") != FORMAT:
        raise PlanFileError(
            f"{what} is not a saved plan (its format is not {FORMAT!r}); give a file written by Plan.save"
        )
    if record.get("version") != VERSION or type(record["version"]) is not int:
        raise PlanFileError(
            f"{what} has version {record.get('version')!r:.40}, this planner reads {VERSION}; plan again"
        )
    try:
        decision = decision_of(record)
    except (ValueError, CostModelError) as error:
        raise PlanFileError(f"{what} lacks or garbles a field ({error}); mend it, or save the plan again") from error
    edited = digest != digest_of(record)
    if edited:
        decision = _as_edited(decision, UNSURE if digest is None else EDITED)
    return Saved(decision=decision, edited=edited)


def content_of(text: str, what: str) -> tuple[dict[str, Any], Any]:
    """The fields of a file, none where it holds no object, and its digest, which ends it.

    Raises: PlanFileError where it is not JSON, or has a field twice.
    """
    try:
        record = json.loads(text, object_pairs_hook=_object)
    except RecursionError as error:
        raise PlanFileError(
            f"{what} holds too many lists within each other; it is damaged, save the plan again"
        ) from error
    except _TwiceError as error:
        raise PlanFileError(f"{what} has the field {error} twice in one place; leave one of them out") from error
    except ValueError as error:
        raise PlanFileError(f"{what} is not JSON ({error}); it is damaged, save the plan again") from error
    if not isinstance(record, dict):
        return {}, None
    return record, record.pop(DIGEST, None)


def _as_edited(decision: Decision, note: str) -> Decision:
    """A decision whose promises and checks may be another's, which says so."""
    detail = "its file was changed after it was saved, or does not say"
    checked = tuple(Checked(what=check.what, ok=None, detail=detail) for check in decision.checked)
    notes = tuple(note for note in decision.notes if note not in (EDITED, UNSURE))
    return replace(decision, checked=checked, notes=(*notes, note))


class _TwiceError(Exception):
    """A field that an object of JSON has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(repr(next(name for name in names if names.count(name) > 1))[:60])
    return found
