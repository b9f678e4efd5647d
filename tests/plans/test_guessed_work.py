"""Work that nobody knows keeps a certificate from saying "optimal" of the time: it says what share is guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner

NEVER = planner.Options(check="never")
X = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)


def mystery(x: Any) -> Any:
    return jax.ffi.ffi_call("somebodys_kernel", X)(x)


def planned(fn: Any, **more: Any) -> planner.Plan:
    return planner.plan(fn, (X,), topology="v5e:2x2", mesh={"x": 4}, options=NEVER, **more)


def test_a_plan_whose_work_is_all_known_is_optimal() -> None:
    certificate = planned(lambda x: jnp.tanh(x @ x)).certificate
    assert certificate.status == "optimal"
    assert certificate.guessed_share is None


def test_a_certificate_says_what_share_of_the_work_is_guessed() -> None:
    plan = planned(lambda x: jnp.tanh(mystery(x) @ x))
    certificate, moved = plan.certificate, plan.predicted.traffic_bytes
    assert certificate.guessed_share == pytest.approx(2 * 8192 * 8192 * 4 / moved)
    words = f"optimal by a cost model that guesses {100 * certificate.guessed_share:.0f} % of the work"
    assert certificate.status == words
    assert certificate.proven == "optimal"
    assert words in str(plan)
    assert words in repr(plan)
    assert any("somebodys_kernel" in note or "ffi_call" in note for note in plan.notes)


def test_a_guess_that_moves_little_is_told_all_the_same() -> None:
    def fn(x: Any) -> Any:
        small = jax.ffi.ffi_call("somebodys_kernel", jax.ShapeDtypeStruct((), jnp.float32))(x[0, 0])
        return x @ x + small

    assert "guesses less than 1 % of the work" in planned(fn).certificate.status


def test_the_memory_of_a_plan_is_no_matter_of_guessed_work() -> None:
    assert planned(mystery, objective="memory").certificate.guessed_share is None


def test_the_share_is_kept_in_files_and_files_of_earlier_planners_are_read(tmp_path: Path) -> None:
    plan, path = planned(lambda x: mystery(x) @ x), tmp_path / "plan.json"
    plan.save(path)
    assert planner.load(path).decision.certificate == plan.certificate
    record = json.loads(path.read_text())
    del record["certificate"]["guessed_share"]
    path.write_text(json.dumps(record))
    assert planner.load(path).decision.certificate.guessed_share is None


def test_several_programs_say_what_share_of_all_their_calls_is_guessed() -> None:
    programs = planner.plan_many(
        {"known": (lambda w: w @ w, (X,), {}), "guessed": (lambda w: mystery(w) @ w, (X,), {})},
        topology="v5e:2x2",
        mesh={"x": 4},
        options=NEVER,
    )
    one = programs["guessed"].certificate.guessed_share
    together = programs.certificate.guessed_share
    assert one is not None
    assert together is not None
    assert 0 < together < one
