"""The plan: a decision bound to a function and to devices, ready to run, to inspect and to verify."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from planner.autotune_log import Refined
from planner.decision import Certificate, Checked, Decision, OpNote
from planner.emit.alternatives import remedied
from planner.emit.runner import Runner
from planner.errors import ArgumentError
from planner.explain.explain import Alternatives, explain
from planner.explain.explanation import Explanation
from planner.explain.op_graph import OpGraph
from planner.explain.repeated_products import products_of
from planner.former_names import former_attributes
from planner.logical import LogicalAxes
from planner.machine.target import Target
from planner.plan_file.store import save_decision
from planner.plans.alternatives import alternatives
from planner.plans.what_if import WhatIf, what_if
from planner.prediction import Predicted, Products
from planner.printing.axes import new_axes
from planner.printing.parts import Part
from planner.printing.printed import Printed
from planner.program.graph import Graph
from planner.program.jaxpr.microbatch.expanded import has_remats
from planner.program.tracing.traced import Program
from planner.report.drawn_arrays import Drawing, draw_arrays
from planner.report.html.render import write_page
from planner.report.plots import plot_memory, plot_time
from planner.report.program_report import memory_over_time, seconds_by_place
from planner.report.summary import flat_summary
from planner.report.text import plan_parts
from planner.report.timeline import trace_events
from planner.report.writing import write_text
from planner.search.problem import PlanningProblem
from planner.verify.verification import COMPILE_LIMIT_S, Verification, verify


@final
class Plan(Printed):
    """A placement of one function on one mesh, as `planner.plan` or `planner.load(...).bind` return it.

    Call it like the function; `jit` is the sharded function itself, `verify` compares what it does with what was
    promised, `explain` says why, `print` shows it, `save` keeps it.
    """

    def __init__(
        self,
        *,
        decision: Decision,
        runner: Runner,
        alternatives: Callable[[], Alternatives],
        seed: int = 0,
        compiled: Verification | None = None,
    ) -> None:
        self._decision, self._runner, self._state_problem, self._seed = decision, runner, alternatives, seed
        self._compiled = compiled

    # ------------------------------------------------------------ what was decided

    @property
    def mesh_is_abstract(self) -> bool:
        """Whether the plan is for a topology without devices, so that it can be lowered but not run."""
        return self._runner.target.devices is None

    @property
    def why_not_run(self) -> str:
        """Why the plan cannot be run here: no devices, or devices to compile for only; "" where it can."""
        return self._runner.target.why_not_run

    @property
    def has_side_effects(self) -> bool:
        """Whether a run changes or reads the world outside (io callbacks)."""
        return self._runner.program.effects.io

    @property
    def prints(self) -> bool:
        """Whether a run calls `jax.debug.print` or others of `jax.debug`."""
        return self._runner.program.effects.prints

    @property
    def decision(self) -> Decision:
        """All that was decided, as plain data."""
        return self._decision

    @property
    def runner(self) -> Runner:
        """What runs it: its program on its devices, as functions of flat arguments too."""
        return self._runner

    @property
    def target(self) -> Target:
        """The topology it was priced for, and the devices it was made for, if there are any."""
        return self._runner.target

    @property
    def mesh(self) -> Mesh | AbstractMesh:
        """The mesh; abstract where the plan was made for a topology without devices."""
        return self._runner.mesh

    @cached_property
    def in_specs(self) -> tuple[Any, ...]:
        """The PartitionSpec of every argument leaf: a tuple of pytrees like the arguments (None for static ones).

        Arguments that are given by keyword alone come last, in alphabetical order; also in what follows.
        """
        return self._runner.as_arguments(self._decision.in_specs)

    @cached_property
    def out_specs(self) -> Any:
        """The PartitionSpec of every result leaf: a pytree like the result."""
        return self._runner.as_result(self._decision.out_specs)

    @cached_property
    def in_shardings(self) -> tuple[Any, ...]:
        """The NamedSharding of every argument leaf: a tuple of pytrees like the arguments (None for static ones)."""
        return self._runner.as_arguments(self._runner.in_shardings)

    @cached_property
    def out_shardings(self) -> Any:
        """The NamedSharding of every result leaf: a pytree like the result."""
        return self._runner.as_result(self._runner.out_shardings)

    @cached_property
    def abstract_arguments(self) -> tuple[Any, ...]:
        """Every argument leaf as a ShapeDtypeStruct with its sharding: pytrees like the arguments (None for static ones).

        A checkpoint is restored with it in the layout of the plan.
        """
        pairs = zip(self._runner.program.in_avals, self._runner.in_shardings, strict=True)
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding) for aval, sharding in pairs]
        return self._runner.as_arguments(shapes)

    @property
    def constraints(self) -> Mapping[str, PartitionSpec]:
        """The PartitionSpec of every intermediate, by name (`checkpoint_name`, else module or source line)."""
        return self._decision.intermediates

    @property
    def logical_axes(self) -> LogicalAxes:
        """The indices that run through the program, named, with the mesh axes that split them, and what lies otherwise."""
        return self._decision.logical

    @cached_property
    def logical_specs(self) -> tuple[Any, ...]:
        """The names of the dims of every argument leaf, as PartitionSpecs: a tuple of pytrees like the arguments.

        With `logical_axes.flax_rules`, `flax.linen.logical_to_mesh` makes `in_specs` of it, but for
        `logical_axes.exceptions`.
        """
        names = self._decision.logical.names
        return self._runner.as_arguments(
            [PartitionSpec(*names.get(leaf.name, ())) for leaf in self._decision.arguments]
        )

    @property
    def predicted(self) -> Predicted:
        """What a call costs per device, and the collectives it runs."""
        return self._decision.predicted

    @property
    def certificate(self) -> Certificate:
        """How far from optimal the plan can be."""
        return self._decision.certificate

    @property
    def replicated(self) -> tuple[OpNote, ...]:
        """The ops placed whole for lack of a rule."""
        return self._decision.replicated

    @property
    def by_shardy(self) -> tuple[OpNote, ...]:
        """The ops placed by a rule of Shardy's registry, for lack of one of ours."""
        return self._decision.by_shardy

    @property
    def guessed(self) -> tuple[OpNote, ...]:
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

    @property
    def refined(self) -> Refined | None:
        """How compiles or runs chose the plan, as `Options(autotune=...)` asks for; None where they had no say."""
        return self._decision.refined

    # ------------------------------------------------------------ running

    @property
    def jit(self) -> Any:
        """The sharded jitted function; call it with placed arguments, differentiate it, or lower and compile it.

        The large arrays that the function closes over are arguments of the compiled program, passed along. What the
        function changes in place in Flax nnx objects is updated by a call; lowered or compiled, the program returns
        those arrays beside the result. The decision's compiler options hold where it is called, lowered or compiled
        by itself, not inside `jax.jit` or another transformation of the user's, as JAX refuses them there.

        It moves nothing: an argument that is committed to another sharding is an error, JAX's own `ValueError`, or, where
        constants, updates or compiler options are added to the call, an ArgumentError that names it.
        """
        return self._runner.jit

    def place(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The arguments on their devices, sharded as planned, in the order of `in_specs`.

        Raises: ArgumentError, MeshError (none that run).

        Where the devices are of several processes, a value that a process holds itself must be the same on all of them;
        what differs by process comes as a global array (`jax.make_array_from_process_local_data`).
        """
        return self._runner.place(self._runner.ordered(args, kwargs))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, computed sharded: places the arguments and runs the compiled program.

        Arguments are given by position or by keyword, as to the function.

        Donated arguments are consumed, as `jax.jit` does it, wherever they lay; after a call that found them all in place
        it is left to JAX, which keeps what it has to copy. Flax nnx objects that the function changes in place are
        updated, as `nnx.jit` does it; donated ones stay usable. Where the devices are of several
        processes, all of them make the call together, with arguments as `place` takes them.

        Raises: ArgumentError, MeshError (none that run).
        """
        return self._runner(self._runner.ordered(args, kwargs))

    # ------------------------------------------------------------ evidence

    def verify(
        self,
        *args: Any,
        reference: Callable[..., Any] | None = None,
        rtol: float | None = None,
        compile_limit_s: float = COMPILE_LIMIT_S,
        **kwargs: Any,
    ) -> Verification:
        """What the plan does beside what it promised: numerics, collectives and memory. Raises nothing, says all.

        `kwargs` are arguments of the function by keyword. Without arguments, or with shapes only, the numerics are not
        checked. For a topology without devices, or TPUs to compile for only, the program is compiled for them where their
        compiler is installed, for at most `compile_limit_s` (nothing is compiled again that was compiled to check the
        plan). `reference` is the function whose results, on one device, the plan's are compared with; default the program
        as it was traced. How far they may differ follows from the program's own rounding; with `rtol`, floats may by that
        share of the largest value of their leaf.

        Where the devices are of several processes, all of them must call this together and get one verdict. Numerics are
        checked where the arguments are the same on all processes, or global arrays small enough to be gathered.

        Raises: ProcessError where another process does not come.
        """
        if self._compiled is not None and self.why_not_run:
            return self._compiled
        return verify(
            self._decision,
            self._runner,
            self._runner.runnable(self._runner.ordered(args, kwargs) if args or kwargs else ()),
            seed=self._seed,
            reference=None if reference is None else self._runner.like(reference),
            rtol=rtol,
            compile_limit_s=compile_limit_s,
            products=self._products,
        )

    def _products(self) -> Sequence[Products]:
        """Products of matrices by line, where some are computed again; none where that cannot be told."""
        program, form = self._runner.program, self._decision.form
        if all(one is None for one in form.saved) and not form.without_checkpoints and not has_remats(program.jaxpr):
            return ()
        try:
            stated = self.alternatives
        except ArgumentError:  # a plan of another release, which cannot be stated again
            return ()
        return products_of(stated.chosen, stated.saved, form.microbatches)

    @property
    def graph(self) -> OpGraph:
        """The op graph as decided, a `networkx.MultiDiGraph`, made when it is first asked for; see `decided_graph`.

        Its structure is frozen: a `copy()` can be changed. Raises: ArgumentError, as `explain` does.
        """
        return self.alternatives.network

    if not TYPE_CHECKING:
        __getattr__ = former_attributes({"behind": "alternatives"})

    @cached_property
    def alternatives(self) -> Alternatives:
        """The problem that the plan solves, with what was chosen; stated when it is first asked for. Raises: as `graph`."""
        return self._state_problem()

    def explain(self, path: str | None = None) -> Explanation:
        """Why the tensor `path` (a name or pattern) is placed as it is: its alternatives and what each would cost.

        Without a path: the arguments that matter most. Raises: ArgumentError for a name that is none.
        """
        return explain(self.alternatives, path)

    def draw(self, path: str | None = None) -> Drawing:
        """The arguments and results of a name or pattern, drawn: how they are cut, and which devices hold which part.

        Without a path: the largest arguments. Raises: ArgumentError for a name that is none.
        """
        return draw_arrays(self._decision, path)

    def what_if(
        self,
        pins: Mapping[str, PartitionSpec] | None = None,
        *,
        mesh: Mapping[str, int] | None = None,
        memory_limit: float | None = None,
    ) -> WhatIf:
        """What would change with other pins, on another mesh or within another memory limit; it prints as `compare` does.

        Nothing is traced, compiled or searched beyond one mesh: the program, its microbatches and saved values stay, and
        everything else is chosen anew by the solver. That takes about a second for a language model, and more where memory
        is short. The notes say how it was chosen, and whether that is proven to be the best of the mesh.

        `pins`: patterns over names to PartitionSpecs; they go before those of the plan. `mesh`: axis name to size.
        `memory_limit`: bytes per device.

        Raises: ArgumentError, PinError, MeshError; InfeasibleError where the pins leave nothing to choose.
        """
        return what_if(self.alternatives, self._decision, pins, mesh, memory_limit, seed=self._seed)

    def with_checks(self, checked: Sequence[Checked], compiled: Verification | None = None) -> Plan:
        """The same plan with these checks on record; what was compiled for them serves it, too, as `compiled` does."""
        return self._with(replace(self._decision, checked=tuple(checked)), compiled)

    def remedied(self, error: str) -> Plan:
        """The same plan with the compiler options of an entry of `planner.compiler.emission.options.REMEDIES`."""
        decision = remedied(self._decision, error)
        return Plan(
            decision=decision, runner=self._runner.of(decision), alternatives=self._state_problem, seed=self._seed
        )

    def with_notes(self, notes: Sequence[str]) -> Plan:
        """The same plan with these notes."""
        return self._with(replace(self._decision, notes=tuple(notes)), None)

    def _with(self, decision: Decision, compiled: Verification | None) -> Plan:
        return Plan(
            decision=decision,
            runner=self._runner,
            alternatives=self._state_problem,
            seed=self._seed,
            compiled=compiled or self._compiled,
        )

    def save(self, path: str | Path) -> None:
        """Writes the plan to a JSON file that `planner.load` reads. Raises: ArgumentError where that cannot be written."""
        save_decision(self._decision, Path(path))

    def report(self, path: str | Path) -> None:
        """Writes a page of the plan as one HTML file that needs no network: time, memory, collectives, arrays, op graph.

        Raises: ArgumentError where nothing can be written there, or as `explain` does.
        """
        write_page(self._decision, self.alternatives, path)

    def trace(self, path: str | Path) -> None:
        """Writes the predicted step as trace events in JSON, for ui.perfetto.dev or chrome://tracing.

        One device stands for all; its tracks are loops, computing, and the links of mesh axes. It lasts
        `predicted.seconds`; the runs of a loop's body are drawn as one.

        Raises: ArgumentError where nothing can be written there, or as `explain` does.
        """
        events = trace_events(self.graph, devices=math.prod(self._decision.mesh_shape.values()))
        write_text(path, json.dumps(events), "the trace")

    def plot_memory(self, ax: Any = None) -> Any:
        """The matplotlib axes with the memory of a device over the step, and its limit. `ax`: where to draw it.

        Raises: ImportError where matplotlib is not installed; as `explain` does.
        """
        ax = new_axes("Plan.plot_memory") if ax is None else ax
        stated, decision = self.alternatives, self._decision
        memory = memory_over_time(stated.memory, stated.choice)
        return plot_memory(memory, decision.request.memory_limit, _titled(decision, "memory over a call"), ax)

    def plot_time(self, ax: Any = None) -> Any:
        """The matplotlib axes with the seconds of a call by source line. Raises: as `plot_memory`."""
        ax = new_axes("Plan.plot_time") if ax is None else ax
        lines = seconds_by_place(self.graph, "by line")
        return plot_time(lines, _titled(self._decision, "time of a call by line"), ax)

    @property
    def summary(self) -> dict[str, float | str]:
        """The figures of the plan as a flat dict, for trackers of experiments: `wandb.config.update(plan.summary)`."""
        return flat_summary(self._decision)

    def _parts(self) -> list[Part]:
        return plan_parts(self._decision)

    def __repr__(self) -> str:
        return (
            f"<Plan of {self._decision.function_name} on {dict(self._decision.mesh_shape)}: {self.certificate.status}>"
        )


def _titled(decision: Decision, what: str) -> str:
    return f"{decision.function_name} for {decision.topology}: {what}"


def bound(
    decision: Decision,
    program: Program,
    target: Target,
    args: Sequence[Any],
    problem: Callable[[], PlanningProblem],
    *,
    seed: int = 0,
    graph: Graph | None = None,
) -> Plan:
    """The plan of a decision for a program, called with such arguments; `problem` states what the decision solves."""
    runner = Runner(
        program=program,
        decision=decision,
        target=target,
        static_args={i: args[i] for i in program.static_argnums},
        graph=graph,
    )
    return Plan(decision=decision, runner=runner, alternatives=lambda: alternatives(problem(), decision), seed=seed)
