"""Where equations come from: the module of the user's model, and lines of code.

Flax linen (paths), Equinox (classes) and `jax.named_scope` put names on JAX's name stack, `program.libraries` does it for
Flax nnx, and transformations wrap them:
`transpose(jvp(MLP))/Dense_0` is the backward pass of `MLP/Dense_0`. Bodies of loops and calls have stacks of their own,
which go on where that of their equation ends, and sometimes say its end again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import jax.extend.source_info_util as source_info_util

BACKWARD, RECOMPUTED = "backward", "recomputed"
"""Stages of a module's work other than its forward pass; what is recomputed is so for the backward pass."""

_WRAPPED = re.compile(r"(jvp|transpose|vmap|pmap|linearize)\((.*)\)$")
_WITHIN = re.compile(r"/(?![^()]*\))")
"""A slash outside of brackets."""
_REMATTED = "rematted_computation"
_LIBRARY = re.compile(r"[/\\](site|dist)-packages[/\\]")
_PLANNER = str(Path(__file__).parents[2])
_NAMING = str(Path(__file__).parents[1] / "tracing" / "libraries.py")
_FRAME = re.compile(r"(.*?):(\d+)(?::\d+)?(?: \(|$)")
_SLASH = re.compile(r"[/\\]")
ALL_FRAMES = 1 << 20


class Origin(NamedTuple):
    """Where an equation comes from.

    `module` is the path of its module ("" where nothing names one), `stage` what it does there: "" in the forward pass,
    `BACKWARD` or `RECOMPUTED`. `source` is "folder/file.py:line" of the user's own code, where that is known; `line` the
    same of the innermost code outside of JAX, by which compilers know the equation.
    """

    module: str
    stage: str
    source: str
    line: str

    def named(self, kind: str) -> str:
        """The name of an equation of some kind: by its module, else by its line."""
        if self.module:
            return "/".join(filter(None, (self.module, self.stage, kind)))
        return " ".join(filter(None, (self.source, self.stage, kind)))


def is_backward(name: str) -> bool:
    """Whether the name of an equation says that it is of a backward pass (`Origin.named`)."""
    return _is_of(BACKWARD, name)


def is_forward(name: str) -> bool:
    """Whether the name of an equation says that it is of no backward pass, nor recomputed for one."""
    return not (_is_of(BACKWARD, name) or _is_of(RECOMPUTED, name))


def _is_of(stage: str, name: str) -> bool:
    return f"/{stage}/" in name or f" {stage} " in name


def origin_of(eqn: Any) -> Origin:
    """Where an equation comes from, as far as it says so itself."""
    source, line = lines_of(eqn.source_info)
    return Origin(*module_of(str(eqn.source_info.name_stack)), source or line, line)


@lru_cache(maxsize=2**14)
def module_of(stack: str) -> tuple[str, str]:
    """The path of the module that a name stack tells, and the stage.

    The specs that `jnp.einsum` puts there are no modules.
    """
    parts: list[str] = []
    before: list[str] = []
    stage = ""
    for piece in _WITHIN.split(stack):
        while wrapped := _WRAPPED.match(piece):
            piece = wrapped[2]
            stage = BACKWARD if wrapped[1] == "transpose" else stage
            before, parts = _joined(before, parts), []
        if piece == _REMATTED:
            stage = RECOMPUTED
        elif piece and "->" not in piece:
            parts.extend(piece.split("/"))
    return "/".join(_joined(before, parts)), stage


def _joined(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Two parts of a path, of which the second may begin with the end of the first."""
    most = min(len(before), len(after))
    shared = next((n for n in range(most, 0, -1) if list(before[-n:]) == list(after[:n])), 0)
    return [*before, *after[shared:]]


def lines_of(source_info: Any) -> tuple[str, str]:
    """The line of the user's own code that made an equation, and that of the innermost code outside of JAX.

    Each is "folder/file.py:line", or "" where there is none.
    """
    return _lines_of(source_info.traceback)


@lru_cache(maxsize=2**14)
def _lines_of(traceback: Any) -> tuple[str, str]:
    """The same of a traceback: equal for all layers that one line of a Python loop writes out, in all forms."""
    info = source_info_util.new_source_info().replace(traceback=traceback)
    innermost = source_info_util.summarize(info)
    if not _LIBRARY.search(innermost):
        return short_line(innermost), short_line(innermost)
    frames = source_info_util.summarize(info, num_frames=ALL_FRAMES).splitlines()
    return own_line(reversed(frames)), short_line(innermost)


def own_line(frames: Iterable[str]) -> str:
    """The first line of frames, innermost first, that is the user's own code: "folder/file.py:line", or "".

    Code in `site-packages` is a library's; what called the planner is no part of what is planned, but for what names
    modules, which stands between the user's code and a library's.
    """
    called = (frame for frame in frames if not frame.startswith(_NAMING))
    own = takewhile(lambda frame: not frame.startswith(_PLANNER), called)
    return next((short_line(frame) for frame in own if not _LIBRARY.search(frame)), "")


def short_line(frame: str) -> str:
    """`folder/file.py:line` of a frame such as `/path/folder/file.py:12:8 (function)`."""
    file, line = file_and_line(frame)
    return f"{'/'.join(re.split(_SLASH, file)[-2:])}:{line}" if file else ""


def file_and_line(frame: str) -> tuple[str, int]:
    """The file and the line of such a frame; ("", 0) where it says none."""
    found = _FRAME.match(frame)
    return ("", 0) if found is None else (found[1], int(found[2]))
