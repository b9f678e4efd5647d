"""The planning problem as numbers and names only: a pairwise problem with memory rows.

    minimise    sum over nodes n   node_costs[n][x_n]  +  sum over edges (m, n)   edge_costs[x_m, x_n]
    subject to  for every row r:   sum over terms (n, usage) of r   usage[x_n]  <=  limit of r
                x_n in 0 .. len(node_costs[n]) - 1

This is a PBQP / Markov random field with knapsack rows: the form of the ASPLOS 2025 IOPDDL contest, whose files
`from_iopddl` reads and `to_iopddl` writes. `inf` in a cost means forbidden.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pbqp.errors import SolverError
from pbqp.identity import numbered
from pbqp.memory_rows import Array, Indices, Row, Schedule
from pbqp.rounding import Extent, Rounding
from pbqp.vectors import summed_by

FORBIDDEN = 10**18
"""The contest's mark of a choice that must not be taken; costs of at least this much are read as `inf`."""

NEAR = 1e-9
"""Rows whose rounded sum is within this part of the limit, or over it, are summed exactly."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edge:
    """Costs between the choices of two different nodes: `costs[x_m, x_n]` for nodes (m, n); `inf` is forbidden.

    Edges may share one array object, and several edges may join the same two nodes.
    """

    nodes: tuple[int, int]
    costs: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class _Checked:
    """Edges that fit nodes of costs of these `shapes`."""

    edges: tuple[Edge, ...] = ()
    shapes: Sequence[tuple[int, ...]] = ()

    @cached_property
    def extent(self) -> Extent:
        """That of their costs."""
        return Extent.of(edge.costs for edge in self.edges)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Nodes with choices, edges that price pairs of choices, rows that limit bytes.

    Raises `SolverError` on construction where shapes do not fit or a number is not one. What is made of a problem by
    `dataclasses.replace`, with the same edges, has them checked already (`checked`).
    """

    name: str
    node_costs: tuple[Array, ...]
    edges: tuple[Edge, ...]
    rows: Sequence[Row] = ()
    node_names: tuple[str, ...] = ()
    checked: _Checked = field(default_factory=_Checked, repr=False)

    def __post_init__(self) -> None:
        shapes = [costs.shape for costs in self.node_costs]
        _check_nodes(self)
        if self.checked.edges is not self.edges or self.checked.shapes != shapes:
            _check_edges(self, shapes)
            object.__setattr__(self, "checked", _Checked(edges=self.edges, shapes=shapes))
        _check_rows(self)

    @cached_property
    def rounding(self) -> Rounding:
        """What floats lose of its costs."""
        return Rounding.of(Extent.of(self.node_costs), self.checked.extent)

    def node_name(self, node: int) -> str:
        """The node's name, or `node N` where the problem has no names."""
        return self.node_names[node] if self.node_names else f"node {node}"

    def evaluate(self, choice: Sequence[int]) -> float:
        """Total cost of `choice`, summed exactly and independently of every solver; `inf` where it is forbidden.

        Rows play no part: see `violations`.
        """
        return math.fsum(self._terms(choice))

    def evaluate_down(self, choice: Sequence[int]) -> float:
        """The largest float that is not above the total cost of `choice`: what a bound may reach."""
        terms = self._terms(choice)
        total = math.fsum(terms)
        above = math.isfinite(total) and math.fsum((*terms, -total)) < 0
        return math.nextafter(total, -math.inf) if above else total

    def _terms(self, choice: Sequence[int]) -> list[float]:
        """The costs that `choice` adds up."""
        _check_choice(self, choice)
        terms = [float(costs[pick]) for costs, pick in zip(self.node_costs, choice, strict=True)]
        terms += [float(edge.costs[choice[edge.nodes[0]], choice[edge.nodes[1]]]) for edge in self.edges]
        return terms

    def violations(self, choice: Sequence[int]) -> list[tuple[Row, float]]:
        """The rows over their limit under `choice`, each with the bytes it uses."""
        _check_choice(self, choice)
        suspects: Sequence[Row] = self.rows
        if isinstance(suspects, Schedule):
            near = suspects.used(choice) > suspects.limit - NEAR * abs(suspects.limit)
            suspects = [suspects[position] for position in np.flatnonzero(near).tolist()]
        used = ((row, row.usage(choice)) for row in suspects)
        return [(row, usage) for row, usage in used if usage > row.limit]

    @staticmethod
    def from_iopddl(path: str | Path) -> Problem:
        """The problem in an IOPDDL file (`.json`, or `.json.gz`): one row per distinct maximal set of live nodes."""
        source = Path(path)
        data = source.read_bytes()
        try:
            text = gzip.decompress(data) if source.suffix == ".gz" else data
            return _read_iopddl(json.loads(text)["problem"])
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise SolverError(
                f"{source} is not an IOPDDL problem ({type(error).__name__}: {error}). It must hold an object "
                "'problem' with 'name', 'nodes' (intervals, costs, usages), 'edges' (nodes, costs) and 'usage_limit'."
            ) from error

    def to_iopddl(self, path: str | Path) -> None:
        """Writes the problem as an IOPDDL file, gzipped where `path` ends in `.gz`; rows become points of time.

        The format knows one limit and one interval per node. So a row with a limit below the largest gets a filler node
        with one choice, and a node whose rows do not follow one another, or that uses other bytes in other rows,
        becomes a chain of copies, tied by edges that forbid a mismatch. The first `len(node_costs)` nodes are the
        problem's own. Numbers that are not whole are written as decimals, which the contest's own evaluator does not
        read.
        """
        target = Path(path)
        text = json.dumps({"problem": _write_iopddl(self)}).encode()
        target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)


def _check_nodes(problem: Problem) -> None:
    """Raises SolverError where costs or names of nodes are malformed."""
    count = len(problem.node_costs)
    if problem.node_names and len(problem.node_names) != count:
        raise SolverError(
            f"problem {problem.name!r} has {count} nodes but {len(problem.node_names)} names: name all or none."
        )
    for node, costs in enumerate(problem.node_costs):
        if costs.ndim != 1 or costs.size == 0:
            raise SolverError(
                f"the costs of {problem.node_name(node)} have shape {costs.shape}: give one cost per choice."
            )
    tables, table_of = numbered(problem.node_costs)
    for number, table in enumerate(tables):
        if fault := _fault(table):
            raise SolverError(f"the costs of {problem.node_name(table_of.index(number))} {fault}")


def _check_edges(problem: Problem, sizes: Sequence[tuple[int, ...]]) -> None:
    """Raises SolverError where an edge is malformed, or does not fit nodes of these shapes."""
    for edge in problem.edges:
        if fault := _fault_of(edge, sizes):
            raise SolverError(f"edge {edge.nodes} of problem {problem.name!r} {fault}")
    tables, table_of = numbered(edge.costs for edge in problem.edges)
    users = dict(zip(reversed(table_of), reversed(problem.edges), strict=True))
    for number, table in enumerate(tables):
        if fault := _fault(table):
            raise SolverError(f"the costs of edge {users[number].nodes} of problem {problem.name!r} {fault}")


def _check_rows(problem: Problem) -> None:
    """Raises SolverError where a row is malformed."""
    pieces: set[tuple[int, int]] = set()
    if isinstance(problem.rows, Schedule):
        _check_schedule(problem, problem.rows)
        return
    for row in problem.rows:
        _check_row(problem, row, pieces)


def _fault_of(edge: Edge, sizes: Sequence[tuple[int, ...]]) -> str:
    """What is wrong with an edge between nodes of these numbers of choices; "" where nothing is."""
    if len(edge.nodes) != 2 or not all(0 <= node < len(sizes) for node in edge.nodes):
        return f"names a node that does not exist: nodes are 0 .. {len(sizes) - 1}."
    source, target = edge.nodes
    if source == target:
        return "joins a node to itself: add its diagonal to the node's costs instead."
    shape = (sizes[source][0], sizes[target][0])
    if edge.costs.shape != shape:
        return f"has costs of shape {edge.costs.shape}: the choices of its nodes ask for {shape}."
    return ""


def _fault(costs: Array) -> str:
    """What is wrong with some costs; "" where nothing is."""
    if costs.dtype != np.float64:
        return f"are of type {costs.dtype}: give float64."
    lowest = costs.min()
    if math.isnan(lowest) or lowest == -math.inf:
        return f"hold {lowest}: every cost must be a number, or inf where the choice is forbidden."
    return ""


def _check_row(problem: Problem, row: Row, checked: set[tuple[int, int]]) -> None:
    """Raises SolverError where a row is malformed; `checked` are the (node, identity of usage) pairs seen before."""
    count = len(problem.node_costs)
    if math.isnan(row.limit):
        raise SolverError(f"row {row.name!r} has no limit (nan): give bytes, or inf for none.")
    if len(row.nodes) != len(row.usages):
        raise SolverError(
            f"row {row.name!r} has {len(row.nodes)} nodes but {len(row.usages)} usages: give one vector per node."
        )
    fresh = {(node, id(usage)): usage for node, usage in zip(row.nodes, row.usages, strict=True)}
    for key in fresh.keys() - checked:
        node, usage = key[0], fresh[key]
        if not 0 <= node < count:
            raise SolverError(f"row {row.name!r} names node {node}, which does not exist: nodes are 0 .. {count - 1}.")
        if usage.shape != problem.node_costs[node].shape:
            raise SolverError(
                f"row {row.name!r} has usages of shape {usage.shape} for {problem.node_name(node)}, which has "
                f"{problem.node_costs[node].size} choices: give the bytes of every choice."
            )
        if not np.isfinite(usage).all():
            raise SolverError(
                f"row {row.name!r} has a usage of {problem.node_name(node)} that is not a finite number: "
                "forbid a choice by an infinite cost, not by its bytes."
            )
        checked.add(key)


def _check_schedule(problem: Problem, schedule: Schedule) -> None:
    """Raises SolverError where a schedule is malformed."""
    inside = (schedule.begins >= 0) & (schedule.begins <= schedule.ends) & (schedule.ends <= len(schedule))
    if not inside.all():
        wrong = int(np.flatnonzero(~inside)[0])
        raise SolverError(
            f"the schedule of problem {problem.name!r} has the interval {int(schedule.begins[wrong])} .. "
            f"{int(schedule.ends[wrong])}: give rows 0 .. {len(schedule)}, the beginning first."
        )
    whole = Row(
        name="of the schedule", limit=schedule.limit, nodes=tuple(schedule.nodes.tolist()), usages=schedule.usages
    )
    _check_row(problem, whole, set())


def _check_choice(problem: Problem, choice: Sequence[int]) -> None:
    if len(choice) != len(problem.node_costs):
        raise SolverError(
            f"{len(choice)} choices were given for the {len(problem.node_costs)} nodes of problem {problem.name!r}: "
            "give one per node."
        )
    for node, (pick, costs) in enumerate(zip(choice, problem.node_costs, strict=True)):
        if not 0 <= pick < costs.size:
            raise SolverError(
                f"choice {pick} of {problem.node_name(node)} does not exist: it has {costs.size} choices."
            )


def _read_costs(values: Sequence[float]) -> Array:
    costs = np.asarray(values, dtype=np.float64)
    return np.where(costs >= FORBIDDEN, np.inf, costs)


def _read_iopddl(data: dict[str, Any]) -> Problem:
    """The problem of a parsed IOPDDL object; equal edge tables become one shared array."""
    nodes, edges = data["nodes"], data["edges"]
    node_costs = tuple(_read_costs(costs) for costs in nodes["costs"])
    tables: dict[tuple[tuple[int, int], bytes], Array] = {}
    read: list[Edge] = []
    for pair, values in zip(edges["nodes"], edges["costs"], strict=True):
        shape = (node_costs[pair[0]].size, node_costs[pair[1]].size)
        costs = _read_costs(values).reshape(shape)
        costs = tables.setdefault((shape, costs.tobytes()), costs)
        read.append(Edge(nodes=(pair[0], pair[1]), costs=costs))
    rows: Sequence[Row] = ()
    limit = data.get("usage_limit")
    if limit is not None and limit < FORBIDDEN:
        usages = [np.asarray(usage, dtype=np.float64) for usage in nodes["usages"]]
        rows = _schedule(np.asarray(nodes["intervals"], dtype=np.intp).reshape(-1, 2), usages, float(limit))
    return Problem(name=data["name"], node_costs=node_costs, edges=tuple(read), rows=rows)


def _schedule(intervals: Indices, usages: list[Array], limit: float) -> Sequence[Row]:
    """One row per maximal set of nodes live together; those sets end where a start is followed by an end."""
    counts = [begin < end and bool(usages[node].any()) for node, (begin, end) in enumerate(intervals.tolist())]
    live = np.flatnonzero(counts)
    if not live.size:
        return ()
    starts, stops = np.unique(intervals[live, 0]), np.unique(intervals[live, 1])
    next_stop = stops[np.searchsorted(stops, starts, side="right")]
    times = starts[next_stop <= np.append(starts[1:], np.iinfo(np.intp).max)]
    return Schedule(
        names=tuple(f"time {time}" for time in times.tolist()),
        limit=limit,
        nodes=live,
        usages=tuple(usages[node] for node in live.tolist()),
        begins=np.searchsorted(times, intervals[live, 0]),
        ends=np.searchsorted(times, intervals[live, 1]),
    )


def _plain(values: Array, what: str) -> list[float | int]:
    """The numbers of a table as JSON, forbidden ones as the contest's mark."""
    finite = values[np.isfinite(values)]
    if finite.size and finite.max() >= FORBIDDEN:
        raise SolverError(
            f"{what} hold {finite.max():g}, which IOPDDL files take for forbidden (1e18 up): scale the costs down."
        )
    return [
        FORBIDDEN if math.isinf(value) else int(value) if value.is_integer() else value
        for value in map(float, values.ravel())
    ]


def _write_iopddl(problem: Problem) -> dict[str, Any]:
    """The IOPDDL object of a problem."""
    costs = [_plain(values, f"the costs of {problem.node_name(n)}") for n, values in enumerate(problem.node_costs)]
    choices = [values.size for values in problem.node_costs]
    intervals = [[0, 0] for _ in choices]
    usages: list[list[float | int]] = [[0] * size for size in choices]
    edge_nodes = [list(edge.nodes) for edge in problem.edges]
    edge_costs = [_plain(edge.costs, f"the costs of edge {edge.nodes}") for edge in problem.edges]
    rows = [row for row in problem.rows if row.limit < math.inf]
    limit = max((row.limit for row in rows), default=math.inf)
    runs: dict[int, list[tuple[int, int, Array]]] = {}
    for time, row in enumerate(rows):
        for node, usage in summed_by(zip(row.nodes, row.usages, strict=True)).items():
            spans = runs.setdefault(node, [])
            if spans and spans[-1][1] == time and np.array_equal(spans[-1][2], usage):
                spans[-1] = (spans[-1][0], time + 1, usage)
            else:
                spans.append((time, time + 1, usage))
    for node, spans in sorted(runs.items()):
        size, holder = choices[node], node
        for begin, end, usage in spans:
            if intervals[holder] != [0, 0]:
                edge_nodes.append([holder, len(costs)])
                edge_costs.append([0 if p == q else FORBIDDEN for p in range(size) for q in range(size)])
                holder = len(costs)
                costs.append([0] * size)
                intervals.append([0, 0])
                usages.append([])
            intervals[holder] = [begin, end]
            usages[holder] = _plain(usage, f"the usages of {problem.node_name(node)}")
    for time, row in enumerate(rows):
        if row.limit < limit:
            costs.append([0])
            intervals.append([time, time + 1])
            usages.append(_plain(np.asarray([limit - row.limit]), f"the room above row {row.name!r}"))
    written: dict[str, Any] = {
        "name": problem.name,
        "nodes": {"intervals": intervals, "costs": costs, "usages": usages},
        "edges": {"nodes": edge_nodes, "costs": edge_costs},
    }
    if rows:
        written["usage_limit"] = _plain(np.asarray([limit]), "the row limits")[0]
    return written
