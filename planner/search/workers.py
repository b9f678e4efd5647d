"""Workers: processes that take steps of a search, as many at a time as there are cores.

They are forked once planning has lasted a second, after a step that is taken here, so that they know all that is known by
then, without a copy of it; where little is to be searched there are none. What a step finds depends on the step alone, not
on who takes it, nor on what else goes on: so the plan does not depend on how many there are, where no time limit cuts in. A
worker only computes with numbers. It neither compiles nor runs anything, so that it does not matter that JAX's threads are
not in it.

A worker that ends, or does not answer long after its step's deadline, is given up, and told: others take its steps.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import TracebackType
from typing import Literal, final

from pbqp.deadline import Deadline
from planner.machine.cores import bytes_left, copies_that_fit
from planner.search.least_memory import Least
from planner.units import quantity

SearchStep = Literal["look", "free", "limited", "closed", "least"]
"""What is below a cutoff; the best plan without a limit; the best within it; the same to the end; that of least memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A step of the mesh at a position: only what is below `cutoff` is sought. `before` led to it."""

    mesh: int
    step: SearchStep
    cutoff: float
    before: tuple[Task, ...] = ()

    def followed_by(self, step: SearchStep, *, cutoff: float) -> Task:
        """The next step of the same mesh."""
        return Task(mesh=self.mesh, step=step, cutoff=cutoff, before=(*self.before, replace(self, before=())))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """A plan of a mesh: one strategy per node, its value, bound and peak bytes; see `Candidate`."""

    choice: tuple[int, ...]
    value: float
    bound: float
    peak_bytes: float
    shared: str
    per_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a step: a bound of the mesh's plans, the plan where one is below the cutoff, and which step may follow.

    The rest is as in `Outcome`.
    """

    bound: float
    plan: MeshPlan | None = None
    fits: bool = True
    note: str = ""
    following: SearchStep | None = None
    least: Least | None = None


Do = Callable[[Task, Deadline], Report]
"""Takes a step, in time."""

FORKED_AFTER_SECONDS = 1.0
"""How long planning has lasted when a search gets workers: a shorter one ends before that would pay."""
GRACE_SECONDS = 60.0
"""How long after the deadline of its step a worker is waited for."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """A process, the pipe to it, and the step it is at, with its deadline."""

    process: ForkProcess
    pipe: Connection
    task: Task | None = None
    due: Deadline | None = None

    @property
    def late(self) -> bool:
        """Whether its step should have ended long ago."""
        return self.due is not None and self.due.overdue > GRACE_SECONDS

    def how_it_ended(self) -> str:
        """In words, after it was ended."""
        code = self.process.exitcode or 0
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def end(self) -> None:
        """Ends it, whatever it is at."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


@final
class Workers:
    """Takes steps by `do`, here or in up to `most` processes; what users should know of these is in `notes`.

    `due` says by when a step should end that begins now; `planning` starts when planning began.

    A context: on the way out, an exception's too, all processes are ended.
    """

    def __init__(self, do: Do, due: Callable[[], Deadline], most: int, *, planning: Deadline) -> None:
        self.notes: list[str] = []
        self._do, self._due, self._most = do, due, most
        self._planning = planning
        self._workers: list[_Worker] = []
        self._forked = most < 2 or not sys.platform.startswith("linux")
        self._learnt = False
        self._owner: dict[int, _Worker] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()

    def each(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Report]]:
        """The reports of some steps, as they come; the steps are of different meshes.

        Raises: whatever a step raises.
        """
        waiting = list(tasks)
        while waiting or any(worker.task for worker in self._workers):
            late = self._planning.elapsed >= FORKED_AFTER_SECONDS
            if not self._forked and late and len(waiting) > 1:
                if self._learnt:
                    self._fork()
                else:
                    # What a step loads and learns, all workers know that are forked after it: most of it on the last mesh.
                    self._learnt = True
                    task = waiting.pop(max(range(len(waiting)), key=lambda at: waiting[at].mesh))
                    yield task, self._do(task, self._due())
                    continue
            if not self._workers:
                task = waiting.pop(0)
                yield task, self._do(task, self._due())
                continue
            for worker in self._workers:
                if worker.task is None and (given := self._for(worker, waiting)) is not None:
                    waiting.remove(given)
                    self._hand(worker, given)
            yield from self._answers(waiting)

    def _for(self, worker: _Worker, waiting: Sequence[Task]) -> Task | None:
        """The first step for a worker of a mesh of its own or of nobody's; else one that takes little to begin anew."""
        owned = [(task, self._owner.get(task.mesh)) for task in waiting]
        own = [task for task, owner in owned if owner is worker or owner not in self._workers]
        taken = [task for task, owner in owned if task.step == "free" and owner is not None and owner.task is not None]
        return next(iter([*own, *taken]), None)

    def _hand(self, worker: _Worker, task: Task) -> None:
        worker.task, worker.due = task, self._due()
        self._owner[task.mesh] = worker
        with suppress(OSError):  # it has ended, which is seen where answers are waited for
            worker.pipe.send((task, worker.due))

    def _answers(self, waiting: list[Task]) -> Iterator[tuple[Task, Report]]:
        """The reports of those that have answered; steps of workers that were given up wait again."""
        ready = wait([worker.pipe for worker in self._workers if worker.task], timeout=GRACE_SECONDS)
        for worker in list(self._workers):
            task = worker.task
            if task is None or (worker.pipe not in ready and not worker.late):
                continue
            if worker.pipe in ready:
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    self._give_up(worker, waiting, "")
                    continue
                if isinstance(answer, BaseException):
                    raise answer
                worker.task = None
                yield task, answer
            else:
                self._give_up(worker, waiting, f", {GRACE_SECONDS:g} s late")

    def _give_up(self, worker: _Worker, waiting: list[Task], why: str) -> None:
        self._workers.remove(worker)
        worker.end()
        waiting += [worker.task] if worker.task is not None else []
        left = "the others go on" if self._workers else "the search goes on without any"
        self.notes.append(f"a worker process of the search ended {worker.how_it_ended()}{why}; {left}")

    def _fork(self) -> None:
        """Makes the workers."""
        self._forked = True
        fitting = copies_that_fit(self._most)
        if fitting < self._most:
            free = quantity(bytes_left(), "B")
            self.notes.append(f"memory has room for {fitting} of {self._most} worker processes ({free} free)")
        if fitting < 2:
            return
        context = multiprocessing.get_context("fork")
        # JAX and Python warn of forks, as the threads of a process are not in its copy: these do nothing that needs them.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(fitting):
                here, there = context.Pipe()
                others = [here, *(worker.pipe for worker in self._workers)]
                process = context.Process(target=_serve, args=(self._do, there, others), daemon=True)
                try:
                    process.start()
                except (OSError, AssertionError) as error:
                    here.close()
                    there.close()
                    self.notes.append(f"no more than {len(self._workers)} worker processes could be made ({error})")
                    return
                there.close()
                self._workers.append(_Worker(process=process, pipe=here))


def _serve(do: Do, pipe: Connection, others: Sequence[Connection]) -> None:
    """Takes steps and answers with their reports, or with what they raised, until nobody is there to ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that searches ends this one
    for other in others:
        other.close()
    gc.freeze()  # what is here from before is not this process's to collect
    while True:
        try:
            task, due = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer: object = do(task, due)
        except MemoryError:
            return
        except Exception as error:
            answer = error
        try:
            pipe.send(answer)
        except OSError:
            return
