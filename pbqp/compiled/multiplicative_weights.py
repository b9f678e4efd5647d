"""Prices of many memory rows: multiplicative weights, with the bound and the choices that come with them.

    L(price)  =  min over x   cost(x) + sum over rows   price[r] (usage_r(x) - limit[r]) / unit[r]      for price >= 0

bounds every choice within the rows. One step is one sweep of messages, whose bound holds at any time, and a choice
decoded from them; then each price is multiplied by exp(step * overuse of its row). Of twenty thousand rows most are
slack; multiplied prices find the few that matter at once, where steps along the gradient pay for all alike. After
some steps without a better bound the prices return to the best ones, and the steps are shorter; once they are too short
to matter, they are long again, and go on from where they are.
References: Arora, Hazan and Kale, "The multiplicative weights update method", Theory of Computing 8 (2012), and
Kolmogorov (2006) for the messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from pbqp.compiled.arrays import Arrays
from pbqp.compiled.kernels import Floats, Ints, Mail, Net, cost_of, decode, priced, sweep

STEP, SHORTEST = 0.15, 2e-4
"""The longest and the shortest step, in logarithms of the price of a row of average overuse."""
FOLLOWING = 0.05
"""The first step of a dual that goes on from another."""
LONGER, SHORTER = 1.05, 0.6
"""What a better bound, and a return to the best prices, do to the step."""
PATIENCE = 5
"""Steps without a better bound before the return."""
BETTER = 1e-5
"""Rise of the bound that counts, as a part of it."""
FIRST = 0.1
"""Sum of the first prices, in the bound without prices."""
FLOOR = 30.0
"""Logarithm of the largest price over the least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slack:
    """Costs as a bound and slack of nodes and edges, none of it below zero.

    `unary` is that of every choice, `shares` what a choice pays for each edge to a node before it.
    """

    bound: float
    unary: Floats
    shares: Floats
    net: Net
    mail: Mail

    def table(self, edge: int) -> Floats:
        """The slack of an edge, a line per choice of its first end."""
        net, mail = self.net, self.mail
        m, n = int(net.first[edge]), int(net.second[edge])
        lines, columns = int(net.size[m]), int(net.size[n])
        start, forward, back = int(net.table_at[edge]), int(mail.forward_at[edge]), int(mail.backward_at[edge])
        share = self.shares[net.offset[n] : net.offset[n] + columns]
        costs = net.tables[start : start + lines * columns].reshape(lines, columns)
        ends = share - mail.forward[forward : forward + columns]
        table = costs + ends - mail.backward[back : back + lines, None]
        return table - table.min()


@final
class Dual:
    """Messages and prices of a network. `prices` (per unit of each row) are those of `bound`, the best so far."""

    def __init__(self, arrays: Arrays, prices: Floats | None = None) -> None:
        """With `prices`, none of them below zero, it starts from there."""
        self.arrays = arrays
        net = arrays.net
        forward, backward = net.size[net.second], net.size[net.first]
        self._mail = Mail(
            forward_at=np.cumsum(forward) - forward,
            backward_at=np.cumsum(backward) - backward,
            forward=np.zeros(int(forward.sum())),
            backward=np.zeros(int(backward.sum())),
        )
        self._logs: Floats | None = None
        self._now = np.zeros(arrays.limits.size)
        if prices is not None and prices.any():
            self._logs = np.log(np.maximum(prices, prices.max() * math.exp(-FLOOR)))
            self._now = np.exp(self._logs)
        self.paid = np.zeros(net.unary.size)
        """What every choice pays for its memory, at the prices of the last sweep."""
        self.bounds = np.zeros(net.unary.size)
        """Of every choice, what holds it costs at the least, by the last sweep."""
        self.floors = np.full(net.unary.size, -math.inf)
        """The same by all sweeps so far."""
        self._step, self._stale = STEP, 0
        self._held = False
        self.steps = 0
        self.bound = self._last = -math.inf
        self.prices = self._now
        self.pick: Ints = np.zeros(net.size.size, dtype=np.int64)

    @staticmethod
    def following(other: Dual, arrays: Arrays, kept: NDArray[np.bool_] | None = None) -> Dual:
        """One that goes on from the messages and the best prices of another, on a network with fewer choices possible.

        `kept` are the choices of the other that are still there, where they are not merely forbidden.
        """
        dual = Dual(arrays, other.prices)
        dual._step = FOLLOWING
        forward, backward = other._mail.forward, other._mail.backward
        if kept is not None:
            net = other.arrays.net
            forward = forward[_per_edge(kept, net, net.second)]
            backward = backward[_per_edge(kept, net, net.first)]
            dual.floors[:] = other.floors[kept]
        dual._mail.forward[:], dual._mail.backward[:] = forward, backward
        return dual

    def possible(self, value: float) -> NDArray[np.bool_]:
        """Which choices may be part of something that costs no more than `value`: their bounds do not rule them out."""
        return self.floors <= value

    def per_choice(self, prices: Floats, out: Floats) -> Floats:
        """What every choice pays at these prices, written into `out`."""
        a = self.arrays
        sums = np.concatenate([[0.0], np.cumsum(prices / a.units)])
        priced(a.net, a.uses, sums, out)
        return out

    def hold(self, prices: Floats) -> None:
        """Stays at these prices from now on; only the messages move."""
        self._now, self._held = prices, True

    def step(self) -> Floats:
        """One sweep; the overuse of every row, in units, by the choice `pick` that it led to. Moves the prices."""
        a = self.arrays
        net = a.net._replace(unary=a.net.unary + self.per_choice(self._now, self.paid))
        rest = a.constant - float(self._now @ (a.limits / a.units))
        swept = sweep(net, a.transposed, self._mail, self.bounds)
        amount = float(
            self._now @ np.abs(a.limits / a.units) + np.maximum.reduceat(np.abs(self.paid), net.offset).sum()
        )
        rest -= a.lost + a.rounding.priced(amount, self._now.size).error(swept + a.constant)
        lower = swept + rest
        self.bounds += rest
        self._last = lower
        np.maximum(self.floors, self.bounds, out=self.floors)
        pick = self.pick.copy()
        decode(net, self._mail, pick)
        over = a.over(pick) / a.units
        self.steps += 1
        self.pick = pick
        if lower > self.bound + BETTER * abs(self.bound) or not math.isfinite(self.bound):
            self._step, self._stale = min(STEP, self._step * LONGER), 0
        else:
            self._stale += 1
        if lower > self.bound:
            self.bound, self.prices = lower, self._now
        if not self._held:
            self._move(over)
        return over

    def _move(self, over: Floats) -> None:
        """New prices from the overuse at the present ones."""
        logs = self._logs
        if logs is None:
            if over.size == 0 or over.max() <= 0:
                return
            weights = np.exp(np.clip(5 * (over - over.max()), -50, 0))
            total = FIRST * max(abs(self.bound), _extent(self.arrays.net.unary), 1e-300)
            logs = np.log(np.maximum(weights / weights.sum(), 1e-6 / over.size) * total)
        else:
            if self._stale > PATIENCE:
                self._step, self._stale = self._step * SHORTER, 0
                if self._step < SHORTEST:
                    self._step = STEP
                elif self.prices.max() > 0:
                    logs = np.log(np.maximum(self.prices, self.prices.max() * math.exp(-FLOOR)))
            weights = np.exp(logs - logs.max())
            typical = math.sqrt(float((weights * over * over).sum() / weights.sum()))
            logs = logs + self._step * np.clip(over / max(typical, 1e-9), -3, 3)
            logs = np.maximum(logs, logs.max() - FLOOR)
        self._logs, self._now = logs, np.exp(logs)

    def carried(self, arrays: Arrays) -> Dual:
        """One that goes on with these messages on what is left of the network (`arrays`), where there are no prices."""
        old, twin = self.arrays, Dual(arrays)
        twin.bound = self.bound
        place = {name: i for i, name in enumerate(old.names.tolist())}
        names = arrays.names.tolist()
        left = [np.searchsorted(old.labels[place[n]], own) for n, own in zip(names, arrays.labels, strict=True)]
        ends = zip(old.net.first.tolist(), old.net.second.tolist(), strict=True)
        edges = {pair: edge for edge, pair in enumerate(ends)}
        for new, (m, n) in enumerate(zip(arrays.net.first.tolist(), arrays.net.second.tolist(), strict=True)):
            edge = edges.get((place[names[m]], place[names[n]]))
            if edge is None:
                continue
            pairs = (
                (twin._mail.forward_at, twin._mail.forward, self._mail.forward_at, self._mail.forward, left[n]),
                (twin._mail.backward_at, twin._mail.backward, self._mail.backward_at, self._mail.backward, left[m]),
            )
            for to, new_values, at, values, positions in pairs:
                start = int(to[new])
                new_values[start : start + positions.size] = values[at[edge] + positions]
        return twin

    def slack(self) -> Slack:
        """What the last messages leave of all costs beside their bound, where there are no prices."""
        net, mail = self.arrays.net, self._mail
        total = net.unary.copy()
        sizes, offsets = net.size.tolist(), net.offset.tolist()
        ends = zip(
            net.first.tolist(), net.second.tolist(), mail.forward_at.tolist(), mail.backward_at.tolist(), strict=True
        )
        for m, n, forward, back in ends:
            total[offsets[m] : offsets[m] + sizes[m]] += mail.backward[back : back + sizes[m]]
            total[offsets[n] : offsets[n] + sizes[n]] += mail.forward[forward : forward + sizes[n]]
        total -= np.repeat(np.minimum.reduceat(total, net.offset), net.size)
        incoming = np.bincount(net.second, minlength=net.size.size)
        most = np.maximum(np.maximum(incoming, np.bincount(net.first, minlength=net.size.size)), 1)
        return Slack(
            bound=self._last,
            unary=total * np.repeat(1.0 - incoming / most, net.size),
            shares=total * np.repeat(1.0 / most, net.size),
            net=net,
            mail=mail,
        )

    def value(self, pick: Ints) -> float:
        """Cost of a choice; forbidden pairs count as dear ones."""
        a = self.arrays
        return a.constant + cost_of(a.net, pick)


def _extent(costs: Floats) -> float:
    """The largest less the least of the costs that are finite."""
    finite = costs[np.isfinite(costs)]
    return float(np.ptp(finite)) if finite.size else 0.0


def _per_edge(of: NDArray[np.bool_], net: Net, ends: Ints) -> NDArray[np.bool_]:
    """What is told of every choice, for the choices of one end of every edge."""
    sizes = net.size[ends]
    return of[np.repeat(net.offset[ends] - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))]
