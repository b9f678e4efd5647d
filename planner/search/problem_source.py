"""What a search asks of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from planner.pricing.instance import Instance
from planner.program.tracing.traced import Program
from planner.search.shared_layers import SharedInstance


class States(Protocol):
    """A program, and its problem on every mesh."""

    @property
    def program(self) -> Program:
        """The program."""
        ...

    def instance(self, shape: Mapping[str, int]) -> Instance:
        """The problem on one mesh."""
        ...

    def shared(self, shape: Mapping[str, int]) -> SharedInstance | None:
        """The problem with one decision for all copies of a layer; None where that would lose something."""
        ...

    def on_more(self, times: int, shape: Mapping[str, int]) -> Instance:
        """The problem on a mesh of so many times as many devices.

        Raises: MeshError, PinError, InfeasibleError.
        """
        ...

    def alone(self, shape: Mapping[str, int], devices: int) -> Instance | SharedInstance:
        """The problem on one device, at no more than what its parts take on so many devices together."""
        ...
