"""The passes of emission, declared: constraints and loops that the planner writes because of a compiler."""

from __future__ import annotations

from planner.compiler.model import Evidence, Pass

SUM_BEFORE_SLICE = Pass(
    name="sum-before-slice",
    phase="emission",
    does="Lays down a sum that is wanted scattered whole first, so that partial results are added, not gathered.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="gradients of train steps on cpu:8 and h100:8"),
)

READ_AS_STORED = Pass(
    name="read-as-stored",
    phase="emission",
    does="Reads a tensor as it is stored where others read it gathered, which the compiler else does for all of them.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="weights of train steps on h100:8"),
)

CONSTRAIN_ANCHORS_ONLY = Pass(
    name="constrain-anchors-only",
    phase="emission",
    does="Lays no constraint on results that follow their operands: XLA simplifies before it partitions.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="U-Net on v5e:4x4, 49.8 ms with and 35.6 ms without constraints; attention of heads in groups, 3.9 and 2.4 ms",
    ),
)

SLICES_OF_DONATED_STACKS = Pass(
    name="slices-of-donated-stacks",
    phase="emission",
    does="Keeps updates of donated stacks where the compiler writes them in place.",
    evidence=Evidence(release="libtpu 0.0.42", seen="decode steps with caches of keys and values on v5e and v5p"),
)

NO_WINDOWED_EINSUM = Pass(
    name="no-windowed-einsum",
    phase="emission",
    does="Keeps gathers and scatters beside matmuls as emitted, by a compiler option (see `options`).",
    evidence=Evidence(
        release="libtpu 0.0.42, libtpu 0.0.50",
        seen="tensor-parallel train steps on v5e:4x4",
        source="xla/service/spmd/dot_handler.cc",
    ),
)

NO_SPACE_TO_BATCH = Pass(
    name="no-space-to-batch",
    phase="emission",
    does="Keeps the space of convolutions of fewer than 8 images whole, by a compiler option (see `options`).",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="chains of convolutions and a 3-D U-Net on v5e:4x4, v5p, v6e, v4 and tpu7x",
        source="xla/service/space_to_batch_converter.cc",
    ),
)

FUSED_BROADCASTS = Pass(
    name="fused-broadcasts",
    phase="emission",
    does="On v6e, broadcasts constants and masks in the kernels that read them, by a compiler option (see `options`).",
    evidence=Evidence(release="libtpu 0.0.42", seen="attention over 4,096 keys in a Llama on v6e:4x4"),
)

SLICE_SCATTERS = Pass(
    name="slice-scatters",
    phase="emission",
    does="Keeps scatters over whole slices where they take less than all-reduces, by a compiler option (see `options`).",
    evidence=Evidence(
        release="libtpu 0.0.42, libtpu 0.0.50",
        seen="96 scatters each over v5e:4x4, v5e:8x8, v6e:4x4, v6e:8x8, v5p:2x2x4, v5p:4x4x4 and v4:2x2x4",
    ),
)

DISTINCT_STACKS = Pass(
    name="distinct-stacks",
    phase="emission",
    does="Emits loops with stacks of different shapes, which are allocated; of one type, zeros are written first.",
    evidence=Evidence(
        release="libtpu 0.0.42", seen="two loops, one after the other, on v5e, v5p and v6e; T5 on v6e:4x4"
    ),
)

STACKS_IN_CARRY = Pass(
    name="stacks-in-carry",
    phase="emission",
    does="Emits a loop that makes a new stack of a donated one with that stack in its carry, updated in place.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="decoding 70B, 25 layers, batch 256, on 8 H100: 51 ms and 49 GB for 86 ms and 75 GB without",
    ),
)
