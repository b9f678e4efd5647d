"""Reports of compilers that are kept: in memory for as long as the object lives, and in a folder where one is given.

A report is found again by all that a compiler is told: the program's bytecode, the topology, the places of its devices and
the compiler's options, and by the releases of JAX and of the compilers.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import json
import signal
import zlib
from dataclasses import asdict, fields, replace
from math import prod
from pathlib import Path
from typing import Any, final

from planner.content_store import ContentStore, digest_of_all
from planner.errors import ArgumentError
from planner.verify.aot import AotReport, AotRequest, run_request
from planner.verify.hlo.collectives import read_collectives
from planner.verify.hlo.memory import CompiledMemory

VERSION = 3
COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
"""The packages whose releases decide what a compile becomes."""
LASTING = ("ok", "oom", "error", "crash")
"""What a compile of the same program would become again; time-outs are a matter of the machine."""
ENDED = (signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals from outside: a compiler that died of one says nothing about the program."""


def key_of(request: AotRequest) -> str:
    """What a request is known by: a digest of all that decides what becomes of it; how long it may take does not."""
    asks = {field.name: getattr(request, field.name) for field in fields(request)}
    del asks["program"], asks["timeout_s"]
    return digest_of_all(VERSION, releases(), asks, content=request.program)


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
    """Reports by request; `folder` keeps them beyond this process. Raises: ArgumentError where it cannot be made."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._store = None if folder is None else ContentStore(folder, kind="compile", ending=".json.gz")
        self._known: dict[str, bytes] = {}

    def find(self, request: AotRequest) -> AotReport | None:
        """The report on an equal request, or None. A file that cannot be read is as good as none."""
        key, num_devices = key_of(request), prod(request.mesh_shape.values())
        if key in self._known:
            return _report(self._known[key], num_devices)
        if self._store is None:
            return None
        return self._store.find(key, lambda content, _: _report(content, num_devices)).value

    def compiled(self, request: AotRequest) -> AotReport:
        """The report on an equal request, or that of compiling it now, which is kept."""
        report = self.find(request)
        if report is None:
            report = run_request(request)
            self.keep(request, report)
        return report

    def keep(self, request: AotRequest, report: AotReport) -> None:
        """Keeps a report if it would come out the same again; for this process alone where the folder has no room."""
        if report.status not in LASTING or report.signal in ENDED:
            return
        key = key_of(request)
        self._known[key] = _packed(report)
        if self._store is not None:
            self._store.keep(key, self._known[key])


def _packed(report: AotReport) -> bytes:
    record = asdict(replace(report, collectives=()))
    del record["collectives"]  # they are read from the HLO
    return gzip.compress(json.dumps(record).encode(), compresslevel=1)


def _report(packed: bytes, num_devices: int) -> AotReport:
    """What was packed. Raises: ValueError where it is damaged."""
    try:
        record: dict[str, Any] = json.loads(gzip.decompress(packed))
        memory: dict[str, Any] | None = record["memory"]
        hlo: str = record["hlo"]
        record["rematerialized"] = tuple(record["rematerialized"])
        record["memory"] = None if memory is None else CompiledMemory(**memory)
        record["collectives"] = read_collectives(hlo, num_devices=num_devices) if hlo else ()
        return AotReport(**record)
    except (EOFError, OSError, KeyError, TypeError, ArgumentError, zlib.error) as error:
        raise ValueError(f"it is damaged ({error})") from error
