"""Compiles in parallel, and the reports that are kept: with a compiler that is a function of the tests."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import ArgumentError
from planner.verify.aot import AotReport, AotRequest
from planner.verify.compile_pool import CompilePool
from planner.verify.hlo.memory import CompiledMemory
from planner.verify.kept_reports import KeptReports, key_of

MEMORY = CompiledMemory(argument_bytes=1, output_bytes=2, alias_bytes=0, temp_bytes=3, peak_bytes=6)


def request(program: bytes, **more: object) -> AotRequest:
    made = AotRequest(
        program=program, num_arguments=1, free_outputs=(False,), mesh_shape={"x": 2}, topology="v5e:1x2", timeout_s=9.0
    )
    return replace(made, **more)


class Compiler:
    """Counts what it compiles; the first byte of a program says after how many hundredths of a second it is done."""

    def __init__(self, status: str = "ok", ended_by: int | None = None) -> None:
        self.compiled: list[bytes] = []
        self.status, self.ended_by = status, ended_by

    def __call__(self, request: AotRequest, *, stopped: Callable[[], bool]) -> AotReport:
        self.compiled.append(request.program)
        time.sleep(request.program[0] / 100)
        return AotReport(
            status=self.status,  # pyright: ignore[reportArgumentType]
            message=request.program.decode(),
            seconds=1.0,
            signal=self.ended_by,
            memory=MEMORY,
        )


def test_reports_come_in_the_order_of_the_requests() -> None:
    with CompilePool(KeptReports(), workers=2, run=Compiler()) as pool:
        for program in (b"\x0aslow", b"\x00fast", b"\x01last"):
            pool.submit(request(program))
        assert pool.pending == 3
        messages = [report.message[1:] for _ in range(3) if (report := pool.take(10.0)) is not None]
        assert messages == ["slow", "fast", "last"]
        assert pool.take(0.0) is None


def test_the_same_request_is_compiled_once() -> None:
    compiler = Compiler()
    with CompilePool(KeptReports(), workers=1, run=compiler) as pool:
        for again in range(3):
            pool.submit(request(b"\x02one", timeout_s=float(again + 1)))
        assert all(pool.take(10.0) for _ in range(3))
        pool.submit(request(b"\x02one"))
        assert pool.take(10.0)
    assert len(compiler.compiled) == 1


def test_a_folder_keeps_reports_for_the_next_call(tmp_path: Path) -> None:
    folder, asked = tmp_path / "kept", request(b"\x00one")
    with CompilePool(KeptReports(folder), workers=1, run=Compiler()) as pool:
        pool.submit(asked)
        assert pool.take(10.0)
    found = KeptReports(folder).find(asked)
    assert found is not None
    assert (found.status, found.message, found.memory) == ("ok", "\x00one", MEMORY)
    assert KeptReports(folder).find(request(b"\x00one", compiler_options={"a": "1"})) is None
    for file in folder.iterdir():
        file.write_bytes(b"damaged")
    assert KeptReports(folder).find(asked) is None


@pytest.mark.parametrize(
    ("status", "ended_by", "kept"),
    [("crash", None, True), ("crash", int(signal.SIGKILL), False), ("timeout", None, False), ("oom", None, True)],
)
def test_only_what_would_come_out_again_is_kept(status: str, ended_by: int | None, kept: bool) -> None:
    reports = KeptReports()
    with CompilePool(reports, workers=1, run=Compiler(status, ended_by)) as pool:
        pool.submit(request(b"\x00one"))
        assert pool.take(10.0)
    assert (reports.find(request(b"\x00one")) is not None) == kept


def test_keys_tell_apart_what_compilers_are_told() -> None:
    keys = {
        key_of(asked)
        for asked in (
            request(b"a"),
            request(b"b"),
            request(b"a", topology="v5e:2x2"),
            request(b"a", compiler_options={"x": "1"}),
            request(b"a", places=((0, 0, 0, 0, 0),)),
        )
    }
    assert len(keys) == 5
    assert key_of(request(b"a", timeout_s=1.0)) == key_of(request(b"a", timeout_s=2.0))


def test_leaving_ends_what_still_runs() -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless(request: AotRequest, *, stopped: Callable[[], bool]) -> AotReport:
        begun.set()
        while not stopped():
            time.sleep(0.01)
        ended.set()
        return AotReport(status="timeout", message="", seconds=0.0)

    def interrupted() -> None:
        with CompilePool(KeptReports(), workers=1, run=endless) as pool:
            pool.submit(request(b"a"))
            assert begun.wait(10.0)
            assert pool.take(0.01) is None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ended.is_set()


def test_no_process_is_told_and_not_raised() -> None:
    def broken(request: AotRequest, *, stopped: Callable[[], bool]) -> AotReport:
        raise OSError("no room")

    with CompilePool(KeptReports(), workers=1, run=broken) as pool:
        pool.submit(request(b"a"))
        report = pool.take(10.0)
    assert report is not None
    assert report.status == "unavailable"
    assert "no room" in report.message


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cache"):
        KeptReports(tmp_path / "file" / "folder")
