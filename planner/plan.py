"""The plan: a decision bound to a function and to devices, ready to run, to inspect and to verify."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from planner.arguments import canonical_dtype
from planner.decision import Certificate, Checked, Decision, Guessed, Replicated, Ruled
from planner.errors import ArgumentError, MeshError
from planner.exchange import exchanges
from planner.explain import Alternatives, Explanation, explain
from planner.global_arrays import placed
from planner.graph import Graph
from planner.local import local_calls
from planner.mutation import write_back
from planner.on_parts import kernels
from planner.op_graph import OpGraph
from planner.places import Slot
from planner.predict import Predicted
from planner.program import Leaf, Program
from planner.report import describe
from planner.store import save_decision
from planner.target import Target
from planner.trace import constrained
from planner.verify import Verification, verify


@final
class Plan:
    """A placement of one function on one mesh, as `planner.plan` or `planner.load(...).bind` return it.

    Call it like the function; `jit` is the sharded function itself, `verify` compares what it does with what was
    promised, `explain` says why, `print` shows it, `save` keeps it.
    """

    def __init__(
        self,
        *,
        decision: Decision,
        program: Program,
        static_args: Mapping[int, Any],
        target: Target,
        graph: Callable[[], Graph],
        alternatives: Callable[[], Alternatives],
        seed: int = 0,
    ) -> None:
        self._decision = decision
        self._program = program
        self._static_args = dict(static_args)
        self._target = target
        self._state_graph = graph
        self._state_problem = alternatives
        self._seed = seed

    # ------------------------------------------------------------ what was decided

    @property
    def mesh_is_abstract(self) -> bool:
        """Whether the plan is for a topology without devices, so that it can be lowered but not run."""
        return self._target.devices is None

    @property
    def why_not_run(self) -> str:
        """Why the plan cannot be run here: no devices, or devices to compile for only; "" where it can."""
        return self._target.why_not_run

    @property
    def has_side_effects(self) -> bool:
        """Whether a run changes or reads the world outside (io callbacks)."""
        return self._program.effects.io

    @property
    def decision(self) -> Decision:
        """All that was decided, as plain data."""
        return self._decision

    @cached_property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh; abstract where the plan was made for a topology without devices."""
        own = self._program.parallelism
        if own is not None and own.mesh is not None and set(own.mesh.devices.flat) <= set(self._target.devices or ()):
            return own.mesh
        return self._target.jax_mesh(self._decision.mesh_shape)

    @cached_property
    def in_specs(self) -> tuple[Any, ...]:
        """The PartitionSpec of every argument leaf: a tuple of pytrees like the arguments (None for static ones)."""
        return self._as_arguments(self._decision.in_specs)

    @cached_property
    def out_specs(self) -> Any:
        """The PartitionSpec of every result leaf: a pytree like the result."""
        return jax.tree.unflatten(self._program.out_tree, self._decision.out_specs[: self._own])

    @cached_property
    def in_shardings(self) -> tuple[Any, ...]:
        """The NamedSharding of every argument leaf: a tuple of pytrees like the arguments (None for static ones)."""
        return self._as_arguments([NamedSharding(self.mesh, spec) for spec in self._decision.in_specs])

    @cached_property
    def out_shardings(self) -> Any:
        """The NamedSharding of every result leaf: a pytree like the result."""
        shardings = [NamedSharding(self.mesh, spec) for spec in self._decision.out_specs[: self._own]]
        return jax.tree.unflatten(self._program.out_tree, shardings)

    @property
    def _own(self) -> int:
        """How many results are the function's own; the others go into its arguments."""
        return self._program.out_tree.num_leaves

    @property
    def constraints(self) -> Mapping[str, PartitionSpec]:
        """The PartitionSpec of every intermediate, by name (`checkpoint_name`, else source line and primitive)."""
        return self._decision.intermediates

    @property
    def predicted(self) -> Predicted:
        """What a call costs per device, and the collectives it runs."""
        return self._decision.predicted

    @property
    def certificate(self) -> Certificate:
        """How far from optimal the plan can be."""
        return self._decision.certificate

    @property
    def replicated(self) -> tuple[Replicated, ...]:
        """The ops placed whole for lack of a rule."""
        return self._decision.replicated

    @property
    def by_shardy(self) -> tuple[Ruled, ...]:
        """The ops placed by a rule of Shardy's registry, for lack of one of ours."""
        return self._decision.by_shardy

    @property
    def guessed(self) -> tuple[Guessed, ...]:
        """The ops whose work is guessed, as one operation per result element; `rule_for(flops=, bytes=)` tells it."""
        return self._decision.guessed

    @property
    def checked(self) -> tuple[Checked, ...]:
        """What was checked before the plan was handed over, and what not, and why."""
        return self._decision.checked

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions, time-outs and fallbacks the user should know of."""
        return self._decision.notes

    def _as_arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        mine = leaves[: len(leaves) - len(self._program.constants)]
        dynamic = jax.tree.unflatten(self._program.in_tree, mine)
        full: list[Any] = [None] * self._program.num_args
        for i, value in zip(self._program.dynamic_argnums, dynamic, strict=True):
            full[i] = value
        return tuple(full)

    # ------------------------------------------------------------ running

    @cached_property
    def _run(self) -> Callable[..., list[Any]]:
        """The constrained program as a function of its flat arguments."""
        mesh = self.mesh
        shardings: dict[PartitionSpec, NamedSharding] = {}

        def edits(slot: Slot) -> list[NamedSharding]:
            specs = self._decision.constraints.get(slot, ())
            return [shardings.setdefault(spec, NamedSharding(mesh, spec)) for spec in specs]

        graph, laid = self._state_graph(), self._decision.constraints
        by_hand = {**exchanges(graph, laid, mesh), **kernels(graph, laid, mesh), **local_calls(graph, laid, mesh)}
        return constrained(self._program, edits, by_hand)

    @cached_property
    def _flat_jit(self) -> Any:
        """The sharded jitted function of the flat arguments: what `__call__` runs and `verify` looks at."""

        def sharded(*leaves: Any) -> list[Any]:
            return self._run(*leaves)

        sharded.__name__ = sharded.__qualname__ = self._decision.function_name
        return jax.jit(
            sharded,
            in_shardings=tuple(NamedSharding(self.mesh, spec) for spec in self._decision.in_specs),
            out_shardings=[NamedSharding(self.mesh, spec) for spec in self._decision.out_specs],
            donate_argnums=tuple(sorted(self._program.donated)),
        )

    @cached_property
    def _executable(self) -> Any:
        """The compiled program: what `verify` looked at is what `__call__` runs."""
        return self._flat_jit.trace(*self._program.in_avals).lower().compile()

    @property
    def _runner(self) -> Any:
        """What runs the program of the flat arguments."""
        # JAX 0.10 does not know split arrays of elements below a byte again when it calls an executable itself.
        narrow = any(0 < leaf.aval.itemsize < 1 for leaf in self._program.arguments)
        return self._flat_jit if narrow else self._executable

    @cached_property
    def jit(self) -> Any:
        """The sharded jitted function; call it with placed arguments, differentiate it, or lower and compile it.

        The large arrays that the function closes over are arguments of the compiled program, passed along. What the
        function changes in place in Flax nnx objects is updated by a call; lowered or compiled, the program returns
        those arrays beside the result.
        """
        program, count, own = self._program, len(self._program.constants), self._own

        def sharded(*args: Any) -> Any:
            constants = args[len(args) - count :]
            results = self._run(*self._flat(args[: len(args) - count]), *constants)
            result = jax.tree.unflatten(program.out_tree, results[:own])
            return (result, results[own:]) if program.updates else result

        sharded.__name__ = sharded.__qualname__ = self._decision.function_name
        specs = self._decision.in_specs[len(self._decision.in_specs) - count :]
        updated = [NamedSharding(self.mesh, spec) for spec in self._decision.out_specs[own:]]
        jitted = jax.jit(
            sharded,
            in_shardings=(
                *(self.in_shardings[i] for i in program.dynamic_argnums),
                *(NamedSharding(self.mesh, spec) for spec in specs),
            ),
            out_shardings=(self.out_shardings, updated) if program.updates else self.out_shardings,
            donate_argnums=self._decision.donate_argnums,
            static_argnums=self._decision.static_argnums,
        )
        if not count and not program.updates:
            return jitted
        return _Jitted(jitted, lambda: self._constants, self._settled if program.updates else None)

    def _settled(self, args: Sequence[Any], results: Sequence[Any]) -> Any:
        """The function's own result; what it has changed in its arguments is written into them."""
        program = self._program
        if program.updates:
            dynamic = [args[i] for i in program.dynamic_argnums]
            write_back(dynamic, {position: results[made] for position, made in program.updates})
        return jax.tree.unflatten(program.out_tree, results[: self._own])

    @cached_property
    def _constants(self) -> tuple[Any, ...]:
        """The large arrays that the function closes over, on their devices; shapes where there are none."""
        constants = self._program.constants
        if self.why_not_run:
            return self._program.in_avals[len(self._program.in_avals) - len(constants) :]
        return tuple(self._laid(constants, len(self._decision.in_specs) - len(constants)))

    def _flat(self, args: Sequence[Any]) -> list[Any]:
        """The leaves of the dynamic arguments. Raises: ArgumentError where they are not what was planned for."""
        program, name = self._program, self._decision.function_name
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
                f"{name} was planned for arguments of structure {program.in_tree}, got {tree}; make a plan for these"
            )
        planned = program.arguments[: len(leaves)]
        return [_as_planned(leaf, value) for leaf, value in zip(planned, leaves, strict=True)]

    def place(self, *args: Any) -> tuple[Any, ...]:
        """The arguments on their devices, sharded as planned. Raises: ArgumentError, MeshError (none that run).

        Where the devices are of several processes, a value that a process holds itself must be the same on all of them;
        what differs by process comes as a global array (`jax.make_array_from_process_local_data`).
        """
        self._need_devices("place arguments")
        laid = self._as_arguments(self._placed(self._flat(args)) + list(self._constants))
        return tuple(args[i] if i in self._static_args else value for i, value in enumerate(laid))

    def _placed(self, leaves: Sequence[Any]) -> list[Any]:
        return self._laid(leaves, 0)

    def _laid(self, leaves: Sequence[Any], first: int) -> list[Any]:
        """Leaves on their devices; `first` is the position of the first of them. Raises: ArgumentError."""
        part = slice(first, first + len(leaves))
        names = [leaf.name for leaf in self._decision.arguments[part]]
        return placed(names, leaves, [NamedSharding(self.mesh, spec) for spec in self._decision.in_specs[part]])

    def __call__(self, *args: Any) -> Any:
        """The result of the function, computed sharded: places the arguments and calls `jit`.

        Donated arguments are consumed, as `jax.jit` does it, wherever they lay. Flax nnx objects that the function
        changes in place are updated, as `nnx.jit` does it; donated ones stay usable. Where the
        devices are of several processes, all of them make the call together, with arguments as `place` takes them.
        """
        self._need_devices("run")
        leaves = self._flat(args)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return self._settled(args, self._flat_jit(*leaves, *self._constants))
        results = self._runner(*self._placed(leaves), *self._constants)
        for i in self._program.donated:
            leaf = leaves[i]
            if isinstance(leaf, jax.Array) and not leaf.is_deleted():
                leaf.delete()
        return self._settled(args, results)

    def _need_devices(self, what: str) -> None:
        if self._target.devices is None:
            raise MeshError(
                f"this plan is for the topology {self._decision.topology} without devices, so it cannot {what}; "
                "plan with devices=... as well (virtual CPU devices will do)"
            )
        if self.why_not_run:
            raise MeshError(
                f"this plan cannot {what}: {self.why_not_run}; lower and compile plan.jit, or bind the saved plan to "
                "devices that run"
            )

    # ------------------------------------------------------------ evidence

    def verify(
        self, *args: Any, reference: Callable[..., Any] | None = None, rtol: float | None = None
    ) -> Verification:
        """What the plan does beside what it promised: numerics, collectives and memory. Raises nothing, says all.

        Without arguments, or with shapes only, the numerics are not checked. For a topology without devices, or TPUs to
        compile for only, the program is compiled for them where their compiler is installed. `reference` is the
        function whose results, on one device, the plan's are compared with; default the program as it was traced. How
        far they may differ follows from the program's own rounding; with `rtol`, floats may by that share of the
        largest value of their leaf.

        Where the devices are of several processes, all of them must call this together and get one verdict. Numerics are
        checked where the arguments are the same on all processes, or global arrays small enough to be gathered.

        Raises: ProcessError where another process does not come.
        """
        return verify(
            self._decision,
            self._program,
            self._target,
            self._runnable(args),
            mesh=self.mesh,
            jitted=self._flat_jit,
            compiled=lambda: self._executable,
            runner=lambda: self._runner,
            seed=self._seed,
            reference=None if reference is None else self._flattened(reference),
            rtol=rtol,
        )

    def _flattened(self, fn: Callable[..., Any]) -> Callable[..., list[Any]]:
        """A function like the planned one as a jitted function of the flat arguments."""

        def flat(*leaves: Any) -> list[Any]:
            args = self._as_arguments(leaves)
            return jax.tree.leaves(fn(*(self._static_args.get(i, value) for i, value in enumerate(args))))

        return jax.jit(flat)

    def _runnable(self, args: Sequence[Any]) -> tuple[Any, ...] | str:
        """Flat arguments to run on, or the reason why there are none."""
        if not args and self._program.num_args:
            return "no arguments were given"
        if self.why_not_run:
            return self.why_not_run
        try:
            leaves = self._flat(args)
        except ArgumentError as error:
            return str(error)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            return "the arguments are shapes only"
        for leaf, value in zip(self._program.arguments, leaves, strict=False):
            if isinstance(value, jax.Array) and value.is_deleted():
                return f"argument {leaf.name} was donated to an earlier call and is gone"
        return (*leaves, *self._program.constants)

    @property
    def graph(self) -> OpGraph:
        """The op graph as decided, a `networkx.MultiDiGraph`, made when it is first asked for; see `decided_graph`.

        Its structure is frozen: a `copy()` can be changed. Raises: ArgumentError, as `explain` does.
        """
        return self._alternatives.network

    @cached_property
    def _alternatives(self) -> Alternatives:
        return self._state_problem()

    def explain(self, path: str | None = None) -> Explanation:
        """Why the tensor `path` (a name or pattern) is placed as it is: its alternatives and what each would cost.

        Without a path: the arguments that matter most. Raises: ArgumentError for a name that is none.
        """
        return explain(self._alternatives, path)

    def with_checks(self, checked: Sequence[Checked], notes: Sequence[str] = ()) -> Plan:
        """The same plan with these checks and further notes on record."""
        other = Plan(
            decision=replace(self._decision, checked=tuple(checked), notes=(*self._decision.notes, *notes)),
            program=self._program,
            static_args=self._static_args,
            target=self._target,
            graph=self._state_graph,
            alternatives=self._state_problem,
            seed=self._seed,
        )
        # What was compiled for the checks need not be compiled again.
        other.__dict__.update(
            {
                name: self.__dict__[name]
                for name in ("mesh", "_run", "_flat_jit", "_executable", "_constants")
                if name in self.__dict__
            }
        )
        return other

    def save(self, path: str | Path) -> None:
        """Writes the plan to a JSON file that `planner.load` reads."""
        save_decision(self._decision, Path(path), self._program)

    def __str__(self) -> str:
        return describe(self._decision)

    def __repr__(self) -> str:
        return (
            f"<Plan of {self._decision.function_name} on {dict(self._decision.mesh_shape)}: {self.certificate.status}>"
        )


class _Jitted:
    """A jitted function whose last arguments are given once, and whose results are settled after a call.

    It is called, traced and lowered with the other arguments alone.
    """

    def __init__(
        self,
        jitted: Any,
        constants: Callable[[], tuple[Any, ...]],
        settled: Callable[[Sequence[Any], Sequence[Any]], Any] | None,
    ) -> None:
        self._jitted, self._constants, self._settled = jitted, constants, settled
        self.__name__: str = jitted.__name__

    def __call__(self, *args: Any) -> Any:
        results = self._jitted(*args, *self._constants())
        if self._settled is None:
            return results
        own, updated = results
        return self._settled(args, [*jax.tree.leaves(own), *updated])

    def trace(self, *args: Any) -> Any:
        """As of a jitted function."""
        return self._jitted.trace(*args, *self._constants())

    def lower(self, *args: Any) -> Any:
        """As of a jitted function."""
        return self._jitted.lower(*args, *self._constants())

    def eval_shape(self, *args: Any) -> Any:
        """As of a jitted function."""
        shapes = self._jitted.eval_shape(*args, *self._constants())
        return shapes if self._settled is None else shapes[0]


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
