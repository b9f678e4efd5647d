"""Prices of collectives, promised or compiled: seconds on the wires under their mesh axes, so that both weigh the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cost_models import CostModel, Roofline, Topology
from cost_models.network import collectives
from cost_models.network.links import Link
from planner.verify.hlo.collectives import CompiledCollective
from planner.verify.hlo.schedule import ring_seconds

HOP_SECONDS = 1e-6
"""Of a collective over devices that no set of axes joins: the latency of a TPU's link.

Reference: https://jax-ml.github.io/scaling-book/sharding ("1us").
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePrices:
    """`links` are those of the axes of a mesh of shape `mesh_shape`, `slowest_bytes_per_s` is its topology's slowest wire.

    `model` is the analytic one, whatever the plan was priced with: what is compared is what the wires allow to each
    alone. What no set of axes joins, and a kind that the cost model does not know, is priced as a ring over the slowest
    wire.
    """

    model: CostModel
    mesh_shape: Mapping[str, int]
    links: Mapping[str, Link]
    slowest_bytes_per_s: float

    def promised(self, kind: str, bytes: float, axes: tuple[str, ...]) -> float:
        """The seconds of one collective of `bytes`, the larger of its local operand and result."""
        return self._seconds(kind, bytes, axes, math.prod(self.mesh_shape[axis] for axis in axes))

    def compiled(self, collective: CompiledCollective) -> float:
        """The seconds of one run."""
        axes = collective.axes(self.mesh_shape)
        return self._seconds(plain_kind(collective.kind), collective.bytes, axes, collective.group_size)

    def _seconds(self, kind: str, bytes: float, axes: tuple[str, ...] | None, group_size: int) -> float:
        known = axes is not None and all(axis in self.links for axis in axes)
        if not known or kind not in collectives.COLLECTIVE_KINDS:
            return ring_seconds(kind, bytes, group_size, self.slowest_bytes_per_s, HOP_SECONDS)
        latency_s, seconds_per_byte = self.model.collective_affine(kind, tuple(self.links[a] for a in axes or ()))
        return latency_s + bytes * seconds_per_byte


def collective_prices(topology: Topology, mesh_shape: Mapping[str, int]) -> CollectivePrices:
    """The prices on a mesh as the topology lays it."""
    links = topology.links(tuple(mesh_shape.values())) or ()
    return CollectivePrices(
        model=Roofline(topology=topology),
        mesh_shape=dict(mesh_shape),
        links=dict(zip(mesh_shape, links, strict=False)),
        slowest_bytes_per_s=min(topology.link_bytes_per_s),
    )


def plain_kind(kind: str) -> str:
    """The kind of which a compiled one is a variant."""
    return "all-to-all" if kind == "ragged-all-to-all" else kind
