"""Rules of random number primitives.

Random bits are the same whether an array of them is split or not, and take no communication: each element follows from
the key and its own position (`jax_threefry_partitionable`, on by default).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Rule


def drawn(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b -> b i j`: an array of elements for every key (bits, split keys); the keys' dims come first."""
    del params
    factors = Factors()
    dims = factors.dims(results[0].shape)
    return factors.rule([dims[: len(aval.shape)] for aval in operands], [dims])


def rng_bit_generator(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`k -> k, i j | replicate k`: the state must stay whole, the bits pass."""
    del params
    factors = Factors()
    state = factors.dims(operands[0].shape, "replicate")
    return factors.rule([state], [state, factors.dims(results[1].shape)])
