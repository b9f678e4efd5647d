"""Files and folders that are written whole or not at all, whenever their writer is killed.

What is not finished has a hidden name beside what it is to become, and its writer holds a lock on it, which ends with the
writer: what the dead have left, the next to write there removes.
"""

from __future__ import annotations

import ctypes
import glob
import os
import secrets
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

PART = ".part"
"""How the names of unfinished files and folders end. They are hidden beside what they are to become."""
OLD = ".old"
"""How the name of a folder ends while another takes its place, where the two cannot be exchanged at once."""
PERMISSIONS = 0o666
"""Those of a new file, less what the process's umask takes away."""


def write_whole(path: Path, content: bytes) -> None:
    """Nothing; `path` holds what it held before or `content`, whenever the process is killed. Raises: OSError.

    Where the file system can, the content is written to a file without a name, which the kernel frees with its writer. It
    needs a name for as long as it takes the place of another file. Who is killed in between, or writes where files need
    names, leaves one.
    """
    _check_folder_of(path)
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


@contextmanager
def whole_folder(path: Path) -> Generator[Path]:
    """A new folder to fill, which takes the place of the folder `path` at the end of the block, or of nothing.

    `path` is what it was before or the new one, whenever the process is killed; where the kernel cannot exchange two
    folders at once it may be missing, and the next to write there brings it back. Raises: OSError.
    """
    _check_folder_of(path)
    _bring_back(path)
    _remove_left(path)
    handle, part = _made_folder(path)
    try:
        yield part
        _take_place(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _check_folder_of(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.absolute().parent)!r}")


def _take_place(part: Path, path: Path) -> None:
    """Gives a folder the name of another; that one, if there is any, has its name then, or is gone."""
    if not path.exists():
        part.rename(path)
        return
    if _exchange(part, path):
        return
    old = _hidden(path, OLD)
    handle = _locked_folder(path)
    try:
        path.rename(old)
        part.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if handle is not None:
            os.close(handle)


def _exchange(one: Path, other: Path) -> bool:
    """Whether two names were exchanged, at once; never where there is no such call."""
    if sys.platform != "linux":
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        call = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):  # a C library without it
        return False
    return call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _bring_back(path: Path) -> None:
    """Gives a folder its name again, whose writer died before another took its place."""
    for old in path.parent.glob(f".{glob.escape(path.name)}.*{OLD}"):
        with suppress(OSError), _if_left(old):
            if path.exists():
                shutil.rmtree(old)
            else:
                old.rename(path)


def _made_folder(path: Path) -> tuple[int | None, Path]:
    """A new folder beside `path`, with a lock where there are such."""
    while True:
        part = _part_of(path)
        part.mkdir()
        handle = _locked_folder(part)
        # Who looks for what others left may have come before the lock.
        if part.exists():
            return handle, part
        if handle is not None:
            os.close(handle)


def _locked_folder(path: Path) -> int | None:
    """A handle that holds the lock of a folder; None where folders have none, or this one is gone."""
    if sys.platform == "win32":
        return None
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    _lock(handle, wait=True)
    return handle


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
    return _hidden(path, PART)


def _hidden(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{ending}")


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
    """Removes unfinished files and folders for `path` whose writers are gone."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{PART}"):
        with suppress(OSError), _if_left(left):
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()


@contextmanager
def _if_left(path: Path) -> Generator[None]:
    """A lock on what a writer that is gone has left. Raises: BlockingIOError where there is one, OSError."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY)
    try:
        if not _lock(handle):
            raise BlockingIOError(f"{path} is being written")
        yield
    finally:
        os.close(handle)


def _lock(handle: int, *, wait: bool = False) -> bool:
    """Whether a file is now locked by this process alone; never where there are no such locks."""
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
