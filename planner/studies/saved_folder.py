"""Folders of plans with a summary of them, written all or nothing, whenever that is killed; and axes to draw them on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.errors import ArgumentError
from planner.files import whole_folder, write_whole
from planner.plans.plan import Plan


def check_folder(folder: Path, summary: str, what: str) -> None:
    """Nothing where plans can be saved in this folder (an absolute path), with a summary of that name.

    `what` they are is told. Raises: ArgumentError where it holds anything else, or is none and can be none.
    """
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        names = {path.name for path in there.iterdir()} if there == folder and there.is_dir() else set[str]()
    except OSError as error:  # a name longer than any, or a folder that may not be read
        raise ArgumentError(f"the {what} cannot be saved in {folder}: {error.strerror}; give another folder") from error
    if not there.is_dir():
        raise ArgumentError(f"{there} is a file; give a folder to save the {what} in")
    if there not in (folder, folder.parent):
        raise ArgumentError(f"there is no folder {str(folder.parent)!r} to write {folder.name} to; make it")
    ours = {name for name in names if name == summary or (name.startswith("plan_") and name.endswith(".json"))}
    if names and (summary not in names or names != ours):
        raise ArgumentError(
            f"the folder {folder} holds other files than those of a {what}; give a new one to save it in"
        )


def save_folder(folder: str | Path, plans: Sequence[Plan], summary: str, record: Mapping[str, Any], what: str) -> None:
    """Writes `plan_0.json`, ... and what is told of them; what was saved there before is replaced.

    Raises: ArgumentError where the folder holds anything else, or cannot be written.
    """
    folder = Path(folder).resolve()
    check_folder(folder, summary, what)
    try:
        with whole_folder(folder) as whole:
            for i, plan in enumerate(plans):
                plan.save(whole / file_name(i))
            write_whole(whole / summary, (json.dumps(record, indent=1) + "\n").encode())
            check_folder(folder, summary, what)
    except OSError as error:
        raise ArgumentError(f"the {what} cannot be saved in {folder}: {error}; give another folder") from error


def file_name(position: int) -> str:
    """The name of the file of a plan."""
    return f"plan_{position}.json"
