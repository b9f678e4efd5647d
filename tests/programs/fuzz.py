"""Many random programs, each planned, compiled and run in a child process that may die or hang: `make fuzz COUNT=5000`.

What fails shrinks and is printed as Python, to be copied into `test_programs.KNOWN`; Hypothesis keeps it in `.hypothesis`
and tries it first the next time. Each kind of failure shrinks for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest

from tests.programs.check import failure_of, runs_alone
from tests.programs.children import Child, Died, Hung
from tests.programs.drawn import cases
from tests.programs.programs import Case
from tests.programs.targets import TARGETS, failure_for


class Raised(AssertionError):
    """The planner or the compiler refused a program that runs on one device."""


class Numerics(AssertionError):
    """The numbers are not those of one device."""


class Memory(AssertionError):
    """The compiled program's arguments and results are not as large as predicted."""


class Collectives(AssertionError):
    """The compiled program moves more than was predicted."""


KINDS = {"raised": Raised, "numerics": Numerics, "memory": Memory, "collectives": Collectives}
"""An exception for each kind, by which Hypothesis tells failures apart."""


def alone(case: Case) -> bool:
    """Whether a program runs on one device, unplanned."""
    return runs_alone(case[0].function(), case[0].example())


def serving(function: Callable[[Case], Any]) -> Iterator[Child]:
    """A child that answers with what a function says of a case, as long as a fixture lasts."""
    child = Child(function)
    yield child
    child.end()


@pytest.fixture(scope="module")
def planned() -> Iterator[Child]:
    yield from serving(failure_of)


@pytest.fixture(scope="module")
def unplanned() -> Iterator[Child]:
    yield from serving(alone)


@hypothesis.given(cases())
def test_random_programs_in_children(planned: Child, unplanned: Child, case: Case) -> None:
    try:
        wrong = planned.ask(case)
    except (Died, Hung):
        try:
            unplanned.ask(case)
        except (Died, Hung):
            hypothesis.reject()  # what the compiler dies of unplanned is not the planner's fault
        raise
    if wrong is not None:
        raise KINDS[wrong.split(":")[0]](wrong)


def failure_for_any(case: Case) -> str | None:
    """Why a program is not planned for one of the chips that are not here."""
    failures = (f"{topology}: {wrong}" for topology in TARGETS if (wrong := failure_for(case, topology)))
    return next(failures, None)


@pytest.fixture(scope="module")
def planned_elsewhere() -> Iterator[Child]:
    yield from serving(failure_for_any)


@hypothesis.given(cases())
def test_random_programs_for_other_chips(planned_elsewhere: Child, case: Case) -> None:
    wrong = planned_elsewhere.ask(case)
    assert wrong is None, wrong
