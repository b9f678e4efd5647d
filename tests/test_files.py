"""Files are written whole or not at all, whenever their writer is killed, and nothing else is left in their folder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner import files
from planner.files import PART, write_whole

ROOT = Path(__file__).resolve().parents[1]
WRITER = """
import sys
from contextlib import contextmanager
from pathlib import Path
from planner import files
if sys.argv[2] == "named":
    @contextmanager
    def none(folder):
        yield None
    files._unnamed = none
letter = 0
while True:
    letter = (letter + 1) % 26
    files.write_whole(Path(sys.argv[1]), bytes([97 + letter]) * 200_000)
"""


@pytest.fixture(params=["unnamed", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the file system has files without names."""
    if request.param == "named":

        def none(folder: Path) -> Iterator[None]:
            yield None

        monkeypatch.setattr(files, "_unnamed", files.contextmanager(none))
    return request.param


def test_a_file_is_made_and_replaced(tmp_path: Path, way: str) -> None:
    path = tmp_path / "a[b]*.json"
    for content in (b"", b"one", b"two" * 100_000):
        write_whole(path, content)
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, way: str) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_whole(tmp_path / "taken", b"content")
    with pytest.raises(OSError, match="none"):
        write_whole(tmp_path / "none" / "file", b"content")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_what_others_are_writing_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with files._named(path) as (_, part):
        write_whole(path, b"mine")
        assert part.exists(), "its writer lives"
    write_whole(tmp_path / "other.json", b"")
    assert part.exists(), "it is of another file"
    write_whole(path, b"again")
    assert not part.exists(), "its writer is gone"


@pytest.mark.parametrize("way", ["unnamed", "named"])
def test_killed_at_any_time(tmp_path: Path, way: str) -> None:
    path, chance = tmp_path / "plan.json", random.Random(0)
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), way], env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        while not path.exists():
            time.sleep(0.01)
        time.sleep(0.1 * chance.random())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        content = path.read_bytes()
        assert len(content) == 200_000
        assert len(set(content)) == 1, "one writing's content"
        left = [entry.name for entry in tmp_path.iterdir() if entry != path]
        assert len(left) <= 1
        assert all(name.endswith(PART) for name in left)
        write_whole(path, b"")
        assert list(tmp_path.iterdir()) == [path], "the next to write there removes what was left"
        path.unlink()
