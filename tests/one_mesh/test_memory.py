"""Memory by form is memory item by item; what is said of a program holds for all of its meshes."""

import gc

import numpy as np
import pytest

from planner.one_mesh.memory import MemoryModel, whole_bytes
from planner.program.gc_pause import paused
from tests.sessions import small_session


def _choices(memory: MemoryModel, count: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    sizes = [len(strategies) for strategies in memory.instance.strategies]
    return [[int(rng.integers(size)) for size in sizes] for _ in range(count)]


@pytest.mark.parametrize("name", ["deep", "lstm"])
def test_the_profile_is_the_sum_of_what_is_alive(name: str) -> None:
    memory = MemoryModel(instance=small_session(name).instance({"x": 4, "y": 2}))
    for choice in _choices(memory, 3):
        expected = np.zeros(memory.steps)
        for charge in memory.charges:
            expected[charge.start : charge.stop] += charge.bytes[choice[charge.node]]
        for copy in memory.copies:
            expected[copy.start : copy.stop] += copy.bytes(choice)
        assert np.allclose(memory.profile(choice), expected)


@pytest.mark.parametrize("name", ["deep", "lstm"])
def test_charges_are_the_bytes_of_tensors_in_their_nodes_strategies(name: str) -> None:
    instance = small_session(name).instance({"x": 4, "y": 2})
    homes, tensors = instance.model.flow.home, instance.model.graph.tensors
    for charge in MemoryModel(instance=instance).charges:
        home = homes[charge.tensor]
        if home is not None and home[0] == charge.node:
            alone = instance.resident_bytes(tensors[charge.tensor].aval, *home)
            assert any(np.array_equal(charge.bytes, share * alone) for share in (0.0, 0.5, 1.0))


def test_no_plan_on_n_devices_needs_less_than_an_nth_of_the_whole() -> None:
    memory = MemoryModel(instance=small_session("deep").instance({"x": 4, "y": 2}))
    least = whole_bytes(memory.instance.model, tiled=memory.instance.tiled) / 8
    assert all(memory.profile(choice).max() >= least * (1 - 1e-9) for choice in _choices(memory, 3))


def test_a_paused_collector_goes_on_as_it_was() -> None:
    assert gc.isenabled()
    with paused():
        assert not gc.isenabled()
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="within"), paused():
        raise ValueError("within")
    assert gc.isenabled()


@pytest.mark.parametrize(("topology", "whole"), [("v5e:4x4", True), ("cpu:16", False)])
def test_a_sum_over_all_devices_that_the_compiler_does_not_scatter_stands_whole(topology: str, whole: bool) -> None:
    """Its parts are read from the sum: it stands beside them where they are split over all devices, and only there."""
    instance = small_session("deep", topology).instance({"x": 16})
    kept: list[float] = []
    for copy in MemoryModel(instance=instance).copies:
        if not copy.transfer.reduced:
            continue
        stored = instance.stored_bytes(copy.transfer.tensor)
        assert stored is not None
        for source, size in enumerate(stored[1].tolist()):
            choice = [0] * len(instance.strategies)
            for target in range(len(copy.target_bytes)):
                choice[copy.source], choice[copy.target] = source, target
                if copy.bytes(choice):
                    kept.append(copy.bytes(choice))
                    assert copy.bytes(choice) > 15 * size
    assert bool(kept) is whole
