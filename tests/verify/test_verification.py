"""Only a compile can make a plan one that does not compile: a fault of our own readers is raised."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.emit.runner import Runner
from planner.errors import CompileError
from planner.verify import aot, compiled, verification
from tests.small import NEVER, mlp, mlp_args


def broken(*_: Any, **__: Any) -> Any:
    raise KeyError("a bug in a reader")


def refused(*_: Any, **__: Any) -> Any:
    raise CompileError("lowering failed")


@pytest.mark.parametrize("reader", ["read_collectives", "memory_of", "schedule_of", "compare_memory"])
def test_a_fault_of_a_reader_is_no_fault_of_the_plan(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planner.plan(mlp, mlp_args(), mesh={"x": 8}, options=NEVER)
    monkeypatch.setattr(verification, reader, broken)
    with pytest.raises(KeyError, match="a bug in a reader"):
        plan.verify(*mlp_args())


def test_a_program_that_jax_does_not_compile_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planner.plan(mlp, mlp_args(), mesh={"x": 8}, options=NEVER)
    monkeypatch.setattr(Runner, "executable", property(broken))
    found = plan.verify(*mlp_args())
    assert found.collectives.ok is False
    assert found.collectives.reason == "the plan does not compile: KeyError: 'a bug in a reader'"


@pytest.mark.skipif(bool(aot.unavailable_reason("tpu")), reason="libtpu is not installed")
def test_the_same_holds_of_what_a_child_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    args = [jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)] * 2
    plan = planner.plan(jnp.matmul, args, topology="v5e:2x2", mesh={"x": 4}, options=NEVER)
    with monkeypatch.context() as patch:
        patch.setattr(aot, "read_collectives", broken)
        with pytest.raises(KeyError, match="a bug in a reader"):
            plan.verify()
    monkeypatch.setattr(compiled, "aot_compile", refused)
    assert plan.verify().collectives.reason == "the plan does not compile: CompileError: lowering failed"


def test_an_audit_raises_faults_of_readers_and_tells_those_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def audited() -> str:
        return str(planner.audit(mlp, mlp_args(), in_shardings=(None, P("x")), mesh={"x": 8}))

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "read_collectives", broken)
        with pytest.raises(KeyError, match="a bug in a reader"):
            audited()
    monkeypatch.setattr(compiled, "_compiled", broken)
    assert "a bug in a reader" in audited()
