"""Problems too large for brute force, solved a second time by an exact solver of others: toulbar2 (cost function networks).

Reference: https://toulbar2.github.io/toulbar2. It takes whole numbers only, so costs and bytes are whole here.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from pbqp.methods import solve
from pbqp.problem import Edge, Problem, Row

pytoulbar2 = pytest.importorskip("pytoulbar2", reason="the second oracle is not installed")
NODES, CHOICES = 20, 4
FORBIDDEN = 0.1
LARGEST = 40
"""The largest cost of a table and the most bytes of a choice."""


def tangle(seed: int, *, rows: int) -> Problem:
    """A sparse random network of whole costs, some pairs forbidden, under tight rows over half of its nodes each."""
    random = np.random.default_rng([seed, rows])
    pairs = {tuple(sorted(random.choice(NODES, 2, replace=False).tolist())) for _ in range(2 * NODES)}
    edges: list[Edge] = []
    for pair in sorted(pairs):
        table = random.integers(0, LARGEST, (CHOICES, CHOICES)).astype(np.float64)
        edges.append(Edge(nodes=pair, costs=np.where(random.random(table.shape) < FORBIDDEN, np.inf, table)))
    held: list[Row] = []
    for index in range(rows):
        nodes = tuple(sorted(random.choice(NODES, NODES // 2, replace=False).tolist()))
        usages = tuple(random.integers(0, LARGEST, CHOICES).astype(np.float64) for _ in nodes)
        low, high = (sum(float(pick(usage)) for usage in usages) for pick in (np.min, np.max))
        held.append(Row(name=f"row {index}", limit=math.floor(low + 0.4 * (high - low)), nodes=nodes, usages=usages))
    costs = tuple(random.integers(0, LARGEST, CHOICES).astype(np.float64) for _ in range(NODES))
    return Problem(name=f"tangle {seed}", node_costs=costs, edges=tuple(edges), rows=tuple(held))


def by_toulbar2(problem: Problem) -> float:
    """The optimum by toulbar2; infinite where it proves that there is none."""
    above = sum(
        float(table[np.isfinite(table)].max()) for table in [*problem.node_costs, *(e.costs for e in problem.edges)]
    )
    network = pytoulbar2.CFN(ubinit=int(above) + 1)
    for node, costs in enumerate(problem.node_costs):
        network.AddVariable(f"n{node}", range(costs.size))
        network.AddFunction([f"n{node}"], costs.astype(int).tolist())
    for edge in problem.edges:
        table = np.where(np.isfinite(edge.costs), edge.costs, above + 1).astype(int)
        network.AddFunction([f"n{node}" for node in edge.nodes], table.ravel().tolist())
    for row in problem.rows:
        terms = [
            (f"n{node}", pick, int(used))
            for node, usage in zip(row.nodes, row.usages, strict=True)
            for pick, used in enumerate(usage.tolist())
            if used
        ]
        network.AddGeneralizedLinearConstraint(terms, "<=", int(row.limit))
    found = network.Solve()
    return math.inf if found is None else float(found[1])


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_another_exact_solver_finds_the_same_optimum(seed: int, rows: int) -> None:
    problem = tangle(seed, rows=rows)
    found, optimum = solve(problem), by_toulbar2(problem)
    assert found.status in ("optimal", "infeasible"), found
    assert found.value == pytest.approx(optimum, rel=1e-6)
