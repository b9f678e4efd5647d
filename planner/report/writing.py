"""Writing what is made of a plan: a file, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from planner.errors import ArgumentError
from planner.files import write_whole


def write_text(path: str | Path, text: str, what: str) -> None:
    """Writes a text; `what` it is called in the error. Raises: ArgumentError where nothing can be written there."""
    path = Path(path)
    try:
        write_whole(path, text.encode())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"{what} cannot be written as {path}: {error}; give a path that can be written") from error
