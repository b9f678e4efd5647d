"""The text of source lines: what stands at the "folder/file.py:line" by which a program's equations are known."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Mapping
from typing import Any

import jax.extend.source_info_util as source_info_util

from planner.program.jaxpr.bodies import equations_of
from planner.program.jaxpr.origins import ALL_FRAMES, file_and_line, short_line


def texts_of(jaxpr: Any, lines: Collection[str]) -> Mapping[str, str]:
    """The text of these lines of the files that a program came from, as they are now; those that are not found are missing.

    Cells of notebooks are files, too.
    """
    found: dict[str, str] = {}
    missing, seen = set(lines), set[int]()
    for eqn in equations_of(jaxpr):
        if not missing:
            break
        if id(eqn.source_info.traceback) in seen:
            continue
        seen.add(id(eqn.source_info.traceback))
        for frame in source_info_util.summarize(eqn.source_info, num_frames=ALL_FRAMES).splitlines():
            line = short_line(frame)
            if line in missing:
                missing.remove(line)
                text = linecache.getline(*file_and_line(frame)).strip()
                if text:
                    found[line] = text
    return found
