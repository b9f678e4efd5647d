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
from planner.files import OLD, PART, whole_folder, write_whole

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


# ---------------------------------------------------------------- folders


@pytest.fixture(params=["exchanged", "one after the other"])
def swap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the kernel exchanges two names at once."""
    if request.param != "exchanged":
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    return request.param


def fill(folder: Path, **content: str) -> None:
    with whole_folder(folder) as part:
        for name, text in content.items():
            write_whole(part / name, text.encode())


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_folder_is_made_and_replaced(tmp_path: Path, swap: str) -> None:
    path = tmp_path / "kept" / "front[0]*"
    path.parent.mkdir()
    for content in ({"a": "1", "b": "2"}, {"c": "3"}, {}, {"a": "4"}):
        fill(path, **content)
        assert held(path) == content
        assert list(path.parent.iterdir()) == [path]


def test_the_kernel_exchanges_names(tmp_path: Path) -> None:
    fill(tmp_path / "one", a="1")
    fill(tmp_path / "two", b="2")
    if not files._exchange(tmp_path / "one", tmp_path / "two"):
        pytest.skip("this file system cannot exchange two names")
    assert (held(tmp_path / "one"), held(tmp_path / "two")) == ({"b": "2"}, {"a": "1"})


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_folder_that_is_not_finished_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def interrupted() -> None:
        with whole_folder(tmp_path / "front") as part:
            (part / "a").write_text("2")
            raise error

    fill(tmp_path / "front", a="1")
    with pytest.raises(type(error)):
        interrupted()
    assert list(tmp_path.iterdir()) == [tmp_path / "front"]
    assert held(tmp_path / "front") == {"a": "1"}


def test_a_folder_that_others_are_filling_is_left_alone(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "front") as others:
        (others / "b").write_text("2")
        fill(tmp_path / "front", a="1")
        assert held(others) == {"b": "2"}, "its writer lives"
    assert held(tmp_path / "front") == {"b": "2"}


def test_what_the_dead_left_of_a_folder_is_removed_or_brought_back(tmp_path: Path) -> None:
    for name in (f".front.0{PART}", f".front.1{PART}", f".other.2{PART}", f".front.3{OLD}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_text(name)
    with pytest.raises(ValueError, match="stop"), whole_folder(tmp_path / "front"):
        raise ValueError("stop")
    assert held(tmp_path / "front") == {"a": f".front.3{OLD}"}, "what was there when its writer died"
    fill(tmp_path / "front", b="1")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".other.2{PART}", "front"]
    assert held(tmp_path / "front") == {"b": "1"}
