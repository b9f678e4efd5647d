"""Plans keep some memory free where the compiler would else compute values again, and take all of it where they must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.compiler.targets.tpu import TPU
from planner.errors import InfeasibleError
from planner.options import Options
from planner.problem import Session
from planner.variants.memory_limits import room_note, roomy_limit, search_with_room
from tests.sessions import small_session

MESHES = [{"x": 8}]


def session_of(share: float) -> tuple[Session, float]:
    """A session of a chip that has so much more memory than the fastest plan takes, and the bytes of that."""
    session = small_session("mlp")
    free = session.search(MESHES, limit_bytes=1e15, options=Options()).candidates[0].peak_bytes
    return _with_memory(session, share * free), free


def _with_memory(session: Session, size: float) -> Session:
    topology = session.request.topology
    chip = replace(topology.chip, hbm_bytes=int(size))
    request = replace(session.request, topology=replace(topology, chip=chip), memory_limit=size)
    return Session(program=session.program, target=session.target, request=request)


def test_there_is_room_on_tpus_alone() -> None:
    tpu, cpu = small_session("mlp"), small_session("mlp", "cpu:8")
    assert roomy_limit(_with_memory(tpu, 1e9)) == pytest.approx(TPU.room * 1e9)
    assert roomy_limit(_with_memory(cpu, 1e9)) == 1e9


def test_a_lower_limit_of_the_user_stands() -> None:
    session = small_session("mlp")
    assert roomy_limit(session) == min(session.request.memory_limit, 0.95 * session.request.topology.chip.hbm_bytes)
    lower = Session(program=session.program, target=session.target, request=replace(session.request, memory_limit=1e6))
    assert roomy_limit(lower) == 1e6


def test_plans_keep_to_it_and_say_so() -> None:
    session, free = session_of(1.08)
    found, limit = search_with_room(session, MESHES, Options())
    assert limit == roomy_limit(session) < session.request.memory_limit
    assert found.candidates[0].peak_bytes <= limit
    (note,) = room_note(session, limit, free)
    assert "keeps to 95% of the memory" in note
    assert room_note(session, limit, 0.5 * free) == ()


def test_all_of_it_is_taken_where_nothing_else_fits() -> None:
    session = small_session("mlp")
    with pytest.raises(InfeasibleError) as told:
        session.search(MESHES, limit_bytes=1.0, options=Options())
    least = told.value.least_bytes
    assert least is not None
    # The least memory leaves few plans, and the best of them takes long to prove.
    found, limit = search_with_room(_with_memory(session, 1.02 * least), MESHES, Options(gap=0.1))
    assert limit == pytest.approx(1.02 * least)
    assert found.candidates[0].peak_bytes <= limit
    with pytest.raises(InfeasibleError):
        search_with_room(_with_memory(session, 0.5 * least), MESHES, Options())
