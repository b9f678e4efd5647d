"""The bound raised in a thread of its own: prices first, and where they are at rest branches.

Whatever it decodes is proposed to the search for good choices, which tells it the value from which on nothing is of
interest.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import final

from pbqp.compiled.branching import Tree
from pbqp.compiled.kernels import Ints
from pbqp.compiled.multiplicative_weights import Dual
from pbqp.deadline import Deadline

PROPOSALS = 40
"""How many of the latest choices wait to be fused."""
LOOK, PAYS = 100, 0.005
"""Steps between two looks at the bound, and what part of the gap so many must close for others to follow."""


@final
class Rising:
    """A dual that goes on rising, and the tree that grows from it. `value`: what costs as much is of no interest."""

    def __init__(self, dual: Dual) -> None:
        self.dual = dual
        self.value = math.inf
        self.proposals: deque[Ints] = deque(maxlen=PROPOSALS)
        self._found: tuple[float, Ints] | None = None
        self._tree: Tree | None = None

    @property
    def bound(self) -> float:
        """What every choice costs at the least that costs less than `value`; that where there is none."""
        return self.dual.bound if self._tree is None else max(self.dual.bound, self._tree.bound)

    def found(self) -> Ints | None:
        """A choice within the rows that was cheaper than `value`, if one was met since this was last asked."""
        found, self._found = self._found, None
        return None if found is None else found[1]

    def offer(self, pick: Ints) -> None:
        """Proposes a choice."""
        self.proposals.append(pick)
        arrays, found = self.dual.arrays, self._found
        value = self.dual.value(pick)
        if value < (self.value if found is None else found[0]) and arrays.over(pick).max(initial=0.0) <= 0:
            self._found = value, pick

    @contextmanager
    def beside(self, until: Deadline) -> Generator[None]:
        """Rises while the body runs."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            rise = pool.submit(self._rise, until, stop)
            try:
                yield
            finally:
                stop.set()
        rise.result()

    def _rise(self, until: Deadline, stop: threading.Event) -> None:
        mark, rests = -math.inf, False
        while not stop.is_set() and not until.passed:
            tree, value = self._tree, self.value
            if tree is not None and tree.grows:
                tree.grow(value, until)
            elif tree is None and rests:
                self._tree = Tree(self.dual, value, until, self.offer)
            else:
                over = self.dual.step()
                if over.max(initial=0.0) <= 0:
                    self.offer(self.dual.pick)
                else:
                    self.proposals.append(self.dual.pick)
                if self.dual.steps % LOOK == 0:
                    bound = self.dual.bound
                    rests = bound - mark < PAYS * (min(value, bound + abs(bound)) - bound)
                    mark = bound
