"""The passes of buffer assignment and of memory spaces, declared."""

from __future__ import annotations

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.buffers.complex_planes import complex_planes, real_transforms
from planner.compiler.buffers.copy_insertion import in_place, updated_stacks, zeroed_stacks
from planner.compiler.buffers.sibling_operands import sibling_operands, widened_siblings
from planner.compiler.fusion.instruction_fusion import reduced_at_once
from planner.compiler.fusion.ragged_dot import mask_buffers, masked_buffers, transposed_buffers
from planner.compiler.layout.row_major_lanes import slices_copied_to_order
from planner.compiler.model import Evidence, Pass
from planner.compiler.program import CompiledProgram
from planner.decisions.groups import is_fused
from planner.program.graph import Graph, Op
from planner.rules.primitives import traits


def _copy_insertion(program: CompiledProgram) -> None:
    graph = program.graph
    found = in_place(graph, program.fused, program.materialized, program.last_use, program.spans)
    written = {op: graph.regions[graph.ops[op].region].trips for op in slices_copied_to_order(graph, program.row_major)}
    program.in_place = found.with_traffic(written)


def _fusible_sinking(program: CompiledProgram) -> None:
    program.in_place = program.in_place.with_traffic(zeroed_stacks(program.graph, program.materialized))


def _updated_stacks(program: CompiledProgram) -> None:
    found = updated_stacks(program.graph, program.fused, program.materialized)
    program.in_place = program.in_place.with_traffic(found)


def _buffer_assignment(program: CompiledProgram) -> None:
    graph, kept = program.graph, program.in_place
    copied = slices_copied_to_order(graph, program.row_major)
    if program.compiler.runs("dot-output-fusion"):
        program.reduced_at_once = reduced_at_once(graph, program.grouping, program.fused, program.materialized)
    elsewhere = kept.taken | program.reduced_at_once
    for op in graph.ops:
        view = op.id not in copied and _is_view(graph, op)
        for tensor in op.results:
            if not program.materialized[tensor] or view or tensor in elsewhere:
                continue
            start = program.spans[op.region][0] if op.kind == "loop_stack" else program.scheduled_at.get(op.id, op.id)
            stop = max(program.last_use[tensor], kept.kept.get(tensor, 0), start + 1)
            program.buffers.append(Buffer(tensor, start, stop, program.narrow.fraction(tensor)))
    for total, window in program.windows.items():
        if window.times >= 0:
            # While a pass centres a row, both stand.
            summed = graph.tensors[total].producer or 0
            time = program.scheduled_at.get(summed, summed)
            program.buffers.append(Buffer(window.row, time, time + 1, several=window.several))


def _is_view(graph: Graph, op: Op) -> bool:
    """Whether a result is a name for memory that is accounted elsewhere."""
    if traits(op.kind).renames or op.kind in ("loop_const", "branch_in"):
        return True
    # A slice that only fused ops read is read from the stack.
    return op.kind == "loop_slice" and all(is_fused(graph.ops[reader]) for reader, _ in graph.consumers[op.results[0]])


def _sibling_operands(program: CompiledProgram) -> None:
    program.buffers += sibling_operands(program.graph, program.fused, program.materialized)


def _widened_siblings(program: CompiledProgram) -> None:
    program.buffers += widened_siblings(program.graph, program.materialized, program.last_use)


def _complex_planes(program: CompiledProgram) -> None:
    program.buffers += complex_planes(program.graph, program.last_use)


def _real_transforms(program: CompiledProgram) -> None:
    program.buffers += real_transforms(program.graph)


def _masked_groups(program: CompiledProgram) -> None:
    program.buffers += masked_buffers(program.graph)


def _group_masks(program: CompiledProgram) -> None:
    program.buffers += mask_buffers(program.graph)


def _transposed_weights(program: CompiledProgram) -> None:
    program.buffers += transposed_buffers(program.graph)


def _separate_results(program: CompiledProgram) -> None:
    graph, kept = program.graph, program.in_place.kept
    own = {tensor for position, tensor in enumerate(graph.outputs) if position not in graph.aliases}
    first = {outside: inside for inside, outside in graph.ties}
    # What a loop leaves as a result is there in every trip, but where one is made while the one before is still read.
    leaving = [op for op in graph.of_kinds(("loop_carry_out",)) if op.results[0] in own]
    carries = [(op.operands[0], first.get(op.results[0])) for op in leaving if first.get(op.results[0]) not in kept]
    there = {tensor for carry in carries for tensor in carry}
    program.buffers = [
        one._replace(start=0) if one.tensor in own else one
        for one in program.buffers
        if one.tensor not in there or one.fraction < 1
    ]


COPY_INSERTION = Pass(
    name="copy-insertion",
    phase="buffers",
    does="Writes updates, carries and donated results in place, and copies first where the old value is still needed.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="decode steps and optimizer updates on v5e, v5p and h100:8",
        source="xla/service/copy_insertion.cc",
    ),
    writes=("in_place",),
    run=_copy_insertion,
)

WHILE_LOOP_FUSIBLE_SINKING = Pass(
    name="while-loop-fusible-sinking",
    phase="buffers",
    does="Only allocates stacks that loops fill, but writes zeros first for a reversed loop inside another.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="gradients of scanned layers in microbatches of T5, Mixtral, Llama and GPT on v5e:4x4, v5p:4x4x4 and v6e:4x4",
        source="xla/service/while_loop_fusible_sinking.cc",
    ),
    writes=("in_place",),
    run=_fusible_sinking,
)

UPDATED_STACKS = Pass(
    name="updated-stacks",
    phase="buffers",
    does="Writes zeros before a loop for the stacks that it fills, and slices by updates, which copy what others made.",
    evidence=Evidence(
        release="jaxlib 0.10.2", seen="saved values and gradients of scanned matmuls, passes and softmaxes on h100:8"
    ),
    writes=("in_place",),
    run=_updated_stacks,
)

BUFFER_ASSIGNMENT = Pass(
    name="buffer-assignment",
    phase="buffers",
    does="Allocates materialized tensors from the op that makes them until their last use.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="buffer assignments of all programs of the fidelity suite",
        source="xla/service/buffer_assignment.cc",
    ),
    writes=("buffers", "reduced_at_once"),
    run=_buffer_assignment,
)

SIBLING_OPERANDS = Pass(
    name="sibling-operands",
    phase="buffers",
    does="Stores a fused value while several neighbouring matmuls read it.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="the two gradients of a matmul on cpu:8"),
    writes=("buffers",),
    run=_sibling_operands,
)

WIDENED_SIBLINGS = Pass(
    name="widened-siblings",
    phase="buffers",
    does="Keeps the narrow result of a matmul beside its widened copy while fused ops read it.",
    evidence=Evidence(release="libtpu 0.0.42", seen="residual streams in bfloat16 with norms in float32 on v5e:4x4"),
    writes=("buffers",),
    run=_widened_siblings,
)

COMPLEX_PLANES = Pass(
    name="complex-planes",
    phase="buffers",
    does="Splits complex arguments into real and imaginary parts, and joins complex results of them.",
    evidence=Evidence(release="libtpu 0.0.42", seen="transforms and products of complex arguments of 1 GB on v5e:2x2"),
    writes=("buffers",),
    run=_complex_planes,
)

REAL_TRANSFORMS = Pass(
    name="real-transforms",
    phase="buffers",
    does="Computes Fourier transforms of real numbers as complex ones of the whole length, whose steps are stored.",
    evidence=Evidence(release="libtpu 0.0.42", seen="transforms along one dim and two, there and back, on v5e:2x2"),
    writes=("buffers",),
    run=_real_transforms,
)

MASKED_GROUPS = Pass(
    name="masked-groups",
    phase="buffers",
    does="Stores the masked operand of an expanded ragged dot once for every group.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="dropless mixtures of experts on h100:8"),
    writes=("buffers",),
    run=_masked_groups,
)

GROUP_MASKS = Pass(
    name="group-masks",
    phase="buffers",
    does="On v5p, writes the mask of a masked ragged sum to memory, one byte in 128, though no kernel reads it.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="gradients of experts of 32 to 786 thousand rows in 8 to 64 groups on v5p, not on v4, v5e, v6e and tpu7x",
        until="libtpu 0.0.50",
    ),
    writes=("buffers",),
    run=_group_masks,
)

SEPARATE_RESULTS = Pass(
    name="separate-results",
    phase="buffers",
    does="Allocates results that take no argument's place beside all temporaries, not only from the op that makes them.",
    evidence=Evidence(
        release="libtpu 0.0.50",
        seen="chains and loops of matmuls, and gradients of experts, without donated arguments on v5e",
        since="libtpu 0.0.50",
    ),
    writes=("buffers",),
    run=_separate_results,
)

RAGGED_OPERAND_LAYOUT = Pass(
    name="ragged-operand-layout",
    phase="buffers",
    does="Copies the weights of a ragged dot that sums over their last dim, as the gradient of its rows does.",
    evidence=Evidence(
        release="libtpu 0.0.42, libtpu 0.0.50", seen="gradients of experts of 2 thousand by 7 thousand on v5e"
    ),
    writes=("buffers",),
    run=_transposed_weights,
)

RESULT_TABLE = Pass(
    name="result-table",
    phase="buffers",
    does="Counts a pointer of 8 bytes per result among the results.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="memory reports of all programs of the tests on cpu:8"),
)

ONE_MEMORY = Pass(
    name="one-memory",
    phase="buffers",
    does="Counts arguments and results on hosts among those on the devices: they share one memory.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="optimizer states on hosts on cpu:8"),
)

MEMORY_SPACE_ASSIGNMENT = Pass(
    name="memory-space-assignment",
    phase="memory space",
    does="Keeps tensors on the chip that are read soon, or with all arrays of their body up to their size.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="train steps, samplers and physics on v5e and v5p",
        source="xla/service/memory_space_assignment/",
    ),
)

CROSS_PROGRAM_PREFETCH = Pass(
    name="cross-program-prefetch",
    phase="memory space",
    does="Brings weights of products outside of loops to the chip while collectives run.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="decode steps of Llama 3 70B and 8B, layers written out, on v5e:4x4 and v5p:4x4x4",
        source="xla/service/memory_space_assignment/ (copy-start, slice-start, cross-program prefetch)",
    ),
)

REMATERIALIZATION = Pass(
    name="rematerialization",
    phase="rematerialization",
    does="Computes values again where temporaries need more than 95 % of what arguments leave of 80 % of the memory.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="a ViT that stored 17 GB too much on h100:8",
        source="xla/hlo/transforms/simplifiers/hlo_rematerialization.cc (GetSchedulerMemoryLimit)",
    ),
)
