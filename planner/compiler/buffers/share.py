"""Shares: in how many of its bytes a tensor stands in memory, on a TPU and elsewhere."""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """Bytes in memory for each byte of a tensor."""

    tpu: float = 1.0
    elsewhere: float = 1.0


WHOLE = Share()
"""A tensor as it is."""

ELSEWHERE = Share(tpu=0.0)
"""What stands in memory everywhere but on a TPU."""

ON_TPU = Share(elsewhere=0.0)
"""What stands in memory on a TPU alone."""
