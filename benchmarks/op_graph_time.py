"""How long does the networkx op graph take, beside what the planner does with arrays?

    python -m benchmarks.op_graph_time [--only NAME,NAME] [--out FILE.json]

For programs of benchmarks.planning_time on one mesh of v5e:4x4: the processor's seconds of making a program ready, of its
op graph undecided and decided, and of the questions that the planner asks of arrays, asked of networkx: which factors are
one (the calls of `rules.unify` while ops are grouped, repeated) and the components of the decisions (`alike_nodes`).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx
import numpy as np
from networkx.utils import UnionFind
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks.planning_time import PROGRAMS
from benchmarks.problems import least_time, modelled_problem
from benchmarks.stamp import stamp
from planner.decisions.groups import group_ops
from planner.explain.decided_graph import decided
from planner.explain.op_graph import undecided
from planner.machine.target import resolve
from planner.pricing.assignment import Chosen
from planner.program.graph import Graph
from planner.program.tracing.trace import trace
from planner.rules.unify import Forest
from planner.search.mesh_search import SearchOptions, search

RESULTS = Path(__file__).resolve().parent / "results" / "op_graph_time.json"
NAMES = ("gpt 1.3B", "llama 8B unrolled", "gpt deep x128", "gpt deep x1024")
MESH = {"x": 4, "y": 4}


def seconds_of(do: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor, and what came of it."""
    started = time.process_time()
    made = do()
    return time.process_time() - started, made


def measure(name: str) -> dict[str, Any]:
    """The figures of one program."""
    target = resolve(None, "v5e:4x4")
    model = PROGRAMS[name](target.count)
    request = least_time(target.topology, 1e15)
    program = trace(model.fn, model.args, donate_argnums=model.donate_argnums)
    ready, problem = seconds_of(lambda: modelled_problem(program, target, request))
    of = problem.model
    plain, before = seconds_of(lambda: undecided(of.compiled, name=name))
    best = search([MESH], problem, SearchOptions(limit_bytes=request.memory_limit)).candidates[0]
    chosen = Chosen(instance=best.instance, choice=best.choice)
    full, after = seconds_of(lambda: decided(chosen, platform="tpu", name=name))
    ops = len(of.graph.ops)
    return {
        "program": name,
        "ops": ops,
        "edges": after.number_of_edges(),
        "ready_seconds": ready,
        "undecided_seconds": plain,
        "decided_seconds": full,
        "decided_seconds_per_10000_ops": 1e4 * full / ops,
        "same_structure": sorted(before.edges()) == sorted(after.edges()),
        "unions": unions(of.graph),
        "components": components([(t.source, t.target) for t in of.flow.transfers], len(of.flow.nodes)),
    }


def unions(graph: Graph) -> dict[str, float]:
    """Seconds of the finds and joins that grouping a program's ops takes, of arrays and of networkx."""
    calls: list[tuple[int, ...]] = []
    find, join = Forest.find, Forest.join

    def finding(forest: Forest, factor: int) -> int:
        calls.append((factor,))
        return find(forest, factor)

    def joining(forest: Forest, a: int, b: int) -> None:
        calls.append((a, b))
        with mock.patch.object(Forest, "find", find):
            join(forest, a, b)

    with mock.patch.object(Forest, "find", finding), mock.patch.object(Forest, "join", joining):
        group_ops(graph)
    forest = Forest()
    forest.extend([1] * (1 + max(max(call) for call in calls)), [])
    arrays, _ = seconds_of(lambda: [forest.find(*call) if len(call) == 1 else forest.join(*call) for call in calls])
    union: UnionFind[Any] = UnionFind()
    others, _ = seconds_of(lambda: [union[call[0]] if len(call) == 1 else union.union(*call) for call in calls])
    return {"calls": len(calls), "arrays_seconds": arrays, "networkx_seconds": others}


def components(pairs: Sequence[tuple[int, int]], nodes: int) -> dict[str, float]:
    """Seconds of the connected components of the decisions, of arrays and of networkx."""
    ends = np.asarray(pairs).T

    def by_networkx() -> int:
        network: nx.Graph[int] = nx.Graph()
        network.add_nodes_from(range(nodes))
        network.add_edges_from(pairs)
        return nx.number_connected_components(network)

    joined = coo_array((np.ones(len(pairs)), (ends[0], ends[1])), shape=(nodes, nodes))
    arrays, found = seconds_of(lambda: connected_components(joined, directed=False)[0])
    others, same = seconds_of(by_networkx)
    return {"found": int(found), "same": int(same), "arrays_seconds": arrays, "networkx_seconds": others}


def main() -> None:
    """Measures the programs, prints a table and writes the JSON."""
    parser = argparse.ArgumentParser(description="How long does the networkx op graph take?")
    parser.add_argument("--only", default=",".join(NAMES), help="names of programs, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    print(
        f"{'program':20}{'ops':>8}{'edges':>8}{'ready':>8}{'plain':>8}{'decided':>8}{'per 10k':>8}  unions, components"
    )
    rows: list[dict[str, Any]] = []
    for name in given.only.split(","):
        row = measure(name)
        rows.append(row)
        times = "".join(f"{row[key]:8.2f}" for key in ("ready_seconds", "undecided_seconds", "decided_seconds"))
        unions = "; ".join(
            f"{row[what]['arrays_seconds']:.3f} -> {row[what]['networkx_seconds']:.3f}"
            for what in ("unions", "components")
        )
        per = row["decided_seconds_per_10000_ops"]
        print(f"{name:20}{row['ops']:8}{row['edges']:8}{times}{per:8.2f}  {unions}", flush=True)
        given.out.write_text(json.dumps({**stamp(), "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
