"""The display of a running search: a bar where the standard error is a terminal, plain lines where it is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from planner.options import Progress

Show = Callable[[Progress], None]


@contextmanager
def show_progress() -> Generator[Show]:
    """What shows how far a search has come, within the `with`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _in_lines()
        return
    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[found]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task("tracing the program", total=None, found="")

    def show(progress: Progress) -> None:
        meshes = f"{progress.tried}/{progress.total} meshes  {progress.found}"
        bar.update(
            task,
            completed=progress.tried,
            total=progress.total or None,
            description=progress.of_stage + (progress.doing or f"mesh {progress.mesh_label}"),
            found="" if progress.doing else meshes,
        )

    with bar:
        yield show


def _in_lines() -> Show:
    """Prints a line for every phase and every mesh tried."""
    printed = ("", 0)

    def show(progress: Progress) -> None:
        nonlocal printed
        if progress.doing:
            printed = progress.stage, 0
            print(progress, file=sys.stderr, flush=True)
        elif progress.tried and (progress.stage != printed[0] or progress.tried > printed[1]):
            printed = progress.stage, progress.tried
            print(progress, file=sys.stderr, flush=True)

    return show


@contextmanager
def status(what: str) -> Generator[Callable[[str], None]]:
    """A function that shows one line of news; `what` is being done meanwhile."""
    console = Console(stderr=True)
    if not console.is_terminal:
        print(f"{what} ...", file=sys.stderr, flush=True)
        yield lambda line: print(f"  {line}", file=sys.stderr, flush=True)
        return
    with console.status(what) as shown:
        yield lambda line: shown.update(f"{what}: {line}")
