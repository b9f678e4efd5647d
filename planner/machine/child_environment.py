"""The environment of compilers in child processes: that of this process, less what would decide about devices or write.

A compile shall become what it would become in the user's own process, so the flags of XLA and libtpu that are set here hold
there, too. Three kinds are left out: those that dump, as each compile writes its own dump and is ended once that is there
(`--xla_dump_hlo_module_re` of a program that planning knows nothing of would have it wait for the whole compile); the
number of virtual devices; and those of other platforms' compilers, which say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables whose words are flags of the compilers."""
_OTHER_PLATFORMS = {"tpu": ("xla_cpu_", "xla_gpu_"), "cuda": ("xla_cpu_", "xla_tpu_"), "cpu": ("xla_gpu_", "xla_tpu_")}
_WORD = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s"'])+""")
_VERSIONS = {"v5e": "v5litepod"}


def inherited_flags(environment: Mapping[str, str], platform: str) -> dict[str, str]:
    """The flags of an environment that hold for a compile for a platform ("tpu", "cuda" or "cpu"), by variable.

    A variable that names a file in place of flags, as XLA allows, is read. Variables without such flags are left out.
    """
    found = {name: _kept(environment.get(name, ""), platform) for name in FLAGS}
    if platform != "tpu":
        del found["LIBTPU_INIT_ARGS"]
    return {name: flags for name, flags in found.items() if flags}


def _kept(text: str, platform: str) -> str:
    """Those of the flags of a variable that are not left out, see the module."""
    text = text.strip()
    if text and not text.startswith("-"):
        try:
            text = Path(text).read_text()
        except (OSError, UnicodeDecodeError):
            return ""
    kept: list[str] = []
    for word in _WORD.findall(text):
        name = word.lstrip("-").partition("=")[0]
        writes = "dump" in name or name == "xla_force_host_platform_device_count"
        if not writes and not name.startswith(_OTHER_PLATFORMS[platform]):
            kept.append(word)
    return " ".join(kept)


def child_environment(
    environment: Mapping[str, str], flags: Mapping[str, str], *, platform: str, topology: str
) -> dict[str, str]:
    """The environment of a child that compiles for a topology with these `inherited_flags`, and what libtpu wants."""
    version, _, extent = topology.partition(":")
    cores = prod(int(word) for word in re.findall(r"\d+", extent)) if platform == "tpu" else 1
    cores *= 2 if version in ("v4", "v5p", "tpu7x") else 1
    return {
        **{name: value for name, value in environment.items() if name not in FLAGS},
        **flags,
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "0",
        "TF_CPP_MIN_LOG_LEVEL": "1",  # warnings, here and in libtpu: the involuntary rematerialisations are among them
        "TPU_STDERR_LOG_LEVEL": "1",
        "TPU_LOG_DIR": "disabled",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_ACCELERATOR_TYPE": f"{_VERSIONS.get(version, version)}-{cores}",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
