"""What compilers in child processes inherit: flags that decide what is compiled, none that dump or count devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.machine.aot_child import child_environment, inherited_flags

KEPT = "--xla_tpu_scoped_vmem_limit_kib=65536"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        ("--xla_dump_hlo_module_re=.*train_step.*", ""),
        (f"--xla_dump_to=/tmp/a --xla_dump_hlo_as_text {KEPT} --xla_dump_hlo_pass_re=.*", KEPT),
        (f"--xla_jf_dump_to=/tmp/a   {KEPT}", KEPT),
        (f"--xla_force_host_platform_device_count=8 {KEPT}", KEPT),
        (f"--xla_gpu_enable_triton_gemm=false --xla_cpu_enable_fast_math=true {KEPT}", KEPT),
        ("--xla_some_text='a --xla_dump_to=b' --xla_dump_to='c d'", "--xla_some_text='a --xla_dump_to=b'"),
    ],
)
def test_what_decides_is_kept_and_what_dumps_is_not(given: str, kept: str) -> None:
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        assert inherited_flags({name: given}, "tpu") == ({name: kept} if kept else {})


def test_flags_are_those_of_the_platform() -> None:
    given = {"XLA_FLAGS": "--xla_gpu_a=1 --xla_cpu_b=2 --xla_c=3", "LIBTPU_INIT_ARGS": "--xla_tpu_d=4"}
    assert inherited_flags(given, "cuda") == {"XLA_FLAGS": "--xla_gpu_a=1 --xla_c=3"}
    assert inherited_flags(given, "cpu") == {"XLA_FLAGS": "--xla_cpu_b=2 --xla_c=3"}
    assert inherited_flags(given, "tpu") == {"XLA_FLAGS": "--xla_c=3", "LIBTPU_INIT_ARGS": "--xla_tpu_d=4"}


def test_flags_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "flags").write_text("--xla_dump_to=/tmp/a\n--xla_c=3\n")
    assert inherited_flags({"XLA_FLAGS": str(tmp_path / "flags")}, "tpu") == {"XLA_FLAGS": "--xla_c=3"}
    assert inherited_flags({"XLA_FLAGS": str(tmp_path / "absent")}, "tpu") == {}


def test_a_child_has_nothing_else_of_these_variables() -> None:
    given = {"PATH": "/bin", "XLA_FLAGS": "--xla_dump_to=/tmp/a", "LIBTPU_INIT_ARGS": "--xla_jf_dump_to=/tmp/a"}
    made = child_environment(given, inherited_flags(given, "tpu"), platform="tpu", topology="v5p:2x2x2")
    assert not {"XLA_FLAGS", "LIBTPU_INIT_ARGS"} & set(made)
    assert (made["PATH"], made["TPU_ACCELERATOR_TYPE"]) == ("/bin", "v5p-16")
