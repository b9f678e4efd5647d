"""Shares: what counts of the collectives of a transfer where a compiler spares some of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from planner.compiler.collectives.savings import Savings
from planner.pricing.mesh import COLLECTIVES, Mesh, Share

GATHER_BY_SUM = "all-gather by all-reduce"
COUNTED = (*COLLECTIVES, GATHER_BY_SUM)
"""The collectives, and gathers that are compiled to all-reduces."""
Shares = tuple[Share, ...]
"""The share of each of `COUNTED`."""
ALL: Shares = ((1.0, 1.0, 1.0),) * len(COUNTED)
GATHER, SCATTER, BY_SUM = (COUNTED.index(kind) for kind in ("all-gather", "reduce-scatter", GATHER_BY_SUM))
SUMMING = ("all-reduce", "reduce-scatter")
MOVING = ("all-gather", "all-to-all", "collective-permute")


def hideable(mesh: Mesh, *, summing: bool) -> tuple[str, ...]:
    """What of `COUNTED` may run beside matmuls, of a sum or of a tensor that is read.

    A gather that is compiled to an all-reduce does where SparseCores sum, and exchanges do where every collective may.
    """
    if summing:
        return SUMMING
    if mesh.compiler.runs("async-collectives"):
        return MOVING
    return ("all-gather", GATHER_BY_SUM) if mesh.compiler.runs("sparse-core-collectives") else ("all-gather",)


def last_hides_alone(mesh: Mesh, *, summing: bool) -> bool:
    """Whether of the steps of a transfer no more than the last may run beside matmuls.

    TPUs start gathers ahead whose results are operands of a matmul: of a weight that is gathered along two dims, one after
    the other, the second (libtpu 0.0.42: GPT-3 and a Llama 70B on v5p:4x4x4).
    """
    return not summing and not mesh.compiler.runs("async-collectives")


def only(kinds: Sequence[str], shares: Shares) -> Shares:
    """The shares of these kinds, and nothing of others."""
    return tuple(of if kind in kinds else (0.0, 0.0, 0.0) for kind, of in zip(COUNTED, shares, strict=True))


def shares_of(savings: Savings, transfer: int) -> Shares:
    """What counts of the collectives of a transfer: of sums that are one its part, of the latency its share."""
    return _shares(
        savings.reassociated.get(transfer, 1), savings.latency.get(transfer, 1.0), savings.bytes.get(transfer, 1.0)
    )


@lru_cache(maxsize=4096)
def _shares(reassociated: int, combined: float, narrowed: float) -> Shares:
    part = 1 / reassociated
    sums, moved = (part * combined, part, part), (1.0, narrowed, 1.0)
    counted = {"all-reduce": sums, "reduce-scatter": sums} | dict.fromkeys(MOVING, moved)
    # A gather that is compiled to a sum moves what it gathers as it is.
    return tuple(counted.get(kind, (1.0, 1.0, 1.0)) for kind in COUNTED)


def times_larger(times: float, shares: Shares) -> Shares:
    """The shares of a transfer that moves so many times its bytes at once, for each of these times: its part of what is
    fixed."""
    return tuple((fixed / times, moved, alone / times) for fixed, moved, alone in shares) if times != 1 else shares


def counted_kind(mesh: Mesh, kind: str | None, mask: int, bytes: float) -> str | None:
    """What of `COUNTED` a collective of so many bytes over these axes is; None for a slice."""
    by_sum = kind == "all-gather" and mesh.runs_as(kind, mask, bytes) != kind
    return GATHER_BY_SUM if by_sum else kind
