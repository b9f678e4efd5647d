"""Work: the floating-point operations of a JAX primitive, from its shapes and params alone.

Additions, multiplications, comparisons, conversions and transcendental functions each count as one operation, as in
XLA's HLO cost analysis (which lists transcendentals apart); a fused multiply-add counts as two. Moving data counts as
none.
"""

from __future__ import annotations

from cost_models.formulas import Params, Shapes, elements
from cost_models.hardware import Engine
from cost_models.primitives import PRIMITIVES, Work

UNKNOWN = Work(1)


def flops(kind: str, operand_shapes: Shapes, result_shapes: Shapes, params: Params) -> float:
    """The floating-point operations of one run of a primitive on whole arrays.

    Parameters: `kind`, the primitive's name; `params`, the equation's params, of which only dimension numbers, axes and
    sizes are read. An unknown primitive counts one operation per result element; `is_known` tells.
    """
    work = PRIMITIVES.get(kind, UNKNOWN).flops
    if callable(work):
        return work(operand_shapes, result_shapes, params)
    return work * elements(result_shapes) if work else 0.0


def is_known(kind: str) -> bool:
    """True where `flops` has a figure of its own for the primitive."""
    return kind in PRIMITIVES


def engine(kind: str) -> Engine:
    """The unit that runs a primitive: "matrix" or "vector"."""
    return PRIMITIVES.get(kind, UNKNOWN).engine


def tpu_passes(kind: str, operand_shapes: Shapes, result_shapes: Shapes, params: Params) -> float:
    """How often a TPU goes over the memory of the operands and results of one run of a primitive; parameters as `flops`."""
    passes = PRIMITIVES.get(kind, UNKNOWN).tpu_passes
    return passes(operand_shapes, result_shapes, params) if callable(passes) else passes
