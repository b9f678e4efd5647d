"""Which plan is handed over, by what the compiler for devices that are not here says of each; the compiler is scripted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from cost_models import parse_topology
from planner.compiler.emission import options as compiler_options
from planner.compiler.emission.options import REMEDIES
from planner.emit import alternatives as variants
from planner.emit.runner import Runner
from planner.errors import InfeasibleError
from planner.planning import checks
from planner.planning.mesh_candidates import JUDGED
from planner.verify import compiled, step_time, verification
from planner.verify.aot import AotReport, lower_request
from planner.verify.hlo.collectives import CompiledCollective
from planner.verify.hlo.memory import CompiledMemory
from planner.verify.hlo.schedule_walk import ScheduleEstimate

WIDE = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
AS_WRITTEN = planner.Options(microbatches=1, remat="as written")


def step(w: Any, v: Any, x: Any) -> Any:
    """A step with several good meshes."""

    def loss(w: Any, v: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ v) ** 2)

    return jax.tree.map(lambda p, g: p - g, (w, v), jax.grad(loss, (0, 1))(w, v))


@dataclass
class Compiler:
    """Says of the plans that it is given, in turn, what `script` says; the last word is said of all that follow."""

    script: list[Callable[[], tuple[AotReport, float]]]
    seen: list[Any] = field(default_factory=list[Any])
    seconds: float = 0.0

    def compile(self, jitted: Any, args: Any, *, mesh_shape: Any, **asked: Any) -> AotReport:
        report, self.seconds = self.script[min(len(self.seen), len(self.script) - 1)]()
        self.seen.append((mesh_shape, asked))
        return report

    def step_time(self, *_: Any) -> ScheduleEstimate:
        return ScheduleEstimate(
            seconds=self.seconds,
            compute_seconds=self.seconds,
            exposed_collective_seconds=0.0,
            collective_seconds=0.0,
            from_cycles=0.0,
            unknown_loops=0,
        )


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compiler]:
    """Makes the compiler for TPUs one that follows a script."""

    def make(*script: Callable[[], tuple[AotReport, float]]) -> Compiler:
        compiler = Compiler(list(script))
        monkeypatch.setattr(checks, "AFFORDABLE_OPERATIONS", 10_000)
        monkeypatch.setattr(compiled, "unavailable_reason", lambda platform: "")
        monkeypatch.setattr(compiled, "aot_compile", compiler.compile)
        monkeypatch.setattr(step_time, "step_time", compiler.step_time)
        return compiler

    return make


def report(peak: float = 1e6, gathered: float = 0.0, seconds: float = 1e-3) -> Callable[[], tuple[AotReport, float]]:
    """A compile of this peak that gathers so many bytes over all devices, and takes so long a call."""
    gather = CompiledCollective(
        kind="all-gather",
        bytes=gathered,
        dtypes=("f32",),
        group_size=8,
        groups=(tuple(range(8)),),
        trip_count=1,
        known_trips=1,
        op_name="jit(step)/dot_general",
        sources=("a/b.py:1",),
        channel_id=1,
        promoted=False,
        name="all-gather",
    )
    memory = CompiledMemory(argument_bytes=0, output_bytes=0, alias_bytes=0, temp_bytes=0, peak_bytes=int(peak))
    made = AotReport(
        status="ok", message="", seconds=1.0, memory=memory, collectives=(gather,) if gathered else (), hlo="HLO"
    )
    return lambda: (made, seconds)


def planned(*, mesh: dict[str, int] | None = None, topology: str = "v5e:2x4", **asked: Any) -> planner.Plan:
    return planner.plan(step, (WIDE, WIDE, WIDE), topology=topology, mesh=mesh, **asked)


def word(plan: planner.Plan, what: str) -> bool | None:
    return next(c.ok for c in plan.checked if c.what == what)


def test_a_plan_is_compiled_for_devices_that_are_not_here(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(seconds=1e-9))
    plan = planned()
    assert len(compiler.seen) == 1
    assert compiler.seen[0][1]["timeout_s"] == planner.Options().affordable_compile_s
    assert (word(plan, "compiling"), word(plan, "numerics")) == (True, None)
    assert plan.verify().seconds == plan.verify().seconds
    assert len(compiler.seen) == 1, "what was compiled to check the plan is not compiled again"


def test_what_is_not_compiled_is_told(scripted: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = scripted(report())
    monkeypatch.setattr(checks, "AFFORDABLE_OPERATIONS", 3)
    assert "operations takes minutes" in planned().checked[0].detail
    assert not compiler.seen
    assert planned(options=planner.Options(check="always")).checked[0].ok is True
    monkeypatch.setattr(compiled, "unavailable_reason", lambda platform: "no compiler is installed")
    monkeypatch.setattr(checks, "AFFORDABLE_OPERATIONS", 10_000)
    assert planned().checked[0].detail == "the topology v5e:2x4 has no devices here; no compiler is installed"


def test_a_compile_that_takes_too_long_is_told(scripted: Callable[..., Compiler]) -> None:
    late = AotReport(status="timeout", message="", seconds=7.0)
    scripted(lambda: (late, 0.0))
    plan = planned(options=planner.Options(affordable_compile_s=7.0))
    assert {c.ok for c in plan.checked} == {None}
    assert "the compile took longer than 7 s" in plan.checked[0].detail


def test_a_plan_that_does_not_fit_gives_way_to_one_that_takes_less(scripted: Callable[..., Compiler]) -> None:
    scripted(report(seconds=1.0))
    free = planned(mesh={"x": 8}).predicted.peak_bytes
    compiler = scripted(report(peak=1.5 * free, seconds=1.0), report(peak=0.9 * free, seconds=1.0))
    plan = planned(mesh={"x": 8}, memory_limit=1.2 * free)
    assert len(compiler.seen) == 2
    assert plan.predicted.peak_bytes <= 1.2 * free / 1.5
    assert plan.decision.request.memory_limit == 1.2 * free
    assert any("it does not fit" in note for note in plan.notes)


def test_where_nothing_fits_by_the_compiler_that_is_said(scripted: Callable[..., Compiler]) -> None:
    scripted(report(peak=20e9))
    with pytest.raises(InfeasibleError, match="the least needs 20 GB"):
        planned(mesh={"x": 8})


def test_a_suspicious_plan_gives_way_to_a_faster_one(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(gathered=1e13, seconds=100.0), report(seconds=1e-9))
    plan = planned()
    assert len(compiler.seen) == 2
    assert plan.decision.mesh_shape == compiler.seen[1][0] != compiler.seen[0][0]
    assert any("is suspicious: collectives" in note for note in plan.notes)
    assert any("the fastest of 2 plans by the compiler's schedule, 0.001 us" in note for note in plan.notes)
    assert plan.checked[0].ok is True


def test_a_plan_whose_schedule_takes_more_than_promised_gives_way_to_a_faster_one(
    scripted: Callable[..., Compiler],
) -> None:
    compiler = scripted(report(seconds=100.0), report(seconds=1e-9))
    plan = planned()
    assert len(compiler.seen) == 2
    assert plan.decision.mesh_shape == compiler.seen[1][0] != compiler.seen[0][0]
    assert any(
        "is suspicious: seconds: the compiler's schedule takes 100 s, promised were" in note for note in plan.notes
    )


def test_a_plan_that_is_slow_for_want_of_memory_gives_way_to_one_that_takes_less(
    scripted: Callable[..., Compiler],
) -> None:
    scripted(report(seconds=1e-9))
    free = planned(mesh={"x": 8}).predicted.peak_bytes
    compiler = scripted(report(peak=1.15 * free, seconds=100.0), report(peak=free, seconds=1e-9))
    plan = planned(mesh={"x": 8}, memory_limit=1.2 * free)
    assert len(compiler.seen) == 2
    assert plan.predicted.peak_bytes <= 0.92 * free
    assert plan.decision.request.memory_limit == 1.2 * free
    assert any("is suspicious: seconds" in note for note in plan.notes)


def layers(ws: Any, x: Any) -> Any:
    """The gradient of several layers, whose backward pass reads what it may as well compute again."""

    def layer(h: Any, w: Any) -> Any:
        return jnp.tanh(jnp.tanh(h @ w) @ w.T), None

    return jax.grad(lambda ws: jnp.sum(jax.lax.scan(layer, x, ws)[0] ** 2))(ws)


LAYERS = jax.ShapeDtypeStruct((8, 1024, 1024), jnp.float32), jax.ShapeDtypeStruct((65536, 1024), jnp.float32)
ON_ANY_MESH: dict[str, Any] = {"topology": "v5e:2x4", "options": planner.Options(microbatches=1)}
ON_EIGHT: dict[str, Any] = {**ON_ANY_MESH, "mesh": {"x": 8}}


def test_a_plan_that_is_slow_for_want_of_memory_may_give_way_to_one_that_saves_less(
    scripted: Callable[..., Compiler],
) -> None:
    scripted(report(seconds=1e-9))
    first = planner.plan(layers, LAYERS, **ON_EIGHT)
    limit = 1.1 * first.predicted.peak_bytes
    compiler = scripted(report(peak=limit, seconds=100.0), report(seconds=1e-9))
    plan = planner.plan(layers, LAYERS, **ON_EIGHT, memory_limit=limit)
    assert len(compiler.seen) == 2
    assert plan.predicted.peak_bytes < 0.92 * first.predicted.peak_bytes
    assert plan.predicted.flops > first.predicted.flops
    assert plan.decision.form != first.decision.form
    assert plan.decision.request.memory_limit == limit
    assert plan.certificate.lower_bound <= plan.certificate.value


def test_a_plan_that_computes_longer_than_promised_gives_way_to_one_that_saves_less(
    scripted: Callable[..., Compiler],
) -> None:
    scripted(report(seconds=1e-9))
    first = planner.plan(layers, LAYERS, **ON_EIGHT)
    compiler = scripted(report(seconds=100.0), report(seconds=1e-9))
    plan = planner.plan(layers, LAYERS, **ON_EIGHT)
    assert len(compiler.seen) == 2
    assert plan.decision.form != first.decision.form
    assert plan.predicted.peak_bytes < first.predicted.peak_bytes
    assert plan.predicted.flops > first.predicted.flops
    assert plan.certificate.lower_bound <= plan.certificate.value
    assert any("is suspicious: seconds" in note for note in plan.notes)
    assert any("(others: x=8 with other values saved 100 s)" in note for note in plan.notes)
    assert word(plan, "compiling")


def test_a_plan_that_saves_less_and_is_no_faster_is_not_handed_over(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(seconds=100.0), report(seconds=101.0), report(seconds=102.0), report(seconds=103.0))
    plan = planner.plan(layers, LAYERS, **ON_ANY_MESH)
    seen = [mesh for mesh, _ in compiler.seen]
    assert plan.decision.mesh_shape == seen[0]
    assert len(seen) == 4
    assert seen[0] not in seen[2:], "what is tried next is on other meshes"
    assert any("the fastest of 4 plans by the compiler's schedule, 100 s" in note for note in plan.notes)


def test_where_a_plan_that_saves_less_does_not_compile_other_meshes_are_tried(
    scripted: Callable[..., Compiler],
) -> None:
    error = AotReport(status="error", message="the compiler dies", seconds=1.0)
    compiler = scripted(report(seconds=100.0), lambda: (error, 0.0), report(seconds=1e-9))
    first = planner.plan(layers, LAYERS, topology="v5e:2x4", options=planner.Options(microbatches=1, check="never"))
    plan = planner.plan(layers, LAYERS, **ON_ANY_MESH)
    assert len(compiler.seen) == 3
    assert plan.decision.mesh_shape == compiler.seen[2][0] != compiler.seen[0][0]
    assert plan.decision.form == first.decision.form


def test_what_is_saved_stays_where_a_user_says_it(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(seconds=100.0), report(seconds=1e-9))
    asked: dict[str, Any] = {**ON_EIGHT, "options": planner.Options(microbatches=1, remat="none")}
    plan = planner.plan(layers, LAYERS, **asked)
    assert len(compiler.seen) == 1
    assert any("suspicious" in note for note in plan.notes)


def test_a_suspicious_plan_stays_where_the_others_are_no_better(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(gathered=1e13, seconds=100.0), report(gathered=1e13, seconds=101.0))
    plan = planned()
    assert len(compiler.seen) == 4
    assert plan.decision.mesh_shape == compiler.seen[0][0]
    assert word(plan, "collectives") is False


def test_nothing_else_is_tried_that_is_predicted_to_be_slower(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(gathered=1e13, seconds=1e-5))
    plan = planned()
    assert (len(compiler.seen), word(plan, "collectives")) == (1, False)


def test_seconds_are_no_matter_where_joules_are(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(gathered=1e13, seconds=100.0), report(seconds=1.0))
    assert word(planned(objective="energy"), "collectives") is False
    assert len(compiler.seen) == 1


def test_a_fixed_mesh_is_kept(scripted: Callable[..., Compiler]) -> None:
    compiler = scripted(report(gathered=1e13, seconds=100.0))
    assert planned(mesh={"x": 8}).decision.mesh_shape == {"x": 8}
    assert len(compiler.seen) == 1


def test_a_plan_carries_the_options_without_which_its_compiler_fails(
    scripted: Callable[..., Compiler], tmp_path: Path
) -> None:
    error, remedy = next(iter(REMEDIES.items()))
    made, seconds = report(seconds=1.0)()
    compiler = scripted(lambda: (replace(made, remedy=error), seconds))
    plan = planned(mesh={"x": 8}, topology="h100:8")
    assert plan.decision.compiler_options == {
        **compiler_options.plan_options(parse_topology("h100:8")),
        **remedy.options,
    }
    told = f'with xla_gpu_enable_triton_gemm=False: without, the compiler ends with "{error}"'
    assert f"compiled {told}" in plan.notes
    assert (plan.checked[0].ok, plan.checked[0].detail) == (True, f"compiled for its devices, {told}")
    assert not [check for check in plan.checked if check.ok is False]
    assert plan.verify().ok
    assert len(compiler.seen) == 1, "what was compiled to check the plan is not compiled again"
    plan.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(step, (WIDE, WIDE, WIDE))
    for one in (plan, bound):
        request = lower_request(one.jit, (WIDE, WIDE, WIDE), mesh_shape={"x": 8}, topology="h100:8")
        assert remedy.options.items() <= request.compiler_options.items()


def test_a_plan_without_the_options_that_it_takes_is_told(scripted: Callable[..., Compiler]) -> None:
    error = next(iter(REMEDIES))
    made, seconds = report(seconds=1.0)()
    scripted(lambda: (replace(made, remedy=error), seconds))
    found = planned(mesh={"x": 8}, topology="h100:8", options=planner.Options(check="never")).verify()
    assert not found.ok
    assert str(found).startswith(f'compiling: FAILED. the compiler ends with "{error}"; it compiles with')


def test_a_plan_for_devices_that_are_here_is_helped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a compiler that does without fast math only what it is told to."""
    options = {"xla_cpu_enable_fast_math": "False"}
    known = {"slow math": compiler_options.Remedy(platform="cpu", options=options, evidence="this test")}
    for module in (compiler_options, variants, verification):
        monkeypatch.setattr(module, "REMEDIES", known)
    whole = Runner.executable.func  # pyright: ignore

    def executable(self: Runner) -> Any:
        if not self.compiler_options:
            raise ValueError("the compiler dies of slow math")
        return whole(self)

    monkeypatch.setattr(Runner, "executable", property(executable))
    x = jnp.ones((64, 64))
    plan = planner.plan(lambda x, y: x @ y, (x, x))
    assert plan.decision.compiler_options == options
    assert {check.what: check.ok for check in plan.checked} == dict.fromkeys(checks.EVERYTHING, True)
    assert any("slow math" in note for note in plan.notes)


def test_flags_that_a_compile_inherits_are_told(
    scripted: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(report(seconds=1.0))
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_module_re=a --xla_force_host_platform_device_count=8")
    assert not any("flags" in note for note in planned(mesh={"x": 8}).notes)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_a=1")
    assert any(
        "compiled with the flags that are set here, LIBTPU_INIT_ARGS=--xla_tpu_a=1" in n for n in planned().notes
    )


@pytest.fixture
def least() -> float:
    """The least memory that would do on one mesh, by prediction."""
    with pytest.raises(InfeasibleError) as told:
        planned(mesh={"x": 8}, memory_limit=1e6)
    assert told.value.least_bytes is not None
    return told.value.least_bytes


def test_where_nothing_is_predicted_to_fit_the_compiler_is_asked(
    scripted: Callable[..., Compiler], least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = scripted(report(peak=0.85 * least, seconds=1.0))
    monkeypatch.setattr(checks, "AFFORDABLE_OPERATIONS", 3)
    plan = planned(mesh={"x": 8}, memory_limit=0.9 * least, options=planner.Options(microbatches=1))
    assert len(compiler.seen) == 1
    assert plan.predicted.peak_bytes > 0.9 * least
    assert any("nothing is predicted to fit" in note for note in plan.notes)
    in_parts = planned(mesh={"x": 8}, memory_limit=0.9 * least, options=planner.Options(check="never"))
    assert in_parts.decision.form.microbatches > 1
    assert in_parts.predicted.peak_bytes <= 0.9 * least
    assert len(compiler.seen) == 1


def test_where_nothing_fits_by_prediction_nor_compiler_both_are_told(
    scripted: Callable[..., Compiler], least: float
) -> None:
    compiler = scripted(report(peak=2 * least))
    with pytest.raises(InfeasibleError, match=r"no plan fits .* Nor does the compiler.* does not fit") as told:
        planned(mesh={"x": 8}, memory_limit=0.9 * least, options=AS_WRITTEN)
    assert len(compiler.seen) == 1
    assert told.value.least_bytes == pytest.approx(least, rel=0.01)


def test_where_nothing_is_predicted_to_fit_in_any_form_the_compiler_is_asked_of_the_program_as_written(
    scripted: Callable[..., Compiler], least: float
) -> None:
    limit = 0.42 * least
    compiler = scripted(report(peak=0.9 * limit, seconds=1.0))
    plan = planned(mesh={"x": 8}, memory_limit=limit)
    assert len(compiler.seen) == 1
    assert (plan.decision.form.microbatches, JUDGED in plan.notes) == (1, True)
    compiler = scripted(report(peak=2 * limit))
    with pytest.raises(InfeasibleError, match=r"Nor does the compiler.* Nor does any plan fit .* in microbatches"):
        planned(mesh={"x": 8}, memory_limit=limit)
    assert len(compiler.seen) == 1


def test_what_no_compiler_found_to_fit_is_not_handed_over(scripted: Callable[..., Compiler], least: float) -> None:
    late = AotReport(status="timeout", message="", seconds=7.0)
    compiler = scripted(lambda: (late, 0.0))
    with pytest.raises(InfeasibleError, match="no compiler says otherwise"):
        planned(mesh={"x": 8}, memory_limit=0.9 * least, options=replace(AS_WRITTEN, time_limit_s=90.0))
    assert [asked["timeout_s"] for _, asked in compiler.seen] == [90.0], "other plans would take as long"
    compiler = scripted(report(peak=0.85 * least))
    with pytest.raises(InfeasibleError, match="no plan fits"):
        planned(mesh={"x": 8}, memory_limit=0.9 * least, options=replace(AS_WRITTEN, check="never"))
    with pytest.raises(InfeasibleError, match="no plan fits"):
        planned(mesh={"x": 8}, memory_limit=0.2 * least, options=AS_WRITTEN)
    assert not compiler.seen
