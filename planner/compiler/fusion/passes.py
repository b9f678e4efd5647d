"""The passes of fusion, declared: what each does, where it was seen, and how it changes a compiled program."""

from __future__ import annotations

from planner.compiler.fusion.instruction_fusion import operands_of_gemms
from planner.compiler.fusion.materialization import is_fused_op, materialized_by_fusion, narrow_of_widened
from planner.compiler.fusion.multi_output import stored_for_backward, stored_for_many, stored_for_matmuls
from planner.compiler.fusion.operand_fusion import read_through
from planner.compiler.fusion.softmax_tpu import stored_of_softmaxes, windows_of
from planner.compiler.model import Evidence, Pass
from planner.compiler.program import CompiledProgram

TPU_RELEASE, GPU_RELEASE = "libtpu 0.0.42", "jaxlib 0.10.2"


def _instruction_fusion(program: CompiledProgram) -> None:
    program.fused = [is_fused_op(program.graph, program.grouping, op, program.compiler) for op in program.graph.ops]


def _gemm_operands(program: CompiledProgram) -> None:
    program.stored_operands = operands_of_gemms(program.graph, program.fused, program.uncoalesced)


def _materialization(program: CompiledProgram) -> None:
    program.materialized = materialized_by_fusion(
        program.graph, program.grouping, program.fused, program.stored_operands, program.compiler
    )


def _multi_output(program: CompiledProgram) -> None:
    goes_on = program.compiler.runs("dot-output-fusion")
    found = stored_for_many(program.graph, program.fused, program.materialized, goes_on=goes_on)
    program.same_type.update(program.materialize(found, "multi-output-fusion"))


def _matmul_operands(program: CompiledProgram) -> None:
    found = stored_for_matmuls(program.graph, program.fused, program.materialized, program.narrow_of)
    program.materialize(found, "shared-operands")


def _narrow_reads(program: CompiledProgram) -> None:
    program.narrow_of = narrow_of_widened(program.graph, program.fused, program.materialized)


def _expensive_producers(program: CompiledProgram) -> None:
    found = stored_for_backward(program.graph, program.fused, program.materialized)
    program.materialize(found, "expensive-producers")


def _softmax_window(program: CompiledProgram) -> None:
    found = stored_of_softmaxes(program.graph, program.fused, program.materialized)
    changed = program.materialize(found, "softmax-window")
    program.same_type |= {tensor for tensor in changed if found[tensor]}
    program.windows = windows_of(program.graph, program.fused)


def _operand_reads(program: CompiledProgram) -> None:
    program.read_through = read_through(program.graph, program.materialized, program.fused)


INSTRUCTION_FUSION = Pass(
    name="instruction-fusion",
    phase="fusion",
    does="Fuses elementwise ops, moves of elements and reductions with their neighbours into one kernel.",
    evidence=Evidence(
        release=f"{TPU_RELEASE}, {GPU_RELEASE}",
        seen="schedules and buffer assignments of all programs of the fidelity suite",
        source="xla/service/instruction_fusion.cc",
    ),
    writes=("fused",),
    run=_instruction_fusion,
)

RANDOM_BITS_FUSION = Pass(
    name="random-bits-fusion",
    phase="fusion",
    does="Computes random bits of Threefry in every kernel that reads them, those of matmuls too, and stores none.",
    evidence=Evidence(
        release=TPU_RELEASE, seen="dropout behind matmuls and their gradients, Monte Carlo sweeps on v5e"
    ),
)

DOT_OPERAND_FUSION = Pass(
    name="dot-operand-fusion",
    phase="fusion",
    does="A matmul or convolution computes its operands from what they are made of, but for error functions.",
    evidence=Evidence(release=TPU_RELEASE, seen="train steps of GPT, Llama, ViT and ResNet on v5e and v5p"),
)

DOT_OUTPUT_FUSION = Pass(
    name="dot-output-fusion",
    phase="fusion",
    does="A matmul applies elementwise ops and reductions to its result, whoever else reads that, and writes slices of an "
    "array over with it.",
    evidence=Evidence(
        release=TPU_RELEASE,
        seen="train steps of GPT, Llama, ViT and ResNet on v5e and v5p; gradients of scanned layers in microbatches on v5e",
    ),
)

GEMM_OPERANDS = Pass(
    name="gemm-operands",
    phase="fusion",
    does="A matmul reads its operands from memory, through renames, conversions and elementwise ops of one array; "
    "a convolution as they are stored.",
    evidence=Evidence(
        release=GPU_RELEASE,
        seen="train steps of GPT, ViT, U-Net and ResNet on h100:8",
        source="xla/service/gpu/transforms/gemm_fusion.cc (IsInputWorthFusing)",
    ),
    writes=("stored_operands",),
    run=_gemm_operands,
)

GATHER_FUSION = Pass(
    name="gather-fusion",
    phase="fusion",
    does="A gather is part of the kernels that read it, once its table is in memory.",
    evidence=Evidence(release=GPU_RELEASE, seen="GNN and embedding lookups on h100:8"),
)

MATERIALIZATION = Pass(
    name="materialization",
    phase="fusion",
    does="Writes to memory the results of kernels, values that cross a loop's border, costly operands and running sums.",
    evidence=Evidence(
        release=f"{TPU_RELEASE}, {GPU_RELEASE}", seen="buffer assignments of all programs of the fidelity suite"
    ),
    writes=("materialized",),
    run=_materialization,
)

MULTI_OUTPUT_FUSION = Pass(
    name="multi-output-fusion",
    phase="fusion",
    does="Stores a value, as one more result of a matmul, that several kernels would compute anew from more bytes.",
    evidence=Evidence(
        release=f"{TPU_RELEASE}, {GPU_RELEASE}",
        seen="gradients behind residual blocks of ResNet and U-Net on v5e:4x4 and h100:8, and of 60 attentions on v5e",
        source="xla/service/multi_output_fusion.cc",
    ),
    writes=("materialized", "same_type"),
    run=_multi_output,
)

EXPENSIVE_PRODUCERS = Pass(
    name="expensive-producers",
    phase="fusion",
    does="Stores results of functions of many instructions that the backward pass would compute again.",
    evidence=Evidence(
        release=GPU_RELEASE,
        seen="y = h * f(h) between two matmuls for each function f, h100:8",
        source="xla/service/instruction_fusion.cc (IsExpensive)",
    ),
    writes=("materialized",),
    run=_expensive_producers,
)

SHARED_OPERANDS = Pass(
    name="shared-operands",
    phase="fusion",
    does="Stores a large operand of several matmuls that is computed from still more.",
    evidence=Evidence(
        release=TPU_RELEASE,
        seen="attentions and SwiGLUs whose layers are written out, on v5p; not on v5e and v6e",
    ),
    writes=("materialized",),
    run=_matmul_operands,
)

NARROW_READS = Pass(
    name="narrow-reads",
    phase="fusion",
    does="Has passes read the narrow result of a matmul where another kernel reads it widened.",
    evidence=Evidence(
        release=TPU_RELEASE,
        seen="logits in bfloat16 of which a gather reads those of the labels in float32, on v5e, v5p and v6e",
    ),
    writes=("narrow_of",),
    run=_narrow_reads,
)

SOFTMAX_WINDOW = Pass(
    name="softmax-window",
    phase="fusion",
    does="Stores the centred row of a softmax in the place of the row and its maximum.",
    evidence=Evidence(
        release=TPU_RELEASE,
        seen="attention over rows of up to 8,192 elements on v5e, v5p and v6e, and of up to 50 thousand on v5e",
    ),
    writes=("materialized", "same_type", "windows"),
    run=_softmax_window,
)

SOFTMAX_REWRITER_TRITON = Pass(
    name="softmax-rewriter-triton",
    phase="fusion",
    does="One kernel reduces rows and goes on with them, where the reduced row alone is put back on the row.",
    evidence=Evidence(
        release=GPU_RELEASE,
        seen="softmaxes and their gradients on h100:8",
        source="xla/service/gpu/transforms/softmax_rewriter_triton.cc",
    ),
)

DYNAMIC_SLICE_COPIES = Pass(
    name="dynamic-slice-copies",
    phase="fusion",
    does="Copies the slice of a loop's stack that a matmul reads but does not compute.",
    evidence=Evidence(release=GPU_RELEASE, seen="scanned layers of GPT and Llama on h100:8"),
)

SLICED_OPERANDS = Pass(
    name="sliced-operands",
    phase="fusion",
    does="Copies the part of a larger array that a matmul or convolution reads.",
    evidence=Evidence(
        release=GPU_RELEASE,
        seen="gradients of recurrent networks and convolutions on h100:8, meshes of two and three axes",
    ),
)

SCATTER_INITIALIZATION = Pass(
    name="scatter-initialization",
    phase="fusion",
    does="Writes the constant that a scatter begins with; on TPUs an array of other dims for scatters with batch dims.",
    evidence=Evidence(
        release=f"{TPU_RELEASE}, {GPU_RELEASE}",
        seen="scatters onto zeros of 16 thousand to 4 million rows on v5e:4x4, of 52 million rows on h100:8",
    ),
)

RAGGED_DOT_EXPANDER = Pass(
    name="ragged-dot-expander",
    phase="fusion",
    does="Multiplies every group of a ragged dot over all rows, masked; an operand is in memory once for every group.",
    evidence=Evidence(
        release=GPU_RELEASE, seen="dropless mixtures of experts on h100:8", source="xla/service/ragged_dot_rewriter.cc"
    ),
)

MASKED_RAGGED_SUMS = Pass(
    name="masked-ragged-sums",
    phase="fusion",
    does="Computes a sum over ragged elements for every group over all elements, those of other groups masked.",
    evidence=Evidence(
        release=TPU_RELEASE,
        seen="gradients of the weights of 8 groups of 16 thousand rows on v5e",
        until="libtpu 0.0.50",
    ),
)

GEMM_TILING = Pass(
    name="gemm-tiling",
    phase="fusion",
    does="Multiplies small matrices at the rate of the part of a large product that they are, shallow ones slower, and "
    "contracts in parts where the result is small.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="products of 128 to 16,384 rows and columns compiled for h100:8"),
)

OPERAND_READS = Pass(
    name="operand-reads",
    phase="fusion",
    does="Kernels that compute an operand read from memory the tensors that it is computed from.",
    evidence=Evidence(release=GPU_RELEASE, seen="bytes that programs of the tests move on cpu:8"),
    writes=("read_through",),
    run=_operand_reads,
)
