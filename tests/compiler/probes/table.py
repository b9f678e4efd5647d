"""All probes, and the passes that have none, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from planner.compiler.model import PassName
from tests.compiler.probes import (
    buffers,
    collectives,
    emission,
    fusion,
    layout,
    memory_space,
    rematerialization,
    schedule,
    simplify,
)
from tests.compiler.probes.probe import Probe

PROBES: tuple[Probe, ...] = (
    *simplify.PROBES,
    *layout.PROBES,
    *fusion.PROBES,
    *schedule.PROBES,
    *buffers.PROBES,
    *memory_space.PROBES,
    *rematerialization.PROBES,
    *collectives.PROBES,
    *emission.PROBES,
)
UNPROBED: Mapping[PassName, str] = MappingProxyType(
    {
        "widened-siblings": "a norm in a tiny program is part of the matmuls beside it; deep residual streams show it",
        "constrain-anchors-only": "constraints cost time only in a whole network, whose ops XLA simplifies in several ways",
        "sum-before-slice": "a product alone is summed and scattered as wanted; whole backward passes show it",
        "read-as-stored": "the compiler reads all of a tensor's copies alike only in a whole train step",
    }
)
"""Passes without a probe: why no tiny program shows them."""
FASTEST: tuple[tuple[PassName, str], ...] = (
    ("result-table", "cpu:1"),
    ("tiling", "v5e:1x1"),
    ("softmax-rewriter-triton", "h100:1"),
)
"""The probes among the fast tests, one for each compiler."""
