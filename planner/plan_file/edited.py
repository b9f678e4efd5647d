"""Plans whose files were edited: whether what they lay inside the program can be laid there."""

from __future__ import annotations

from jax.sharding import PartitionSpec

from planner.decision import Decision
from planner.errors import PlanFileError
from planner.program.graph import Graph
from planner.program.jaxpr.flatten import build_graph
from planner.program.slots import Slot, operand_slot, result_slot
from planner.program.spec_entries import axes_of_spec, parts_over
from planner.program.tracing.traced import Program


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
