"""Compiler options that plans carry: those that every plan of a platform has, and those that mend a failed compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cost_models.hardware import Platform

NO_WINDOWED_EINSUM: Mapping[Platform, Mapping[str, str]] = MappingProxyType(
    {"tpu": {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}, "gpu": {}, "cpu": {}}
)
"""Compiler options under which gathers and scatters beside matmuls stay what was emitted.

XLA's TPU compiler else makes loops of small matmuls and collective-permutes of those above a threshold, which hide
communication and read the matmul's other operand once per pass (Wang et al. 2023,
https://doi.org/10.1145/3567955.3567959). libtpu 0.0.42 and 0.0.50; the GPU's threshold is 100,000 MiB by default, and the
CPU has none.
"""

ASYNC_COLLECTIVES: Mapping[Platform, Mapping[str, str]] = MappingProxyType(
    {
        "tpu": {
            "xla_enable_async_all_gather": "true",
            "xla_enable_async_all_reduce": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
            "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
        },
        "gpu": {},
        "cpu": {},
    }
)
"""Compiler options under which gathers and sums run beside matmuls where they can; MaxText and others run with them.

Of the schedules by libtpu 0.0.42 of a Llama 3 8B on v5p:4x4x4 they take 6 % (sums of gradients are hidden), of a GPT 1.3B
and a Mixtral there 5 %, of a Llama on v5e:4x4 1 %, for no memory. Prices do not count on it. libtpu 0.0.52 has them too.
"""

PLAN_OPTIONS: Mapping[Platform, Mapping[str, str]] = MappingProxyType(
    {platform: {**NO_WINDOWED_EINSUM[platform], **ASYNC_COLLECTIVES[platform]} for platform in NO_WINDOWED_EINSUM}
)
"""The compiler options that every plan for a platform has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Options under which a compiler of `platform` compiles what it ends in an error of else; `evidence`: seen where."""

    platform: Platform
    options: Mapping[str, str]
    evidence: str


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
    }
)
"""What is known to help, by a part of the compiler's message."""


def remedy_of(platform: str, message: str, options: Mapping[str, str]) -> str:
    """The entry of `REMEDIES` for a compile that ended with a message under these options; "" where nothing more helps."""
    for error, remedy in REMEDIES.items():
        if remedy.platform == platform and error in message and not remedy.options.items() <= options.items():
            return error
    return ""


def options_of_plans(platform: Platform) -> Mapping[str, str]:
    """All compiler options that plans for a platform may carry."""
    options = dict(PLAN_OPTIONS[platform])
    for remedy in REMEDIES.values():
        if remedy.platform == platform:
            options |= remedy.options
    return options
