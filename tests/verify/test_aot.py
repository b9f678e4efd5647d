"""Compiling in a child process: for TPU topologies (where libtpu is installed) and for virtual CPU devices."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from planner.errors import ArgumentError, CompileError
from planner.verify import aot
from planner.verify.hlo import schedule


def train_step(
    mesh_shape: dict[str, int], *, layers: int = 3, width: int = 512, batch: int = 64
) -> tuple[Any, tuple[Any, ...]]:
    """A donated step over a scanned, rematerialised bfloat16 model with a random key and constraints in the loop."""
    mesh = AbstractMesh(tuple(mesh_shape.values()), tuple(mesh_shape), axis_types=(AxisType.Auto,) * len(mesh_shape))

    def sharding(*spec: Any) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    def layer(carry: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        up, down = (w.astype(jnp.bfloat16) for w in weights)
        hidden = jax.lax.with_sharding_constraint(jax.nn.relu(carry @ up), sharding("data", "model"))
        return jax.lax.with_sharding_constraint(carry + hidden @ down, sharding("data", None)), None

    def loss(weights: Any, x: jax.Array, key: jax.Array) -> jax.Array:
        x = x * jax.random.bernoulli(key, 0.9, x.shape).astype(x.dtype)
        return (jax.lax.scan(jax.checkpoint(layer), x, weights)[0].astype(jnp.float32) ** 2).mean()

    def step(weights: Any, x: jax.Array, key: jax.Array) -> tuple[Any, jax.Array]:
        value, gradient = jax.value_and_grad(loss)(weights, x, key)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), value

    specs = (sharding(None, "data", "model"), sharding(None, "model", "data"))
    jitted = jax.jit(
        step,
        in_shardings=(specs, sharding("data", None), sharding()),
        out_shardings=(specs, sharding()),
        donate_argnums=0,
    )
    weights = tuple(jax.ShapeDtypeStruct((layers, *s), jnp.float32) for s in ((width, 2 * width), (2 * width, width)))
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jitted, (weights, jax.ShapeDtypeStruct((64, width), jnp.bfloat16), key)


def compile_in_child_cpu(jitted: Any, args: Any, *, num_devices: int, **options: Any) -> aot.AotReport:
    """What XLA's CPU compiler makes of a function over so many virtual devices."""
    mesh_shape = {"devices": num_devices}
    return aot.aot_compile(
        jitted, args, mesh_shape=mesh_shape, topology=f"cpu:{num_devices}", platform="cpu", **options
    )


WEIGHT_BYTES = 3 * 2 * 512 * 1024 * 4


def check_report(report: aot.AotReport, mesh_shape: dict[str, int]) -> None:
    devices = mesh_shape["data"] * mesh_shape["model"]
    assert report.ok, report.message
    assert report.memory is not None
    assert report.memory.alias_bytes == pytest.approx(WEIGHT_BYTES / devices, rel=0.01)
    assert report.memory.peak_bytes >= report.memory.argument_bytes
    in_loops = [c for c in report.collectives if c.trip_count == 3]
    assert {c.axes(mesh_shape) for c in in_loops} >= {("data",), ("model",)}
    assert any("while/body" in c.op_name for c in in_loops)


@pytest.mark.parametrize(
    ("topology", "mesh_shape"), [("v5e:2x4", {"data": 4, "model": 2}), ("v5e:4x4", {"data": 8, "model": 2})]
)
def test_tpu_dump(topology: str, mesh_shape: dict[str, int]) -> None:
    pytest.importorskip("libtpu")
    jitted, args = train_step(mesh_shape)
    report = aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology=topology)
    check_report(report, mesh_shape)
    rates = schedule.Rates(flops_per_s=1.97e14, hbm_bytes_per_s=8.1e11)
    devices = mesh_shape["data"] * mesh_shape["model"]
    found = schedule.estimate_seconds(report.hlo, num_devices=devices, rates=rates, collective_seconds=lambda _: 0.0)
    assert found.seconds > 0


def test_tpu_full_agrees_with_dump() -> None:
    pytest.importorskip("libtpu")
    mesh_shape = {"data": 2, "model": 2}
    jitted, args = train_step(mesh_shape)
    full, dump = (
        aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology="v5e:2x2", mode=mode) for mode in ("full", "dump")
    )
    check_report(full, mesh_shape)
    assert full.memory == dump.memory
    assert [(c.kind, c.bytes, c.groups, c.trip_count) for c in full.collectives] == [
        (c.kind, c.bytes, c.groups, c.trip_count) for c in dump.collectives
    ]
    assert '"estimated_cycles"' in full.hlo


def test_tpu_program_that_does_not_fit() -> None:
    pytest.importorskip("libtpu")
    mesh_shape = {"data": 4, "model": 2}
    jitted, args = train_step(mesh_shape, layers=64, width=16384)
    report = aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology="v5e:2x4")
    assert (report.ok, report.status, report.memory) == (False, "oom", None)
    assert (report.needed_bytes or 0) > 15.75 * 1024**3


def test_a_mesh_of_fewer_devices_is_compiled_for_a_block_of_the_topology() -> None:
    pytest.importorskip("libtpu")
    mesh_shape = {"data": 2, "model": 2}
    jitted, args = train_step(mesh_shape)
    check_report(aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology="v5e:2x4"), mesh_shape)


def test_a_compile_is_not_disturbed_by_what_is_dumped_of_other_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends as soon as its own dump is there: cycles stand in the text of finished compiles only."""
    pytest.importorskip("libtpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_hlo_module_re=nothing_like_it")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", f"--xla_jf_dump_to={tmp_path / 'other'}")
    mesh_shape = {"data": 4, "model": 2}
    jitted, args = train_step(mesh_shape)
    report = aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology="v5e:2x4")
    check_report(report, mesh_shape)
    assert "estimated_cycles" not in report.hlo
    assert not (tmp_path / "other").exists()


NEEDS_CUDA = pytest.mark.skipif(bool(aot.unavailable_reason("cuda")), reason="no CUDA plugin is installed")


@NEEDS_CUDA
@pytest.mark.parametrize(
    ("topology", "mesh_shape"), [("h100:8", {"data": 4, "model": 2}), ("b200:2x8", {"data": 2, "model": 8})]
)
def test_gpu_dump(topology: str, mesh_shape: dict[str, int]) -> None:
    jitted, args = train_step(mesh_shape)
    report = aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology=topology)
    check_report(report, mesh_shape)
    assert '"name":"sol"' in report.hlo


@NEEDS_CUDA
def test_gpu_full_agrees_with_dump() -> None:
    mesh_shape = {"data": 2, "model": 2}
    jitted, args = train_step(mesh_shape, layers=2, width=256)
    full, dump = (
        aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology="a100:4", mode=mode) for mode in ("full", "dump")
    )
    assert full.memory is not None
    assert dump.memory is not None
    assert dump.memory == replace(full.memory, peak_bytes=dump.memory.peak_bytes)
    assert dump.memory.peak_bytes == pytest.approx(full.memory.peak_bytes, rel=0.03)
    assert [(c.kind, c.bytes, c.groups, c.trip_count) for c in full.collectives] == [
        (c.kind, c.bytes, c.groups, c.trip_count) for c in dump.collectives
    ]


@NEEDS_CUDA
def test_gpu_program_that_does_not_fit() -> None:
    mesh_shape = {"data": 1, "model": 2}
    mesh = AbstractMesh((2,), ("model",), axis_types=(AxisType.Auto,))
    jitted = jax.jit(lambda w, v: w @ v, in_shardings=NamedSharding(mesh, P()), out_shardings=NamedSharding(mesh, P()))
    args = [jax.ShapeDtypeStruct((100_000, 100_000), jnp.float32)] * 2
    report = aot.aot_compile(jitted, args, mesh_shape=mesh_shape, topology="h100:2")
    assert (report.ok, report.status, report.memory) == (False, "oom", None)
    assert report.needed_bytes == pytest.approx(1.2e11, rel=0.1)
    assert "needs 1.2e+11 bytes per device, of which there are 8.494e+10" in report.message


def test_a_topology_of_another_platform_is_refused() -> None:
    jitted, args = train_step({"data": 4, "model": 2})
    with pytest.raises(ArgumentError, match="topology h100:8 is not one of platform 'tpu'"):
        aot.lower_request(jitted, args, mesh_shape={"data": 8}, topology="h100:8", platform="tpu")


def test_cpu_child() -> None:
    mesh_shape = {"data": 4, "model": 2}
    jitted, args = train_step(mesh_shape, width=512)
    check_report(compile_in_child_cpu(jitted, args, num_devices=8), mesh_shape)


def test_the_compiler_completes_arguments_whose_sharding_is_open_as_under_jit() -> None:
    mesh = AbstractMesh((4,), ("a",), axis_types=(AxisType.Auto,))
    jitted = jax.jit(lambda w, x: x @ w, in_shardings=(NamedSharding(mesh, P("a")), None))
    args = (jax.ShapeDtypeStruct((512, 512), jnp.float32), jax.ShapeDtypeStruct((256, 512), jnp.float32))
    report = compile_in_child_cpu(jitted, args, num_devices=4)
    assert report.memory is not None
    assert report.memory.argument_bytes == (512 * 512 + 256 * 512) * 4 / 4


@pytest.mark.parametrize(("platform", "topology"), [("cpu", "cpu:8"), ("tpu", "v5e:2x4")])
def test_involuntary_rematerialization_is_told(platform: Any, topology: str) -> None:
    if platform == "tpu":
        pytest.importorskip("libtpu")
    mesh_shape = {"a": 2, "b": 2, "c": 2}
    mesh = AbstractMesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)

    def fn(x: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(jnp.cos(x), NamedSharding(mesh, P(None, "a", "c")))
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(("c", "a", "b"))))

    report = aot.aot_compile(
        jax.jit(fn, in_shardings=NamedSharding(mesh, P())),
        [jax.ShapeDtypeStruct((8, 12, 16), jnp.float32)],
        mesh_shape=mesh_shape,
        topology=topology,
        platform=platform,
    )
    assert report.ok
    assert len(report.rematerialized) == 1
    assert report.rematerialized[0].startswith(
        "Involuntary full rematerialization. The compiler cannot go from sharding"
    )


def test_cpu_timeout() -> None:
    jitted, args = train_step({"data": 2, "model": 2})
    report = compile_in_child_cpu(jitted, args, num_devices=4, timeout_s=0.05)
    assert report.status == "timeout"
    assert "timeout_s" in report.message


def test_a_compiler_that_dies() -> None:
    # XLA's partitioner aborts on the kernel gradient of a grouped convolution under these constraints.
    mesh = AbstractMesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def constrain(x: jax.Array, *spec: Any) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def kernel_gradient(x: jax.Array, kernel: jax.Array, cotangent: jax.Array) -> jax.Array:
        def conv(kernel: jax.Array) -> jax.Array:
            split = constrain(x, None, "b", "a", None)
            return jax.lax.conv_general_dilated(
                split, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=8
            )

        (gradient,) = jax.vjp(conv, kernel)[1](constrain(cotangent, "a", None, None, None))
        return constrain(gradient, None, None, "a", None)

    shapes = ((16, 8, 8, 16), (8, 8, 2, 16), (16, 8, 8, 16))
    report = compile_in_child_cpu(
        jax.jit(kernel_gradient, in_shardings=NamedSharding(mesh, P())),
        [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes],
        num_devices=8,
    )
    if report.ok:
        pytest.skip(f"the XLA of jax {jax.__version__} compiles what others abort on")
    assert (report.status, report.signal) == ("crash", 6)
    assert "Check failed" in report.message


def test_a_compiler_that_refuses() -> None:
    request = aot.AotRequest(
        program=b"no program", num_arguments=0, free_outputs=(), mesh_shape={"x": 2}, topology="cpu:2", platform="cpu"
    )
    report = aot.run_request(request)
    assert report.status == "error"
    assert "MLIR" in report.message


def test_a_platform_without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aot, "unavailable_reason", lambda platform: f"nothing for {platform}")
    jitted, args = train_step({"data": 2, "model": 2})
    report = aot.aot_compile(jitted, args, mesh_shape={"data": 2, "model": 2}, topology="v5e:2x2")
    assert (report.status, report.message) == ("unavailable", "nothing for tpu")


def test_misuse() -> None:
    jitted, args = train_step({"data": 2, "model": 2})
    with pytest.raises(ArgumentError, match="the program is for 4 devices"):
        aot.aot_compile(jitted, args, mesh_shape={"data": 8}, topology="v5e:2x4")
    with pytest.raises(ArgumentError, match="mode"):
        aot.aot_compile(jitted, args, mesh_shape={"data": 4}, topology="v5e:2x2", mode="fast")  # pyright: ignore
    with pytest.raises(CompileError, match="lowering for tpu failed"):
        aot.aot_compile(jitted, args[:1], mesh_shape={"data": 4}, topology="v5e:2x2")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_compiler_ends_with_whoever_asked_for_it() -> None:
    """Even one that is killed, and can tell nobody."""
    child = (
        "import os, time; from planner.machine.aot_child import end_with; end_with(os.getppid()); "
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether a process is there, other than as one that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_is_lowered_for_a_topology_whatever_mesh_is_set() -> None:
    mesh = AbstractMesh((4,), ("x",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, P("x"))
    doubled = jax.jit(lambda x: x * 2, in_shardings=rows)
    with jax.set_mesh(jax.make_mesh((1,), ("one",), devices=jax.devices()[:1])):
        request = aot.lower_request(
            doubled, (jax.ShapeDtypeStruct((8,), "float32"),), mesh_shape={"x": 4}, topology="cpu:4", platform="cpu"
        )
    assert request.num_arguments == 1


def test_a_text_is_read_once_it_is_all_written(tmp_path: Path) -> None:
    """A part of it may end in a bracket, too."""
    path = tmp_path / "module_0001.m.after_optimizations_after_buffer_assignment.txt"
    fused = "%fused {\n  ROOT %a = f32[2]{0} add()\n}"
    written = f"HloModule m\n\n{fused}\n\nENTRY %main {{\n  ROOT %b = f32[2]{{0}} fusion()\n}}\n\n"
    for end in range(len(written.rstrip())):
        path.write_text(written[:end])
        assert aot.scheduled_text(tmp_path, "tpu") == ""
    path.write_text(written)
    assert aot.scheduled_text(tmp_path, "tpu") == written


def test_a_compiled_program_without_a_text_is_read_from_its_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libtpu 0.0.50 gives none of large programs."""
    written = "HloModule m\n\nENTRY %main {\n  ROOT %b = f32[2]{0} parameter(0)\n}\n\n"

    def finished(request: aot.AotRequest, directory: Path, dump: Path, stopped: object) -> int:
        dump.mkdir()
        (directory / "stderr").touch()
        (dump / "module_0000.m.after_optimizations.txt").write_text(written)
        (directory / "program.hlo").write_text("")
        memory = {f"{of}_size_in_bytes": 8 for of in ("argument", "output", "alias", "temp")}
        (directory / "report.json").write_text(json.dumps({"ok": True, "seconds": 1.0, "memory": memory}))
        return 0

    monkeypatch.setattr(aot, "_run_child", finished)
    monkeypatch.setattr(aot, "unavailable_reason", lambda platform: "")  # pyright: ignore[reportUnknownLambdaType]
    rows = jax.NamedSharding(jax.sharding.AbstractMesh((4,), ("x",)), jax.P("x"))
    doubled = jax.jit(lambda x: x * 2, in_shardings=rows)
    x = jax.ShapeDtypeStruct((8,), "float32")
    report = aot.aot_compile(doubled, (x,), mesh_shape={"x": 4}, topology="v5e:2x2")
    assert (report.status, report.hlo) == ("ok", written)
