"""What a search needs of a planning problem."""

from __future__ import annotations

from typing import Protocol

from planner.decision import Request
from planner.pricing.instance import Instance
from planner.pricing.mesh import Mesh, Shape
from planner.program.tracing.traced import Program
from planner.search.shared_layers import SharedInstance


class ProblemSource(Protocol):
    """A program and what is asked for it, from which its problem on every mesh is stated."""

    @property
    def program(self) -> Program:
        """The program."""
        ...

    @property
    def request(self) -> Request:
        """What is minimised, and within what memory."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether pins may leave a mesh without a problem."""
        ...

    def mesh(self, shape: Shape) -> Mesh:
        """A mesh with the prices of its collectives. Raises: MeshError."""
        ...

    def state(self, mesh: Mesh) -> Instance | SharedInstance:
        """The problem on a mesh, with one decision for all copies of a layer where that loses nothing.

        Raises: PinError, InfeasibleError.
        """
        ...

    def instance(self, shape: Shape) -> Instance:
        """The problem on one mesh, with every decision. Raises: MeshError, PinError, InfeasibleError."""
        ...

    def on_more_devices(self, times: int) -> ProblemSource:
        """The same program for so many times as many devices."""
        ...
