"""The display of a running search: a bar where the standard error is a terminal, plain lines where it is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from planner.options import Progress


class Display(Protocol):
    """What is told how far a search has come."""

    def update(self, progress: Progress) -> None:
        """Nothing; shows the progress."""
        ...


@contextmanager
def show_progress() -> Generator[Display]:
    """A display that is there within the `with`."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Lines()
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
    with bar:
        yield Moving(bar=bar, task=bar.add_task("tracing the program", total=None, found=""))


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


@dataclass(kw_only=True)
class Moving:
    """A bar of the meshes tried, with the current mesh, the best value and the bound."""

    bar: Bar
    task: TaskID

    def update(self, progress: Progress) -> None:
        """Nothing; moves the bar."""
        done = progress.tried >= progress.total
        self.bar.update(
            self.task,
            completed=progress.tried,
            total=progress.total,
            description=_stage(progress) + ("checking the plan" if done else f"mesh {mesh_label(progress)}"),
            found=f"{progress.tried}/{progress.total} meshes  {progress.found}",
        )


@dataclass(kw_only=True)
class Lines:
    """A line per mesh tried."""

    printed: tuple[str, int] = field(init=False, default=("", 0))

    def update(self, progress: Progress) -> None:
        """Nothing; prints a line where another mesh was tried."""
        stage, printed = self.printed
        if progress.tried == 0 or (progress.stage == stage and progress.tried <= printed):
            return
        self.printed = progress.stage, progress.tried
        print(progress, file=sys.stderr, flush=True)


def mesh_label(progress: Progress) -> str:
    """The mesh a search is at, as "data=4 model=2"."""
    return " ".join(f"{name}={size}" for name, size in progress.mesh.items())


def _stage(progress: Progress) -> str:
    return f"{progress.stage}: " if progress.stage else ""
