"""Classes: nodes of a pairwise problem that stand in the same place, so that one decision can serve all of them.

Colours are refined (Weisfeiler and Leman 1968): nodes of equal costs have one colour, and whenever two nodes of a colour
see other tables or other colours over their edges, they get different ones. Where that comes to rest, all members of a
class see the same. Let the classes of one member be taken out (what all layers share: the residual stream, the mask, the
step counter); if the rest falls apart into components with at most one member of each class, the components that share a
class are copies of one another, each met by the same nodes outside in the same way. Whatever those choose, the copies then
have one and the same optimum, so that one decision for all members loses nothing: such classes are `lossless`.

Where refining does not come to rest, as in a chain of layers that each differ from the next by their distance from the
ends, the colours after `HOPS` rounds are kept: members see the same within that many hops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pbqp.vectors import Indices, components

Hashes = npt.NDArray[np.uint64]

HOPS = 12
"""Hops of context that members of a class have in common where refining does not come to rest."""
MOST_ROUNDS = 40
"""Rounds of refining after which it is taken not to come to rest."""
SHARING_PAYS = 0.75
"""One decision per class is worth it where there are at most this many classes per node."""
MOST_SPLITS = 8
"""How often copies within a component are told apart by their order."""
GOLDEN = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, an odd constant of SplitMix64 (Steele, Lea and Flood 2014), which mixes the colours."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classes:
    """`of[n]` is the class of node n, `first[c]` the first member of class c and `sizes[c]` how many it has.

    `copy[n]` numbers the members of a class, equally for all nodes of one copy where classes are `lossless`: then one
    decision per class has the optimum of one decision per node.
    """

    of: Indices
    first: Indices
    sizes: Indices
    copy: Indices
    lossless: bool

    @property
    def count(self) -> int:
        """Number of classes."""
        return int(self.first.size)

    def lift(self, choice: Sequence[int] | Indices) -> Indices:
        """The choice of every node from one per class."""
        return np.asarray(choice, np.intp)[self.of]

    def divided(self, parts: int) -> Classes:
        """Finer classes: every class in up to `parts` of about equal size, neighbouring copies together."""
        part = self.copy * parts // self.sizes[self.of]
        return _classes(_numbered(self.of, part), np.zeros_like(self.of), lossless=self.lossless)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """The edges of a problem: edge i joins `sources[i]` to `targets[i]` by a table of kind `kinds[i]` (0 up)."""

    sources: Indices
    targets: Indices
    kinds: Indices


def classify(colors: Indices, links: Links) -> Classes:
    """The classes of nodes that start with these colours (0 up, equal for nodes of equal costs)."""
    coarse = found = _settled(colors, links)
    if coarse is None or found is None:
        return _classes(_refined(colors, links, HOPS)[0], np.zeros_like(colors), lossless=False)
    for _ in range(MOST_SPLITS):
        component = _components(found, links)
        order = _rank(_numbered(component, found))
        if not order.any() and _equitable(found, colors, links):
            return _classes(found, component, lossless=True)
        # What stands twice within one copy is told apart by its order, in all copies alike.
        found = _settled(_numbered(found, _fewest(found, order)), links)
        if found is None or int(found.max()) >= SHARING_PAYS * found.size:
            break
    return _classes(coarse, np.zeros_like(colors), lossless=False)


def _classes(colors: Indices, component: Indices, *, lossless: bool) -> Classes:
    """Classes numbered by their first members; copies in the order of their components, then of nodes."""
    _, first, of, sizes = np.unique(colors, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    by_component = np.argsort(component, kind="stable")
    copy = np.empty_like(of.ravel())
    copy[by_component] = _rank(of.ravel()[by_component])
    return Classes(of=place[of.ravel()], first=first[order], sizes=sizes[order], copy=copy, lossless=lossless)


# ---------------------------------------------------------------- refining


def _settled(colors: Indices, links: Links) -> Indices | None:
    """The colours once refining changes nothing; None where it goes on."""
    found, at_rest = _refined(colors, links, MOST_ROUNDS)
    return found if at_rest else None


def _refined(colors: Indices, links: Links, rounds: int) -> tuple[Indices, bool]:
    """The colours after at most so many rounds, and whether another one would change nothing."""
    count = int(colors.max(initial=-1)) + 1
    kinds = 2 * links.kinds.astype(np.uint64)
    for _ in range(rounds):
        seen = _mixed(colors.astype(np.uint64))
        # The sum does not depend on the order in which a node's edges stand.
        np.add.at(seen, links.sources, _mixed(_mixed(kinds) + colors[links.targets].astype(np.uint64)))
        np.add.at(seen, links.targets, _mixed(_mixed(kinds + np.uint64(1)) + colors[links.sources].astype(np.uint64)))
        _, colors = np.unique(_numbered(colors, seen), return_inverse=True)
        colors = colors.ravel()
        after = int(colors.max(initial=-1)) + 1
        if after == count:
            return colors, True
        count = after
    return colors, False


def _mixed(hashes: Hashes) -> Hashes:
    """SplitMix64's finaliser: equal words stay equal, others become as good as random."""
    hashes = hashes + np.uint64(GOLDEN)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def _numbered(first: npt.NDArray[np.integer], second: npt.NDArray[np.integer]) -> Indices:
    """A number for every pair of entries, equal for equal pairs."""
    _, a = np.unique(first, return_inverse=True)
    _, b = np.unique(second, return_inverse=True)
    _, numbers = np.unique(a.ravel() * (int(b.max(initial=0)) + 1) + b.ravel(), return_inverse=True)
    return numbers.ravel()


# ---------------------------------------------------------------- what makes classes lossless


def _components(colors: Indices, links: Links) -> Indices:
    """For every node the number of its component, once the colours of one node are taken out; ascending in nodes."""
    alone = np.bincount(colors)[colors] == 1
    inner = ~(alone[links.sources] | alone[links.targets])
    return components(links.sources[inner], links.targets[inner], colors.size)


def _rank(keys: Indices) -> Indices:
    """For every entry, how many earlier ones are equal to it."""
    order = np.argsort(keys, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size) - np.searchsorted(keys[order], keys[order])
    return rank


def _fewest(colors: Indices, order: Indices) -> Indices:
    """The order of what stands twice within one component, for colours of the fewest nodes of these; 0 elsewhere.

    Two nodes that all layers meet join these to one component: told apart they are taken out, and layers fall apart.
    """
    sizes = np.bincount(colors)[colors]
    twice = np.bincount(colors, order)[colors] > 0
    return np.where(twice & (sizes == sizes[twice].min()), order, 0)


def _equitable(colors: Indices, costs: Indices, links: Links) -> bool:
    """Whether all nodes of a colour have equal costs and see the same tables and colours, compared one by one."""
    nodes = np.concatenate([links.sources, links.targets])
    kinds = np.concatenate([2 * links.kinds, 2 * links.kinds + 1])
    seen = _numbered(kinds, np.concatenate([colors[links.targets], colors[links.sources]]))
    order = np.lexsort((seen, nodes))
    nodes, seen = nodes[order], seen[order]
    degree = np.bincount(nodes, minlength=colors.size)
    start = np.cumsum(degree) - degree
    first = np.unique(colors, return_index=True)[1][colors]
    if not (np.array_equal(costs, costs[first]) and np.array_equal(degree, degree[first])):
        return False
    return np.array_equal(seen, seen[start[first][nodes] + np.arange(nodes.size) - start[nodes]])
