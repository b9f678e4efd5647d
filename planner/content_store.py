"""Folders of entries that are made once and found again: plans, plans of several programs, reports of compilers.

The name of an entry is a digest of all that it follows from. An entry is written whole or not at all, and checked when it
is read: one that is damaged, or belongs to another question, is not used, and the reason is a note.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar, final

from planner.errors import ArgumentError, PlannerError
from planner.files import write_whole

T = TypeVar("T")


def digest_of_all(*values: object, content: bytes = b"") -> str:
    """The key of an entry that follows from these values and this content."""
    text = json.dumps(values, sort_keys=True, default=lambda v: dict(v) if isinstance(v, Mapping) else repr(v))
    return hashlib.sha256(content + text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[T]):
    """What a store has for a key: a value, or None, and why an entry that is there was not used."""

    value: T | None = None
    why_not: str = ""


@final
class ContentStore:
    """Entries of one kind in a folder, which is made where there is none. Raises: ArgumentError where it cannot be made.

    `kind` is the name of an entry in errors and notes, `ending` that of its file.
    """

    def __init__(self, folder: str | Path, *, kind: str, ending: str) -> None:
        self._folder, self._kind, self._ending = Path(folder), kind, ending
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise ArgumentError(
                f"{kind}s cannot be kept in {folder}: {error}; give Options(cache=...) a folder that can be written, or "
                "None"
            ) from error

    def find(self, key: str, read: Callable[[bytes, datetime], T]) -> Found[T]:
        """What `read` makes of the content of an entry and the time at which it was written.

        `read` raises ValueError or an error of the planner for an entry that cannot be used.
        """
        path = self._path(key)
        try:
            return Found(value=read(path.read_bytes(), datetime.fromtimestamp(path.stat().st_mtime, UTC)))
        except (OSError, ValueError, PlannerError) as error:
            absent = isinstance(error, FileNotFoundError)
            return Found(why_not="" if absent else f"the {self._kind} kept in {path} was not used: {error}")

    def keep(self, key: str, content: bytes) -> str:
        """Writes an entry, in the place of one that is there; why that failed, or ""."""
        try:
            write_whole(self._path(key), content)
        except OSError as error:
            return f"the {self._kind} could not be kept in {self._folder}: {error}"
        return ""

    def _path(self, key: str) -> Path:
        return self._folder / f"{key[:40]}{self._ending}"
