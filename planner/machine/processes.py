"""Processes: those that own the devices of a plan come to one answer at every step that could part them.

A program over the devices of several processes is run by all of them at once, so they must have the same plan, and what
one finds of it (it does not compile, it computes wrong numbers) must be known to all. They meet in *rounds*. In a round
every process does some work and gives its answer, and all get all answers; where the work of one fails, the round fails on
all. Rounds are counted by the store that the processes share, so they stay in step whatever failed before.

The store is that of `jax.distributed`: unlike a collective on the devices it needs none but the processes concerned, and
waits for a long search as well as for a short one. A process that dies is noticed by jax's own heartbeats.

Processes that own all devices of their plan are alone: their rounds take no part of anything.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import jax
from jax._src import distributed  # the store has no public name

from planner import errors
from planner.errors import InfeasibleError, MeshError, Offer, PlannerError, ProcessError

ARRIVAL_S = 600.0
"""How long a process waits for the others to come to the first round of a call."""
_LOG = logging.getLogger("planner")
POLL_MS = 5000
"""After so long a wait is interrupted, so that a keyboard interrupt is seen."""

T = TypeVar("T")

Answer = Any
"""What a process gives in a round: anything that JSON can tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The processes that own the devices of a plan, lowest first, seen from one of them (`me`)."""

    members: tuple[int, ...]
    me: int
    store: Any = None

    @property
    def alone(self) -> bool:
        """Whether there is nobody to agree with."""
        return len(self.members) == 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that decides."""
        return self.me == self.members[0]

    def gathered(self, work: Callable[[], Answer], *, first: bool = False) -> tuple[Answer, ...]:
        """One round: the answers of all, in the order of `members`, each what `work` gave there.

        `first`: the others may not have come to this call at all, so they are waited for no longer than `ARRIVAL_S`.

        Raises: what `work` raises, here or on another process; ProcessError where one does not come, or is lost.
        """
        if self.alone:
            return (work(),)
        limit_s = ARRIVAL_S if first else None
        root = f"meshwright/{hashlib.sha256(repr(self.members).encode()).hexdigest()[:16]}"
        number = int(self.store.key_value_increment(f"{root}/rounds/{self.me}", 1))
        place = f"{root}/{number}"
        try:
            mine = {"answer": work()}
            if self.leads:
                outcome = {"answers": [mine["answer"], *self._answers(place, limit_s)]}
            else:
                self._put(f"{place}/{self.me}", mine)
                outcome = self._get(f"{place}/all", self.members[0], limit_s)
        except BaseException as error:
            # Whoever waits for this process, or comes later, must not wait for ever.
            self._put(f"{place}/{'all' if self.leads else self.me}", {"failed": _failure(error, self.me)})
            raise
        if self.leads:
            self._put(f"{place}/all", outcome)
            # All have come to this round, so all have read the last one.
            self.store.key_value_delete(f"{root}/{number - 1}/")
        _raise_failure(outcome)
        return tuple(outcome["answers"])

    def decided(self, work: Callable[[], Answer]) -> Answer:
        """One round in which only the leading process works, and all get its answer."""
        return self.gathered(lambda: work() if self.leads else None)[0]

    def same(self, work: Callable[[], T], question: Callable[[T], Mapping[str, str]], call: str) -> T:
        """What `work` gives, where all processes ask the same `question` by it.

        Raises: what `work` raises, here or on another process; ProcessError that names what differs, on all.
        """
        if self.alone:
            return work()
        done: list[T] = []

        def own_question() -> dict[str, str]:
            done.append(work())
            return dict(question(done[0]))

        first, *others = self.gathered(own_question, first=True)
        for member, other in zip(self.members[1:], others, strict=True):
            name = next((name for name in first if other.get(name) != first[name]), None)
            if name is not None:
                raise ProcessError(
                    f"process {self.members[0]} and process {member} call {call} for different things: {name} is "
                    f"{first[name][:300]} on the one and {other.get(name, '')[:300]} on the other; give all the same"
                )
        return done[0]

    def _answers(self, place: str, limit_s: float | None) -> list[Answer]:
        """The answers of the others. Raises: the failure of one of them."""
        found: list[Answer] = []
        for member in self.members[1:]:
            other = self._get(f"{place}/{member}", member, limit_s)
            _raise_failure(other)
            found.append(other["answer"])
        return found

    def _put(self, key: str, value: Mapping[str, Any]) -> None:
        self.store.key_value_set_bytes(key, zlib.compress(json.dumps(value).encode()), allow_overwrite=True)

    def _get(self, key: str, member: int, limit_s: float | None) -> dict[str, Any]:
        """What is at a key, once it is there; `member` is who puts it there. Raises: ProcessError."""
        waited_ms, poll_ms = 0, POLL_MS if limit_s is None else min(POLL_MS, int(1000 * limit_s))
        while True:
            try:
                return json.loads(zlib.decompress(self.store.blocking_key_value_get_bytes(key, poll_ms)))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise ProcessError(f"process {member} was lost: {error}; start all processes again") from error
            waited_ms += poll_ms
            if limit_s is not None:
                _LOG.warning("waiting for process %d, %g of %g s", member, waited_ms / 1000, limit_s)
            if limit_s is not None and waited_ms >= 1000 * limit_s:
                raise ProcessError(
                    f"process {member} owns some of the devices, but did not come to this call within {limit_s:g} s; "
                    "make the same calls on all processes that own a device of the plan, or give "
                    "devices=jax.local_devices() for a plan of this process alone"
                )


def processes_of(devices: Sequence[jax.Device] | None) -> Processes:
    """The processes that own these devices; this one alone where there are none.

    Raises: MeshError where none of them is of this process, or the processes cannot reach each other.
    """
    if not devices or jax.process_count() == 1:
        return Processes(members=(0,), me=0)
    me, members = jax.process_index(), tuple(sorted({device.process_index for device in devices}))
    if members == (me,):
        return Processes(members=members, me=me)
    if me not in members:
        raise MeshError(
            f"the devices belong to {text_of(members)}, and none of them to this process, {me}; make the call on those "
            "processes only, or give devices of every process that makes it"
        )
    store = distributed.global_state.client
    if store is None:
        raise MeshError(
            f"the devices belong to {text_of(members)}, which cannot agree on a plan before jax.distributed.initialize() "
            "was called on each; call it first"
        )
    return Processes(members=members, me=me, store=store)


def text_of(members: Sequence[int]) -> str:
    """Processes in words: "process 1", "the processes 0, 1"."""
    return f"process {members[0]}" if len(members) == 1 else f"the processes {', '.join(map(str, members))}"


def _failure(error: BaseException, process: int) -> dict[str, Any]:
    """An error in words, for `_raise_failure` on other processes."""
    more: dict[str, Any] = {}
    if isinstance(error, InfeasibleError):
        offers = [asdict(offer) for offer in error.offers]
        more = {"least_bytes": error.least_bytes, "conflict": error.conflict, "offers": offers}
    return {"process": process, "error": type(error).__name__, "message": str(error), "more": more}


def _raise_failure(outcome: Mapping[str, Any]) -> None:
    """Raises: the failure of another process, as an error of its own class where that is one of the planner's."""
    if "failed" not in outcome:
        return
    failed = outcome["failed"]
    kind: Any = getattr(errors, failed["error"], None)
    if kind is InfeasibleError:
        more = failed["more"]
        raise InfeasibleError(
            failed["message"],
            least_bytes=more["least_bytes"],
            conflict=tuple(more["conflict"]),
            offers=tuple(Offer(**offer) for offer in more["offers"]),
        ) from None
    if isinstance(kind, type) and issubclass(kind, PlannerError):
        # One that was passed on already names its process.
        passed = kind is ProcessError or failed["message"].startswith("on process ")
        raise kind(failed["message"] if passed else f"on process {failed['process']}: {failed['message']}")
    raise ProcessError(
        f"process {failed['process']} failed with {failed['error']}: {failed['message']}; all processes that plan with "
        "it stop"
    )
