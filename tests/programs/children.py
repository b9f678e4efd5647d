"""A child process that answers questions and may die of one, or never answer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class Died(AssertionError):
    """A question ended the process that was to answer it."""


class Hung(AssertionError):
    """A question was not answered in time."""


class Child:
    """Answers questions by a function, in a process that starts with the first of them and again where it ended.

    `answer` is a function of a module, `patience` how many seconds an answer may take, `chunk` after how many answers the
    process is replaced: what is kept of each question adds up.
    """

    def __init__(self, answer: Callable[[Any], Any], *, patience: float = 180.0, chunk: int = 100) -> None:
        self._answer, self._patience, self._chunk = answer, patience, chunk
        self._process: Any = None
        self._asked = 0

    def ask(self, question: Any) -> Any:
        """The answer. Raises: Died, Hung."""
        if self._process is None:
            self._start()
        self._asked += 1
        self._connection.send(question)
        if not self._connection.poll(self._patience):
            self.end()
            raise Hung(f"no answer within {self._patience:g} seconds")
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            status, words = self._process.exitcode, self._last_words()
            self.end()
            name = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            raise Died(f"{name}: {words}") from None
        if self._asked >= self._chunk:
            self.end()
        return answer

    def end(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._errors.close()
        self._process, self._asked = None, 0

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._errors = tempfile.NamedTemporaryFile()  # noqa: SIM115 - `end` closes it
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._answer, theirs, self._errors.name), daemon=True)
        self._process.start()
        theirs.close()  # or the end of the process would not be the end of the pipe

    def _last_words(self) -> str:
        """What the process said before it ended, without its stack."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").splitlines()
        lines = [line for line in said if line.strip() and not line.lstrip().startswith(("@", "***"))]
        return " ".join(lines[-5:])[-1500:]


def _serve(answer: Callable[[Any], Any], connection: Connection, errors: str) -> None:
    with open(errors, "wb") as file:
        os.dup2(file.fileno(), 2)
    while True:
        try:
            question = connection.recv()
        except EOFError:
            return
        connection.send(answer(question))
