"""Files that are written whole or not at all, and leave nothing behind when their writer is killed."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

PART = ".part"
"""How the names of unfinished files end. They are hidden beside the file that they are to become."""
PERMISSIONS = 0o666
"""Those of a new file, less what the process's umask takes away."""


def write_whole(path: Path, content: bytes) -> None:
    """Nothing; `path` holds what it held before or `content`, whenever the process is killed. Raises: OSError.

    Where the file system can, the content is written to a file without a name, which the kernel frees with its writer. It
    needs a name for as long as it takes the place of another file. Who is killed in between, or writes where files need
    names, leaves one that the next to write there removes: a writer holds a lock on its file, which ends with it.
    """
    _remove_left(path)
    with _unnamed(path.parent) as handle:
        if handle is not None:
            _fill(handle, content)
            if _link(handle, path):
                return
            part = _part_of(path)
            if _link(handle, part):
                _replace(part, path)
                return
    with _named(path) as (handle, part):
        _fill(handle, content)
        _replace(part, path)


def _fill(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    os.fsync(handle)


def _replace(part: Path, path: Path) -> None:
    try:
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PART}")


@contextmanager
def _unnamed(folder: Path) -> Generator[int | None]:
    """A file without a name, with a lock; None where the file system has none."""
    if sys.platform != "linux":
        yield None
        return
    try:
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY, PERMISSIONS)
    except OSError:
        # Whether the folder can be written to at all is told by making a file with a name.
        yield None
        return
    try:
        yield handle if _lock(handle) else None
    finally:
        os.close(handle)


def _link(handle: int, path: Path) -> bool:
    """Whether a file without a name got this one, which was free."""
    try:
        os.link(f"/proc/self/fd/{handle}", path, follow_symlinks=True)
    except OSError:
        return False
    return True


@contextmanager
def _named(path: Path) -> Generator[tuple[int, Path]]:
    """A new file beside `path`, with a lock, and its name; nothing is left of it if its content does not get there."""
    handle, part = _made(path)
    try:
        yield handle, part
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _made(path: Path) -> tuple[int, Path]:
    while True:
        part = _part_of(path)
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PERMISSIONS)
        _lock(handle, wait=True)
        # Who looks for what others left may have come before the lock.
        if os.fstat(handle).st_nlink:
            return handle, part
        os.close(handle)


def _remove_left(path: Path) -> None:
    """Removes unfinished files for `path` whose writers are gone."""
    for left in path.parent.glob(f".{_escaped(path.name)}.*{PART}"):
        with suppress(OSError):
            handle = os.open(left, os.O_WRONLY)
            try:
                if _lock(handle):
                    left.unlink()
            finally:
                os.close(handle)


def _escaped(name: str) -> str:
    """A name as a pattern that matches it alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _lock(handle: int, *, wait: bool = False) -> bool:
    """Whether a file is now locked by this process alone; never where there are no such locks."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
