"""Compiling in parallel: several requests in child processes at a time, their reports in the order they were asked for.

That order, and not the one in which compilers finish, decides what is made of the reports, so that a slower machine comes
to the same end as long as it has the time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import replace
from types import TracebackType
from typing import Protocol, final

from planner.machine.cores import usable_cores
from planner.verify.aot import AotReport, AotRequest, run_request
from planner.verify.kept_reports import KeptReports, key_of

MOST_WORKERS = 8
"""Compilers at a time at most: each takes a gigabyte or more of memory."""


class Compiles(Protocol):
    """What compiles a request, and gives up when it is told to have `stopped`."""

    def __call__(self, request: AotRequest, *, stopped: Callable[[], bool]) -> AotReport:
        """The report."""
        ...


@final
class CompilePool:
    """Compilers in child processes, at most `workers` at a time; what is `kept` is not compiled again.

    A context: on the way out, an exception's too, all children are ended.
    """

    def __init__(self, kept: KeptReports, *, workers: int | None = None, run: Compiles = run_request) -> None:
        self.workers = min(usable_cores(), MOST_WORKERS) if workers is None else workers
        self._kept, self._run = kept, run
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=self.workers, thread_name_prefix="compile")
        self._queue: deque[tuple[str, AotRequest, Future[AotReport]]] = deque()

    @property
    def pending(self) -> int:
        """How many requests have not been answered."""
        return len(self._queue)

    def submit(self, request: AotRequest) -> None:
        """Asks for a report; it takes a worker when one is free."""
        key, known = key_of(request), self._kept.find(request)
        if known is not None:
            answer = Future[AotReport]()
            answer.set_result(replace(known, seconds=0.0))
        else:
            same = next((answer for other, _, answer in self._queue if other == key), None)
            answer = self._threads.submit(self._compile, request) if same is None else same
        self._queue.append((key, request, answer))

    def take(self, seconds: float) -> AotReport | None:
        """The report on the oldest request that was not answered yet; None where there is none within `seconds`."""
        if not self._queue:
            return None
        _, request, answer = self._queue[0]
        try:
            report = answer.result(max(seconds, 0.0))
        except (NotYet, CancelledError):
            return None
        self._queue.popleft()
        self._kept.keep(request, report)
        return report

    def close(self) -> None:
        """Ends all children."""
        self._over.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _compile(self, request: AotRequest) -> AotReport:
        try:
            return self._run(request, stopped=self._over.is_set)
        except OSError as error:
            # No process, no room on the disk.
            return AotReport(status="unavailable", message=f"the compiler could not be run: {error}", seconds=0.0)

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
