"""The passes over collectives, declared."""

from __future__ import annotations

from planner.compiler.model import Evidence, Pass

ALL_REDUCE_REASSOCIATE = Pass(
    name="all-reduce-reassociate",
    phase="collectives",
    does="Adds partial sums to one another before one all-reduce sums them over devices.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="gradients of the inputs of several matmuls on v5e:4x4",
        source="xla/service/all_reduce_reassociate.cc",
    ),
)

REDUCE_SCATTER_CREATOR = Pass(
    name="reduce-scatter-creator",
    phase="collectives",
    does="Scatters a sum behind a loop of which each device reads the same part everywhere.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="the gradient of the head of Mixtral in microbatches on v5e:4x4",
        source="xla/service/reduce_scatter_creator.cc",
    ),
)

ALL_REDUCE_COMBINER = Pass(
    name="all-reduce-combiner",
    phase="collectives",
    does="Combines sums that no matmul of their body waits for into few (on GPUs up to 128 MiB), which share a latency; of "
    "others those that wait for as many sums before them.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="a train step of BERT whose layers are written out: 58 sums become 3; 212 sums of ResNet-50's norms become 98",
        source="xla/service/all_reduce_combiner.cc",
    ),
)

ASYNC_ALL_GATHER = Pass(
    name="async-all-gather",
    phase="collectives",
    does="Runs a gather that can start before its body beside the matmuls before it.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="weights of scanned layers of Llama, GPT, Mixtral and ViT on v5e:4x4, v5p:4x4x4 and h100:8",
        source="xla/service/latency_hiding_scheduler.cc",
    ),
)

ASYNC_ALL_REDUCE = Pass(
    name="async-all-reduce",
    phase="collectives",
    does="Runs sums outside of loops that no matmul waits for beside the matmuls after the last combined with them.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="gradients of train steps on h100:8",
        source="xla/service/latency_hiding_scheduler.cc",
    ),
)

ASYNC_COLLECTIVES = Pass(
    name="async-collectives",
    phase="collectives",
    does="Runs a collective in the middle of a body beside matmuls that depend on it in neither way.",
    evidence=Evidence(
        release="jaxlib 0.10.2",
        seen="activations of transformers split over heads and of a stacked LSTM on h100:8",
        source="xla/service/gpu/gpu_latency_hiding_scheduler.cc",
    ),
)

SPARSE_CORE_COLLECTIVES = Pass(
    name="sparse-core-collectives",
    phase="collectives",
    does="Where SparseCores do collectives, runs a sum that no matmul of its body waits for beside the matmuls after it.",
    evidence=Evidence(
        release="libtpu 0.0.42", seen="gradients in the loops of GPT and a mixture of experts on v6e:4x4"
    ),
)

ASYNC_COLLECTIVE_PERMUTE = Pass(
    name="async-collective-permute",
    phase="collectives",
    does="Runs independent permutes in opposite directions at once, and products that depend on neither beside them.",
    evidence=Evidence(
        release="libtpu 0.0.42",
        seen="shard_maps of a weather model on v5e:4x8",
        source="xla/service/latency_hiding_scheduler.cc",
    ),
)

WHOLE_SUM_KEPT = Pass(
    name="whole-sum-kept",
    phase="buffers",
    does="Keeps the whole of a sum over all devices that is scattered by an all-reduce, and reads the parts from it.",
    evidence=Evidence(release="libtpu 0.0.42", seen="gradients over all devices of v5e:4x4 and v5p:4x4x4"),
)

CPU_COLLECTIVES = Pass(
    name="cpu-collectives",
    phase="collectives",
    does="Moves narrow floats wider, loop-invariant collectives out of loops, and sums over split dims one by one.",
    evidence=Evidence(release="jaxlib 0.10.2", seen="collectives of all programs of the tests on cpu:8"),
)

REDUCE_SCATTER_DECOMPOSER = Pass(
    name="reduce-scatter-decomposer",
    phase="collectives",
    does="Turns scatters, and on large TPU slices gathers, that it has no emitter for into all-reduces.",
    evidence=Evidence(
        release="libtpu 0.0.42, jaxlib 0.10.2",
        seen="collectives of 32 KiB to 512 MiB on v4, v5e, v5p, v6e and tpu7x slices of 4 to 512 devices, and cpu:8",
        source="xla/service/reduce_scatter_decomposer.cc",
    ),
)
