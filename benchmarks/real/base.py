"""What every public program is to the benchmark: its function and arguments unmodified, and how its codebase places it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import jax

Size = Literal["small", "real"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A program as its codebase places it: jitted with its own shardings, over a mesh of the devices of the topology.

    `mesh` has the axes larger than 1. `context` is entered while the function is traced.
    """

    name: str
    jit: Any
    args: tuple[Any, ...]
    mesh: Mapping[str, int]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def trace(self, *args: Any) -> Any:
        """The traced program, as the codebase traces it."""
        with self.context():
            return self.jit.trace(*args)


@dataclass(frozen=True, slots=True, kw_only=True)
class RealProgram:
    """A program of a public codebase.

    At size "real" `args` are `jax.ShapeDtypeStruct`s without shardings, at size "small" arrays. `context` is what the
    codebase enters before it calls its function, its mesh and its logical axis rules. `own` builds the placements of the
    codebase one after the other: the one it runs by default or documents for this hardware, then its alternatives.
    `notes` say what differs from a published configuration, such as a number of layers that was cut.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    topology: str
    donate_argnums: tuple[int, ...] = ()
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    own: Callable[[], Iterator[Placed]] = lambda: iter(())
    notes: str = ""


Build = Callable[[Size], RealProgram]


def shapes(tree: Any) -> Any:
    """The same tree of `jax.ShapeDtypeStruct`s without shardings."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def named(mesh: Mapping[str, int]) -> dict[str, int]:
    """The axes of a mesh that are larger than 1."""
    return {axis: size for axis, size in mesh.items() if size > 1}
