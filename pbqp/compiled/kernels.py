"""The inner loops of the primal-dual method, compiled: sweeps of messages, block moves, fusion and the memory profile.

All work on flat arrays, which records keep together. The loops take them apart at their beginning, under short names:

    size, off, unary, ea, eb, et, tables, adj, ptr = net      (see `Net`)
    mptr, mo, mb, me, memory = uses                           (see `Uses`)
    fo, bo, forward, backward = mail                          (see `Mail`)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from pbqp.vectors import Floats

Ints = NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])


class Net(NamedTuple):
    """Nodes, costs and edges: choice p of node n is number offset[n] + p, and costs unary[offset[n] + p].

    Edge e joins first[e] to second[e]; its costs begin at tables[table_at[e]], a line per choice of first[e]. The edges of
    node n are edges[edges_at[n]:edges_at[n + 1]].
    """

    size: Ints
    offset: Ints
    unary: Floats
    first: Ints
    second: Ints
    table_at: Ints
    tables: Floats
    edges: Ints
    edges_at: Ints


class Uses(NamedTuple):
    """Memory: uses_at[n] <= i < uses_at[n + 1] are the uses of node n.

    Use i adds bytes[bytes_at[i] + p] to the rows begin[i] .. end[i] - 1, where p is the node's choice.
    """

    uses_at: Ints
    bytes_at: Ints
    begin: Ints
    end: Ints
    bytes: Floats


class Mail(NamedTuple):
    """Messages: edge e's to second[e] begin at forward[forward_at[e]], those to first[e] at backward[backward_at[e]]."""

    forward_at: Ints
    backward_at: Ints
    forward: Floats
    backward: Floats


class Peaks(NamedTuple):
    """Overuse of all rows: `tree` of maxima, tree[1] the largest, and what is `added` to all that is below a place in it.

    The width of the tree is half its size, a power of two.
    """

    tree: Floats
    added: Floats


class Descent(NamedTuple):
    """A choice that moves, `pick`, and the `best` feasible one met; `cost` holds the cost of both.

    `prices` are what every choice pays for its memory.
    """

    prices: Floats
    peaks: Peaks
    pick: Ints
    cost: Floats
    best: Ints


class BlockMove(NamedTuple):
    """The choices that some nodes would leave for others; place[nodes[x]] is x + 1, and 0 for all other nodes."""

    nodes: Ints
    old: Ints
    new: Ints
    place: Ints


def compiled(function: F) -> F:
    """The function compiled at its first call, kept on disk, and run without the interpreter's lock.

    Loops over numbers compile in a fraction of the time of assignments to slices.
    """
    return cast(Any, numba).njit(cache=True, nogil=True)(function)


@compiled
def _send(offer: Floats, table: Floats, message: Floats) -> float:
    """Writes the least of offer + table, a line per offer, into `message`; returns the least of that.

    It goes along lines, slices of the table, so that the inner loop becomes vector instructions, and four lines at once, so
    that the message is read and written a quarter as often.
    """
    count, whole = message.size, offer.size - offer.size % 4
    for q in range(count):
        message[q] = np.inf
    for p in range(0, whole, 4):
        a, b, c, d = offer[p], offer[p + 1], offer[p + 2], offer[p + 3]
        start = p * count
        first, second = table[start : start + count], table[start + count : start + 2 * count]
        third, fourth = table[start + 2 * count : start + 3 * count], table[start + 3 * count : start + 4 * count]
        for q in range(count):
            x, y, z, w = a + first[q], b + second[q], c + third[q], d + fourth[q]
            x = x if x < y else y
            z = z if z < w else w
            x = x if x < z else z
            message[q] = x if x < message[q] else message[q]
    for p in range(whole, offer.size):
        paid, line = offer[p], table[p * count : (p + 1) * count]
        for q in range(count):
            cost = paid + line[q]
            message[q] = cost if cost < message[q] else message[q]
    low = np.inf
    for q in range(count):
        low = min(low, message[q])
    return low


@compiled
def sweep(net: Net, transposed: Floats, mail: Mail, bounds: Floats) -> float:
    """The lower bound after one forward and one backward sweep of TRW-S over the nodes, messages changed in place.

    Writes into `bounds` the same of every choice: of what holds it. `transposed` are the tables transposed, each in its
    place. See `pbqp.bounds.messages`.
    """
    size, off, unary, ea, eb, et, tables, adj, ptr = net
    fo, bo, forward, backward = mail
    widest = size.max()
    total, offer, message = np.empty(widest), np.empty(widest), np.empty(widest)
    before, credit = np.empty(size.size), np.zeros(size.size)
    bound = after = 0.0
    for direction in range(2):
        bound = 0.0
        for step in range(size.size):
            i = step if direction == 0 else size.size - 1 - step
            k, o = size[i], off[i]
            for p in range(k):
                total[p] = unary[o + p]
            outgoing = incoming = 0
            for s in range(ptr[i], ptr[i + 1]):
                e = adj[s]
                if ea[e] == i:
                    outgoing += 1
                    for p in range(k):
                        total[p] += backward[bo[e] + p]
                else:
                    incoming += 1
                    for p in range(k):
                        total[p] += forward[fo[e] + p]
            least = total[0]
            for p in range(1, k):
                least = min(least, total[p])
            if direction == 0:
                before[i] = bound
            else:
                after += credit[i]
                for p in range(k):
                    bounds[o + p] = total[p] + before[i] + after
                after += least
            bound += least
            weight = 1.0 / max(outgoing, incoming, 1)
            for s in range(ptr[i], ptr[i + 1]):
                e = adj[s]
                t = et[e]
                if direction == 0 and ea[e] == i:
                    other = size[eb[e]]
                    for p in range(k):
                        offer[p] = (total[p] - least) * weight - backward[bo[e] + p]
                    low = _send(offer[:k], tables[t : t + k * other], message[:other])
                    for q in range(other):
                        forward[fo[e] + q] = message[q] - low
                    bound += low
                elif direction == 1 and eb[e] == i:
                    other = size[ea[e]]
                    for p in range(k):
                        offer[p] = (total[p] - least) * weight - forward[fo[e] + p]
                    low = _send(offer[:k], transposed[t : t + k * other], message[:other])
                    for q in range(other):
                        backward[bo[e] + q] = message[q] - low
                    bound += low
                    credit[ea[e]] += low
    return bound


@compiled
def decode(net: Net, mail: Mail, pick: Ints) -> None:
    """Writes into `pick` the choice that follows the messages, node after node."""
    size, off, unary, ea, _, et, tables, adj, ptr = net
    _, bo, _, backward = mail
    total = np.empty(size.max())
    for i in range(size.size):
        k = size[i]
        for p in range(k):
            total[p] = unary[off[i] + p]
        for s in range(ptr[i], ptr[i + 1]):
            e = adj[s]
            if ea[e] == i:
                for p in range(k):
                    total[p] += backward[bo[e] + p]
            else:
                line = et[e] + pick[ea[e]] * k
                for p in range(k):
                    total[p] += tables[line + p]
        pick[i] = total[:k].argmin()


@compiled
def cost_of(net: Net, pick: Ints) -> float:
    """Cost of a choice."""
    size, off, unary, ea, eb, et, tables, _, _ = net
    value = 0.0
    for i in range(size.size):
        value += float(unary[off[i] + pick[i]])
    for e in range(ea.size):
        value += float(tables[et[e] + pick[ea[e]] * size[eb[e]] + pick[eb[e]]])
    return value


@compiled
def priced(net: Net, uses: Uses, sums: Floats, out: Floats) -> None:
    """Writes what every choice pays for its memory; `sums[r]` is the sum of the prices per byte of the rows before r."""
    size, off = net.size, net.offset
    mptr, mo, mb, me, memory = uses
    for i in range(size.size):
        for p in range(size[i]):
            out[off[i] + p] = 0.0
        for j in range(mptr[i], mptr[i + 1]):
            price = sums[me[j]] - sums[mb[j]]
            if price != 0.0:
                for p in range(size[i]):
                    out[off[i] + p] += price * memory[mo[j] + p]


@compiled
def build(leaves: Floats, peaks: Peaks) -> None:
    """Makes the tree of maxima over the leaves."""
    tree, added = peaks
    width = tree.size // 2
    for t in range(width):
        tree[width + t] = leaves[t] if t < leaves.size else -1e300
        added[t] = 0.0
    for i in range(width - 1, 0, -1):
        tree[i] = max(tree[2 * i], tree[2 * i + 1])


@compiled
def _add(peaks: Peaks, begin: int, end: int, amount: float) -> None:
    """Adds an amount to the leaves begin .. end - 1."""
    tree, added = peaks
    width = tree.size // 2
    left, right = begin + width, end + width
    low, high = left >> 1, (right - 1) >> 1
    while left < right:
        if left & 1:
            tree[left] += amount
            if left < width:
                added[left] += amount
            left += 1
        if right & 1:
            right -= 1
            tree[right] += amount
            if right < width:
                added[right] += amount
        left >>= 1
        right >>= 1
    while low >= 1:
        tree[low] = max(tree[2 * low], tree[2 * low + 1]) + added[low]
        low >>= 1
    while high >= 1:
        tree[high] = max(tree[2 * high], tree[2 * high + 1]) + added[high]
        high >>= 1


@compiled
def _occupy(nodes: Ints, old: Ints, new: Ints, uses: Uses, peaks: Peaks) -> None:
    """Moves the memory of the nodes from their old picks to their new ones."""
    mptr, mo, mb, me, memory = uses
    for x in range(nodes.size):
        for j in range(mptr[nodes[x]], mptr[nodes[x] + 1]):
            amount = float(memory[mo[j] + new[x]] - memory[mo[j] + old[x]])
            if amount != 0.0:
                _add(peaks, mb[j], me[j], amount)


@compiled
def _difference(move: BlockMove, net: Net, pick: Ints) -> float:
    """By how much the cost rises by a move."""
    nodes, old, new, place = move
    size, off, unary, ea, eb, et, tables, adj, ptr = net
    rise = 0.0
    for x in range(nodes.size):
        v = nodes[x]
        rise += float(unary[off[v] + new[x]] - unary[off[v] + old[x]])
        for s in range(ptr[v], ptr[v + 1]):
            e = adj[s]
            if ea[e] == v:
                w = eb[e]
                after = new[place[w] - 1] if place[w] > 0 else pick[w]
                rise += float(tables[et[e] + new[x] * size[w] + after] - tables[et[e] + old[x] * size[w] + pick[w]])
            elif place[ea[e]] == 0:
                line = et[e] + pick[ea[e]] * size[v]
                rise += float(tables[line + new[x]] - tables[line + old[x]])
    return rise


@compiled
def _moved(move: BlockMove, rise: float, uses: Uses, descent: Descent) -> int:
    """Makes a move that raises the cost by `rise`, unless a row gets overfull by it or fuller still; 1 if it did."""
    nodes, old, new, _ = move
    _, peaks, pick, cost, best = descent
    tree = peaks.tree
    fullest = tree[1]
    _occupy(nodes, old, new, uses, peaks)
    if tree[1] > 0 and tree[1] > fullest:
        _occupy(nodes, new, old, uses, peaks)
        return 0
    cost[0] += rise
    for x in range(nodes.size):
        pick[nodes[x]] = new[x]
    if tree[1] <= 0 and cost[0] < cost[1]:
        cost[1] = cost[0]
        for i in range(pick.size):
            best[i] = pick[i]
    return 1


@compiled
def move_blocks(
    seed: int,
    moves: int,
    largest: int,
    scales: Floats,
    hot: float,
    heat: float,
    net: Net,
    transposed: Floats,
    uses: Uses,
    descent: Descent,
) -> int:
    """Random block moves; the number that changed something.

    A block is a tree grown from a random node, of nodes with one neighbour in it, so its best choice under everything
    else is found exactly. Memory is charged at its price times one of `scales`. The block moves if that lowers the cost
    plus `hot` times the price of its memory (or raises it by little, at a `heat` above zero), and the fullest row
    (over its limit) is not above zero, or no fuller than before. `transposed` are as in `sweep`.
    """
    size, off, unary, ea, eb, et, tables, adj, ptr = net
    prices, pick = descent.prices, descent.pick
    np.random.seed(seed)
    count, widest = size.size, size.max()
    place = np.zeros(count, np.int64)
    block, parent, stem = np.empty(largest, np.int64), np.empty(largest, np.int64), np.empty(largest, np.int64)
    old, new = np.empty(largest, np.int64), np.empty(largest, np.int64)
    value, message = np.empty((largest, widest)), np.empty(widest)
    queue, by = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64)
    changes = 0
    for _ in range(moves):
        wanted = min(largest, 2 + int(np.random.random() ** 2 * largest))
        scale = scales[np.random.randint(scales.size)]
        queue[0], by[0] = np.random.randint(count), -1
        head, tail, n = 0, 1, 0
        while head < tail and n < wanted:
            z = head + np.random.randint(min(tail - head, 4))
            v, e0 = queue[z], by[z]
            queue[z], by[z] = queue[head], by[head]
            head += 1
            if place[v] > 0:
                continue
            inside = 0
            for s in range(ptr[v], ptr[v + 1]):
                e = adj[s]
                if place[eb[e] if ea[e] == v else ea[e]] > 0:
                    inside += 1
            if inside > 1:
                continue
            block[n], stem[n], parent[n] = v, e0, -1
            if e0 >= 0:
                parent[n] = place[eb[e0] if ea[e0] == v else ea[e0]] - 1
            n += 1
            place[v] = n
            for s in range(ptr[v], ptr[v + 1]):
                e = adj[s]
                w = eb[e] if ea[e] == v else ea[e]
                if place[w] == 0 and tail < count:
                    queue[tail], by[tail] = w, e
                    tail += 1
        for x in range(n):
            v = block[x]
            k = size[v]
            old[x] = pick[v]
            for p in range(k):
                value[x, p] = unary[off[v] + p] + scale * prices[off[v] + p]
                if heat > 0:
                    value[x, p] += heat * np.log(1e-300 - np.log(1e-300 + np.random.random()))
            for s in range(ptr[v], ptr[v + 1]):
                e = adj[s]
                if ea[e] == v:
                    w = eb[e]
                    if place[w] == 0:
                        line = et[e] + pick[w] * k
                        for p in range(k):
                            value[x, p] += transposed[line + p]
                elif place[ea[e]] == 0:
                    line = et[e] + pick[ea[e]] * k
                    for p in range(k):
                        value[x, p] += tables[line + p]
        for x in range(n - 1, 0, -1):
            k, y, t = size[block[x]], parent[x], et[stem[x]]
            other = size[block[y]]
            to_parent = transposed if ea[stem[x]] == block[y] else tables
            _send(value[x, :k], to_parent[t : t + k * other], message[:other])
            for q in range(other):
                value[y, q] += message[q]
        new[0] = value[0, : size[block[0]]].argmin()
        moved = new[0] != old[0]
        for x in range(1, n):
            k, y = size[block[x]], parent[x]
            back = tables if ea[stem[x]] == block[y] else transposed
            line = et[stem[x]] + new[y] * k
            new[x] = (value[x, :k] + back[line : line + k]).argmin()
            moved = moved or new[x] != old[x]
        if moved:
            move = BlockMove(block[:n], old, new, place)
            rise = _difference(move, net, pick)
            paid = 0.0
            for x in range(n):
                o = off[block[x]]
                paid += prices[o + new[x]] - prices[o + old[x]]
            change = rise + hot * paid
            if change < 0 or (heat > 0 and change < -heat * np.log(1e-300 + np.random.random())):
                changes += _moved(move, rise, uses, descent)
        for x in range(n):
            place[block[x]] = 0
    return changes


@compiled
def fuse(proposal: Ints, hot: float, net: Net, uses: Uses, descent: Descent) -> int:
    """Takes over those connected parts of the nodes where `proposal` differs that help by themselves; how many did.

    The rest is as in `move_blocks`.
    """
    size, off, _, ea, eb, _, _, adj, ptr = net
    prices, pick = descent.prices, descent.pick
    count = size.size
    place, seen = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    members, stack = np.empty(count, np.int64), np.empty(count, np.int64)
    old, new = np.empty(count, np.int64), np.empty(count, np.int64)
    taken = 0
    for root in range(count):
        if seen[root] or proposal[root] == pick[root]:
            continue
        n, top = 0, 1
        stack[0], seen[root] = root, True
        while top > 0:
            top -= 1
            v = stack[top]
            members[n], old[n], new[n] = v, pick[v], proposal[v]
            n += 1
            place[v] = n
            for s in range(ptr[v], ptr[v + 1]):
                e = adj[s]
                w = eb[e] if ea[e] == v else ea[e]
                if not seen[w] and proposal[w] != pick[w]:
                    seen[w] = True
                    stack[top] = w
                    top += 1
        move = BlockMove(members[:n], old, new, place)
        rise = _difference(move, net, pick)
        paid = 0.0
        for x in range(n):
            o = off[members[x]]
            paid += prices[o + new[x]] - prices[o + old[x]]
            place[members[x]] = 0
        if rise + hot * paid < 0:
            taken += _moved(move, rise, uses, descent)
    return taken
