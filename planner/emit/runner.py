"""The runner: what a plan decided, made into functions of the program that run, lower and compile.

It is made once for a program, a decision's specs and a target; what was compiled to check a plan is what runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, final

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from planner.decision import Decision
from planner.emit.halo_exchange import exchanges
from planner.emit.jitted import Jitted, jitted
from planner.emit.part_by_part import local_calls
from planner.emit.sums_behind import loop_sums
from planner.errors import ArgumentError, MeshError
from planner.machine.global_arrays import placed
from planner.machine.target import Target
from planner.program.arguments import canonical_dtype
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.rewrite import constrained
from planner.program.mutation import write_back
from planner.program.slots import Slot
from planner.program.structure import structure_differences
from planner.program.traced import Leaf, Program
from planner.rules.kernels.kernel_parts import kernels


@final
class Runner:
    """A program on a target as a decision places it; `static_args` are the values of static arguments by position.

    `graph` is the program's, where it is known.
    """

    def __init__(
        self,
        *,
        program: Program,
        decision: Decision,
        target: Target,
        static_args: Mapping[int, Any],
        graph: Graph | None = None,
    ) -> None:
        self.program, self.target = program, target
        self._decision, self._static_args, self._graph = decision, dict(static_args), graph

    @cached_property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh; abstract where there are no devices."""
        own = self.program.parallelism
        if own is not None and own.mesh is not None and set(own.mesh.devices.flat) <= set(self.target.devices or ()):
            return own.mesh
        return self.target.jax_mesh(self._decision.mesh_shape)

    @cached_property
    def in_shardings(self) -> tuple[NamedSharding, ...]:
        """Those of the flat arguments."""
        return tuple(NamedSharding(self.mesh, spec) for spec in self._decision.in_specs)

    @cached_property
    def out_shardings(self) -> tuple[NamedSharding, ...]:
        """Those of the flat results."""
        return tuple(NamedSharding(self.mesh, spec) for spec in self._decision.out_specs)

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """Those that the compiler of the target is given: the decision's, where it is the one that they are for."""
        meant = self.target.platform == self._decision.request.topology.chip.platform
        return self._decision.compiler_options if meant else {}

    @property
    def own_results(self) -> int:
        """How many results are the function's own; the others go into its arguments."""
        return self.program.out_tree.num_leaves

    def as_arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Values of the flat arguments as a tuple of pytrees like the arguments (None for static ones)."""
        mine = leaves[: len(leaves) - len(self.program.constants)]
        dynamic = jax.tree.unflatten(self.program.in_tree, mine)
        full: list[Any] = [None] * self.program.num_args
        for i, value in zip(self.program.dynamic_argnums, dynamic, strict=True):
            full[i] = value
        return tuple(full)

    def as_result(self, leaves: Sequence[Any]) -> Any:
        """Values of the flat results as a pytree like the function's own."""
        return jax.tree.unflatten(self.program.out_tree, leaves[: self.own_results])

    # ------------------------------------------------------------ functions of the flat arguments

    @cached_property
    def _run(self) -> Callable[..., list[Any]]:
        """The constrained program as a function of its flat arguments."""
        mesh = self.mesh
        shardings: dict[PartitionSpec, NamedSharding] = {}

        def edits(slot: Slot) -> list[NamedSharding]:
            specs = self._decision.constraints.get(slot, ())
            return [shardings.setdefault(spec, NamedSharding(mesh, spec)) for spec in specs]

        graph = self._graph or build_graph(self.program)
        laid = self._decision.constraints
        parts = local_calls(graph, laid, mesh, self.target.platform)
        sums = loop_sums(graph, laid, mesh)
        by_hand = {**exchanges(graph, laid, mesh), **kernels(graph, laid, mesh), **parts, **sums.terms}
        return constrained(self.program, edits, by_hand, sums.around)

    @cached_property
    def flat_jit(self) -> Any:
        """The sharded jitted function of the flat arguments."""

        def sharded(*leaves: Any) -> list[Any]:
            return self._run(*leaves)

        sharded.__name__ = sharded.__qualname__ = self._decision.function_name
        return jitted(
            sharded,
            compiler_options=self.compiler_options,
            in_shardings=self.in_shardings,
            out_shardings=list(self.out_shardings),
            donate_argnums=tuple(sorted(self.program.donated)),
        )

    @cached_property
    def executable(self) -> Any:
        """The compiled program: what was checked is what runs."""
        return self.flat_jit.trace(*self.program.in_avals).lower().compile()

    @property
    def flat_call(self) -> Callable[..., Sequence[Any]]:
        """What runs the program of the flat arguments."""
        # JAX 0.10 does not know split arrays of elements below a byte again when it calls an executable itself.
        narrow = any(0 < leaf.aval.itemsize < 1 for leaf in self.program.arguments)
        return self.flat_jit if narrow else self.executable

    # ------------------------------------------------------------ functions of the user's arguments

    @cached_property
    def jit(self) -> Any:
        """The sharded jitted function of the user's arguments, as `Plan.jit` describes it."""
        program, count, own = self.program, len(self.program.constants), self.own_results

        def sharded(*args: Any) -> Any:
            constants = args[len(args) - count :]
            results = self._run(*self.flat(args[: len(args) - count]), *constants)
            return (self.as_result(results), results[own:]) if program.updates else self.as_result(results)

        sharded.__name__ = sharded.__qualname__ = self._decision.function_name
        entering, leaving = self.as_arguments(self.in_shardings), self.as_result(self.out_shardings)
        made = jitted(
            sharded,
            compiler_options=self.compiler_options,
            in_shardings=(
                *(entering[i] for i in program.dynamic_argnums),
                *self.in_shardings[len(self.in_shardings) - count :],
            ),
            out_shardings=(leaving, list(self.out_shardings[own:])) if program.updates else leaving,
            donate_argnums=self._decision.donate_argnums,
            static_argnums=self._decision.static_argnums,
        )
        if not count and not program.updates:
            return made
        return Jitted(made, constants=lambda: self.constants, settled=self._settled if program.updates else None)

    def _settled(self, args: Sequence[Any], results: Sequence[Any]) -> Any:
        """The function's own result; what it has changed in its arguments is written into them."""
        program = self.program
        if program.updates:
            dynamic = [args[i] for i in program.dynamic_argnums]
            write_back(dynamic, {position: results[made] for position, made in program.updates})
        return self.as_result(results)

    @cached_property
    def constants(self) -> tuple[Any, ...]:
        """The large arrays that the function closes over, on their devices; shapes where there are none."""
        constants = self.program.constants
        if self.target.why_not_run:
            return self.program.in_avals[len(self.program.in_avals) - len(constants) :]
        return tuple(self._laid(constants, len(self.in_shardings) - len(constants)))

    def flat(self, args: Sequence[Any]) -> list[Any]:
        """The leaves of the dynamic arguments. Raises: ArgumentError where they are not what was planned for."""
        program, name = self.program, self._decision.function_name
        if len(args) != program.num_args:
            raise ArgumentError(
                f"{name} was planned for {program.num_args} arguments, got {len(args)}; give all of them"
            )
        for i, planned in self._static_args.items():
            if args[i] is not planned and not bool(args[i] == planned):
                raise ArgumentError(
                    f"static argument {i} was planned as {planned!r}, got {args[i]!r}; make a plan for each value"
                )
        leaves, tree = jax.tree.flatten(tuple(args[i] for i in program.dynamic_argnums))
        if tree != program.in_tree:
            raise ArgumentError(
                f"{name} was planned for other arguments: {self._otherwise(args)}; make a plan for these"
            )
        planned = program.arguments[: len(leaves)]
        return [_as_planned(leaf, value) for leaf, value in zip(planned, leaves, strict=True)]

    def _otherwise(self, args: Sequence[Any]) -> str:
        """How the structure of arguments differs from the planned one."""
        trees, names = self.program.in_tree.children(), self.program.parameters
        told = (
            structure_differences(tree, args[i], names[i])
            for i, tree in zip(self.program.dynamic_argnums, trees, strict=True)
        )
        return "; ".join(words for words in told if words)

    def place(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments on their devices. Raises: ArgumentError, MeshError (none that run)."""
        self._need_devices("place arguments")
        laid = self.as_arguments([*self._laid(self.flat(args), 0), *self.constants])
        return tuple(args[i] if i in self._static_args else value for i, value in enumerate(laid))

    def _laid(self, leaves: Sequence[Any], first: int) -> list[Any]:
        """Leaves on their devices; `first` is the position of the first of them. Raises: ArgumentError."""
        part = slice(first, first + len(leaves))
        return placed([leaf.name for leaf in self._decision.arguments[part]], leaves, list(self.in_shardings[part]))

    def __call__(self, args: Sequence[Any]) -> Any:
        """The result of a call, as `Plan.__call__` describes it. Raises: ArgumentError, MeshError (none that run)."""
        self._need_devices("run")
        leaves = self.flat(args)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._settled(args, self.flat_jit(*leaves, *self.constants))
        results = self.flat_call(*self._laid(leaves, 0), *self.constants)
        for i in self.program.donated:
            leaf = leaves[i]
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.delete()
        return self._settled(args, results)

    def _need_devices(self, what: str) -> None:
        if self.target.devices is None:
            raise MeshError(
                f"this plan is for the topology {self._decision.topology} without devices, so it cannot {what}; "
                "plan with devices=... as well (virtual CPU devices will do)"
            )
        if self.target.why_not_run:
            raise MeshError(
                f"this plan cannot {what}: {self.target.why_not_run}; lower and compile plan.jit, or bind the saved plan "
                "to devices that run"
            )

    # ------------------------------------------------------------ what checks ask

    def runnable(self, args: Sequence[Any]) -> tuple[Any, ...] | str:
        """Flat arguments to run on, or the reason why there are none."""
        if not args and self.program.num_args:
            return "no arguments were given"
        if self.target.why_not_run:
            return self.target.why_not_run
        try:
            leaves = self.flat(args)
        except ArgumentError as error:
            return str(error)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            return "the arguments are shapes only"
        for leaf, value in zip(self.program.arguments, leaves, strict=False):
            if isinstance(value, jax.Array) and value.is_deleted():
                return f"argument {leaf.name} was donated to an earlier call and is gone"
        return (*leaves, *self.program.constants)

    def like(self, fn: Callable[..., Any]) -> Callable[..., list[Any]] | None:
        """A function like the planned one as a jitted function of the flat arguments.

        None where it changes its arguments in place, which only the traced program returns.
        """
        if self.program.updates:
            return None

        def flat(*leaves: Any) -> list[Any]:
            args = self.as_arguments(leaves)
            return jax.tree.leaves(fn(*(self._static_args.get(i, value) for i, value in enumerate(args))))

        return jax.jit(flat)


def _as_planned(leaf: Leaf, value: Any) -> Any:
    """An argument, checked against what was planned for. Raises: ArgumentError."""
    if isinstance(value, (bool, int, float, complex)):
        # The kind of a Python scalar may vary as long as the planned type holds it: 2 where 2.0 was planned.
        if leaf.weak and leaf.aval.shape == () and np.can_cast(np.min_scalar_type(value), leaf.aval.dtype):
            return np.asarray(value, leaf.aval.dtype)
        value = np.asarray(value, jax.typeof(value).dtype)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        raise ArgumentError(
            f"argument {leaf.name} was planned as {leaf.aval.dtype}{list(leaf.aval.shape)}, got {value!r} of type "
            f"{type(value).__name__}; give an array"
        )
    shape, dtype = tuple(value.shape), str(canonical_dtype(value))
    if shape != leaf.aval.shape or dtype != leaf.aval.dtype:
        raise ArgumentError(
            f"argument {leaf.name} was planned as {leaf.aval.dtype}{list(leaf.aval.shape)}, got {dtype}{list(shape)}; "
            "make a plan for these shapes"
        )
    return value
