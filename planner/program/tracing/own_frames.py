"""Tracebacks as users read them: without frames of the planner, as JAX leaves out its own.

`jax.config.jax_traceback_filtering` governs both: "off" shows all.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import jax

from planner.errors import PlannerError

P = ParamSpec("P")
T = TypeVar("T")

_PLANNER = f"{Path(__file__).parents[2]}/"
_JAX = f"{Path(jax.__file__).parent}/"
NOTE = "The planner's own frames are left out of this traceback; JAX_TRACEBACK_FILTERING=off shows them."


def without_own_frames(fn: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors of the planner, and their causes, come without the planner's frames."""

    @wraps(fn)
    def filtered(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except PlannerError as error:
            leave_own_frames_out(error)
            raise

    return filtered


def leave_own_frames_out(error: BaseException) -> None:
    """Takes the planner's frames out of the tracebacks of an error and of what caused it, and says so, unless JAX shows its
    own."""
    if getattr(jax.config, "jax_traceback_filtering", None) == "off" or NOTE in getattr(error, "__notes__", ()):
        return
    error.add_note(NOTE)
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = _others(cause.__traceback__)
        cause = cause.__cause__


def _others(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the planner's frames."""
    found: TracebackType | None = None
    for frame, line in reversed(list(traceback.walk_tb(frames))):
        if not _is_own(frame.f_code.co_filename):
            found = TracebackType(found, frame, frame.f_lasti, line)
    return found


def _is_own(file: str) -> bool:
    # `contextlib` runs what is decorated with a context manager.
    return file.startswith(_PLANNER) or file.endswith("/contextlib.py")


def users_line(error: BaseException) -> str:
    """The line of the user's code, or else of a library, that an error came from, as "file.py:12"; "" without any."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_own(frame.filename)]
    frames = [frame for frame in frames if not frame.filename.startswith(_JAX)]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
