"""The form of a program: how it is computed other than as it is written, with the same results."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a program is computed other than as written. The defaults are: as written.

    `microbatches`: in how many passes over equal parts of the batch, whose sums are added up.
    """

    microbatches: int = 1


AS_WRITTEN = Form()
