"""Dominance of choices, compiled: what `smaller.reductions` finds by whole tables, pair by pair, each as far as need be.

Choice b is at least as good as a where   c[a] - c[b] + sum over edges  min_q (E[a, q] - E[b, q])  >=  0.   An edge adds at
most  min_q E[a, q] - min_q E[b, q],  so most pairs fail at the first few partners.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pbqp.compiled.kernels import Ints, compiled
from pbqp.vectors import Floats

ROUNDING = 1e-12
"""What sums may be off by, as a part of the largest: by so much less than nothing a pair has not failed yet."""


def dominated(unary: Floats, tables: Sequence[Floats]) -> NDArray[np.bool_]:
    """Which choices of a node, with a table (a line per choice) for every edge, are dominated by one that stays."""
    removed = np.zeros(unary.size, dtype=np.bool_)
    if tables:
        lows = np.stack([table.min(axis=1) for table in tables], axis=1)
        order = np.argsort(unary + lows.sum(axis=1), kind="stable")
        ends = np.cumsum([table.shape[1] for table in tables], dtype=np.int64)
        _mark(unary, np.concatenate(tables, axis=1), lows, ends, order, removed)
    return removed


@compiled
def _mark(unary: Floats, lines: Floats, lows: Floats, ends: Ints, order: Ints, removed: NDArray[np.bool_]) -> None:
    """Marks what is dominated; `lines` are the tables beside each other, table i up to column ends[i], of minima `lows`.

    `order` has the choices by their least cost: none dominates one before it, but for ties.
    """
    for x in range(1, order.size):
        a = order[x]
        mine = lines[a]
        for y in range(x):
            b = order[y]
            if removed[b]:
                continue
            other = lines[b]
            margin = unary[a] - unary[b]
            hope, size = margin, abs(margin)
            for i in range(ends.size):
                hope += lows[a, i] - lows[b, i]
                size += abs(lows[a, i]) + abs(lows[b, i])
            start = 0
            for i in range(ends.size):
                fails = lows[a, i] - lows[b, i] - hope - ROUNDING * size
                least = np.inf
                for q in range(start, ends[i]):
                    if other[q] < np.inf:
                        least = min(least, mine[q] - other[q])
                    elif mine[q] < np.inf:
                        least = -np.inf
                    if least < fails:
                        break
                start = ends[i]
                margin += least
                if least < fails or least == -np.inf:
                    margin = -np.inf
                    break
                hope += least - (lows[a, i] - lows[b, i])
            if margin >= 0.0:
                removed[a] = True
                break
