"""Questions that end the process which is to answer them, or that it never answers, are failures that shrink."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.programs.children import Child, Died, Hung


def answer(question: Any) -> Any:
    if isinstance(question, int) and question > 10:
        print("more than ten is too much", file=sys.stderr, flush=True)
        os.abort()
    if question == "sleep":
        time.sleep(1000)
    return os.getpid() if question == "who" else question


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(answer, chunk=3)
    yield made
    made.end()


def test_a_process_answers_until_its_chunk_is_done(child: Child) -> None:
    first, *rest = [child.ask("who") for _ in range(4)]
    assert rest[:2] == [first, first]
    assert rest[2] not in (first, os.getpid())


def test_a_death_is_told_with_its_last_words_and_the_next_question_answered(child: Child) -> None:
    with pytest.raises(Died, match=r"signal SIGABRT: .*more than ten is too much"):
        child.ask(11)
    assert child.ask(10) == 10


def test_what_is_not_answered_in_time_is_ended() -> None:
    child = Child(answer, patience=0.5)
    with pytest.raises(Hung, match=r"no answer within 0\.5 seconds"):
        child.ask("sleep")
    child.end()


def test_a_death_shrinks() -> None:
    child = Child(answer)

    def dies(question: int) -> bool:
        try:
            child.ask(question)
        except Died:
            return True
        return False

    found = hypothesis.find(st.integers(0, 15), dies)
    child.end()
    assert found == 11
