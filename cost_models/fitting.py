"""Fitting: a straight line with a latency and a rate, neither negative, through timings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.profile import Fit


def fit_line(units: Sequence[float], seconds: Sequence[float]) -> Fit:
    """The latency a >= 0 and slope b >= 0 that minimise the sum of ((a + b units - seconds) / seconds)^2.

    Relative errors, since timings span decades. With two unknowns the optimum is the free one, or else the better of
    the two with one unknown at 0 (Lawson & Hanson, Solving Least Squares Problems, chapter 23).
    """
    x = np.asarray(units, dtype=np.float64) / np.asarray(seconds, dtype=np.float64)
    one = 1 / np.asarray(seconds, dtype=np.float64)
    candidates: list[tuple[float, float]] = [
        (0.0, float(x.sum() / (x @ x)) if x.any() else 0.0),
        (float(one.sum() / (one @ one)), 0.0),
    ]
    free, *_ = np.linalg.lstsq(np.stack([one, x], axis=1), np.ones_like(x), rcond=None)
    if len(x) > 1 and free.min() >= 0:
        candidates = [(float(free[0]), float(free[1]))]

    def error(line: tuple[float, float]) -> float:
        return float(np.sqrt(np.mean((line[0] * one + line[1] * x - 1) ** 2)))

    latency_s, seconds_per_unit = min(candidates, key=error)
    return Fit(latency_s=latency_s, seconds_per_unit=seconds_per_unit, residual=error((latency_s, seconds_per_unit)))
