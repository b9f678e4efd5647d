"""Reports of compilers that are kept: in memory for as long as the object lives, and in a folder where one is given.

A report is found again by all that a compiler is told: the program's bytecode, the topology, the places of its devices and
the compiler's options, and by the releases of JAX and of the compilers.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import signal
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any, final

from planner.errors import ArgumentError
from planner.files import write_whole
from planner.verify.aot import AotReport, AotRequest, run_request
from planner.verify.hlo.collectives import read_collectives
from planner.verify.hlo.memory import CompiledMemory

VERSION = 2
COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
"""The packages whose releases decide what a compile becomes."""
LASTING = ("ok", "oom", "error", "crash")
"""What a compile of the same program would become again; time-outs are a matter of the machine."""
ENDED = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals from outside: a compiler that died of one says nothing about the program."""


def key_of(request: AotRequest) -> str:
    """What a request is known by: a digest of all that decides what becomes of it; how long it may take does not."""
    told = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if field.name not in ("program", "timeout_s")
    }
    words = json.dumps([VERSION, releases(), told], sort_keys=True, default=_plain)
    return hashlib.sha256(request.program + words.encode()).hexdigest()


def _plain(value: object) -> object:
    """A value as JSON can tell it."""
    return dict(value) if isinstance(value, Mapping) else repr(value)


def releases() -> list[str]:
    """Name and version of each of `COMPILERS` that is installed."""
    found: list[str] = []
    for name in COMPILERS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@final
class KeptReports:
    """Reports by request; `folder` keeps them beyond this process. Raises: ArgumentError where it cannot be written to."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._known: dict[str, bytes] = {}
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self._folder):
                    pass
            except OSError as error:
                raise ArgumentError(
                    f"compiles cannot be kept in {self._folder}: {error}; give Options(cache=...) a folder that can be "
                    "written, or None"
                ) from error

    def find(self, request: AotRequest) -> AotReport | None:
        """The report on an equal request, or None. A file that cannot be read is as good as none."""
        key = key_of(request)
        if key not in self._known and self._folder is not None:
            try:
                self._known[key] = (self._folder / _file_of(key)).read_bytes()
            except OSError:
                return None
        return _report(self._known[key], prod(request.mesh_shape.values())) if key in self._known else None

    def compiled(self, request: AotRequest) -> AotReport:
        """The report on an equal request, or that of compiling it now, which is kept."""
        report = self.find(request)
        if report is None:
            report = run_request(request)
            self.keep(request, report)
        return report

    def keep(self, request: AotRequest, report: AotReport) -> None:
        """Keeps a report if it would come out the same again. A folder that has become full keeps no more."""
        if report.status not in LASTING or report.signal in ENDED:
            return
        key = key_of(request)
        self._known[key] = _packed(report)
        if self._folder is not None:
            # Where there is no room, it is kept for this process alone.
            with suppress(OSError):
                write_whole(self._folder / _file_of(key), self._known[key])


def _file_of(key: str) -> str:
    return f"{key[:40]}.json.gz"


_PLAIN = ("status", "message", "seconds", "signal", "needed_bytes", "rematerialized", "remedy", "hlo")


def _packed(report: AotReport) -> bytes:
    record = {name: getattr(report, name) for name in _PLAIN}
    memory = report.memory
    record["memory"] = None if memory is None else {f.name: getattr(memory, f.name) for f in fields(memory)}
    return gzip.compress(json.dumps(record).encode(), compresslevel=1)


def _report(packed: bytes, num_devices: int) -> AotReport | None:
    """What was packed; None where it is damaged."""
    try:
        record: dict[str, Any] = json.loads(gzip.decompress(packed))
        memory: dict[str, Any] | None = record["memory"]
        hlo: str = record["hlo"]
        told: dict[str, Any] = {
            **record,
            "rematerialized": tuple(record["rematerialized"]),
            "memory": None if memory is None else CompiledMemory(**memory),
            "collectives": read_collectives(hlo, num_devices=num_devices) if hlo else (),
        }
        return AotReport(**told)
    except (EOFError, OSError, ValueError, KeyError, TypeError, ArgumentError, zlib.error):
        return None
