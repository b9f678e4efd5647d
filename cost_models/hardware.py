"""Chips: what one JAX device computes, remembers, moves and burns, each row with its source.

All figures are of one *JAX device*. A TPU v4 and a TPU7x chip hold two devices (their two TensorCores), so those rows
have half of the chip's data sheet. Units are decimal SI (1 GB/s = 1e9 bytes per second); only memory capacities come
from figures in GiB.

Two conventions on precision follow JAX's default matmul precision: on TPU a float32 matmul is one pass of the bfloat16
matrix unit, on NVIDIA GPUs it is TF32. Programs that ask for `Precision.HIGHEST` are slower than these figures.

Energy figures are estimates where no vendor publishes them, by one rule: `joules_per_hbm_byte` is 3.9 pJ/bit (HBM2,
O'Connor et al. 2017, https://doi.org/10.1145/3123939.3124545), `joules_per_link_byte` 1.3 pJ/bit for NVLink 4 and
Infinity Fabric (Hot Chips 34) and 10 pJ/bit for links between boards, and `joules_per_flop` shares out what is left of
the maximal power over the peak in bfloat16: (max watts - static watts - HBM at full rate) / peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from cost_models.errors import CostModelError

Platform = Literal["tpu", "gpu", "cpu"]
Engine = Literal["matrix", "vector"]

GIB = 1024**3

_DCN_LATENCY_S = 30e-6
"""A message between hosts of a data centre, both network stacks passed: an estimate, that of a round trip in XLA's model of
GPU clusters (sol_gpu_cost_model.cc: 68.89 us * 0.45)."""

PCIE_BYTES_PER_S = 15e9
"""From a host to one chip, where nothing else is known: "typically around 1.5e10 bytes / second per chip" of TPUs
(jax-ml.github.io/scaling-book/tpus); PCIe 3.0 of 16 lanes, as most accelerators have at least, carries 15.75e9."""

_TPU_KERNEL_CYCLES = 16
"""The cycles that libtpu 0.0.42 estimates for the least kernels of loops, on arrays that stay on the chip, in finished
compiles for v5e (`estimated_cycles`): all kernels are one program of instructions, nothing is launched. One that reaches
main memory has 1,800 and more; most of these are prefetched."""

_GPU_KERNEL_S = 1e-6
"""The launch of a kernel in XLA's own model of GPUs (kKernelLaunchOverhead, xla/service/gpu/model/
gpu_performance_model_base.h)."""

ATTENTION_EFFICIENCY = 0.58
"""Fitted to published train steps, with the `matrix_efficiency` of every chip that has some, by `benchmarks.published`."""

COMPUTE_SPREAD, COMMUNICATION_SPREAD = 0.09, 0.3
"""By which share seconds of computing, of a chip of which train steps are published, and of communication may be off: with
these the measured seconds lie within the interval in nine of ten published train steps (`benchmarks.published`)."""

TPU_HBM_EFFICIENCY = 0.85
"""Copies of arrays on v6e and TPU7x, 0.83 to 0.87: microbenchmarks that Google publishes
(github.com/AI-Hypercomputer/accelerator-microbenchmarks)."""

MEASURED_EXTENTS, MEASURED_BATCH = (256, 4096), 4
"""Extents of the products of matrices, and how many at once, that were measured for the rate and latency of GPUs: others
are multiplied at the rate of the nearest (openxla/xla, xla/service/gpu/model/matmul_interpolator.cc)."""

DTYPE_FALLBACKS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bfloat16": ("float16", "float32"),
        "float16": ("bfloat16", "float32"),
        "float32": (),
        "float64": (),
        "int8": ("bfloat16", "float32"),
        "uint8": ("int8", "bfloat16", "float32"),
        "int4": ("int8", "bfloat16", "float32"),
        "uint4": ("int8", "bfloat16", "float32"),
        "float8": ("bfloat16", "float32"),
    }
)
"""What a matrix unit computes in when a dtype has no rate of its own: the first of these that has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """The figures of one JAX device.

    `peak_flops_per_s`: rate of the matrix unit by dtype, "float8" for all float8 kinds. `vector_flops_per_s`: float32
    rate of the vector unit. `matrix_efficiency`: share of the peak that large matmuls reach; `matrix_latency_s`: what a
    matmul takes beside its work (see `Roofline`); `kernel_latency_s`: the least time of any kernel;
    `efficiencies` are those of dtypes that reach another. `half_rate_depths`: by dtype the contracted extent at which
    matmuls reach half of that (Hockney's n_1/2), 0 where it is not known. `attention_efficiency`: share of the rates of
    matmuls and memory that kernels reach which compute exponentials between their products. `matrix_lanes`: rows and
    columns of the tile of weights that a TPU's matrix unit is filled up to. `hbm_bytes`: what the runtime grants to one
    device; `hbm_efficiency`: share of `hbm_bytes_per_s` that is reached; `all_reduce_efficiency`: share of what the
    wires allow that all-reduces reach; `scatters_use_all_dims`: whether a reduce-scatter over a whole slice uses all
    dims of its torus at once, as SparseCores do, or one ring. `compute_spread`: share by which computing may take more
    or less than these figures say. `on_chip_bytes`: the memory on the chip that its compiler gives to arrays, 0 where
    it gives none. `cores`: of one device; the results of matmuls that several share do not stay on the chip.
    `link_bytes_per_s`: per direction, and per axis of a torus or per device of a switch. `core_link_bytes_per_s`:
    between the two devices of one chip, 0 where a chip is one device. `node_size`: devices that share the fast switch,
    0 for a torus. `network_bytes_per_s`: per device and direction between nodes, or slices. `host_link_bytes_per_s`:
    from the memory of its host to one device, and back at the same time. `host_memory_bytes`: that memory, one device's
    part of it, in the machines that Google Cloud lets (docs.cloud.google.com/tpu/docs/plan-tpus and
    compute/docs/accelerator-optimized-machines); 0 where it is not known.
    """

    name: str
    platform: Platform
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    vector_flops_per_s: float
    matrix_efficiency: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    link_latency_s: float
    matrix_latency_s: float = 0.0
    kernel_latency_s: float = 0.0
    efficiencies: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    half_rate_depths: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    attention_efficiency: float = 1.0
    matrix_lanes: int = 128
    hbm_efficiency: float = 1.0
    all_reduce_efficiency: float = 1.0
    scatters_use_all_dims: bool = False
    compute_spread: float = 0.3
    on_chip_bytes: float = 0.0
    cores: int = 1
    core_link_bytes_per_s: float = 0.0
    node_size: int = 0
    network_bytes_per_s: float = 0.0
    network_latency_s: float = 0.0
    host_link_bytes_per_s: float = PCIE_BYTES_PER_S
    host_memory_bytes: float = 0.0
    static_watts: float
    joules_per_flop: float
    joules_per_hbm_byte: float
    joules_per_link_byte: float
    source: str

    def efficiency(self, dtype: str) -> float:
        """The share of the matrix unit's peak that large matmuls of a dtype reach."""
        return self.efficiencies.get(dtype, self.matrix_efficiency)

    def seconds_range(self, computing: float, communicating: float) -> tuple[float, float]:
        """The least and the most seconds that work may take by these figures, of its seconds of either kind."""
        spread = self.compute_spread * computing + COMMUNICATION_SPREAD * communicating
        return computing + communicating - spread, computing + communicating + spread

    @property
    def memory_bytes_per_s(self) -> float:
        """The bytes per second that are read from and written to memory."""
        return self.hbm_efficiency * self.hbm_bytes_per_s

    @property
    def on_host(self) -> bool:
        """Whether it is a virtual device of a CPU."""
        return self.platform == "cpu"

    def peak(self, dtype: str, engine: Engine = "matrix") -> float:
        """The peak rate in FLOP/s of a unit for a dtype.

        The vector unit has one rate. The matrix unit falls back by `DTYPE_FALLBACKS`; a complex product is four real
        ones (2 FLOP of the complex count as 8 real ones, so the rate is a quarter); dtypes that no matrix unit takes
        (float64 where it is emulated, int32, bool, keys) run at the rate of the vector unit.
        """
        if engine == "vector":
            return self.vector_flops_per_s
        if dtype in ("complex64", "complex128"):
            return self.peak("float32" if dtype == "complex64" else "float64") / 4
        key = "float8" if dtype.startswith("float8") else dtype
        for candidate in (key, *DTYPE_FALLBACKS.get(key, ())):
            if candidate in self.peak_flops_per_s:
                return self.peak_flops_per_s[candidate]
        return self.vector_flops_per_s


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "v4": Chip(
            name="v4",
            platform="tpu",
            peak_flops_per_s={"bfloat16": 137.5e12, "float32": 137.5e12, "int8": 137.5e12},
            vector_flops_per_s=2.15e12,
            matrix_efficiency=0.77,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            hbm_efficiency=TPU_HBM_EFFICIENCY,
            hbm_bytes=int(15.25 * GIB),
            on_chip_bytes=32 * 2**20,
            hbm_bytes_per_s=600e9,
            link_bytes_per_s=45e9,
            link_latency_s=1e-6,
            kernel_latency_s=_TPU_KERNEL_CYCLES / 1.05e9,
            core_link_bytes_per_s=300e9,
            network_bytes_per_s=3.125e9,
            network_latency_s=_DCN_LATENCY_S,
            host_link_bytes_per_s=8e9,
            host_memory_bytes=407e9 / 8,
            static_watts=45.0,
            joules_per_flop=0.24e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=80e-12,
            source=(
                "per core, half a chip: https://docs.cloud.google.com/tpu/docs/v4 (275 TFLOP/s, 1200 GB/s); vector"
                " unit 128 lanes x 16 ALUs at 1.05 GHz and power 90/192 W idle/max: Jouppi et al. 2023,"
                " https://doi.org/10.1145/3579371.3589350; HBM grant and 45 GB/s per link and direction: libtpu"
                " 0.0.42; cores copy through the shared HBM: a quarter of its rate; 1 us per hop:"
                " jax-ml.github.io/scaling-book; data-centre network 6.25 GB/s and PCIe 16 GB/s per"
                " chip: jax-ml.github.io/scaling-book"
            ),
        ),
        "v5e": Chip(
            name="v5e",
            platform="tpu",
            peak_flops_per_s={"bfloat16": 197e12, "float32": 197e12, "int8": 394e12},
            vector_flops_per_s=6.1e12,
            matrix_efficiency=0.9,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            hbm_efficiency=TPU_HBM_EFFICIENCY,
            hbm_bytes=int(15.75 * GIB),
            on_chip_bytes=128 * 2**20,
            hbm_bytes_per_s=819e9,
            link_bytes_per_s=46.7e9,
            link_latency_s=1e-6,
            kernel_latency_s=_TPU_KERNEL_CYCLES / 1.5e9,
            network_bytes_per_s=3.125e9,
            network_latency_s=_DCN_LATENCY_S,
            host_link_bytes_per_s=15e9,
            host_memory_bytes=384e9 / 8,
            static_watts=50.0,
            joules_per_flop=0.31e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=80e-12,
            source=(
                "https://docs.cloud.google.com/tpu/docs/v5e (197 TFLOP/s bf16, 394 int8, 819 GB/s); vector unit 4 x 8"
                " x 128 at 1.5 GHz: jax-ml.github.io/scaling-book; HBM grant and link: libtpu 0.0.42; power is an"
                " estimate: 137 W maximum, from v6e's and Google's +67 % efficiency of v6e over v5e; data-centre"
                " network 6.4 Tb/s per pod of 256; PCIe: jax-ml.github.io/scaling-book"
            ),
        ),
        "v5p": Chip(
            name="v5p",
            platform="tpu",
            peak_flops_per_s={"bfloat16": 459e12, "float32": 459e12, "int8": 918e12},
            vector_flops_per_s=14.3e12,
            matrix_efficiency=0.86,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            hbm_efficiency=TPU_HBM_EFFICIENCY,
            hbm_bytes=int(95.74 * GIB),
            on_chip_bytes=64 * 2**20,
            cores=2,
            hbm_bytes_per_s=2765e9,
            link_bytes_per_s=93e9,
            link_latency_s=1e-6,
            kernel_latency_s=_TPU_KERNEL_CYCLES / 1.75e9,
            network_bytes_per_s=6.25e9,
            network_latency_s=_DCN_LATENCY_S,
            host_link_bytes_per_s=15e9,
            host_memory_bytes=448e9 / 4,
            static_watts=110.0,
            joules_per_flop=0.27e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=80e-12,
            source=(
                "https://docs.cloud.google.com/tpu/docs/v5p (459 TFLOP/s bf16, 2765 GB/s); vector unit 2 cores x 4 x 8 x "
                "128 at 1.75 GHz: jax-ml.github.io/scaling-book; HBM grant, link and memory on the chip (no array of more"
                " than 32 MiB lies there, on v5e of 64, and no result of a matmul): libtpu 0.0.42; power is an estimate: "
                "320 W maximum, at v5e's efficiency; data-centre network 50 Gb/s per chip; PCIe: "
                "jax-ml.github.io/scaling-book"
            ),
        ),
        "v6e": Chip(
            name="v6e",
            platform="tpu",
            peak_flops_per_s={"bfloat16": 918e12, "float32": 918e12, "float8": 918e12, "int8": 1836e12},
            vector_flops_per_s=7.2e12,
            matrix_efficiency=0.63,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            matrix_lanes=256,
            hbm_efficiency=TPU_HBM_EFFICIENCY,
            all_reduce_efficiency=0.63,
            scatters_use_all_dims=True,
            hbm_bytes=int(31.25 * GIB),
            on_chip_bytes=128 * 2**20,
            hbm_bytes_per_s=1640e9,
            link_bytes_per_s=93e9,
            link_latency_s=1e-6,
            kernel_latency_s=_TPU_KERNEL_CYCLES / 1.75e9,
            network_bytes_per_s=6.5e9,
            network_latency_s=_DCN_LATENCY_S,
            host_link_bytes_per_s=32e9,
            host_memory_bytes=720e9 / 4,
            static_watts=115.0,
            joules_per_flop=0.23e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=80e-12,
            source=(
                "https://docs.cloud.google.com/tpu/docs/v6e (918 TFLOP/s bf16 and fp8, 1836 int8, 1640 GB/s); vector"
                " unit as v5e's at 1.75 GHz; HBM grant and link: libtpu 0.0.42; power is an estimate: 380 W maximum,"
                " half of TPU7x's FLOP per watt by Google's announcement of it; data-centre network: half of the"
                " 25.6 Tb/s per pod of 256 by the same page, as an all-reduce over two slices reaches 4.1 GB/s"
                " (AI-Hypercomputer/tpu-recipes, microbenchmarks/trillium/collectives); PCIe:"
                " jax-ml.github.io/scaling-book (32 GB/s)"
            ),
        ),
        "tpu7x": Chip(
            name="tpu7x",
            platform="tpu",
            peak_flops_per_s={"bfloat16": 1153.5e12, "float32": 1153.5e12, "float8": 2307e12},
            vector_flops_per_s=7.8e12,
            matrix_efficiency=0.74,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            matrix_lanes=256,
            hbm_efficiency=TPU_HBM_EFFICIENCY,
            scatters_use_all_dims=True,
            hbm_bytes=int(94.75 * GIB),
            on_chip_bytes=64 * 2**20,
            hbm_bytes_per_s=3690e9,
            link_bytes_per_s=93e9,
            link_latency_s=1e-6,
            kernel_latency_s=_TPU_KERNEL_CYCLES / 1.9e9,
            core_link_bytes_per_s=558e9,
            network_bytes_per_s=6.25e9,
            network_latency_s=_DCN_LATENCY_S,
            host_link_bytes_per_s=16e9,
            host_memory_bytes=960e9 / 8,
            static_watts=145.0,
            joules_per_flop=0.19e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=80e-12,
            source=(
                "per TensorCore, half a chip: https://docs.cloud.google.com/tpu/docs/tpu7x (2307 TFLOP/s bf16, 4614"
                " fp8, 7380 GB/s, die-to-die six times one link); vector unit as v5e's at 1.9 GHz; HBM grant and link:"
                " libtpu 0.0.42; power is an estimate: 480 W maximum per TensorCore from Google's 29.3 times TPU v2's"
                " FLOP per watt; data-centre network 100 Gb/s per chip; PCIe is an estimate: as"
                " v6e's, for the chip"
            ),
        ),
        "a100": Chip(
            name="a100",
            platform="gpu",
            peak_flops_per_s={
                "bfloat16": 312e12,
                "float16": 312e12,
                "float32": 156e12,
                "float64": 19.5e12,
                "int8": 624e12,
            },
            vector_flops_per_s=19.5e12,
            matrix_efficiency=0.61,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            matrix_latency_s=5.5e-6,
            hbm_bytes=85_100_068_864,
            hbm_bytes_per_s=2039e9,
            link_bytes_per_s=300e9,
            link_latency_s=3.4e-6,
            kernel_latency_s=_GPU_KERNEL_S,
            node_size=8,
            network_bytes_per_s=25e9,
            network_latency_s=9.6e-6,
            host_link_bytes_per_s=32e9,
            host_memory_bytes=680e9 / 8,
            static_watts=60.0,
            joules_per_flop=0.89e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=16e-12,
            source=(
                "NVIDIA A100 80GB SXM data sheet (312 TFLOP/s bf16, TF32 156, 2039 GB/s, NVLink 600 GB/s both ways,"
                " 400 W); 8 x 200 Gb/s InfiniBand per DGX A100; capacity as CUDA reports it; latency per step: NCCL"
                " src/graph/tuning.cc, ring, simple protocol; matmuls as H100's row; 60 W idle is an"
                " estimate; PCIe 4.0, 64 GB/s both ways: the data sheet"
            ),
        ),
        "h100": Chip(
            name="h100",
            platform="gpu",
            peak_flops_per_s={
                "bfloat16": 989e12,
                "float16": 989e12,
                "float32": 494e12,
                "float64": 67e12,
                "float8": 1979e12,
                "int8": 1979e12,
            },
            vector_flops_per_s=67e12,
            matrix_efficiency=0.69,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            matrix_latency_s=6.9e-6,
            hbm_bytes=84_942_979_072,
            hbm_bytes_per_s=3350e9,
            link_bytes_per_s=450e9,
            efficiencies={"float32": 0.62},
            half_rate_depths={"bfloat16": 137, "float16": 137, "float32": 354},
            link_latency_s=3.4e-6,
            kernel_latency_s=_GPU_KERNEL_S,
            node_size=8,
            network_bytes_per_s=50e9,
            network_latency_s=9.6e-6,
            host_link_bytes_per_s=64e9,
            host_memory_bytes=1872e9 / 8,
            static_watts=75.0,
            joules_per_flop=0.53e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=10e-12,
            source=(
                "NVIDIA H100 SXM data sheet, dense figures (989 TFLOP/s bf16, TF32 494, FP8 1979, 3350 GB/s, NVLink"
                " 900 GB/s both ways, 700 W); 8 x 400 Gb/s InfiniBand per DGX H100; capacity as CUDA reports it;"
                " latency per step: NCCL src/graph/tuning.cc, ring, simple protocol; matmuls: latency, depth"
                " and float32 from 152 products of 256 to 8,192 of each dtype in openxla/xla"
                " xla/service/gpu/model/default_matmul_perf_table.txtpb (sm_90), which they give within 6 % (float32 16 %),"
                " root mean square; 75 W idle is an estimate; PCIe 5.0,"
                " 128 GB/s both ways: the data sheet"
            ),
        ),
        "h200": Chip(
            name="h200",
            platform="gpu",
            peak_flops_per_s={
                "bfloat16": 989e12,
                "float16": 989e12,
                "float32": 494e12,
                "float64": 67e12,
                "float8": 1979e12,
                "int8": 1979e12,
            },
            vector_flops_per_s=67e12,
            matrix_efficiency=0.73,
            attention_efficiency=ATTENTION_EFFICIENCY,
            compute_spread=COMPUTE_SPREAD,
            matrix_latency_s=6.4e-6,
            hbm_bytes=151_397_597_184,
            hbm_bytes_per_s=4800e9,
            link_bytes_per_s=450e9,
            efficiencies={"float32": 0.65},
            half_rate_depths={"bfloat16": 137, "float16": 137, "float32": 354},
            link_latency_s=3.4e-6,
            kernel_latency_s=_GPU_KERNEL_S,
            node_size=8,
            network_bytes_per_s=50e9,
            network_latency_s=9.6e-6,
            host_link_bytes_per_s=64e9,
            host_memory_bytes=2952e9 / 8,
            static_watts=80.0,
            joules_per_flop=0.48e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=10e-12,
            source=(
                "NVIDIA H200 SXM data sheet, dense figures (as H100; 4800 GB/s, 700 W); capacity as CUDA"
                " reports it; network, latency, PCIe and matmuls as H100's row; 80 W idle is an estimate"
            ),
        ),
        "b200": Chip(
            name="b200",
            platform="gpu",
            peak_flops_per_s={
                "bfloat16": 2250e12,
                "float16": 2250e12,
                "float32": 1100e12,
                "float64": 37e12,
                "float8": 4500e12,
                "int8": 4500e12,
            },
            vector_flops_per_s=75e12,
            matrix_efficiency=0.69,
            matrix_latency_s=5.6e-6,
            hbm_bytes=191_514_083_328,
            hbm_bytes_per_s=7672e9,
            link_bytes_per_s=900e9,
            efficiencies={"float32": 0.7},
            half_rate_depths={"bfloat16": 203, "float16": 203, "float32": 257},
            link_latency_s=3.4e-6,
            kernel_latency_s=_GPU_KERNEL_S,
            node_size=8,
            network_bytes_per_s=50e9,
            network_latency_s=9.6e-6,
            host_link_bytes_per_s=64e9,
            host_memory_bytes=3968e9 / 8,
            static_watts=140.0,
            joules_per_flop=0.28e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=10e-12,
            source=(
                "NVIDIA HGX B200 data sheet, dense figures per GPU at 1000 W (2250 TFLOP/s bf16, TF32 1100, FP8 4500,"
                " NVLink 1800 GB/s both ways); HBM rate and capacity as CUDA reports them; 8 x 400 Gb/s network per"
                " DGX B200; latency as H100's row; matmuls from the same table (sm_100_B200); 140 W idle is an"
                " estimate; PCIe 5.0 x16: NVIDIA DGX B200 user guide"
            ),
        ),
        "mi300x": Chip(
            name="mi300x",
            platform="gpu",
            peak_flops_per_s={
                "bfloat16": 1307e12,
                "float16": 1307e12,
                "float32": 163.4e12,
                "float64": 163.4e12,
                "float8": 2615e12,
                "int8": 2615e12,
            },
            vector_flops_per_s=163.4e12,
            matrix_efficiency=0.6,
            hbm_bytes=192 * GIB,
            hbm_bytes_per_s=5300e9,
            link_bytes_per_s=448e9,
            link_latency_s=3.4e-6,
            kernel_latency_s=_GPU_KERNEL_S,
            node_size=8,
            network_bytes_per_s=50e9,
            network_latency_s=9.6e-6,
            host_link_bytes_per_s=64e9,
            static_watts=130.0,
            joules_per_flop=0.35e-12,
            joules_per_hbm_byte=31e-12,
            joules_per_link_byte=10e-12,
            source=(
                "AMD Instinct MI300X data sheet, dense figures (1307 TFLOP/s bf16, 163.4 fp32, 5300 GB/s, 192 GiB,"
                " 750 W); seven Infinity Fabric links of 64 GB/s per direction, to every GPU of a node; 8 x 400 Gb/s"
                " network; latency as NCCL's (RCCL is its port); 130 W idle is an estimate; PCIe 5.0 x16: the data sheet"
            ),
        ),
        "cpu": Chip(
            name="cpu",
            platform="cpu",
            peak_flops_per_s={"bfloat16": 10e9, "float32": 11e9},
            vector_flops_per_s=3e9,
            matrix_efficiency=1.0,
            hbm_bytes=3_000_000_000,
            hbm_bytes_per_s=7e9,
            link_bytes_per_s=1e9,
            link_latency_s=40e-6,
            host_link_bytes_per_s=7e9,
            static_watts=0.5,
            joules_per_flop=55e-12,
            joules_per_hbm_byte=120e-12,
            joules_per_link_byte=240e-12,
            source=(
                "measured: 8 virtual devices on 2 cores, x86-64, jax 0.10.2, 2026-11; by `calibrate`, rounded, per"
                " device, all of them busy; memory: an eighth of that host's 25 GB; what comes from the host is copied in"
                " memory. Energy is an estimate: 4.4 W per core shared by four devices, and 15 pJ/bit of DDR4, twice for a"
                " byte that goes through memory to another device"
            ),
        ),
    }
)
"""Every chip that a topology name may start with."""


def chip(name: str) -> Chip:
    """The row of `CHIPS` for a name.

    Raises: CostModelError for a name that is not in the table.
    """
    if name not in CHIPS:
        raise CostModelError(f"unknown chip {name!r}; the known ones are {', '.join(CHIPS)}")
    return CHIPS[name]
