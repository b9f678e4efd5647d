"""Memory of complex arguments and results, and of Fourier transforms of real numbers, on TPUs."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import planner
from cost_models import CHIPS
from planner import Options
from planner.compiler.targets.table import compiler_of

ROWS, LENGTH = 2**17, 1024
APART = compiler_of(CHIPS["v5e"]).runs("separate-results")
Fn = Callable[[jax.Array], jax.Array]


def peak(fn: Fn, length: int, dtype: str) -> float:
    """The peak on one device, in arrays of real numbers."""
    x = jax.ShapeDtypeStruct((ROWS, length), dtype)
    plan = planner.plan(fn, (x,), topology="v5e:1x1", options=Options(check="never"))
    return plan.predicted.peak_bytes / (4 * ROWS * length)


@pytest.mark.parametrize(
    ("fn", "length", "dtype", "expected"),
    [
        # The argument, the result, and the parts of both.
        (jnp.fft.fft, LENGTH, "complex64", 8.0),
        # The argument, the spectrum, the result, and what a transform in steps holds.
        (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2), LENGTH, "float32", 5.5),
        (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * 2), 256, "float32", 4.5),
        # Neither complex arguments nor results: the spectrum is its parts. New compilers keep the result's memory apart.
        (lambda x: jnp.abs(jnp.fft.fft(x.astype("complex64"))), LENGTH, "float32", 6.0 if APART else 5.0),
    ],
)
def test_the_peak_has_both_parts_of_complex_numbers(fn: Fn, length: int, dtype: str, expected: float) -> None:
    assert peak(fn, length, dtype) == pytest.approx(expected, rel=0.02)
