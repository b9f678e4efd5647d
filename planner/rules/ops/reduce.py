"""Rules of reductions over whole dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Combiner, Rule


def reduction(
    operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any], *, combiner: Combiner
) -> Rule:
    """`i j -> i | reduce j`: shards of a reduced dim leave partial results, combined by `combiner`.

    argmax and argmin combine by "arg": the partial results are pairs of a value and its index. No collective orders
    complex numbers, or combines integers bit by bit: then a reduced dim must stay whole.
    """
    del results
    dtype = operands[0].dtype
    ordered, logical = not dtype.startswith("complex"), dtype == "bool"
    combines = {"max": ordered, "min": ordered, "and": logical, "or": logical}.get(combiner, True)
    factors = Factors()
    reduced = frozenset(params["axes"])
    kind = "reduce" if combines else "replicate"
    dims = [factors.dim(size, kind if d in reduced else "pass") for d, size in enumerate(operands[0].shape)]
    return factors.rule([dims], [[dim for d, dim in enumerate(dims) if d not in reduced]], combiner)


def reduce(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j, () -> i | replicate i j`: n operands, then n initial values, to n results, all whole.

    Those with an initial value or a function of their own: the compiler counts an initial value that is not the identity
    once per shard of a reduced dim, and loses or repeats it where the operand is a concatenation, which an all-to-all is.
    """
    factors = Factors()
    reduced = frozenset(params["dimensions"])
    dims = factors.dims(operands[0].shape, "replicate")
    count = len(results)
    kept = [dim for d, dim in enumerate(dims) if d not in reduced]
    return factors.rule([dims] * count + [[]] * (len(operands) - count), [kept] * count)


def reduce_xor(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`i j -> i | replicate j`: no collective combines by exclusive or."""
    del results
    factors = Factors()
    reduced = frozenset(params["axes"])
    dims = [factors.dim(size, "replicate" if d in reduced else "pass") for d, size in enumerate(operands[0].shape)]
    return factors.rule([dims], [[dim for d, dim in enumerate(dims) if d not in reduced]])
