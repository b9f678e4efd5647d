"""Hazards: strategies that XLA's partitioner computes wrongly or dies of, kept out of the candidates.

Most are kept out by the rules themselves: a factor known to be miscompiled when split is whole there (space and window
dims of convolutions, reductions with an initial value of their own, single-element dims of a dynamic update). What
depends on more than one factor is here, with the reason.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.candidates import Strategies
from planner.graph import Op


def safe(op: Op, strategies: Strategies) -> npt.NDArray[np.bool_]:
    """Which strategies of an op's group are offered; shape (len(strategies),).

    A grouped convolution split over two axes: the gradient of its kernel aborts the compiler for some of them
    (`convolution_handler.cc` Check failed: new_input_batch_size % new_output_batch_size == 0; XLA of JAX 0.10 to 0.12).
    """
    if op.kind == "conv_general_dilated" and _groups(op) > 1:
        return (strategies.assignment >= 0).sum(axis=1) <= 1
    return np.ones(len(strategies), np.bool_)


def _groups(op: Op) -> int:
    return max(int(op.params.get("feature_group_count", 1)), int(op.params.get("batch_group_count", 1)))
