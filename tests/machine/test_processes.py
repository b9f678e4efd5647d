"""Several processes on loopback, each with CPU devices of its own, come to one plan and one verdict, or to one error."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from planner.machine.processes import processes_of
from tests.fork_server import python
from tests.machine.processes_worker import BATCH, STEPS, X, one
from tests.small import train_args, train_step
from tests.xla_flags import with_devices

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300.0


def run(group: str, folder: Path, *, processes: int, devices: int) -> list[dict[str, Any]]:
    """What each process found, by case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": with_devices(devices),
        "PYTHONPATH": str(ROOT),
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(processes):
            words = [group, str(rank), str(processes), str(port), str(folder)]
            log = (folder / f"{rank}.log").open("wb")
            started.append(
                subprocess.Popen(
                    [*python(), "-m", "tests.machine.processes_worker", *words],
                    cwd=ROOT,
                    env=env,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
            log.close()
        codes = [process.wait(TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert codes == [0] * processes, [(folder / f"{rank}.log").read_text()[-3000:] for rank in range(processes)]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run("quick", tmp_path_factory.mktemp("quick"), processes=2, devices=2)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run("long", tmp_path_factory.mktemp("long"), processes=2, devices=4)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run("four", tmp_path_factory.mktemp("four"), processes=4, devices=1)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run("parts", tmp_path_factory.mktemp("parts"), processes=4, devices=2)


def same(found: list[dict[str, Any]], case: str) -> dict[str, Any]:
    """What all processes found alike."""
    first, *others = [of[case] for of in found]
    assert all(other == first for other in others)
    return first


def raised(found: list[dict[str, Any]], case: str) -> list[tuple[str, str]]:
    return [(of[case]["error"], of[case]["message"]) for of in found]


def assert_checked(plan: dict[str, Any]) -> None:
    assert [ok for ok, _ in plan["checked"].values()] == [True] * 4


# ---------------------------------------------------------------- quick: two processes of two devices


def test_default_options_give_all_processes_one_plan_over_all_devices(quick: list[dict[str, Any]]):
    plan = same(quick, "default_options")
    assert len(plan["devices"]) == 4
    assert_checked(plan)


def test_a_front_is_one_for_all_processes(quick: list[dict[str, Any]]):
    first, *between, last = same(quick, "front")["plans"]
    assert_checked(first)
    assert_checked(last)
    for plan in between:
        ok, detail = plan["checked"]["numerics"]
        assert ok is None
        assert "between the ends" in detail


def test_verify_gives_all_processes_one_verdict(quick: list[dict[str, Any]]):
    plan = same(quick, "default_options")
    assert plan["verified"]["ok"]
    assert "numerics: ok. 1 results equal the single device's" in plan["verified"]["words"]
    assert plan["by_shapes"]["ok"]
    assert "numerics: not checked. no arguments were given" in plan["by_shapes"]["words"]


def test_a_search_ended_by_the_clock_gives_all_processes_one_plan(quick: list[dict[str, Any]]):
    notes = same(quick, "no_time")["notes"]
    assert any("time limit of 0.001 s ended the search" in note for note in notes)


def test_meshes_that_leave_a_process_out_are_not_searched_and_that_is_told(quick: list[dict[str, Any]]):
    words = "meshes of 1, 2 devices were not searched: they would leave process 1 without any"
    assert words in same(quick, "default_options")["notes"]


def test_a_fixed_mesh_that_leaves_a_process_out_is_an_error_on_all(quick: list[dict[str, Any]]):
    for error, message in raised(quick, "mesh_of_one_process"):
        assert error == "MeshError"
        assert "would leave process 1 without devices" in message


def test_different_programs_are_an_error_on_all(quick: list[dict[str, Any]]):
    for error, message in raised(quick, "different_programs"):
        assert error == "ProcessError"
        assert "the program is 'one " in message
        assert "'other " in message


def test_different_requests_are_an_error_on_all_that_names_what_differs(quick: list[dict[str, Any]]):
    for error, message in raised(quick, "different_limits"):
        assert error == "ProcessError"
        assert "memory_limit is 1000000000.0 on the one and 1000000001.0 on the other" in message


def test_an_error_of_one_process_is_raised_on_all(quick: list[dict[str, Any]]):
    (here, there), (own, mine) = raised(quick, "error_on_one")
    assert here == own == "TraceError"
    assert there.startswith("on process 1: ")
    assert "no such file" in mine


def test_that_nothing_fits_is_raised_on_all_with_the_least_memory(quick: list[dict[str, Any]]):
    found = same(quick, "nothing_fits")
    assert found["error"] == "InfeasibleError"
    assert found["least_bytes"] > 1000.0


def test_devices_of_one_process_need_no_agreement():
    assert processes_of(jax.devices()).gathered(lambda: 1) == (1,)
    assert processes_of(None).alone


# ---------------------------------------------------------------- long: two processes of four devices, and four of one


@pytest.mark.sample
def test_steps_of_training_are_those_of_one_device(long: list[dict[str, Any]]):
    state, x = train_args()
    expected: list[float] = []
    for _ in range(STEPS):
        state, loss = jax.jit(train_step)(state, x)
        expected.append(float(loss))
    found = same(long, "train")
    assert_checked(found)
    np.testing.assert_allclose(found["losses"], expected, rtol=1e-5)


@pytest.mark.sample
def test_what_a_step_returned_is_gathered_to_verify_the_next(long: list[dict[str, Any]]):
    assert same(long, "train")["next"]["ok"]
    assert "numerics: ok" in same(long, "train")["next"]["words"]


@pytest.mark.sample
def test_a_saved_plan_is_bound_by_all_processes(long: list[dict[str, Any]]):
    assert same(long, "train")["bound"]["ok"]


@pytest.mark.sample
def test_a_check_that_fails_on_one_process_drops_the_plan_on_all(long: list[dict[str, Any]]):
    for case, words in (
        ("check_fails_on_one", "failed: numerics: on process 1: planted"),
        ("compiles_on_all_but_one", "failed: compiling: the plan does not compile: RuntimeError: planted"),
    ):
        found = same(long, case)
        assert any(words in note for note in found["notes"])
        assert_checked(found)


@pytest.mark.sample
def test_arguments_that_differ_by_process_are_not_checked_and_that_is_said(long: list[dict[str, Any]]):
    ok, detail = same(long, "arguments_differ")["checked"]["numerics"]
    assert ok is None
    assert "argument x is not the same on the processes 0, 1" in detail
    assert same(long, "shapes_on_one")["checked"]["numerics"] == [None, "the arguments are shapes only"]


@pytest.mark.sample
def test_global_arrays_are_taken_checked_and_placed(long: list[dict[str, Any]]):
    found = same(long, "global_arrays")
    assert_checked(found)
    assert found["verified"]["ok"]
    np.testing.assert_allclose(found["values"], [float(one(X))] * 2, rtol=1e-5)


@pytest.mark.sample
def test_keys_and_large_constants_are_placed_on_several_processes(long: list[dict[str, Any]]):
    found = same(long, "keys_and_constants")
    assert found["constants"] == [False, False, True]
    assert_checked(found)
    assert found["verified"]["ok"]


@pytest.mark.sample
def test_where_no_split_helps_every_device_computes_the_whole(long: list[dict[str, Any]]):
    found = same(long, "nothing_to_split")
    assert len(found["devices"]) == 8
    assert found["value"] == 3.0
    assert any("splits nothing, so they all do the same" in note for note in found["notes"])
    assert any("would leave process" in note for note in found["notes"])


@pytest.mark.sample
def test_ordered_effects_are_refused_on_several_processes(long: list[dict[str, Any]]):
    for error, message in raised(long, "ordered_effects"):
        assert error == "MeshError"
        assert "the devices are of the processes 0, 1" in message


@pytest.mark.sample
def test_a_process_plans_alone_for_its_own_devices(long: list[dict[str, Any]]):
    idle, found = (of["one_plans_alone"] for of in long)
    assert idle is None
    assert_checked(found)
    assert found["verified"]["ok"]
    np.testing.assert_allclose(found["value"], float(one(X)), rtol=1e-5)


@pytest.mark.sample
def test_some_devices_of_every_process_will_do(long: list[dict[str, Any]]):
    found = same(long, "devices_of_each")
    assert len(found["devices"]) == 2
    assert_checked(found)


@pytest.mark.sample
def test_devices_of_other_processes_alone_are_refused(long: list[dict[str, Any]]):
    owner, stranger = (of["devices_of_others"] for of in long)
    assert_checked(owner)
    assert stranger["error"] == "MeshError"
    assert "none of them to this process, 1" in stranger["message"]


@pytest.mark.sample
def test_a_process_that_does_not_come_is_an_error_and_the_next_call_is_in_step(long: list[dict[str, Any]]):
    for found in (of["verified_by_one"] for of in long):
        assert "process 1 owns some of the devices, but did not come to this call" in found["first"]["raised"]
        assert found["second"]["ok"]


@pytest.mark.sample
def test_four_processes_come_to_one_plan(four: list[dict[str, Any]]):
    found = same(four, "default_options")
    assert_checked(found)
    assert sorted(device // 2048 for device in found["devices"]) == [0, 1, 2, 3]


# ---------------------------------------------------------------- parts: four processes of two devices, each with its part


@pytest.fixture(scope="module")
def losses() -> list[float]:
    """Those of the whole batch on one device."""
    state, _ = train_args()
    found: list[float] = []
    for _ in range(STEPS):
        state, loss = jax.jit(train_step)(state, BATCH)
        found.append(float(loss))
    return found


@pytest.mark.sample
def test_steps_on_parts_of_a_batch_are_those_on_the_whole(parts: list[dict[str, Any]], losses: list[float]):
    found = same(parts, "parts_of_a_batch")
    assert_checked(found)
    assert found["held"] == len(BATCH) // 4
    assert found["same"]
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
    np.testing.assert_allclose(found["bound"], losses[0], rtol=1e-5)
    assert found["next"]["ok"]
    assert "numerics: ok" in found["next"]["words"]


@pytest.mark.sample
def test_a_part_of_another_shape_is_told_what_is_expected(parts: list[dict[str, Any]], losses: list[float]):
    found = same(parts, "parts_of_other_shapes")
    assert len(found["words"]) == 3
    for words in found["words"]:
        assert "argument x was planned as the part of this process, one of 4 of float32[32, 64] along dim 0" in words
        assert "give float32[8, 64], or the whole as a global array; got" in words
    np.testing.assert_allclose([found["loss"], found["again"]], losses[0], rtol=1e-5)


@pytest.mark.sample
def test_parts_that_do_not_divide_are_refused(parts: list[dict[str, Any]]):
    for error, message in raised(parts, "parts_across_processes_that_do_not_divide"):
        assert error == "PinError"
        assert "x comes in parts from 4 processes" in message
        assert "12 along dim 0 is not divisible by 8" in message


@pytest.mark.sample
def test_a_pin_against_the_parts_is_refused(parts: list[dict[str, Any]]):
    for error, message in raised(parts, "parts_and_a_pin_against_them"):
        assert error == "InfeasibleError"
        assert "on x" in message


@pytest.mark.sample
def test_parts_lie_where_the_devices_of_their_process_are(parts: list[dict[str, Any]]):
    found = [of["parts_on_a_mesh_in_another_order"] for of in parts]
    assert [of["starts"] for of in found] == [[0, 16], [4, 20], [8, 24], [12, 28]]
    assert all(of["same"] for of in found)
    np.testing.assert_allclose([of["sum"] for of in found], [BATCH.sum()] * 4, atol=1e-3)


@pytest.mark.sample
def test_several_programs_of_several_processes_share_a_layout(parts: list[dict[str, Any]], losses: list[float]):
    found = same(parts, "shared_by_processes")
    assert_checked(found)
    np.testing.assert_allclose(found["loss"], losses[0], rtol=1e-5)
    assert found["shape"] == [32, 64]
    assert (found["kept"], found["entries"]) == ([True, True], 1)
    assert "None, 'model'" in found["pinned"]
