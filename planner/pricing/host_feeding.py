"""Feeding: what it takes to bring the inputs of a program from hosts to devices, in every spec that they may have.

An input comes anew with every call. Its way has two parts, and both have a price in seconds:

    load    a host reads all examples of which any of its devices needs a part, through its network: it cannot read half an
            example. Examples are split over hosts by the axes on the dim that counts them, and by no others.
    link    every device takes its own part over its link to the host. What is cut along another dim than that of the
            examples is no piece of the host's memory: the host copies it first, which counts as the link once more.

A pipeline that prefetches does this while the step before is computed, so seconds of feeding are no seconds of the step,
and the prediction tells them apart. They cannot be free either: of plans that are equally fast the one is wanted whose
inputs a pipeline can bring. So `COUNTED` of them are part of a plan's value. The truth would be what feeding takes longer
than the step, which is no sum over arrays; a step that is shorter than its feeding is told in the notes instead.

Small inputs take no seconds to speak of, but a pipeline wants them, too, by examples: every host reads its own. So
examples that stay whole make a plan dearer by `LONGER` of the least that its matmuls can take, those in n parts by an n-th
of that.

All arrays of a batch are read as one: a host that needs an example of one array reads it whole. So arrays whose examples
are split over other axes than those of the largest make the host load that for their examples, too, and `LONGER` of the
least that the matmuls can take is what a plan may take longer in which all are split alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models import Topology
from pbqp.vectors import Floats
from planner.decisions.host_inputs import Input
from planner.pricing.reshards.reshard import Locations, local_bytes
from planner.program.graph import Aval

COUNTED = 1 / 20
"""The share of the seconds of feeding in the value of a plan: where a step hides them, they make it 5 % slower at most,
and what is within 5 % no prediction tells apart."""

LONGER = 1e-2
"""The share of a step that a plan may take longer whose inputs are split by their examples, all over the same axes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """Feeding in each of several specs: seconds, bytes that every device takes, and those that the busiest host loads.

    `counted` are the seconds that are part of the value of a plan.
    """

    seconds: Floats
    counted: Floats
    device_bytes: Floats
    host_bytes: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Feeding:
    """The inputs of a program by tensor, and how they reach the devices of a mesh.

    `hosts` has the number of the host of every device; its shape is that of the mesh. `link_bytes_per_s` is the rate of a
    device's link, `network_bytes_per_s` that at which a host reads. `least_seconds` are those of a step at least.
    """

    inputs: Mapping[int, Input]
    hosts: npt.NDArray[np.int64]
    link_bytes_per_s: float
    network_bytes_per_s: float
    least_seconds: float
    _shares: dict[int, float] = field(init=False, repr=False, default_factory=dict[int, float])

    def fed(self, one: Input, aval: Aval, locations: Locations) -> Fed:
        """Feeding an input of this type in each of these specs; arrays of shape (len(locations),)."""
        sizes = self.hosts.shape
        here = local_bytes(locations, sizes, aval.bytes)
        by_examples = _by_examples(one, locations)
        loaded = aval.bytes * self._shares_of(_masks(by_examples))
        cut = ((locations >= 0) & ~by_examples).any(axis=1)
        seconds = loaded / self.network_bytes_per_s + (1 + cut) * here / self.link_bytes_per_s
        whole = 1 / np.prod(np.where(by_examples, np.asarray(sizes, np.float64), 1.0), axis=1)
        counted = COUNTED * seconds + LONGER * self.least_seconds / len(self.inputs) * whole
        return Fed(seconds=seconds, counted=counted, device_bytes=here, host_bytes=loaded)

    @cached_property
    def batches(self) -> Sequence[Sequence[Input]]:
        """The inputs whose examples are one and the same, batch by batch, where these are several."""
        found: dict[tuple[int, ...], list[Input]] = {}
        for one in self.inputs.values():
            if one.batch:
                found.setdefault(one.batch, []).append(one)
        return [batch for batch in found.values() if len(batch) > 1]

    def apart(self, first: tuple[Input, Locations], other: tuple[Input, Locations], whole_bytes: float) -> Floats:
        """Seconds that count where another array of a batch is split otherwise than its first, of `whole_bytes`: (n, m)."""
        mine, its = (_masks(_by_examples(*both)) for both in (first, other))
        more = np.maximum(self._shares_of(its)[None, :] - self._shares_of(mine)[:, None], 0.0)
        loaded = COUNTED * more * whole_bytes / self.network_bytes_per_s
        return loaded + np.where(mine[:, None] != its[None, :], LONGER * self.least_seconds / len(self.inputs), 0.0)

    def _shares_of(self, masks: npt.NDArray[np.int64]) -> Floats:
        distinct, which = np.unique(masks, return_inverse=True)
        return np.array([self.share(mask) for mask in distinct.tolist()])[which.ravel()]

    def share(self, mask: int) -> float:
        """The share of the examples that some host loads where the axes in a bit set split them: of the busiest one."""
        if mask not in self._shares:
            rest = tuple(axis for axis in range(self.hosts.ndim) if not mask >> axis & 1)
            parts = np.moveaxis(self.hosts, rest, range(len(rest)))
            parts = parts.reshape(-1, np.prod(parts.shape[len(rest) :], dtype=np.int64))
            number = np.broadcast_to(np.arange(parts.shape[1]), parts.shape)
            pairs = np.unique(np.stack([parts.ravel(), number.ravel()]), axis=1)
            self._shares[mask] = float(np.bincount(pairs[0]).max()) / parts.shape[1]
        return self._shares[mask]


def _by_examples(one: Input, locations: Locations) -> npt.NDArray[np.bool_]:
    """Which axes split the examples of an input, in each of these specs."""
    return (locations == one.examples) if one.examples is not None else np.zeros(locations.shape, np.bool_)


def _masks(axes: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return axes @ (1 << np.arange(axes.shape[1]))


def feeding_of(
    inputs: Mapping[int, Input], topology: Topology, hosts: npt.NDArray[np.int64], least_seconds: float
) -> Feeding:
    """How inputs are fed on a mesh whose devices are of these hosts, in steps that take at least so long."""
    chip, devices = topology.chip, int(np.bincount(topology.hosts.ravel()).max())
    # Virtual devices share a host that reads through no network of the table.
    rate = chip.network_bytes_per_s or chip.host_link_bytes_per_s
    return Feeding(
        inputs=inputs,
        hosts=hosts,
        link_bytes_per_s=chip.host_link_bytes_per_s,
        network_bytes_per_s=devices * rate,
        least_seconds=least_seconds,
    )
