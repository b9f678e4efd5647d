"""The runner: what a plan decided, made into functions of the program that run, lower and compile.

It is made once for a program, a decision's specs and a target; what was compiled to check a plan is what runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, final

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from planner.compiler.buffers.copy_insertion import DISTINCT_STACKS
from planner.compiler.emission.options import accepted
from planner.compiler.targets.table import COMPILERS
from planner.decision import Decision
from planner.emit.call_arguments import Part, as_planned, checked_leaves, is_part, ordered
from planner.emit.halo_exchange import exchanges
from planner.emit.jitted import Jitted, check_layout, jitted
from planner.emit.local_ops import local_calls
from planner.emit.loop_all_reduce import loop_sums
from planner.emit.short_call import ShortCall, short_call
from planner.errors import ArgumentError, MeshError
from planner.machine.global_arrays import consume, placed, why_deleted
from planner.machine.host_parts import laid_part
from planner.machine.target import Target
from planner.program.form import ON_HOST
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.placements.meshless import with_axes
from planner.program.jaxpr.rewrite import constrained
from planner.program.mesh_axes import with_auto_axes
from planner.program.slots import Slot
from planner.program.tracing.call import called
from planner.program.tracing.mutation import write_back
from planner.program.tracing.traced import Leaf, Program
from planner.rules.kernels.kernel_parts import kernels


def _taking_from_hosts(run: Callable[..., list[Any]], hosted: Sequence[int]) -> Callable[..., list[Any]]:
    """A function of flat arguments, those at these positions on hosts, whose types need not say so where it is traced."""
    if not hosted:
        return run

    def moved(*leaves: Any) -> list[Any]:
        placed = list(leaves)
        for position in hosted:
            placed[position] = jax.device_put(leaves[position], jax.memory.Space.Host)
        return run(*placed)

    return moved


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
        self._short_call: ShortCall | None = None
        members, dims = len(target.processes.members), decision.request.process_local
        self._parts = {
            position: Part(dim=dims[leaf.name], count=members)
            for position, leaf in enumerate(decision.arguments)
            if members > 1 and leaf.name in dims
        }

    def of(self, decision: Decision) -> Runner:
        """The runner of the same program on the same target as another decision places it."""
        return Runner(
            program=self.program,
            decision=decision,
            target=self.target,
            static_args=self._static_args,
            graph=self._graph,
        )

    @cached_property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh; abstract where there are no devices."""
        own = self.program.parallelism
        if own is not None and own.mesh is not None and set(own.mesh.devices.flat) <= set(self.target.devices or ()):
            return own.mesh
        return self.target.jax_mesh(self._decision.mesh_shape)

    @cached_property
    def _outer_mesh(self) -> Mesh | AbstractMesh:
        """The mesh of arguments and results: with Explicit axes where it is the one that the function is traced under."""
        types = self.program.types
        if types is None or not isinstance(types.mesh, Mesh) or with_auto_axes(types.mesh) != self.mesh:
            return self.mesh
        return types.mesh

    @cached_property
    def in_shardings(self) -> tuple[NamedSharding, ...]:
        """Those of the flat arguments."""
        return self._shardings(self._decision.in_specs, self.program.arguments)

    @cached_property
    def out_shardings(self) -> tuple[NamedSharding, ...]:
        """Those of the flat results."""
        return self._shardings(self._decision.out_specs, self.program.results)

    def _shardings(self, specs: Sequence[PartitionSpec], leaves: Sequence[Leaf]) -> tuple[NamedSharding, ...]:
        """Those of arrays, some of which lie in the memory of hosts."""
        mesh = self._outer_mesh
        return tuple(
            NamedSharding(mesh, spec, memory_kind=ON_HOST if leaf.aval.host_itemsize else None)
            for spec, leaf in zip(specs, leaves, strict=True)
        )

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """Those that the compiler of the target is given: the decision's, where it is the one that they are for."""
        meant = self.target.platform == self._decision.request.topology.chip.platform
        return accepted(self._decision.compiler_options, self._decision.request.topology.chip.name) if meant else {}

    @property
    def static_args(self) -> Mapping[int, Any]:
        """The values of static arguments by position."""
        return self._static_args

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
        types = self._outer_mesh is not self.mesh
        # JAX wants one mesh of devices in a program, and arguments and results have it.
        mesh = self.mesh.abstract_mesh if types else self.mesh
        shardings: dict[PartitionSpec, NamedSharding] = {}

        def edits(slot: Slot) -> list[NamedSharding]:
            specs = self._decision.constraints.get(slot, ())
            return [shardings.setdefault(spec, NamedSharding(mesh, spec)) for spec in specs]

        graph = self._graph or build_graph(self.program)
        laid = self._decision.constraints
        compiler = COMPILERS[self.target.platform]
        parts = local_calls(graph, laid, mesh, compiler)
        sums = loop_sums(graph, laid, mesh)
        by_hand = {**exchanges(graph, laid, mesh), **kernels(graph, laid, mesh), **parts, **sums.terms}
        apart = DISTINCT_STACKS if compiler.runs("distinct-stacks") else 0
        run = constrained(
            self.program, edits, by_hand, sums.around, refetched=self._decision.refetched, distinct_stacks=apart
        )
        run = _taking_from_hosts(run, self.program.form.hosted)
        return (lambda *leaves: list(map(with_axes, run(*leaves), self.out_shardings))) if types else run

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

    # ------------------------------------------------------------ functions of the user's arguments

    @cached_property
    def _sharded(self) -> Any:
        """The jitted function of the user's arguments and the constants; what it changes in them beside its result."""
        program, count, own = self.program, len(self.program.constants), self.own_results

        def sharded(*args: Any) -> Any:
            constants = args[len(args) - count :]
            results = self._run(*self.flat(args[: len(args) - count]), *constants)
            return (self.as_result(results), results[own:]) if program.updates else self.as_result(results)

        sharded.__name__ = sharded.__qualname__ = self._decision.function_name
        entering, leaving = self.as_arguments(self.in_shardings), self.as_result(self.out_shardings)
        return jitted(
            sharded,
            compiler_options=self.compiler_options,
            in_shardings=(
                *(entering[i] for i in program.dynamic_argnums),
                *self.in_shardings[len(self.in_shardings) - count :],
            ),
            out_shardings=(leaving, list(self.out_shardings[own:])) if program.updates else leaving,
            donate_argnums=self._decision.donate_argnums,
            static_argnums=self._decision.static_argnums,
            refused=None if self._adds else self._refused,
        )

    @property
    def _adds(self) -> bool:
        """Whether the compiled program takes or returns more than the function does, or takes it otherwise."""
        return bool(self.program.constants or self.program.updates or self.program.keywords)

    @cached_property
    def jit(self) -> Any:
        """The sharded jitted function of the user's arguments, as `Plan.jit` describes it."""
        if not self._adds:
            return self._sharded
        settled = self._settled if self.program.updates else None
        return Jitted(
            self._sharded,
            ordered=self.ordered,
            constants=lambda: self.constants,
            settled=settled,
            refused=self._refused,
        )

    def ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The arguments of a call in the order of the program's. Raises: ArgumentError."""
        return ordered(self.program, args, kwargs)

    def _refused(self, args: Sequence[Any]) -> None:
        """Nothing. Raises: ArgumentError where arguments are not what was planned for, or lie otherwise."""
        check_layout(self._decision.arguments, self.flat(args), self.in_shardings)

    def _settled(self, args: Sequence[Any], results: Sequence[Any]) -> Any:
        """The function's own result of the flat ones; what it has changed in its arguments is written into them."""
        self._write_back(args, results)
        return self.as_result(results)

    def _write_back(self, args: Sequence[Any], results: Sequence[Any]) -> None:
        program = self.program
        if program.updates:
            write_back(self._dynamic(args), {position: results[made] for position, made in program.updates})

    def _dynamic(self, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments that are not static."""
        return [args[i] for i in self.program.dynamic_argnums] if self._static_args else args

    @cached_property
    def constants(self) -> tuple[Any, ...]:
        """The large arrays that the function closes over, on their devices; shapes where there are none."""
        constants = self.program.constants
        if self.target.why_not_run:
            return self.program.in_avals[len(self.program.in_avals) - len(constants) :]
        with jax.ensure_compile_time_eval():  # They outlive the trace in which they may be asked for first.
            return tuple(self._laid(constants, len(self.in_shardings) - len(constants)))

    def flat(self, args: Sequence[Any]) -> list[Any]:
        """The leaves of the dynamic arguments. Raises: ArgumentError where they are not what was planned for."""
        return checked_leaves(self.program, self._static_args, args, self._decision.function_name, self._parts)

    def place(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments on their devices. Raises: ArgumentError, MeshError (none that run)."""
        self._need_devices("place arguments")
        laid = self.as_arguments([*self._laid(self.flat(args), 0), *self.constants])
        return tuple(args[i] if i in self._static_args else value for i, value in enumerate(laid))

    def _laid(self, leaves: Sequence[Any], first: int) -> list[Any]:
        """Leaves on their devices; `first` is the position of the first of them. Raises: ArgumentError."""
        part = slice(first, first + len(leaves))
        names, shardings = [leaf.name for leaf in self._decision.arguments[part]], self.in_shardings[part]
        if why := why_deleted(names, leaves):
            raise ArgumentError(f"{why}; give what that call returned in its place")
        return placed(names, self._whole(leaves, first), list(shardings))

    def _whole(self, leaves: Sequence[Any], first: int) -> Sequence[Any]:
        """Leaves, the first of which is at this position, with global arrays in the place of this process's parts.

        Raises: ArgumentError where the layout is not by these parts.
        """
        if not self._parts:
            return leaves
        return [self._whole_leaf(first + i, value) for i, value in enumerate(leaves)]

    def _whole_leaf(self, position: int, value: Any) -> Any:
        part, leaf = self._parts.get(position), self._decision.arguments[position]
        if part is None or not is_part(value, part) or isinstance(value, jax.ShapeDtypeStruct):
            return value
        return laid_part(leaf.name, value, self.in_shardings[position], leaf.aval.shape, part.dim)

    def _with_wholes(self, args: Sequence[Any]) -> Sequence[Any]:
        """The arguments with wholes in the place of this process's parts; what is not as planned stays as it is.

        Raises: ArgumentError where parts are of another shape.
        """
        if not self._parts or len(args) != self.program.num_args:
            return args
        found, first = list(args), 0
        for i, planned in zip(self.program.dynamic_argnums, self.program.in_tree.children(), strict=True):
            positions = range(first, first + planned.num_leaves)
            first += planned.num_leaves
            if not self._parts.keys() & set(positions):
                continue
            leaves, tree = jax.tree.flatten(args[i])
            if tree == planned:
                checked = [
                    as_planned(self._decision.arguments[position], leaf, self._parts.get(position))
                    for position, leaf in zip(positions, leaves, strict=True)
                ]
                found[i] = jax.tree.unflatten(tree, self._whole(checked, positions.start))
        return found

    # ------------------------------------------------------------ running

    @cached_property
    def _takes_pytrees(self) -> bool:
        """Whether what is compiled takes and returns the user's own pytrees: their containers hold what is no array."""
        try:
            trees = [self._dynamic(self.as_arguments(leaves)) for leaves in (self.in_shardings, self.program.in_avals)]
            self.as_result(self.out_shardings)
        except Exception:  # a user's own node may refuse a placeholder in any way it likes
            return False
        return all(jax.tree.structure(tuple(tree)) == self.program.in_tree for tree in trees)

    @cached_property
    def executable(self) -> Any:
        """The compiled program: what was checked is what runs."""
        avals, count = self.program.in_avals, len(self.program.constants)
        if not self._takes_pytrees:
            return self.flat_jit.trace(*avals).lower().compile()
        args = (self._static_args.get(i, value) for i, value in enumerate(self.as_arguments(avals)))
        return self._sharded.trace(*args, *avals[len(avals) - count :]).lower().compile()

    @property
    def _is_narrow(self) -> bool:
        # JAX 0.10 does not know split arrays of elements below a byte again when it calls an executable itself.
        return any(0 < leaf.aval.itemsize < 1 for leaf in self.program.arguments)

    @property
    def flat_call(self) -> Callable[..., Sequence[Any]]:
        """What runs the program of the flat arguments."""
        if self._is_narrow:
            return self.flat_jit
        return self._call_whole if self._takes_pytrees else self.executable

    def _call_whole(self, *leaves: Any) -> Sequence[Any]:
        constants = leaves[len(leaves) - len(self.program.constants) :]
        return self._flat_results(self.executable(*self._dynamic(self.as_arguments(leaves)), *constants))

    def _flat_results(self, results: Any) -> Sequence[Any]:
        own, updated = results if self.program.updates else (results, ())
        return [*jax.tree.leaves(own), *updated]

    def __call__(self, args: Sequence[Any], leaves: Sequence[Any] | None = None) -> Any:
        """The result of a call, as `Plan.__call__` describes it; `leaves` are those of the dynamic arguments, if at hand.

        Raises: ArgumentError, MeshError (none that run).
        """
        if self._parts:
            args, leaves = self._with_wholes(args), None
        short = self._short_call
        if short is None or len(args) != self.program.num_args:
            return self._checked_call(args)
        return short(args, leaves)

    def _short(self) -> ShortCall:
        return short_call(
            executable=self.executable,
            constants=self.constants,
            static_args=self._static_args,
            dynamic=self._dynamic,
            donated=lambda args: jax.tree.leaves([args[i] for i in self.program.donate_argnums]),
            checked=self._checked_call,
            settled=self._settled_short if self.program.updates else None,
            target=self.target,
        )

    def _settled_short(self, args: Sequence[Any], results: Any) -> Any:
        self._write_back(args, self._flat_results(results))
        return results[0]

    def _checked_call(self, args: Sequence[Any]) -> Any:
        """The result of a call whose arguments are looked at, and placed, one by one."""
        self._need_devices("run")
        leaves = self.flat(args)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._settled(args, self.flat_jit(*leaves, *self.constants))
        results = self.flat_call(*self._laid(leaves, 0), *self.constants)
        consume([leaves[i] for i in sorted(self.program.donated)])
        if self._short_call is None and self._takes_pytrees and not self._is_narrow:
            self._short_call = self._short()
        return self._settled(args, results)

    def _need_devices(self, what: str) -> None:
        if self.target.devices is None:
            raise MeshError(
                f"this plan is for the topology {self._decision.topology} without devices, so it cannot {what}; "
                "give devices=... to planner.plan, or to bind of a saved plan (virtual CPU devices will do)"
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
        if why := why_deleted([leaf.name for leaf in self.program.arguments], leaves):
            return why
        try:
            return (*self._whole(leaves, 0), *self.program.constants)
        except ArgumentError as error:
            return str(error)

    def like(self, fn: Callable[..., Any]) -> Callable[..., list[Any]] | None:
        """A function like the planned one as a jitted function of the flat arguments.

        None where it changes its arguments in place, which only the traced program returns.
        """
        if self.program.updates:
            return None

        def flat(*leaves: Any) -> list[Any]:
            args = self.as_arguments(leaves)
            values = [self._static_args.get(i, value) for i, value in enumerate(args)]
            return jax.tree.leaves(called(fn, values, self.program.keywords))

        return jax.jit(flat)
