"""Compiles that fail with an error to which a remedy is known: they are tried once more with it; children are scripted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import planner
from cost_models import CHIPS, parse_topology
from planner.compiler.emission.options import REMEDIES, SCHEDULER_MEMORY, options_of_plans, plan_options, remedy_of
from planner.verify import aot
from planner.verify.aot import AotReport, AotRequest, unavailable_reason
from planner.verify.kept_reports import KeptReports

ERROR = "Couldn't find output tile sizes"
MESSAGE = f"JaxRuntimeError: INTERNAL: {ERROR} that satisfy hlo: %dot"
OPTION = {"xla_gpu_enable_triton_gemm": "False"}
REQUEST = AotRequest(
    program=b"",
    num_arguments=0,
    free_outputs=(),
    mesh_shape={"x": 8},
    topology="h100:8",
    platform="cuda",
    timeout_s=9.0,
)
FAILED = AotReport(status="error", message=MESSAGE, seconds=4.0)
DONE = AotReport(status="ok", message="", seconds=3.0)
Runs = Callable[..., tuple[AotReport, list[AotRequest]]]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The report on a request where the children say these reports in turn, and what the children were asked."""

    def run(request: AotRequest, *reports: AotReport) -> tuple[AotReport, list[AotRequest]]:
        asked: list[AotRequest] = []

        def once(request: AotRequest, stopped: Callable[[], bool]) -> AotReport:
            asked.append(request)
            return reports[len(asked) - 1]

        monkeypatch.setattr(aot, "_run_once", once)
        return aot.run_request(request), asked

    return run


def test_what_is_known_to_help_says_of_what_platform_and_where_it_was_seen() -> None:
    for error, remedy in REMEDIES.items():
        assert remedy.evidence
        known = options_of_plans(remedy.platform)
        assert all(value in known[name] for name, value in remedy.options.items())
        assert remedy_of(remedy.platform, f"x {error} y", remedy.under) == error
        assert remedy_of(remedy.platform, f"x {error} y", {**remedy.under, **remedy.options}) == "", "it did not help"
        assert remedy_of("cpu", error, remedy.under) == ""
        assert remedy_of(remedy.platform, "anything else", remedy.under) == ""


def test_readers_of_plans_know_no_other_options() -> None:
    known = options_of_plans("tpu")
    # Those of v5e alone fuse collectives, where compilers refuse that for others.
    v5e, v6e = parse_topology("v5e:2x4"), parse_topology("v6e:2x2")
    own = {**plan_options(v6e, offloads=True, convolves=True), **plan_options(v5e)}
    assert known.keys() == own.keys()
    assert all(value in known[name] for name, value in own.items())


@pytest.mark.parametrize("chip", CHIPS)
def test_what_plans_carry_is_known_to_those_who_read_their_files(chip: str) -> None:
    on_tpu = "2x4" if chip in ("v5e", "v6e") else "2x2x2"
    topology = parse_topology(f"{chip}:{on_tpu if CHIPS[chip].platform == 'tpu' else 8}")
    known = options_of_plans(topology.chip.platform)
    own = plan_options(topology, offloads=True, convolves=True)
    assert all(value in known[name] for name, value in own.items())


def test_a_program_that_only_fits_with_less_for_the_schedule_is_compiled_so(runs: Runs) -> None:
    own = plan_options(parse_topology("v5e:2x4"))
    request = replace(REQUEST, topology="v5e:4x4", platform="tpu", compiler_options=own)
    failed = AotReport(status="oom", message="RESOURCE_EXHAUSTED: Ran out of memory on HBM", seconds=4.0)
    report, asked = runs(request, failed, DONE)
    assert (report.status, report.remedy) == ("ok", "Ran out of memory")
    assert asked[1].compiler_options == {**own, SCHEDULER_MEMORY: "95"}
    assert runs(request, failed, replace(failed, needed_bytes=1.0))[0] == failed, "neither fits"
    assert runs(replace(request, compiler_options={}), failed)[0] == failed, "the scheduler has its default"


def test_a_known_error_is_tried_once_more_with_its_remedy(runs: Runs) -> None:
    report, asked = runs(replace(REQUEST, compiler_options={"a": "1"}), FAILED, DONE)
    assert (report.status, report.remedy, report.seconds) == ("ok", ERROR, 7.0)
    assert [dict(request.compiler_options) for request in asked] == [{"a": "1"}, {"a": "1", **OPTION}]
    assert [request.timeout_s for request in asked] == [9.0, 5.0]


def test_a_compiler_that_died_of_it_is_tried_too(runs: Runs) -> None:
    report, _ = runs(REQUEST, replace(FAILED, status="crash"), replace(DONE, status="oom"))
    assert (report.status, report.remedy) == ("oom", ERROR)


@pytest.mark.parametrize(
    ("request_", "report"),
    [
        (REQUEST, replace(FAILED, message="INTERNAL: something else")),
        (REQUEST, replace(FAILED, status="timeout")),
        (REQUEST, DONE),
        (replace(REQUEST, compiler_options=OPTION), FAILED),
        (replace(REQUEST, platform="tpu"), FAILED),
        (replace(REQUEST, timeout_s=3.0), FAILED),
    ],
    ids=["another error", "too slow", "no error", "it has the remedy", "another compiler", "no time is left"],
)
def test_nothing_else_is_tried_again(runs: Runs, request_: AotRequest, report: AotReport) -> None:
    found, asked = runs(request_, report)
    assert (found, len(asked)) == (report, 1)


def test_where_the_remedy_does_not_help_the_first_error_is_told(runs: Runs) -> None:
    report, asked = runs(REQUEST, FAILED, replace(FAILED, status="crash", message="another"))
    assert (report, len(asked)) == (FAILED, 2)


def test_kept_reports_know_of_the_remedy(tmp_path: Path) -> None:
    KeptReports(tmp_path).keep(REQUEST, replace(DONE, remedy=ERROR))
    found = KeptReports(tmp_path).find(REQUEST)
    assert found is not None
    assert found.remedy == ERROR
    assert KeptReports(tmp_path).find(replace(REQUEST, inherited={"XLA_FLAGS": "--xla_a=1"})) is None


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_sums_that_outgrow_the_chip_beside_matmuls_are_compiled_apart() -> None:
    """By libtpu 0.0.42 the compile else ends in an error; later ones fuse nothing on v5p."""

    def fn(y: jax.Array, x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        return y @ w, jnp.einsum("nf,nd->fd", y, x)

    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8192, 8192), (8192, 2048), (8192, 2048))]
    pins = {"y": P("x"), "x": P("x"), "w": P(), "out/0": P("x"), "out/1": P()}
    options = planner.Options(check="always")
    plan = planner.plan(fn, args, topology="v5p:2x2x1", mesh={"x": 4}, pins=pins, options=options)
    assert plan.checked[0].ok
