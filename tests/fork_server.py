"""Python processes for tests that have imported JAX and the planner already: forks of one that has done nothing else.

A command such as `[*python(), "-m", "planner", "show", "plan.json"]` runs as it would under `sys.executable`: in a process
of its own, with its own environment, folder and streams. The imports, four seconds of the processor, are made once for all
of them. `commands()` is a folder for PATH in which `python` and `meshwright` are started so.

It needs `pidfd_open`, which Linux has; elsewhere commands are started by `sys.executable`, as is what tests of the imports
themselves start, and what they kill.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
IMPORTED = ("planner.cli.main", "optax", "flax.linen", "flax.nnx")
"""By most processes that tests start; what is not installed is left out."""


class Job(NamedTuple):
    """A command of Python's, where it runs, and its standard streams."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    streams: list[int]


# ---------------------------------------------------------------- for tests


@cache
def python() -> tuple[str, ...]:
    """The words that stand for `python` in a command; starts the server, which ends with this process."""
    if not hasattr(os, "pidfd_open"):
        return (sys.executable,)
    folder = tempfile.mkdtemp()
    address = f"{folder}/server"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(16)  # clients may come before the server has imported everything
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(listening.fileno()), folder],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
        )
    atexit.register(server.communicate)  # closes its input, at which it ends
    return (sys.executable, "-IS", str(Path(__file__).with_name("fork_client.py")), address)


@cache
def commands() -> str:
    """A folder with the commands `python` and `meshwright`."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    for name, words in {"python": "", "meshwright": "-m planner"}.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {" ".join(python())} {words} "$@"\n')
        path.chmod(0o755)
    return str(folder)


# ---------------------------------------------------------------- the server


def _next_job(listening: socket.socket) -> Job | None:
    """In a fork: what it is to run. In the server, when the process that started it has ended: None."""
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        with suppress(ChildProcessError):  # raised where none is left
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        if sys.stdin in ready:
            return None
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            return _watched(connection)
        connection.close()


def _watched(connection: socket.socket) -> Job:
    """The job of a client, in a fork; the process between ends the job with its client, and tells how it ended."""
    message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not message.endswith(b"\n"):
        message += connection.recv(1 << 20)
    worker = os.fork()
    if worker == 0:
        connection.close()
        return Job(*json.loads(message), streams)
    for stream in streams:
        os.close(stream)
    ready, _, _ = select.select([connection, os.pidfd_open(worker)], [], [])
    if connection in ready:
        os.kill(worker, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if connection not in ready:
        connection.sendall(str(code).encode())
    os._exit(0)


def _run(job: Job) -> None:
    """Runs a command of Python's as the interpreter does."""
    for number, stream in enumerate(job.streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(job.environment)
    os.chdir(job.folder)
    match job.words:
        case ["-c", program, *words]:
            sys.argv = ["-c", *words]
            sys.path.insert(0, job.folder)
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        case ["-m", module, *words]:
            sys.argv = [module, *words]
            sys.path.insert(0, job.folder)
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *_]:
            sys.argv = job.words
            sys.path.insert(0, str(Path(script).resolve().parent))
            runpy.run_path(script, run_name="__main__")
        case _:
            sys.exit("fork_server: no command")


def main() -> None:
    """Serves until the process that started it ends; a fork runs its command and ends as that does."""
    for name in IMPORTED:
        if importlib.util.find_spec(name.split(".")[0]) is not None:
            importlib.import_module(name)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        job = _next_job(listening)
    if job is None:
        shutil.rmtree(sys.argv[2])
    else:
        _run(job)


if __name__ == "__main__":
    main()
