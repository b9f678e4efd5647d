"""Loaded plans: what a file holds, and its binding to a function and to devices."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import jax
from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.errors import ArgumentError, MeshError, PlanFileError
from planner.machine.target import Target, check_devices
from planner.plan_file.store import Saved
from planner.plan_file.treedef import tree_of_json
from planner.plans.plan import Plan, bound
from planner.plans.process_parts import with_wholes
from planner.pricing.candidates.pins import exactly
from planner.printing.parts import Part
from planner.printing.printed import Printed
from planner.program.graph import Graph
from planner.program.graph import Path as Place
from planner.program.jaxpr.canonicalize.carried_stacks import with_stacks_carried
from planner.program.jaxpr.fingerprint import fingerprint
from planner.program.jaxpr.flatten import build_graph
from planner.program.slots import Slot, operand_slot, result_slot
from planner.program.spec_entries import axes_of_spec, parts_over
from planner.program.tracing.call import call_in_order, call_of
from planner.program.tracing.own_frames import without_own_frames
from planner.program.tracing.trace import trace_call
from planner.program.tracing.traced import Leaf, Program
from planner.report.drawn_arrays import Drawing, draw_arrays
from planner.report.html.render import write_page
from planner.report.recorded import Recorded, recorded
from planner.report.text import plan_parts
from planner.search.problem import planning_problem
from planner.transforms.apply import formed

KEY_TYPES = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
"""The generator of every key type that `jax.random.key` knows."""


@final
class LoadedPlan(Printed):
    """A saved plan, not yet bound to a function; printing it shows the plan."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved

    @property
    def decision(self) -> Decision:
        """All that was decided, as plain data."""
        return self._saved.decision

    @without_own_frames
    def bind(
        self,
        fn: Callable[..., Any],
        example_args: Sequence[Any] | None = None,
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        devices: Sequence[jax.Device] | None = None,
    ) -> Plan:
        """The saved plan for `fn`, without a search.

        `example_args` and `example_kwargs`, as in `planner.plan`, are only needed where the saved pytrees hold containers
        of the user's own or static arguments. With no `devices`, `jax.devices()` serve if there are enough of them and they
        are of the kind planned for, else the plan can only be lowered. Where the devices are of several processes, all of
        these make the same call.

        Raises: PlanFileError when `fn` traces to another program than the saved one; ArgumentError, MeshError;
        ProcessError where another process binds another plan, failed, or does not come.
        """
        decision, target = self.decision, self.target(devices)

        def prepared() -> tuple[tuple[Any, ...], Program]:
            donate, static = decision.donate_argnums, decision.static_argnums
            if example_args is None and example_kwargs is None:
                call = call_in_order(fn, self._arguments(), decision.keywords)
            else:
                exact = {exactly(name): dim for name, dim in decision.request.process_local.items()}
                call = call_of(fn, () if example_args is None else example_args, example_kwargs)
                call = with_wholes(call, exact, target, static=static).call
            target.shared_by_all([decision.mesh_shape])
            program = trace_call(call, donate=donate, static=static, annotations=decision.request.annotations)
            return call.args, self._same_program(with_stacks_carried(program) if target.carries_stacks else program)

        def question(_: object) -> dict[str, str]:
            specs = (decision.in_specs, decision.out_specs, decision.constraints, decision.refetched)
            laid = (decision.form, decision.mesh_shape, *specs, decision.compiler_options)
            digest = hashlib.sha256(repr((decision.fingerprint, *laid)).encode()).hexdigest()
            return {
                "the saved plan": f"{decision.function_name} {digest[:12]}",
                "the list of devices": repr([device.id for device in target.devices or ()]),
            }

        args, program = target.processes.same(prepared, question, "bind")
        problem = partial(planning_problem, program=program, target=target, request=decision.request)
        return bound(decision, program, target, args, problem)

    def explain(self, path: str | None = None) -> Recorded:
        """What the file says of the array `path` (a name or pattern): how it lies, what that takes, what moves it.

        What other specs would cost, as `Plan.explain` has it, only the program can tell, which `bind` brings. Without a
        path: the largest arguments. Raises: ArgumentError for a name that the file has not.
        """
        return recorded(self.decision, path)

    def draw(self, path: str | None = None) -> Drawing:
        """The arguments and results of a name or pattern, drawn: how they are cut, and which devices hold which part.

        Without a path: the largest arguments. Raises: ArgumentError for a name that is none.
        """
        return draw_arrays(self.decision, path)

    def report(self, path: str | Path) -> None:
        """Writes a page of the plan, as `Plan.report`: without what only its program can tell, which `bind` brings.

        Raises: ArgumentError where nothing can be written there.
        """
        write_page(self.decision, None, path)

    def _parts(self) -> list[Part]:
        return plan_parts(self.decision)

    def __repr__(self) -> str:
        return f"<LoadedPlan of {self.decision.function_name} on {dict(self.decision.mesh_shape)}>"

    def _same_program(self, program: Program) -> Program:
        """A traced program in the form in which the saved one is computed. Raises: PlanFileError where it is another."""
        saved = self.decision
        if program.arguments != saved.arguments:
            pairs = zip(program.arguments, saved.arguments, strict=False)
            differing = next(
                (f"{_leaf_text(mine)}, saved {_leaf_text(its)}" for mine, its in pairs if mine != its),
                f"{len(program.arguments)} leaves, saved {len(saved.arguments)}",
            )
            raise PlanFileError(
                f"the saved plan of {saved.function_name} has other arguments than {program.function_name} "
                f"({differing}); plan again"
            )
        donated = tuple(sorted({i % program.num_args for i in saved.donate_argnums}))
        if program.donate_argnums != donated:
            raise PlanFileError(
                f"{program.function_name} donates the arguments {program.donate_argnums}, as it is jitted, where the saved "
                f"plan donates {donated}; plan again"
            )
        if program.results != saved.results:
            raise PlanFileError(
                f"the saved plan of {saved.function_name} has other results than its program; plan again"
            )
        try:
            program = formed(program, saved.form)
        except ArgumentError as error:
            raise PlanFileError(self._another(program, f": {error}")) from error
        if fingerprint(program) != saved.fingerprint:
            raise PlanFileError(self._another(program))
        if self._saved.edited:
            check_places(program, saved)
        return program

    def _another(self, program: Program, why: str = "") -> str:
        return (
            f"{program.function_name} does not trace to the program the plan of {self.decision.function_name} was made for "
            f"(another function, or another JAX release: saved by {self.decision.jax_version}, here "
            f"{jax.__version__}){why}; plan again"
        )

    def _arguments(self) -> tuple[Any, ...]:
        """Arguments in order to trace with: shapes as the file tells them. Raises: ArgumentError."""
        decision = self.decision
        tree = tree_of_json(decision.in_tree)
        keys = {leaf.aval.dtype for leaf in decision.arguments if leaf.aval.dtype.startswith("key<")}
        if tree is None or decision.static_argnums or not keys <= set(KEY_TYPES):
            raise ArgumentError(
                f"the plan of {decision.function_name} has static arguments, or containers that its file cannot tell; "
                "call bind(fn, example_args)"
            )
        mine = (leaf for leaf in decision.arguments if not leaf.constant)
        return tuple(jax.tree.unflatten(tree, map(_example, mine)))

    def target(self, devices: Sequence[jax.Device] | None = None) -> Target:
        """What the plan is bound to. Raises: MeshError where the given devices are too few."""
        request = self.decision.request
        needed = math.prod(self.decision.mesh_shape.values())
        if devices is not None:
            chosen = check_devices(devices)
            if len(chosen) < needed:
                raise MeshError(
                    f"the mesh {dict(self.decision.mesh_shape)} of the plan needs {needed} devices, got {len(chosen)}; "
                    f"give at least {needed}"
                )
            return Target(topology=request.topology, devices=chosen)
        here = check_devices(jax.devices())
        meant = here[0].platform in (request.topology.chip.platform, request.platform)
        return Target(topology=request.topology, devices=here if meant and len(here) >= needed else None)


def _example(leaf: Leaf) -> jax.ShapeDtypeStruct:
    """The shape of an argument, to trace with."""
    dtype: Any = leaf.aval.dtype
    if dtype in KEY_TYPES:
        dtype = jax.eval_shape(lambda: jax.random.key(0, impl=KEY_TYPES[leaf.aval.dtype])).dtype
    return jax.ShapeDtypeStruct(leaf.aval.shape, dtype, weak_type=leaf.weak)


def _leaf_text(leaf: Leaf) -> str:
    return f"{leaf.name}: {leaf.aval.dtype}{list(leaf.aval.shape)}"


def check_places(program: Program, decision: Decision) -> None:
    """Raises: PlanFileError where a plan lays specs at places that its program has not, or that cannot have them."""
    shapes = _shapes(build_graph(program))
    for slot, specs in decision.constraints.items():
        where = f"the saved plan of {decision.function_name} lays specs at a place"
        if slot not in shapes:
            raise PlanFileError(
                f"{where} that the program has not ({slot[0]} {slot[2]} at {list(slot[1])}); plan again"
            )
        for spec in specs:
            if not _can_have(shapes[slot], spec, decision):
                raise PlanFileError(
                    f"{where} ({slot[0]} {slot[2]} at {list(slot[1])}) that it cannot have: it lays {spec} on an array of "
                    f"shape {list(shapes[slot])} over the mesh {dict(decision.mesh_shape)}; mend it, or plan again"
                )
    for slot, (shared, behind) in decision.refetched.items():
        waits = behind in shapes and _comes_after(slot[1], behind[1])
        if not waits or not 0 <= shared < len(decision.constraints.get(slot, ())):
            raise PlanFileError(
                f"the saved plan of {decision.function_name} fetches operand {slot[2]} at {list(slot[1])} again behind "
                f"result {behind[2]} at {list(behind[1])}, for which it cannot wait; mend it, or plan again"
            )


def _comes_after(one: Place, other: Place) -> bool:
    """Whether an equation stands behind another of the same body."""
    match one, other:
        case (*body, int(later)), (*same, int(earlier)):
            return body == same and earlier < later
        case _:
            return False


def _shapes(graph: Graph) -> dict[Slot, tuple[int, ...]]:
    """The shape of what stands at every place of a program."""
    found: dict[Slot, tuple[int, ...]] = {}
    for position, tensor in enumerate(graph.inputs):
        found["invar", (), position] = graph.tensors[tensor].aval.shape
    for position, tensor in enumerate(graph.outputs):
        found["outvar", (), position] = graph.tensors[tensor].aval.shape
    for op in graph.ops:
        for position, tensor in enumerate(op.operands):
            found[operand_slot(op, position)] = graph.tensors[tensor].aval.shape
        for position, tensor in enumerate(op.results):
            found[result_slot(op, position)] = graph.tensors[tensor].aval.shape
    return found


def _can_have(shape: tuple[int, ...], spec: PartitionSpec, decision: Decision) -> bool:
    if len(spec) > len(shape):
        return False
    split = axes_of_spec(spec, len(shape))
    return all(extent % parts_over(axes, decision.mesh_shape) == 0 for extent, axes in zip(shape, split, strict=True))
