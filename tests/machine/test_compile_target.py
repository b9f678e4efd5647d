"""What compilers are told to build for: names of topologies, places of devices, configurations of GPUs."""

from __future__ import annotations

import re

import pytest

from cost_models import CHIPS
from planner.errors import ArgumentError
from planner.machine.compile_target import GPU_CONFIGS, compile_target, gpu_config, why_no_target


@pytest.mark.parametrize("chip", GPU_CONFIGS)
def test_the_configuration_of_a_gpu_is_that_of_the_chip_that_is_priced(chip: str) -> None:
    text = gpu_config(chip)
    assert "# Source:" in text
    figures = {key: float(value) for key, value in re.findall(r"(\w+): ([\d.]+)", text)}
    assert figures["device_memory_size"] == CHIPS[chip].hbm_bytes
    assert figures["memory_bandwidth"] == pytest.approx(CHIPS[chip].hbm_bytes_per_s, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "sizes", "shape", "places"),
    [
        ("h100:4x8", (8, 4), "1x4x8", range(32)),
        ("h100:16", (2, 8), "1x2x8", range(16)),
        ("h100:4x8", (2, 4), "1x4x8", range(8)),
        ("b200:4", (4,), "1x1x4", range(4)),
        (
            "h100:3x8",
            (2, 12),
            "1x3x8",
            [*(n + g for n in (0, 8, 16) for g in range(4)), *range(4, 8), *range(12, 16), *range(20, 24)],
        ),
    ],
)
def test_gpus_are_nodes_of_numbered_devices(name: str, sizes: tuple[int, ...], shape: str, places: range) -> None:
    target = compile_target(name, sizes)
    assert (target.platform, target.options["topology"]) == ("cuda", shape)
    assert target.options["target_config"] == gpu_config(name.partition(":")[0])
    assert target.places == tuple((place,) for place in places)
    assert target.capacity_bytes == CHIPS[name.partition(":")[0]].hbm_bytes


def test_slices_are_an_option_of_the_compiler() -> None:
    target = compile_target("v5e:4x4*2", (8, 4))
    assert (target.platform, target.topology, dict(target.options)) == ("tpu", "v5e:4x4", {"num_slices": 2})
    assert [place[0] for place in target.places] == [0] * 16 + [1] * 16
    assert target.capacity_bytes is None
    one = compile_target("v5e:4x4*1", (16,))
    assert (one.topology, dict(one.options)) == ("v5e:4x4", {})


def test_a_gpu_of_ones_own_is_given_by_its_configuration() -> None:
    target = compile_target("1x2x4", (8,), {"target_config": "gpu_device_info {}"})
    assert (target.platform, dict(target.options)) == (
        "cuda",
        {"target_config": "gpu_device_info {}", "topology": "1x2x4"},
    )


def test_what_no_compiler_builds_for_is_said() -> None:
    assert why_no_target("h100:8") == why_no_target("v5e:4x4*2") == ""
    assert "mi300x can be told" in why_no_target("mi300x:8")
    assert "a100, h100, h200, b200" in why_no_target("mi300x:8")
    assert "the topology mine is not one that compilers know" in why_no_target("mine")
    with pytest.raises(ArgumentError, match="no compiler for mi300x"):
        compile_target("mi300x:8", (8,))
    with pytest.raises(ArgumentError, match=r"unknown topology 'h300:8'"):
        compile_target("h300:8", (8,))
    with pytest.raises(ArgumentError, match=r"h100:8: a mesh of 16 needs 16 devices, but there are 8"):
        compile_target("h100:8", (16,))
