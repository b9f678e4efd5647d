"""Where commands write: told before they work for minutes that nothing can be written there."""

from __future__ import annotations

from pathlib import Path

from planner.errors import ArgumentError


def check_file(path: Path) -> None:
    """Nothing. Raises: ArgumentError where the path is that of a folder, or can be that of no file."""
    try:
        is_folder = path.is_dir()
    except OSError as error:  # a name longer than any file's
        raise ArgumentError(f"{path} cannot be written: {error.strerror}; give the path of a file") from error
    if is_folder:
        raise ArgumentError(f"{path} is a folder; give the path of a file")


def check_folder_of(path: Path) -> None:
    """Nothing. Raises: ArgumentError where there is no folder for the file to lie in."""
    folder = path.absolute().parent
    try:
        there = folder.is_dir()
    except OSError:  # a name longer than any folder's
        there = False
    if not there:
        raise ArgumentError(f"there is no folder {str(folder)!r} to write {path.name} to; make it")
