"""Compiler options that plans carry: those that every plan of a platform has, and those that mend a failed compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from cost_models import Roofline, Topology
from cost_models.hardware import Platform
from planner.compiler.release import installed_release, is_read_off

NO_WINDOWED_EINSUM: Mapping[Platform, Mapping[str, str]] = MappingProxyType(
    {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}, "gpu": {}, "cpu": {}}
)
"""Compiler options under which gathers and scatters beside matmuls stay what was emitted.

XLA's TPU compiler else makes loops of small matmuls and collective-permutes of those above a threshold, which hide
communication and read the matmul's other operand once per pass (Wang et al. 2023,
https://doi.org/10.1145/3567955.3567959). libtpu 0.0.42 and 0.0.50; the GPU's threshold is 100,000 MiB by default, and the
CPU has none.
"""

COMBINED_BYTES = 128 * 2**20
COMBINED_SUMS: Mapping[str, str] = MappingProxyType({"xla_gpu_all_reduce_combine_threshold_bytes": str(COMBINED_BYTES)})
"""Compiler options of GPUs under which sums are combined up to so many bytes, where it were 30 MiB; MaxText runs with them.

Between nodes the latency of a sum is that of 40 MB. Gathers and scatters stay at 30 MiB: with 128 a GPT with its layers
written out takes 3 % longer on h100:8 by its schedule, and with 1 GiB 6 %, as less of them runs beside computing.
"""

FUSED_ALL_REDUCES = "xla_tpu_enable_async_collective_fusion_fuse_all_reduce"
ASYNC_COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "xla_enable_async_all_gather": "true",
        "xla_enable_async_all_reduce": "true",
        "xla_tpu_enable_async_all_to_all": "true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
        FUSED_ALL_REDUCES: "true",
    }
)
"""Compiler options of TPUs under which collectives run beside what does not wait for them; MaxText runs with them.

Of the schedules by libtpu 0.0.42 of a Llama 3 8B on v5p:4x4x4 they take 6 %, of a GPT 1.3B and a Mixtral there 5 %, of a
Llama on v5e:4x4 1 % and of a Mixtral 3 %, for no memory. libtpu 0.0.52 has them too.
"""

LEFT_OUT: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "v4": frozenset({FUSED_ALL_REDUCES}),
        "v5e": frozenset({"xla_tpu_enable_async_all_to_all"}),
    }
)
"""Those of them that plans for a chip leave out: full compiles by libtpu 0.0.42 end in errors after the schedule is known.

On v4 kernels with all-reduces outgrow the memory of the chip; on v5e slices of more than 4x4 "Async all-to-all [is] not
supported on limited ICI". The others compile, in slices of up to 512 chips.
"""

CONTINUATION_FUSION = frozenset(name for name in ASYNC_COLLECTIVES if "_collective_fusion_" in name)
"""Those of them that fuse collectives with what runs beside them."""
FUSING_CHIPS, FUSING_RELEASES = frozenset({"v5e"}), ("libtpu 0.0.42",)
"""The chips for which all compilers take these, and the releases that take them for every chip.

libtpu 0.0.43 to 0.0.52 refuse them for v4, v5p, v6e and tpu7x: "not supported/recommended on platforms other than TPU v5e,
and this might lead to [...] incorrect results, hang".
"""

SPARSE_CORE_COLLECTIVES: Mapping[str, str] = MappingProxyType(
    {
        "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
        "xla_tpu_enable_sparse_core_collective_offload_all_reduce": "true",
        "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
        "xla_tpu_enable_sparse_core_reduce_scatter_v2": "true",
    }
)
"""Compiler options under which a chip's SparseCores do its collectives, so that its matrix units go on meanwhile.

Of the schedules by libtpu 0.0.42 on v6e:4x4 they take 7 % of a GPT 1.3B and 6 % of a Mixtral, for up to 1 % of memory.
"""

SPARSE_CORE_CHIPS: Mapping[str, bool] = MappingProxyType({"v5p": False, "v6e": True, "tpu7x": True})
"""Chips whose compiler takes them, and whether all plans have them: where MaxText publishes runs.

On v5p they have them where nothing is fused: by the schedules of libtpu 0.0.52 on v5p:4x4x4 a GPT 1.3B takes 62.3 ms
without and 44.7 with, a Mixtral 1156 and 1074. Where collectives are fused, which gains as much but for 2 to 5 %, they are
tried by `Options(autotune="compile")` alone.
"""

FUSED_BROADCASTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"v6e": MappingProxyType({"xla_tpu_enable_aggressive_broadcast_priority_update": "true"})}
)
"""Compiler options, by chip, under which what is broadcast is part of the kernels that read it.

In softmaxes over more than about 2,500 elements the compiler for v6e else stores the scale, the mask and what it puts in
its place, each in the size of the scores. By the schedules of libtpu 0.0.42 the step of a Llama 3 8B of 8 layers on v6e:4x4
with 4,096 queries at once takes 493 ms and 19.2 GB with the option, and 813 ms and 29.0 GB without. Public serving code
for TPUs sets it, too. libtpu 0.0.52 has it. Compilers for v4, v5e, v5p and tpu7x store none of these, with or without.
"""

SLICE_SCATTERS: Mapping[str, str] = MappingProxyType(
    {"xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true"}
)
"""Compiler options of TPUs under which a reduce-scatter over a whole slice, or a block of one, stays a reduce-scatter.

Without, libtpu 0.0.42 and 0.0.50 make all-reduces of most (`collectives.lowering`). With, v6e's SparseCores scatter over
all dims of the torus at once, and TensorCores by the emitter that they have for smaller groups: one ring through all chips,
which is no faster than an all-reduce over all dims of a torus that is closed in all of them (`scatters_over_slices`). By
the schedules of libtpu 0.0.42 a BERT takes 190.6 ms without and 176.5 with the option on v5e:4x4, 113.8 and 97.3 on
v6e:4x4, and a ViT 449.1 and 429.2, 197.1 and 165.4. Public recipes for TPU7x have it, whose compiler does the same without.
It was compiled in full for v5e, v5p and v6e, but run on none of them.
"""

SCATTERED_BYTES = 4.0 * 4096 * 4096
"""Of the gradient by which a scatter over a slice is compared with an all-reduce: a matrix of 4,096 x 4,096 in float32."""

NO_SPACE_TO_BATCH: Mapping[str, str] = MappingProxyType({"xla_disable_hlo_passes": "space-to-batch-converter"})
"""Compiler options of TPUs under which convolutions of few images keep their space whole.

Where a device has fewer than 8 images, XLA's TPU compiler else cuts the last dim of space in 8 and makes it part of the
batch: cuts, halos, masks and copies go over memory several times for every convolution and its gradients. By the schedules
of libtpu 0.0.42 for v5e three layers of one image of 1,024 x 1,024 with 64 features and their gradients take 64.3 ms
without and 23.9 with the option, of 4 images of 128 x 128 with 256 features 13.6 and 3.8 ms, and a 3-D U-Net on v5e:4x4
139 and 66 ms, 7.4 and 5.0 GB. Schedules do not count that a product of fewer than 8 rows leaves part of the matrix unit
idle: by the compiler's own cycles two layers of 64 features take 1.5 to 3 times as long with the option for one or two
images, and as long for four; of 128 and 256 features they take as long for one image, 0.6 for two and 0.4 for four. So
`Options(autotune=...)` tries both.
"""

SCHEDULER_MEMORY = "xla_tpu_scheduler_percent_shared_memory_limit"
WHOLE_MEMORY: Mapping[str, str] = MappingProxyType({SCHEDULER_MEMORY: "100"})
"""Compiler options of TPUs under which schedules may fill a chip's memory.

By default the scheduler of libtpu 0.0.42 takes a twentieth less for its limit (95 compiles to the same, 90 and 97 do not).
Where what it holds passes that, it runs no gather of whole loops beside computing. Of the schedule of a Llama 3 8B on
v5e:4x4 that is promised 16.07 of 16.9 GB the option takes 602 of 5,011 ms, and 0.15 GB. MaxText runs with it where it
offloads to hosts. `REMEDIES` has the default for programs that do not fit so.
"""

HOST_COPIES: Mapping[str, str] = MappingProxyType({"xla_tpu_pcie_bandwidth_multiplier": "0.1"})
"""Compiler options of TPUs under which copies from the host begin early enough in a loop's trip.

By default libtpu 0.0.42 takes the host's link for faster than it is. Of the schedules of a Llama 70B on v5e:16x16 that
sends 80 GB per chip they take 2.0 of 4.5 s of waiting at 15 GB/s, for no memory; from 0.03 to 0.12 they are the same.
"""


def fuses_collectives(chip: str) -> bool:
    """Whether plans for a chip fuse collectives: as the installed compiler does, or a new one where none is installed."""
    return chip in FUSING_CHIPS or is_read_off(installed_release("tpu") or "none", FUSING_RELEASES)


def uses_sparse_cores(chip: str) -> bool:
    """Whether collectives of plans for a chip are by its SparseCores."""
    return SPARSE_CORE_CHIPS.get(chip, False) or (chip in SPARSE_CORE_CHIPS and not fuses_collectives(chip))


def accepted(options: Mapping[str, str], chip: str) -> Mapping[str, str]:
    """Options of a plan as the installed compiler takes them, which may be another than that of where it was planned."""
    if fuses_collectives(chip) or CONTINUATION_FUSION.isdisjoint(options):
        return options
    kept = {name: value for name, value in options.items() if name not in CONTINUATION_FUSION}
    return {**kept, **(SPARSE_CORE_COLLECTIVES if uses_sparse_cores(chip) else {})}


def _async_collectives(chip: str) -> Mapping[str, str]:
    left_out = LEFT_OUT.get(chip, frozenset()) | (frozenset() if fuses_collectives(chip) else CONTINUATION_FUSION)
    return {name: value for name, value in ASYNC_COLLECTIVES.items() if name not in left_out}


@lru_cache(maxsize=256)
def scatters_over_slices(topology: Topology) -> bool:
    """Whether plans for a topology keep reduce-scatters over all of a slice, as they take less time than all-reduces."""
    if topology.chip.platform != "tpu":
        return False
    links = topology.links((topology.nodes, topology.num_devices // topology.nodes)) or ()

    def seconds(kind: str) -> float:
        latency_s, per_byte = Roofline(topology=topology).collective_affine(kind, links[1:])
        return latency_s + per_byte * SCATTERED_BYTES

    return seconds("reduce-scatter") < seconds("all-reduce")


def plan_options(topology: Topology, *, offloads: bool = False, convolves: bool = False) -> Mapping[str, str]:
    """The compiler options that every plan for a topology has, or every one that `offloads` to hosts or `convolves`."""
    platform, chip = topology.chip.platform, topology.chip.name
    return {
        **NO_WINDOWED_EINSUM[platform],
        **({**_async_collectives(chip), **WHOLE_MEMORY} if platform == "tpu" else {}),
        **(COMBINED_SUMS if platform == "gpu" else {}),
        **(SPARSE_CORE_COLLECTIVES if uses_sparse_cores(chip) else {}),
        **(SLICE_SCATTERS if scatters_over_slices(topology) else {}),
        **FUSED_BROADCASTS.get(chip, {}),
        **(HOST_COPIES if offloads and platform == "tpu" else {}),
        **(NO_SPACE_TO_BATCH if convolves and platform == "tpu" else {}),
    }


def other_options(
    topology: Topology, *, offloads: bool = False, convolves: bool = False
) -> tuple[Mapping[str, str], ...]:
    """The compiler options that a plan for a topology may have instead, which only its compiler can tell from those."""
    platform, chip = topology.chip.platform, topology.chip.name
    own = plan_options(topology, offloads=offloads, convolves=convolves)
    switched = [off for off in (NO_WINDOWED_EINSUM[platform], NO_SPACE_TO_BATCH) if off and off.items() <= own.items()]
    left = [{name: value for name, value in own.items() if name not in off} for off in switched]
    sparse = [{**own, **SPARSE_CORE_COLLECTIVES}] if chip in SPARSE_CORE_CHIPS and not uses_sparse_cores(chip) else []
    return (*left, *sparse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Options under which a compiler of `platform` compiles what it ends in an error of else; `evidence`: seen where.

    It is one for compiles that have all options of `under`.
    """

    platform: Platform
    options: Mapping[str, str]
    evidence: str
    under: Mapping[str, str] = field(default_factory=dict[str, str])


REMEDIES: Mapping[str, Remedy] = MappingProxyType(
    {
        "Couldn't find output tile sizes": Remedy(
            platform="gpu",
            options=MappingProxyType({"xla_gpu_enable_triton_gemm": "False"}),
            evidence=(
                "jaxlib 0.10.2, compiling for h100:8 with no GPU at hand: train steps of attention over 127 and 196 "
                "positions end so, over 128 not; with the option both compile"
            ),
        ),
        "Ran out of memory": Remedy(
            platform="tpu",
            options=MappingProxyType({SCHEDULER_MEMORY: "95"}),
            evidence=(
                "libtpu 0.0.42, a train step of GPT-3 175B with 4 layers on v5e:4x4 that is promised 15.8 of 16.9 GB: the "
                "schedule needs 17.4 GB, and 16.8 GB and more time with the option, which is the default"
            ),
            under=WHOLE_MEMORY,
        ),
        "requires allocation in the alternate memory": Remedy(
            platform="tpu",
            options=MappingProxyType({FUSED_ALL_REDUCES: "false"}),
            evidence=(
                "libtpu 0.0.42, two matmuls on v5p:2x2x1, the second summed over all devices, 33 MB: a kernel with the "
                "all-reduce needs more of the memory on the chip than there is; with the option both compile"
            ),
            under=MappingProxyType({FUSED_ALL_REDUCES: "true"}),
        ),
    }
)
"""What is known to help, by a part of the compiler's message."""


def remedy_of(platform: str, message: str, options: Mapping[str, str]) -> str:
    """The entry of `REMEDIES` for a compile that ended with a message under these options; "" where nothing more helps."""
    for error, remedy in REMEDIES.items():
        helps = remedy.under.items() <= options.items() and not remedy.options.items() <= options.items()
        if remedy.platform == platform and error in message and helps:
            return error
    return ""


def options_of_plans(platform: Platform) -> Mapping[str, frozenset[str]]:
    """All compiler options that plans for a platform may carry, and their values."""
    options: list[Mapping[str, str]] = [NO_WINDOWED_EINSUM[platform]]
    if platform == "tpu":
        options += [ASYNC_COLLECTIVES, WHOLE_MEMORY, SPARSE_CORE_COLLECTIVES, SLICE_SCATTERS]
        options += [HOST_COPIES, NO_SPACE_TO_BATCH]
        options += FUSED_BROADCASTS.values()
    options += [COMBINED_SUMS] if platform == "gpu" else []
    options += [remedy.options for remedy in REMEDIES.values() if remedy.platform == platform]
    names = {name for some in options for name in some}
    return {name: frozenset(some[name] for some in options if name in some) for name in names}
