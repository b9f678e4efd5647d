"""The memory limit: text with units, and the machine's own memory where nothing else says it."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.errors import ArgumentError, InfeasibleError
from planner.request import resolve

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
NEVER = planner.Options(check="never")


def test_text_has_units() -> None:
    plan = planner.plan(lambda x: x @ x, (X,), topology="v5e:2x2", memory_limit="1.5GiB", options=NEVER)
    assert plan.decision.request.memory_limit == 1.5 * 2**30
    with pytest.raises(ArgumentError, match=re.escape("memory_limit: '3 furlongs' is no size; write a number")):
        planner.plan(lambda x: x @ x, (X,), topology="v5e:2x2", memory_limit="3 furlongs", options=NEVER)


def test_devices_of_the_cpu_share_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "memory_of_host", lambda: 16e9)
    plan = planner.plan(lambda x: x @ x, (X,), options=NEVER)
    assert plan.decision.request.memory_limit == 16e9 / len(jax.devices())
    named = planner.plan(lambda x: x @ x, (X,), topology="cpu:8", options=NEVER)
    assert named.decision.request.memory_limit == named.decision.request.topology.chip.hbm_bytes
    monkeypatch.setattr(resolve, "memory_of_host", lambda: 8e3)
    with pytest.raises(InfeasibleError, match=r"The limit is this machine's memory, 8 kB, over its 8 CPU devices"):
        planner.plan(lambda x: x @ x, (X,), options=NEVER)
