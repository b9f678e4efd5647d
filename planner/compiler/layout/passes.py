"""The passes of layout assignment, declared."""

from __future__ import annotations

from planner.compiler.buffers.buffer import Buffer
from planner.compiler.layout.dot_operands_gpu import (
    orders_of,
    transpose_traffic,
    transposed_operands,
    transposed_stacks,
    with_transposed,
)
from planner.compiler.layout.loop_stacks import stack_relayouts
from planner.compiler.layout.multiplied import in_tiles, of_convolutions, of_products
from planner.compiler.layout.row_major_lanes import in_row_order, slices_copied_to_order
from planner.compiler.layout.uncoalesced_transposes import uncoalesced_transposes
from planner.compiler.model import Evidence, Pass
from planner.compiler.program import CompiledProgram


def _gpu_layout_assignment(program: CompiledProgram) -> None:
    program.orders = orders_of(program.graph, program.uncoalesced)
    program.transposed = transposed_stacks(program.graph, program.orders)


def _uncoalesced_transposes(program: CompiledProgram) -> None:
    program.uncoalesced = uncoalesced_transposes(program.graph)


def _layout_assignment(program: CompiledProgram) -> None:
    ops = program.graph.ops
    program.relayouts = stack_relayouts(program.graph)
    program.stored_operands |= {t for op in program.relayouts for t in (ops[op].operands[0], ops[op].results[0])}


def _transposed_buffers(program: CompiledProgram) -> None:
    graph = program.graph
    program.buffers = with_transposed(graph, program.transposed, program.spans, program.buffers)
    traffic = transpose_traffic(graph, program.transposed)
    program.in_place = program.in_place.with_traffic({op: t for op, (t, several) in traffic.items() if several is None})
    program.transposes = {op: (t, several) for op, (t, several) in traffic.items() if several is not None}


def _transposed_operands(program: CompiledProgram) -> None:
    graph = program.graph
    found = transposed_operands(graph, program.fused, program.materialized, program.orders)
    program.transposed_operands = {at: several for at, (_, several) in found.items()}
    program.buffers += [
        Buffer(graph.ops[op].operands[position], made, op + 1, several=several)
        for (op, position), (made, several) in found.items()
    ]


def _row_major_lanes(program: CompiledProgram) -> None:
    program.row_major = {**program.row_major, **in_row_order(program.graph, program.fused)}


def _convolution_layout(program: CompiledProgram) -> None:
    graph, fused = program.graph, program.fused
    program.row_major = {**program.row_major, **in_tiles(graph, fused, of_convolutions(graph))}


def _dot_layout(program: CompiledProgram) -> None:
    graph, fused = program.graph, program.fused
    found = in_tiles(graph, fused, of_products(graph, fused))
    # A matmul reads a slice of an argument as it lies.
    for op in slices_copied_to_order(graph, found):
        del found[graph.ops[op].results[0]]
    program.row_major = {**found, **program.row_major}


LAYOUT_ASSIGNMENT = Pass(
    name="layout-assignment",
    phase="layout",
    does="Copies stacks that are transposed before a loop takes them in slice by slice, or behind a loop that makes them.",
    evidence=Evidence(
        release="libtpu 0.0.42", seen="linear attention in chunks, recurrent networks, attention in blocks on v5e:2x2"
    ),
    writes=("relayouts", "stored_operands"),
    run=_layout_assignment,
)

GPU_LAYOUT_ASSIGNMENT = Pass(
    name="gpu-layout-assignment",
    phase="layout",
    does="Transposes stacks before a loop whose matmuls want the batch dims of their slices side by side.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="decode steps with caches of keys and values on h100:8",
        source="xla/service/gpu/transforms/layout_assignment.cc (GpuLayoutAssignment::SetDotOperandLayout)",
    ),
    writes=("orders", "transposed"),
    run=_gpu_layout_assignment,
)

TRANSPOSED_BUFFERS = Pass(
    name="transposed-buffers",
    phase="buffers",
    does="Allocates transposed stacks for as long as their loop runs, and reads and writes them for the transpose.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="decode steps with caches of keys and values on h100:8"),
    writes=("buffers", "in_place", "transposes"),
    run=_transposed_buffers,
)

COLLECTIVE_LAYOUT = Pass(
    name="collective-layout",
    phase="layout",
    does="Lays what is exchanged with that dim outermost: stacks are transposed before loops that gather others of slices.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="transformers with up to 70 B parameters on h100:8",
        source="xla/service/gpu/transforms/layout_assignment.cc (GpuLayoutAssignment::AddBackendConstraints)",
    ),
)

TRANSPOSED_OPERANDS = Pass(
    name="transposed-operands",
    phase="buffers",
    does="Transposes what a matmul reads in another order than its batch dims, then those it contracts or keeps.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="attention with one and several heads of queries to one of keys, and its gradients, on h100:8",
        source="xla/service/gpu/transforms/layout_assignment.cc, xla/hlo/transforms/expanders/dot_decomposer.cc",
    ),
    writes=("transposed_operands", "buffers"),
    run=_transposed_operands,
)

UNCOALESCED_TRANSPOSES = Pass(
    name="uncoalesced-transposes",
    phase="layout",
    does="Stores transposes with short inner dims; reads an element per memory transaction where Triton does not do them.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="transposes of attention heads and of images on h100:8",
        source="xla/service/gpu/ir_emission_utils.cc, model/coalescing_analysis.cc, "
        "transforms/fusion_block_level_rewriter.cc",
    ),
    writes=("uncoalesced",),
    run=_uncoalesced_transposes,
)

DOT_OPERAND_LAYOUT = Pass(
    name="dot-operand-layout",
    phase="layout",
    does="Copies slices of donated stacks whose inner two dims are not those that a matmul multiplies.",
    evidence=Evidence(release="libtpu 0.0.42", seen="decode steps with caches of keys and values on v5e and v5p"),
)

ROW_MAJOR_LANES = Pass(
    name="row-major-lanes",
    phase="layout",
    does="Keeps rows of gathered and scattered tables, and what Pallas kernels read and write, filled up to 128 lanes.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="graph networks with 8 to 512 features and GPTs with splash attention over heads of 64 on v5e:4x4",
    ),
    writes=("row_major",),
    run=_row_major_lanes,
)

CONVOLUTION_LAYOUT = Pass(
    name="convolution-layout",
    phase="layout",
    does="Stores images in tiles of batch and features, with space outside of them, as convolutions read and make them.",
    evidence=Evidence(
        release="libtpu 0.0.42", seen="chains of convolutions of 1 to 128 images of 32 to 256 features on v5e:2x2"
    ),
    writes=("row_major",),
    run=_convolution_layout,
)

DOT_LAYOUT = Pass(
    name="dot-layout",
    phase="layout",
    does="Stores what matmuls read and make in tiles of dims that they contract or keep, with batch dims outside of them.",
    evidence=Evidence(
        release="libtpu 0.0.42", seen="attention in windows of 49 pixels and chains of products on v5e:4x4"
    ),
    writes=("row_major",),
    run=_dot_layout,
)

GATHER_TABLE_LAYOUT = Pass(
    name="gather-table-layout",
    phase="layout",
    does="Copies a table that lies column by column for a lookup, with rows filled up to whole tiles.",
    evidence=Evidence(
        release="libtpu 0.0.42", seen="tables of 16 thousand to 4 million rows of 4 to 512 elements on v5e:4x4"
    ),
)

LARGE_ROWS = Pass(
    name="large-rows",
    phase="layout",
    does="Cuts a table with rows of more than 262,144 elements into parts, looks rows up in each, and joins them.",
    evidence=Evidence(release="libtpu 0.0.42", seen="lookups of rows of 0.5 to 4 MiB, and of beams of caches, on v5e"),
)

SCATTERED_ROWS = Pass(
    name="scattered-rows",
    phase="layout",
    does="Lays out by rows, and copies back, what is scattered onto zeros where that wastes up to 464 MiB, not 128.",
    evidence=Evidence(
        release="libtpu 0.0.50",
        seen="gradients of tables of 1 to 4 million rows of 8 to 192 elements on v5e",
        since="libtpu 0.0.50",
    ),
)

TILING = Pass(
    name="tiling",
    phase="layout",
    does="Stores arrays in tiles of 8 x 128 words of 32 bits, and multiplies in tiles of 128 x 128.",
    evidence=Evidence(release="libtpu 0.0.42", seen="buffer assignments of all programs of the fidelity suite"),
)
