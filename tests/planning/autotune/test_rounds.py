"""Refining: the loop with judges of the tests' own, the devices as a judge, and one real compiler."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import jax
import pytest

import planner
from pbqp.deadline import Deadline
from planner.autotune_log import Status
from planner.compiler.emission.options import REMEDIES
from planner.decision import Decision
from planner.errors import ArgumentError
from planner.options import Options
from planner.planning.autotune import prospects
from planner.planning.autotune.corrections import Corrections
from planner.planning.autotune.judges import TrialVerdict
from planner.planning.autotune.lessons import TrialOutcome
from planner.planning.autotune.prospects import Prospects, from_arguments
from planner.planning.autotune.rounds import Result, refine
from planner.plans.finalize import decide
from planner.pricing.calibrated import Prices, corrected
from planner.pricing.mesh import Shape
from planner.search.best_on_mesh import Candidate
from planner.search.mesh_search import SearchOptions, search
from planner.search.offered_meshes import offered_meshes
from planner.search.problem import PlanningProblem
from tests.problems import small_problem
from tests.small import NEVER, mlp, mlp_args, shapes, train_args, train_step

Says = Callable[[Decision], TrialVerdict | None]


class Judge:
    """Answers with what a function says of a decision; None is no answer in time."""

    def __init__(self, says: Says, room: int = 2) -> None:
        self.says, self.most = says, room
        self.asked: list[Decision] = []
        self.waiting: deque[Decision] = deque()

    @property
    def room(self) -> int:
        return self.most - len(self.waiting)

    @property
    def pending(self) -> int:
        return len(self.waiting)

    def submit(self, decision: Decision) -> None:
        self.asked.append(decision)
        self.waiting.append(decision)

    def take(self, seconds: float) -> TrialVerdict | None:
        answer = self.says(self.waiting[0]) if self.waiting else None
        if answer is not None:
            self.waiting.popleft()
        return answer


def ran(seconds: float, most: float | None = None) -> TrialVerdict:
    outcome = TrialOutcome(
        seconds=seconds, seconds_most=most or seconds, exposed=None, communicating=None, collectives=None
    )
    return TrialVerdict(status="ok", outcome=outcome, peak_bytes=1e6)


def shape_of(decision: Decision) -> tuple[int, ...]:
    return tuple(decision.mesh_shape.values())


@pytest.fixture(scope="module", name="problem")
def problem_fixture() -> PlanningProblem:
    return small_problem("mlp")


@cache
def searched(problem: PlanningProblem) -> tuple[Sequence[Shape], Sequence[Candidate]]:
    """The meshes for a problem and the plans found on them: every test begins with these."""
    meshes = offered_meshes(problem.program, problem.target, problem.request, None, 2)
    return meshes, search(meshes, problem, SearchOptions(limit_bytes=problem.request.memory_limit)).candidates


def refined(problem: PlanningProblem, judge: Judge, seconds: float = 60.0, **more: object) -> Result:
    meshes, candidates = searched(problem)
    limit = problem.request.memory_limit
    return refine(
        candidates,
        meshes,
        Prospects(problem, Options(), limit_bytes=limit, meshes=len(meshes)),
        judge,
        Deadline.after(seconds),
        how="compile",
        limit_bytes=limit,
        **{"emissions": lambda decision: (), **more},  # pyright: ignore[reportArgumentType]
    )


def test_the_fastest_plan_tried_is_taken(problem: PlanningProblem) -> None:
    """Whatever is predicted: here the judge prefers the mesh that it is told to."""

    def says(decision: Decision) -> TrialVerdict:
        return ran(decision.predicted.seconds * (1.0 if shape_of(decision) == (4, 2) else 30.0))

    judge = Judge(says)
    result = refined(problem, judge)
    assert shape_of(result.decisions[0]) == (4, 2)
    record = result.decisions[0].refined
    assert record is not None
    assert record.chosen is not None
    found = [trial.found_seconds for trial in record.trials]
    assert found[record.chosen] == min(value for value in found if value is not None)
    assert len(judge.asked) == len(record.trials)
    assert "faster" in record.ended
    assert not any("spread of the rates" in note for note in result.decisions[0].notes)


def test_of_plans_whose_intervals_overlap_the_better_in_the_worst_case_is_taken(problem: PlanningProblem) -> None:
    def says(decision: Decision) -> TrialVerdict:
        return {(4, 2): ran(1.1, 1.2), (8,): ran(1.0, 1.3)}.get(shape_of(decision), ran(2.0, 2.1))

    best = refined(problem, Judge(says)).decisions[0]
    assert shape_of(best) == (4, 2)
    assert best.notes[-1].startswith("a plan on the mesh x=8 takes 1 s by its schedule, and this one 1.1 s; ")


def test_what_was_found_corrects_what_is_expected(problem: PlanningProblem) -> None:
    """Of a judge that is slower by one factor everywhere more is expected then, but no more than it finds.

    Collectives of a kind that was never tried are expected to be as predicted.
    """
    result = refined(problem, Judge(lambda decision: ran(5.0 * decision.predicted.seconds), room=1))
    later = [trial for trial in result.refined.trials[1:] if trial.emission == "as planned"]
    assert later
    for trial in later:
        assert trial.found_seconds is not None
        assert 1.5 * trial.predicted_seconds < trial.expected_seconds < 1.05 * trial.found_seconds
    assert any(c.what == "computing" and c.factor == pytest.approx(5.0) for c in result.refined.corrections)


def test_equal_programs_are_tried_once_and_only_what_is_tried_is_decided(
    problem: PlanningProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[Candidate] = []

    def counted(problem: PlanningProblem, candidate: Candidate, **more: Any) -> Decision:
        decided.append(candidate)
        return decide(problem, candidate, **more)

    monkeypatch.setattr(prospects, "decide", counted)
    judge = Judge(lambda decision: ran(1.0))
    refined(problem, judge)
    seen = [(decision.mesh_shape, decision.in_specs, decision.choice) for decision in judge.asked]
    assert len(seen) == len({repr(one) for one in seen})
    assert len(decided) == len(judge.asked)


def test_other_emissions_of_good_plans_are_tried(problem: PlanningProblem) -> None:
    def fast(decision: Decision) -> TrialVerdict:
        return ran(decision.predicted.seconds * (0.5 if "quick" in decision.compiler_options else 1.0))

    def emissions(decision: Decision) -> tuple[Decision, ...]:
        return (replace(decision, compiler_options={"quick": "1"}),)

    result = refined(problem, Judge(fast), emissions=emissions)
    assert result.decisions[0].compiler_options == {"quick": "1"}


def test_a_plan_that_took_a_remedy_carries_it(problem: PlanningProblem) -> None:
    error, remedy = next(iter(REMEDIES.items()))
    result = refined(problem, Judge(lambda decision: replace(ran(decision.predicted.seconds), remedy=error)))
    best = result.decisions[0]
    assert remedy.options.items() <= best.compiler_options.items()
    assert any(error in note for note in best.notes)
    assert all(remedy.options.items() <= trial.compiler_options.items() for trial in result.refined.trials)


@pytest.mark.parametrize("statuses", [("oom",), ("error", "crash", "timeout")])
def test_failures_are_on_record_and_nothing_is_chosen(problem: PlanningProblem, statuses: Sequence[Status]) -> None:
    following = cycle(statuses)

    def fails(decision: Decision) -> TrialVerdict:
        return TrialVerdict(status=next(following), message="so it is")

    result = refined(problem, Judge(fails))
    assert not result.decisions
    assert {trial.status for trial in result.refined.trials} == set(statuses)
    assert result.refined.chosen is None


def test_one_failure_does_not_end_it(problem: PlanningProblem) -> None:
    def says(decision: Decision) -> TrialVerdict:
        first = shape_of(decision) == (8,)
        return TrialVerdict(status="crash", message="died") if first else ran(decision.predicted.seconds)

    result = refined(problem, Judge(says))
    assert result.decisions
    assert shape_of(result.decisions[0]) != (8,)


def test_an_interruption_keeps_the_best_so_far(problem: PlanningProblem) -> None:
    answers = iter([ran(1.0)])

    def says(decision: Decision) -> TrialVerdict:
        answer = next(answers, None)
        if answer is None:
            raise KeyboardInterrupt
        return answer

    result = refined(problem, Judge(says))
    assert len(result.decisions) == 1
    assert "interrupted" in result.refined.ended


def test_a_timeout_is_noted(problem: PlanningProblem) -> None:
    result = refined(problem, Judge(lambda decision: None), seconds=0.5)
    assert not result.decisions
    assert result.refined.ended == "the time was over"


def test_a_judge_that_is_not_there_is_told(problem: PlanningProblem) -> None:
    judge = Judge(lambda decision: TrialVerdict(status="unavailable", message="no compiler"), room=1)
    assert refined(problem, judge).refined.ended == "no compiler"
    assert len(judge.asked) == 1


def test_corrected_prices_are_those_found(problem: PlanningProblem) -> None:
    """Factors of 1 change nothing; others scale the value of what they are for."""
    instance = problem.instance({"x": 4, "y": 2})
    same = corrected(instance, Prices())
    twice = corrected(instance, Prices(computing=2.0))
    choice = [0] * len(instance.strategies)
    assert same.problem.evaluate(choice) == pytest.approx(instance.problem.evaluate(choice))
    assert [work.seconds[0] for work in twice.works if work] == pytest.approx(
        [2 * work.seconds[0] for work in instance.works if work]
    )
    factors = {("all-gather", mask): 3.0 for mask in range(4)}
    dear = corrected(instance, Prices(collectives=factors)).mesh
    assert dear.seconds_per_byte["all-gather"][3] == 3 * instance.mesh.seconds_per_byte["all-gather"][3]
    assert dear.seconds_per_byte["all-reduce"][3] == instance.mesh.seconds_per_byte["all-reduce"][3]


def test_products_of_one_argument_are_distinguished(problem: PlanningProblem) -> None:
    graph = problem.graph
    found = from_arguments(graph)
    assert set(graph.inputs) <= found
    dots = [tensor for op in graph.by_kind["dot_general"] for tensor in op.results]
    assert dots
    assert not found & set(dots)


def test_a_buffer_that_nobody_thought_of_is_room_taken_from_the_limit(problem: PlanningProblem) -> None:
    mesh = problem.instance({"x": 8}).mesh
    known = Corrections(memory={(("x", 8),): (4e9, 9e9, 3e9)})
    assert known.limit(mesh, 16e9) == pytest.approx(min(4e9 + 12e9 / 3, 16e9 - 6e9))
    assert Corrections().limit(mesh, 16e9) == 16e9


def test_other_emissions_that_gain_nothing_are_given_up(problem: PlanningProblem) -> None:
    def emissions(decision: Decision) -> tuple[Decision, ...]:
        return (replace(decision, compiler_options={"slow": "1"}),)

    def says(decision: Decision) -> TrialVerdict:
        return ran(decision.predicted.seconds * (2.0 if "slow" in decision.compiler_options else 1.0))

    judge = Judge(says, room=1)
    refined(problem, judge, emissions=emissions)
    assert sum("slow" in decision.compiler_options for decision in judge.asked) == 1


# ---------------------------------------------------------------- in plans


def test_measured_plans_run_on_the_devices(tmp_path: Path) -> None:
    devices = jax.devices()[:4]
    plan = planner.plan(
        mlp, mlp_args(), devices=devices, options=Options(autotune="measure", check="never", max_axes=2)
    )
    record = plan.refined
    assert record is not None
    assert record.how == "measure"
    assert record.chosen is not None
    assert all(trial.found_seconds for trial in record.trials if trial.status == "ok")
    assert "refined:" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert planner.load(tmp_path / "plan.json").decision.refined == record


@pytest.mark.sample
def test_measuring_makes_up_what_has_no_values_and_consumes_nothing() -> None:
    args = train_args()
    options = Options(autotune="measure", check="never", max_axes=1)
    for given in (args, shapes(args)):
        plan = planner.plan(train_step, given, devices=jax.devices()[:2], donate_argnums=0, options=options)
        assert plan.refined is not None
        assert plan.refined.chosen is not None
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(args))


@pytest.mark.parametrize(
    ("how", "topology", "why"),
    [("compile", "cpu:4", "schedules"), ("compile", "mi300x:4", "no compiler"), ("measure", "v5e:2x2", "no devices")],
)
def test_what_cannot_be_refined_is_planned_without_and_told(how: str, topology: str, why: str) -> None:
    options = Options(autotune=how, check="never")  # pyright: ignore[reportArgumentType]
    plan = planner.plan(mlp, shapes(mlp_args()), topology=topology, options=options)
    assert plan.refined is None
    assert any("not refined" in note and why in note for note in plan.notes)


def test_only_seconds_are_refined() -> None:
    with pytest.raises(ArgumentError, match="autotune"):
        planner.plan(
            mlp, shapes(mlp_args()), topology="v5e:2x2", objective="memory", options=Options(autotune="compile")
        )


@pytest.mark.parametrize("given", [{"autotune": "always"}, {"cache": 3}])
def test_options_are_checked(given: Mapping[str, object]) -> None:
    with pytest.raises(ArgumentError):
        Options(**given)  # pyright: ignore[reportArgumentType]


@pytest.mark.sample
def test_the_compiler_chooses_for_a_topology(tmp_path: Path) -> None:
    pytest.importorskip("libtpu")
    args = shapes(train_args(width=512, batch=256))
    options = replace(NEVER, autotune="compile", cache=str(tmp_path), max_axes=1)
    plan = planner.plan(train_step, args, topology="v5e:2x2", donate_argnums=0, options=options)
    record = plan.refined
    assert record is not None
    assert record.chosen is not None, record
    found = [trial.found_seconds or math.inf for trial in record.trials]
    noted = any("by the spread of the rates" in note for note in plan.decision.notes)
    assert noted == (found[record.chosen] > min(found))
    again = planner.plan(train_step, args, topology="v5e:2x2", donate_argnums=0, options=options)
    assert again.decision.in_specs == plan.decision.in_specs
