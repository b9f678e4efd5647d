"""Read ahead: the seconds of reading weights that a TPU's compiler hides by bringing them to the chip before their use.

Copies to the chip go on while collectives use the wires and leave the memory idle, and while products multiply what is on
the chip already. They are made in the order of their use, as far as the memory on the chip has room: an array takes its
room until it is used. Of all the largest that fits is brought when the program begins, and stays until it is used
(cross-program prefetch of XLA's memory space assignment).

The step is walked in program order, with the collectives where their arrays are made or read. What it takes then depends on
all of a choice, so this is no price of one: it is spared of what a choice is found to take, by the seconds and the bytes of
its own collectives and products. That the search does not know of it loses nothing as long as the collectives take longer
than there is to read beside them: then every plan is spared the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ROOM_ON_CHIP = 0.7
"""The share of the memory for arrays on the chip that is filled.

In schedules by libtpu 0.0.42 of eight decoding steps whose layers are written out 0.66 to 0.74 of it are taken at most at
once, on v5e and v5p.
"""


class Moving(NamedTuple):
    """So many seconds in which the wires are in use, and the memory is not."""

    seconds: float


class Multiplying(NamedTuple):
    """A product: its op, the bytes of its weights, and its seconds with them in memory and on the chip."""

    op: int
    bytes: float
    read_seconds: float
    ready_seconds: float


@dataclass
class _Chip:
    """The weights of products still to come, in order, the first of which is the next to be copied, and the room left."""

    left: list[float]
    held: list[float]
    room: float
    bytes_per_s: float
    following: int = 0

    def copy(self, seconds: float) -> None:
        """Copies while the memory is idle for so long."""
        bytes = seconds * self.bytes_per_s
        while self.following < len(self.left) and bytes > 0 and self.room > 0:
            taken = min(self.left[self.following], bytes, self.room)
            self.left[self.following] -= taken
            self.held[self.following] += taken
            self.room -= taken
            bytes -= taken
            if self.left[self.following] > 0:
                return
            self.following += 1

    def use(self, number: int) -> float:
        """The share of the weights of a product that is on the chip when it runs; they leave it then."""
        whole = self.left[number] + self.held[number]
        share = self.held[number] / whole if whole else 0.0
        self.room += self.held[number]
        self.held[number] = 0.0
        self.following = max(self.following, number + 1)
        return share


def prefetched_seconds(
    events: Sequence[Moving | Multiplying], *, on_chip_bytes: float, hbm_bytes_per_s: float
) -> dict[int, float]:
    """The seconds of every product that are spared, by op, of a step in its order on one device."""
    room = ROOM_ON_CHIP * on_chip_bytes
    products = [event for event in events if isinstance(event, Multiplying)]
    kept = max((n for n, one in enumerate(products) if one.bytes <= room), key=lambda n: products[n].bytes, default=-1)
    chip = _Chip(
        left=[one.bytes if one.bytes <= room else 0.0 for one in products],
        held=[0.0] * len(products),
        room=room,
        bytes_per_s=hbm_bytes_per_s,
    )
    if kept >= 0:
        chip.room -= chip.left[kept]
        chip.left[kept], chip.held[kept] = 0.0, chip.left[kept]
    found: dict[int, float] = {}
    number = 0
    for event in events:
        if isinstance(event, Moving):
            chip.copy(event.seconds)
            continue
        share = chip.use(number)
        # What the program begins with is read before it does.
        spared = 0.0 if number == kept else share * (event.read_seconds - event.ready_seconds)
        if spared > 0:
            found[event.op] = spared
        chip.copy(share * event.ready_seconds)
        number += 1
    return found
