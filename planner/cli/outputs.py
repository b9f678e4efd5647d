"""Files that commands write: checked before minutes of work; what no command has written is not overwritten."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models import profile
from planner.errors import ArgumentError
from planner.plan_file import record
from planner.printing.printed import Printed
from planner.report.html.render import made_from

FORCE = "--force"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file: what it is called, and whether a file is one."""

    name: str
    holds: Callable[[Path], bool]


PLAN = Kind("saved plan", lambda path: _format_of(path) == record.FORMAT)
PROFILE = Kind("profile", lambda path: _format_of(path) == profile.FORMAT)
PAGE = Kind("page of a plan", lambda path: made_from(path) is not None)


def add_output(parser: Any, *, text: str) -> None:
    """Adds the argument that names the file to write, with its help, and the one that overwrites any file."""
    parser.add_argument("-o", "--output", type=Path, metavar="PATH", help=text)
    parser.add_argument(
        FORCE,
        action="store_true",
        help="overwrite the file PATH, whatever it holds. Default: only what this command wrote",
    )


def check_output(path: Path, kind: Kind, *, force: bool) -> None:
    """Nothing where a file of a kind can be written. Raises: ArgumentError.

    Its folder must exist. A file that is there must be empty or of the kind, or `force` be given.
    """
    folder = path.absolute().parent
    try:
        there, is_folder, is_file = path.exists(), path.is_dir(), path.is_file()
        has_folder = folder.is_dir()
    except OSError as error:  # a name longer than any file's
        raise ArgumentError(f"{path} cannot be written: {error.strerror}; give the path of a file") from error
    if not has_folder:
        raise ArgumentError(f"there is no folder {str(folder)!r} to write {path.name} to; make it")
    if is_folder:
        raise ArgumentError(f"{path} is a folder; give the path of a file")
    if there and not force and (not is_file or (path.stat().st_size and not kind.holds(path))):
        raise ArgumentError(f"{path} is no {kind.name} and would be overwritten; give another path, or {FORCE}")


def check_page(path: Path, *, has_program: bool, force: bool) -> None:
    """The same for a page, which must also not show less than the one that is there. Raises: ArgumentError."""
    check_output(path, PAGE, force=force)
    if not force and not has_program and path.exists() and made_from(path) == "program":
        raise ArgumentError(
            f"{path} was made with its program and shows more than a page of the plan alone; give FILE.py:FUNCTION, "
            f"another path by -o, or {FORCE}"
        )


def _format_of(path: Path) -> Any:
    """What a file of JSON says its format is; None where it says nothing."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found.get("format") if isinstance(found, dict) else None


def say(record: Printed, data: Any, arguments: argparse.Namespace) -> int:
    """Prints a record, or its data where JSON is asked for; the exit code."""
    if arguments.json:
        print(json_text(data))
    else:
        record.show()
    return 0


def json_text(data: Any) -> str:
    return json.dumps(data, indent=1)
