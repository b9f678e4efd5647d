"""What the collectives of a plan take, by the prices of its topology, from what its file says alone."""

from __future__ import annotations

from cost_models import Roofline, objective
from planner.decision import Decision
from planner.pricing.mesh import make_mesh


def collective_seconds(decision: Decision) -> list[float] | None:
    """The seconds per call of every predicted collective, as if nothing hid it or shared its latency.

    None where prices were measured: a file does not keep those.
    """
    request = decision.request
    if request.cost_model != "analytic":
        return None
    topology = request.topology
    mesh = make_mesh(decision.mesh_shape, topology, Roofline(topology=topology), objective("time", topology.chip))
    return [
        one.count * mesh.collective_seconds(one.kind, mesh.mask(one.axes), one.bytes)
        for one in decision.predicted.collectives
    ]
