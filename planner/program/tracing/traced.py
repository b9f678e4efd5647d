"""A traced program: its jaxpr, the pytrees around it and the names of its leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from planner.logical import Names
from planner.program.form import AS_WRITTEN, Form
from planner.program.graph import Aval

Annotations = Literal["keep", "free"]
"""Whether placements that a program names itself are part of its plan, or left to the planner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One array of the flattened arguments or results."""

    name: str
    aval: Aval
    weak: bool = False
    constant: bool = False
    """Whether it is a large array that the function closes over, not an argument of the user's."""
    logical: Names | None = None
    """The names that the user gives its dims."""

    def on(self, *, host: bool) -> Leaf:
        """The same in the memory of hosts, or of devices."""
        aval, itemsize = self.aval, self.aval.itemsize or self.aval.host_itemsize
        here, there = (0.0, itemsize) if host else (itemsize, 0.0)
        return replace(self, aval=Aval(shape=aval.shape, dtype=aval.dtype, itemsize=here, host_itemsize=there))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The mesh that a program names itself, in constraints and `shard_map`s; `mesh` where it is one of devices."""

    shape: Mapping[str, int]
    mesh: Mesh | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingTypes:
    """What types say of the placement of a program's leaves, where it is traced under a `mesh` with Explicit axes.

    `arguments` are the specs of the user's argument leaves, `results` those of the result leaves; None is left open.
    """

    mesh: Mesh | AbstractMesh
    arguments: tuple[PartitionSpec | None, ...]
    results: tuple[PartitionSpec | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The side effects of a program: `ordered` ones run on one device only; `io` ones reach the world outside.

    `prints`: it has calls of `jax.debug`, such as `jax.debug.print`.
    """

    ordered: bool = False
    io: bool = False
    prints: bool = False


@dataclass(frozen=True, kw_only=True)
class Program:
    """A traced function: its jaxpr, the pytrees around it and the names of its leaves.

    `arguments` are the leaves of the user's arguments, whose names are `parameters`, the last of them `keywords`, then the
    large arrays that the function closes over, whose values are `constants`; `parallelism` is the mesh it names itself, if
    it does. The results are the leaves of the function's own, in `out_tree`, then those it has written into its arguments.
    `updates` are (position of an argument leaf, position of the result that takes its place in the user's object after a
    call); see `mutation`. `annotations` says whether the placements that it names itself are still in `jaxpr`. `form` is
    how `jaxpr` computes what the function does, and `written` the jaxpr of the function as it is written where that is
    another; `traced` is what JAX made of the function, of the user's arguments alone, before anything was rewritten. What
    its types said of placements is in `types`, and by constraints in the jaxprs.
    """

    jaxpr: Any
    arguments: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    in_tree: Any
    out_tree: Any
    in_avals: tuple[Any, ...]
    constants: tuple[Any, ...]
    parallelism: Parallelism | None
    effects: Effects
    notes: tuple[str, ...]
    donated: frozenset[int]
    updates: tuple[tuple[int, int], ...]
    donate_argnums: tuple[int, ...]
    dynamic_argnums: tuple[int, ...]
    parameters: tuple[str, ...]
    function_name: str
    keywords: tuple[str, ...] = ()
    annotations: Annotations = "keep"
    form: Form = AS_WRITTEN
    written: Any = None
    traced: Any = None
    types: ShardingTypes | None = None

    @property
    def as_written(self) -> Program:
        """The program as it is written."""
        if self.written is None:
            return self
        arguments, results = (
            tuple(leaf.on(host=False) for leaf in leaves) for leaves in (self.arguments, self.results)
        )
        return replace(self, jaxpr=self.written, written=None, form=AS_WRITTEN, arguments=arguments, results=results)

    @property
    def leaves(self) -> Mapping[int, range]:
        """The positions of the leaves of every argument that is not static, by the position of the argument."""
        begin, found = 0, dict[int, range]()
        for argument, tree in zip(self.dynamic_argnums, self.in_tree.children(), strict=True):
            found[argument] = range(begin, begin + tree.num_leaves)
            begin += tree.num_leaves
        return found

    @property
    def num_args(self) -> int:
        """How many arguments the function takes, static ones and those by keyword included."""
        return len(self.parameters)

    @property
    def static_argnums(self) -> tuple[int, ...]:
        """The positions of the arguments that are constants of the program."""
        return tuple(i for i in range(self.num_args) if i not in self.dynamic_argnums)
