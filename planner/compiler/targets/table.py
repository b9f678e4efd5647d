"""The compiler of every platform, and its limits on every chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from cost_models import Chip, Topology
from cost_models.hardware import Platform
from planner.compiler.model import CompilerModel
from planner.compiler.targets.cpu import CPU
from planner.compiler.targets.gpu import GPU
from planner.compiler.targets.tpu import TPU

COMPILERS: Mapping[str, CompilerModel] = MappingProxyType({"tpu": TPU, "gpu": GPU, "cpu": CPU})

HIDDEN_GATHERS: Mapping[str, float] = MappingProxyType(
    {"v5e": 0.9, "tpu7x": 0.9} | dict.fromkeys(("a100", "h100", "h200", "b200"), 0.9)
)
"""By chip, the share of an all-gather that runs beside matmuls where enough of them stand before it, as of weights.

In schedules by libtpu 0.0.42 of Llama, GPT and ViT train steps on v5e:4x4 whose layers are a loop, 0.04 to 0.16 of the
gathers are exposed; of gathers of activations, of reductions and of all-to-alls everything is. The schedules for v4, v5p
and v6e hide neither. Those by jaxlib 0.10.2 for 8 H100 hide 0.9 to all of the gathers of weights in the loops of Llama
and GPT, and next to nothing else.
"""

CLOCK_HZ: Mapping[str, float] = MappingProxyType(
    {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 1.9e9}
)
"""Cycles per second of each chip, in which its compiler counts (the chips' rates over the operations of a cycle)."""


def compiler_of(chip: Chip) -> CompilerModel:
    """The compiler of a chip, with its limits there."""
    return _compiler(chip.platform, chip.name, chip.cores)


@lru_cache(maxsize=64)
def _compiler(platform: Platform, name: str, cores: int) -> CompilerModel:
    # Several cores share the result of a matmul, which then does not stay on the chip.
    return replace(COMPILERS[platform], hidden_gathers=HIDDEN_GATHERS.get(name, 0.0), products_in_vmem=cores == 1)


def flops_that_hide(topology: Topology) -> tuple[float, float]:
    """The flops of matmuls beside which a gather is hidden however it is done: of any, and of each byte of its result.

    All devices together multiply as much while it passes hop by hop through all of them, and while what it and the gathers
    before it bring, twice its bytes, comes over the slowest wire that as many groups share as it can have; both twice, as
    it may be compiled to an all-reduce. Nothing where no gather is hidden.
    """
    if not compiler_of(topology.chip).hidden_gathers:
        return 0.0, 0.0
    flops_per_s = topology.num_devices * topology.chip.peak("bfloat16", "matrix")
    seconds = 2 * topology.num_devices * max(topology.link_latency_s)
    return flops_per_s * seconds, flops_per_s * 4 * max(topology.shape) / min(topology.link_bytes_per_s)
