"""Trials: every strategy of every op of a case, made a plan as the planner makes it, compiled and run on virtual devices.

Only what the planner would do is tried: its rules, its candidates, its emission. One op has the strategy tried, the
others follow it as cheaply as they can.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.problems import least_time
from cost_models import Topology
from pbqp.methods import solve
from pbqp.problem import Problem
from planner.compiler.targets.table import CPU
from planner.emit.constraints import place
from planner.emit.runner import Runner
from planner.machine.target import Target
from planner.plans.alternatives import alternatives
from planner.plans.finalize import decide
from planner.plans.plan import Plan
from planner.pricing.assignment import Chosen
from planner.pricing.instance import Instance
from planner.program.tracing.trace import trace
from planner.search.mesh_search import Candidate
from planner.search.problem import planning_problem
from tests.hazards.hazard_cases import Case

SHARE = {"bfloat16": 0.05, "float16": 0.01, "float8_e4m3fn": 0.2}
"""Largest difference that counts as rounding, as a share of the largest value; by type, else `ROUNDING`."""
ROUNDING = 3e-4
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options that make compiling quick and leave the partitioner as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One strategy of one op of a case: `op` and `specs` say which, `plan` is what the planner makes of it."""

    op: str
    specs: str
    plan: Plan


def dear(devices: int) -> Topology:
    """Dear wires, fast devices: whatever is free to, follows."""
    dims = devices.bit_length() - 1
    return Topology.custom(
        name="dear wires",
        shape=(2,) * dims,
        link_bytes_per_s=(1e3,) * dims,
        flops_per_s=1e18,
        hbm_bytes=1e12,
        hbm_bytes_per_s=1e15,
    )


class Bench:
    """A case on one mesh: its trials, and what running one comes to."""

    def __init__(self, case: Case, mesh: Mapping[str, int], *, everything: bool = False) -> None:
        self.case, self.mesh, self.everything = case, dict(mesh), everything
        self.args = tuple(case.arguments())
        self.program = trace(case.function, self.args)
        topology = dear(8)
        self.target = Target(topology=topology, devices=tuple(jax.devices()[:8]))
        self.request = least_time(topology, 1e12, platform="cpu")
        self.problem = planning_problem(program=self.program, target=self.target, request=self.request)

    @cached_property
    def instance(self) -> Instance:
        """The planner's problem for the case."""
        return self.problem.instance(self.mesh)

    @contextmanager
    def _unguarded(self) -> Iterator[None]:
        """With `everything`: nothing is kept from the partitioner, known hazards included."""
        if not self.everything:
            yield
            return
        with (
            patch("planner.emit.runner.exchanges", lambda graph, constraints, mesh: {}),
            patch("planner.emit.runner.local_calls", lambda graph, constraints, mesh, compiler: {}),
        ):
            yield

    @cached_property
    def expected(self) -> list[Any]:
        """The results of a single device."""
        return [_host(value) for value in jax.tree.leaves(jax.jit(self.case.function)(*self.args))]

    @cached_property
    def refused(self) -> str | None:
        """Why JAX itself does not run the case on several devices, even with nothing split; None where it does."""
        whole = NamedSharding(self.target.jax_mesh(self.mesh), PartitionSpec())
        try:
            jax.jit(self.case.function, out_shardings=whole).lower(*jax.device_put(self.args, whole)).compile()
            return None if self.expected else "returns nothing"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"

    def choices(self) -> Iterator[tuple[int, int]]:
        """Every strategy (node, index) of every op's group that splits anything."""
        for node in self.instance.model.flow.nodes:
            if node.group is not None:
                strategies = self.instance.strategies[node.id]
                for pick in range(len(strategies)):
                    if (strategies.assignment[pick] >= 0).any():
                        yield node.id, pick

    def following(self, node: int, pick: int) -> tuple[int, ...]:
        """The cheapest choice for the whole program in which one node's is given."""
        return _following(self.instance.problem, node, pick)

    def trials(self, most: int = 0) -> list[Trial]:
        """The plans that these strategies lead to, each once; a sum that is wanted scattered laid down both ways.

        `most`: so many strategies at most, drawn at random (but always the same).
        """
        found: dict[object, Trial] = {}
        choices = list(self.choices())
        if most and len(choices) > most:
            choices = random.Random(self.case.name).sample(choices, most)
        for node, pick in choices:
            choice = self.following(node, pick)
            candidate = Candidate(state=lambda: self.instance, choice=choice, value=0.0, bound=0.0, peak_bytes=0.0)
            decision = decide(self.problem, candidate, bound=0.0, seconds=0.0, meshes=1, notes=())
            placed = place(Chosen(instance=self.instance, choice=choice), CPU.without("sum-before-slice"))
            direct = replace(decision, constraints=placed.constraints)
            for one in (decision, direct):
                key = (one.in_specs, one.out_specs, tuple(sorted(map(str, one.constraints.items()))))
                if key not in found:
                    runner = Runner(
                        program=self.program,
                        decision=one,
                        target=self.target,
                        static_args={},
                        graph=self.problem.graph,
                    )
                    plan = Plan(decision=one, runner=runner, alternatives=partial(alternatives, self.problem, one))
                    found[key] = Trial(op=self.instance.model.flow.nodes[node].name, specs=_words(one), plan=plan)
        return list(found.values())

    def wrong(self, trials: Sequence[Trial]) -> list[str | None]:
        """What is wrong with the results of each trial, or None; all are compiled as one program."""
        plans = [trial.plan for trial in trials]
        together = jax.jit(
            lambda *all_args: [plan.jit(*args) for plan, args in zip(plans, all_args, strict=True)],
            in_shardings=tuple(tuple(plan.in_shardings) for plan in plans),
            out_shardings=[plan.out_shardings for plan in plans],
        )
        placed = [plan.place(*self.args) for plan in plans]
        with self._unguarded():
            lowered = together.lower(*placed)
        results = lowered.compile(compiler_options=QUICK)(*placed)
        return [self._difference(jax.tree.leaves(result)) for result in results]

    def _difference(self, results: Sequence[Any]) -> str | None:
        for n, (found, expected) in enumerate(zip(map(_host, results), self.expected, strict=True)):
            if found.dtype != expected.dtype or found.shape != expected.shape:
                return f"result {n}: {found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
            share = SHARE.get(str(expected.dtype), ROUNDING)
            if not jax.dtypes.issubdtype(expected.dtype, np.inexact):
                if not np.array_equal(found, expected):
                    return f"result {n}: {float(np.mean(found != expected)):.2f} of the elements differ"
                continue
            wide = np.complex128 if np.iscomplexobj(expected) else np.float64
            a, b = found.astype(wide), expected.astype(wide)
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            scale = np.abs(np.where(np.isfinite(b), b, 0)).max(initial=0.0)
            gap = np.where(same, 0.0, np.abs(a - b)).max(initial=0.0)
            if not gap <= share * scale:
                return f"result {n}: off by {gap / (scale or 1):.2g} of the largest value"
        return None


def _host(value: Any) -> Any:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _words(decision: Any) -> str:
    inner = [str(spec).removeprefix("PartitionSpec") for specs in decision.constraints.values() for spec in specs]
    sides = [
        " ".join(str(s).removeprefix("PartitionSpec") for s in side) for side in (decision.in_specs, decision.out_specs)
    ]
    return f"{sides[0]} -> {sides[1]} within {' '.join(inner)}"


def _following(problem: Problem, node: int, pick: int) -> tuple[int, ...]:
    """The cheapest choice in which a node's is given."""
    costs = list(problem.node_costs)
    costs[node] = costs[node][pick : pick + 1]
    edges = tuple(
        replace(
            edge,
            costs=edge.costs[
                slice(pick, pick + 1) if edge.nodes[0] == node else slice(None),
                slice(pick, pick + 1) if edge.nodes[1] == node else slice(None),
            ],
        )
        for edge in problem.edges
    )
    choice = list(solve(replace(problem, node_costs=tuple(costs), edges=edges)).choice)
    choice[node] = pick
    return tuple(choice)
