"""Kernels that are primitives of a library (attention by cuDNN): run on parts as on the whole, by their own implementation.

JAX lowers them within a custom partitioning, and only where the devices are. What a device runs of a plan needs neither, so
it is traced when it is lowered, within a primitive of ours, and a plan can be compiled for devices that are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jex_core
from jax.interpreters import mlir

from planner.program.graph import Op

_part_p = jex_core.Primitive("kernel_on_part")
_part_p.multiple_results = True


def _abstract(*avals: Any, kernel: Any, given: Sequence[tuple[str, Any]]) -> Any:
    return kernel.abstract_eval(*avals, **dict(given))[0]


def _run(*values: Any, kernel: Any, given: Sequence[tuple[str, Any]]) -> Sequence[Any]:
    return kernel.impl(*values, **dict(given))


_part_p.def_impl(_run)
_part_p.def_abstract_eval(_abstract)
mlir.register_lowering(_part_p, mlir.lower_fun(_run, multiple_results=True))


def library_run(op: Op) -> Callable[..., Sequence[Any]]:
    """What runs such a kernel on parts of its operands."""

    def run(*values: Any) -> Sequence[Any]:
        return _part_p.bind(*values, kernel=op.primitive, given=tuple(op.params.items()))

    return run
