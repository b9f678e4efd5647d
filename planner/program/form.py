"""The form of a program: how it is computed other than as it is written, with the same results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a program is computed other than as written. The defaults are: as written.

    `microbatches`: in how many passes over equal parts of the batch, whose sums are added up. `saved`: which values are
    saved for each of the backward loops of the program in microbatches, as positions in its `crossings`; what else it
    needs of its forward loop is computed again. An entry of None leaves a loop as written, and so does one that is missing.
    `offloaded`: which of these wait in the memory of the host, as positions likewise. `hosted`: the positions of arguments
    that lie in the memory of the host, and what takes their place. `without_checkpoints`: the program is
    first made one that saves all of its layers, and as little as can be of passes of loops within them; `crossings` are
    those of that program.
    """

    microbatches: int = 1
    saved: tuple[tuple[int, ...] | None, ...] = ()
    offloaded: tuple[tuple[int, ...], ...] = ()
    hosted: tuple[int, ...] = ()
    without_checkpoints: bool = False

    @property
    def start(self) -> Form:
        """The same of the whole batch at once, with nothing saved as chosen: what that is counted in."""
        return replace(self, microbatches=1, saved=(), offloaded=())

    @property
    def uses_hosts(self) -> bool:
        """Whether arrays wait in the memory of hosts."""
        return bool(self.hosted) or any(self.offloaded)

    @staticmethod
    def of(record: Mapping[str, Any]) -> Form:
        """A form from its record in a plan file. Raises: TypeError, ValueError where it is none."""
        given = dict(record)
        saved: list[list[int] | None] = given.pop("saved", [])
        offloaded: list[list[int]] = given.pop("offloaded", [])
        hosted: list[int] = given.pop("hosted", [])
        return Form(
            **given,
            hosted=tuple(map(int, hosted)),
            saved=tuple(None if one is None else tuple(map(int, one)) for one in saved),
            offloaded=tuple(tuple(map(int, one)) for one in offloaded),
        )


def form_text(form: Form) -> str:
    """How a program is computed."""
    passes = f"{form.microbatches} microbatches" if form.microbatches > 1 else ""
    chosen = [one for one in form.saved if one is not None]
    saved = f"{sum(map(len, chosen))} values saved for the backward pass as chosen" if chosen else ""
    offloaded = f"{sum(map(len, form.offloaded))} of them on the host" if any(form.offloaded) else ""
    hosted = f"{len(form.hosted)} arguments on the host" if form.hosted else ""
    lifted = "without checkpoints" if form.without_checkpoints else ""
    return ", ".join(filter(None, (passes, lifted, saved, offloaded, hosted))) or "as written"


AS_WRITTEN = Form()
ON_HOST = "pinned_host"
"""The kind of memory that arrays on hosts are in."""
