"""The page of a plan in a file, and a plan in a notebook."""

from __future__ import annotations

from pathlib import Path

from planner.decision import Decision
from planner.errors import ArgumentError
from planner.explain.explain import Alternatives
from planner.files import write_whole
from planner.report.html.data import page_data
from planner.report.html.notebook import notebook
from planner.report.html.render import page


def write_page(decision: Decision, behind: Alternatives | None, path: str | Path) -> None:
    """Writes the page of a plan, whole or not at all; `behind` is what its program adds.

    Raises: ArgumentError where nothing can be written there.
    """
    text, path = page(page_data(decision, behind)), Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the page cannot be written as {path}: {error}; give a path that can be written"
        ) from error


def in_notebook(decision: Decision) -> str:
    """The HTML that a notebook shows for a plan."""
    return notebook(page_data(decision, None))
