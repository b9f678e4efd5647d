"""Computed again: how far XLA's GPU compiler lowers the peak of a program that needs more than it wants to.

Its pass that rematerialises wants temporaries to stay within 95 % of what arguments leave of 80 % of a device's memory
(`GetSchedulerMemoryLimit` in openxla/xla). Above that it computes again what passes outside of loops make, from what stands
in memory, until the peak is as low or nothing is left. Seen in schedules of jaxlib 0.10.2 for H100: of a ViT that stored
17 GB too much for it, it computes what gelus make once more in the backward pass. It chooses one after the other and may
stop earlier than this says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from planner.compiler.analysis import Model
from planner.pricing.memory.memory_model import MemoryModel

WANTED_SHARE = 0.80
SLOP = 0.95
MUCH = 16
"""Of how much larger an array is what passes read that does not count."""
ABOUT = 0.75
"""Of the time for which a tensor stands, that for which what it is made of does as well: products that are put off read
the one and not the other."""


def compiled_peak(memory: MemoryModel, choice: Sequence[int], *, argument_bytes: float, hbm_bytes: float) -> float:
    """Bytes alive at the fullest point of the schedule when what can be spared has been, on a GPU with this memory."""
    needed = memory.profile(choice)
    limit = argument_bytes + SLOP * (WANTED_SHARE * hbm_bytes - argument_bytes)
    if needed.max() <= limit:
        return float(needed.max())
    spared = memory.profile_of(choice, _again(memory.instance.model))
    return float(np.minimum(needed, np.maximum(limit, needed - spared)).max())


def _again(model: Model) -> npt.NDArray[np.bool_]:
    """Which tensors passes outside of loops can make again while they are read, as what they read stands or is small."""
    graph, program = model.graph, model.compiled
    stops = dict.fromkeys(graph.inputs, program.steps)
    for buffer in program.buffers:
        stops[buffer.tensor] = max(buffer.stop, stops.get(buffer.tensor, 0))
    there = np.full(len(graph.tensors), program.steps)
    again = np.zeros(len(graph.tensors), np.bool_)
    for op in graph.ops:
        passing = program.fused[op.id] and graph.regions[op.region].parent is None
        for tensor in op.results:
            least = graph.tensors[tensor].aval.size / MUCH
            of = [int(there[t]) for t in op.operands if graph.tensors[t].aval.size >= least]
            until = min(of, default=program.steps)
            there[tensor] = stops.get(tensor, 0) if program.materialized[tensor] else until
            long_enough = until - op.id >= ABOUT * (there[tensor] - op.id)
            again[tensor] = passing and long_enough and tensor not in graph.returned
    return again
