"""Promised and compiled memory compared: the peak within a tenth, and whether it fits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.decision import Decision
from planner.verify.compared_memory import Memory, compare_memory, does_not_fit
from planner.verify.hlo.memory import CompiledMemory

GB = 1e9
V5E_BYTES = 15.75 * 2**30


@cache
def some_decision() -> Decision:
    shape = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    return planner.plan(
        lambda a, b: a @ b, (shape, shape), topology="v5e:2x4", mesh={"x": 8}, options=planner.Options(check="never")
    ).decision


def compared(predicted: float, compiled: float, *, limit: float = V5E_BYTES, platform: str = "tpu") -> Memory:
    """The verdict on a peak of `compiled` bytes where `predicted` were promised."""
    decision = some_decision()
    decision = replace(
        decision,
        predicted=replace(decision.predicted, peak_bytes=predicted),
        request=replace(decision.request, memory_limit=limit),
    )
    p = decision.predicted
    found = CompiledMemory(
        argument_bytes=int(p.argument_bytes),
        output_bytes=int(p.output_bytes),
        alias_bytes=int(p.alias_bytes),
        temp_bytes=0,
        peak_bytes=int(compiled),
    )
    return compare_memory(decision, found, platform)


@pytest.mark.parametrize(
    ("predicted", "compiled", "differs"),
    [
        (10 * GB, 10.9 * GB, False),
        (10 * GB, 9.1 * GB, False),
        (10 * GB, 11.5 * GB, True),
        (10 * GB, 8.5 * GB, True),
        (5e6, 90e6, False),  # small programs: a hundredth of the device
    ],
)
def test_a_peak_that_fits_fails_never_and_differs_from_a_tenth_on(
    predicted: float, compiled: float, differs: bool
) -> None:
    found = compared(predicted, compiled)
    assert (found.ok, found.differs, found.fits) == (True, differs, True)
    assert "does not fit" not in found.reason


def test_a_peak_above_the_limit_fails_and_says_by_how_much() -> None:
    found = compared(13.9 * GB, 14.1 * GB, limit=14 * GB)
    assert (found.ok, found.fits) == (False, False)
    assert found.reason.startswith(
        "it does not fit: peak 14.1 GB compiled, 13.9 GB predicted, 100 MB more than the 14 GB there are"
    )


def test_a_device_has_no_more_than_it_has() -> None:
    found = compared(20 * GB, 20 * GB, limit=1e15)
    assert (found.ok, found.fits) == (False, False)
    assert "more than the 16.9 GB there are" in found.reason


def test_what_the_compiler_refuses_does_not_fit() -> None:
    found = does_not_fit(some_decision(), 20.1 * GB)
    assert (found.ok, found.fits, found.peak[1]) == (False, False, 20.1 * GB)
    assert "3.19 GB more than" in found.reason
    assert does_not_fit(some_decision(), None).fits is None


def test_on_cpu_the_borders_are_compared() -> None:
    """Its peak is not trustworthy."""
    found = compared(10 * GB, 99 * GB, platform="cpu")
    assert (found.ok, found.fits) == (True, None)
