"""Products of matrices of a compiled program, by the lines of code they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.program.jaxpr.origins import short_line
from planner.verify.hlo.loops import trip_count_of
from planner.verify.hlo.text import Computation, Module, parse_module
from planner.verify.hlo.work import flops_of

_CALLS = ("call", "conditional", "fusion", "async-start", "call-start")


Line = Callable[[Sequence[str]], str]
"""The line that is told of the "file:line"s that a product came from, innermost first."""


def innermost(sources: Sequence[str]) -> str:
    """The innermost line outside of JAX."""
    return short_line(next(iter(sources), ""))


def read_products(hlo_text: str, *, line: Line = innermost) -> dict[str, float] | None:
    """The operations of a call on one device by "folder/file.py:line"; None where it is not known how often loops run."""
    module, found = parse_module(hlo_text), dict[str, float]()
    known = _visit(module.computations[module.entry], module, 1.0, line, found)
    return found if known else None


def _visit(computation: Computation, module: Module, trips: float, line: Line, found: dict[str, float]) -> bool:
    """Adds what a computation multiplies in so many runs; whether it is known how often its loops run."""
    known = True
    for instruction in computation.instructions:
        if instruction.opcode in ("dot", "convolution"):
            at = line(module.sources(instruction))
            found[at] = found.get(at, 0.0) + trips * flops_of(instruction, computation, module)
        elif instruction.opcode == "while":
            count = trip_count_of(instruction, computation, module)
            body = module.computations[instruction.attribute("body") or ""]
            known &= _visit(body, module, trips * (1 if count is None else count), line, found) and count is not None
        elif instruction.opcode in _CALLS:
            for name in instruction.called:
                known &= _visit(module.computations[name], module, trips, line, found)
    return known
