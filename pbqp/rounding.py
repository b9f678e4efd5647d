"""What floats lose: by how much a computed lower bound may lie above what can be reached.

Every bound is made of sums, differences and minima of costs. Rounding is monotone, and a minimum is at most what it says of
the optimal choice x. So only the rounding of x's own terms counts, none of them larger than the size A of x's costs:

    A  =  |bound| + 3 N        N: by how much costs lie below zero, summed over nodes and edges

With u = 2**-53 a sum of k terms of at most A is off by k u A. Reductions and elimination add each of the K costs of x
once: K u A. A sweep of messages adds, at a node of degree d, d + 1 terms, and four numbers for each message it sends: over
all nodes ten times the edges and once the nodes, and K more for the bound. `STEPS` K u A is above all of these.
Reference: Higham, "Accuracy and stability of numerical algorithms" (2002), chapter 4.

Where all costs are whole and their sums small, floats represent every sum and difference of them: reductions and
elimination lose nothing, and every other bound, less its error, is rounded up to a whole number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from pbqp.identity import numbered
from pbqp.vectors import Floats

UNIT = 2.0**-53
"""The largest relative error of one rounding."""
STEPS = 16
"""Additions per cost of a choice, in sweeps of messages the most."""
EXACT = 2.0**51
"""Whole costs whose absolute values add up to less are exact, and so are differences of their sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Of some tables of costs: how many there are, by how much they lie below zero, their sizes, and whether all are whole.

    Infinite costs are left out; what `negative` and `size` add up is the most that each table has.
    """

    terms: int
    negative: float
    size: float
    whole: bool

    @staticmethod
    def of(costs: Iterable[Floats]) -> Extent:
        """That of these tables, of which some may be one and the same."""
        tables, table_of = numbered(costs)
        finite = [table[np.isfinite(table)] for table in tables]
        lows = [max(-float(table.min(initial=0.0)), 0.0) for table in finite]
        sizes = [float(np.abs(table).max(initial=0.0)) for table in finite]
        return Extent(
            terms=len(table_of),
            negative=math.fsum(lows[table] for table in table_of),
            size=math.fsum(sizes[table] for table in table_of),
            whole=all(bool((np.trunc(table) == table).all()) for table in finite),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Of a problem: `terms`, the number of costs that a choice adds up, and by how much those lie below zero (`negative`).

    `whole`: floats represent every sum of costs.
    """

    terms: int
    negative: float
    whole: bool

    @staticmethod
    def of(nodes: Extent, edges: Extent) -> Rounding:
        """That of the costs of nodes and edges."""
        return Rounding(
            terms=nodes.terms + edges.terms,
            negative=nodes.negative + edges.negative,
            whole=nodes.whole and edges.whole and nodes.size + edges.size < EXACT,
        )

    def priced(self, amount: float, rows: int) -> Rounding:
        """The same with prices of so many rows, which change the cost of a choice by `amount` at most."""
        return replace(self, terms=self.terms + rows, negative=self.negative + amount, whole=False)

    def error(self, bound: float) -> float:
        """By how much a bound may be too high, in costs."""
        return STEPS * UNIT * self.terms * (abs(bound) + 3 * self.negative) if math.isfinite(bound) else 0.0

    def reached(self, bound: float) -> float:
        """The least cost that any choice can have if each costs at least `bound`."""
        if self.negative == 0:
            bound = max(bound, 0.0)
        return float(math.ceil(bound)) if self.whole and math.isfinite(bound) else bound
