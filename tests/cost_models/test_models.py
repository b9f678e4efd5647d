"""Cost models, objectives, chips, profiles and calibration."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from cost_models import (
    CHIPS,
    COLLECTIVE_KINDS,
    CostModel,
    CostModelError,
    EnergyObjective,
    Measured,
    Profile,
    Roofline,
    TimeObjective,
    Topology,
    calibrate,
    load_profile,
    objective,
    parse_topology,
    profile_path,
    save_profile,
    shipped_profile,
)
from cost_models.fitting import fit_line
from cost_models.hardware import chip
from cost_models.profile import CollectiveFit, Fit, MatmulFit


def fit(latency_s: float, seconds_per_unit: float) -> Fit:
    return Fit(latency_s=latency_s, seconds_per_unit=seconds_per_unit, residual=0.0)


def profile() -> Profile:
    return Profile(
        machine="test",
        platform="cpu",
        device_kind="cpu",
        num_devices=8,
        jax_version="0.10.2",
        date="2026-11-21",
        matmuls=(MatmulFit(dtype="float32", fit=fit(1e-5, 1e-10)),),
        elementwise=fit(2e-5, 1e-9),
        vector=fit(0.0, 5e-10),
        collectives=tuple(
            CollectiveFit(kind=kind, group_size=size, fit=fit(1e-4 * size, 1e-9 * size))
            for kind in COLLECTIVE_KINDS
            for size in (2, 8)
        ),
    )


MODELS: list[CostModel] = [
    Roofline(topology=parse_topology("v5p:4x4x4")),
    Roofline(topology=parse_topology("h100:4x8")),
    Roofline(topology=parse_topology("cpu:8")),
    Measured(profile=profile(), topology=parse_topology("cpu:8")),
]


@pytest.mark.parametrize("name", CHIPS)
def test_every_chip_has_a_source_and_plausible_figures(name: str) -> None:
    row = chip(name)
    assert row.name == name
    assert len(row.source) > 40
    assert row.peak("bfloat16") >= row.peak("float32", "vector") > 0
    assert row.peak("float32") >= row.peak("complex64") > 0
    assert row.peak("float8_e4m3fn") >= row.peak("bfloat16")
    assert row.peak("int32") == row.peak("key<fry>") == row.peak("bool") == row.vector_flops_per_s
    assert 0 < row.matrix_efficiency <= 1
    assert row.hbm_bytes > 1e9
    if row.platform != "cpu":
        intensity = row.peak("bfloat16") / row.hbm_bytes_per_s
        assert 100 < intensity < 700
        at_full_rate = row.static_watts + row.joules_per_flop * row.peak("bfloat16")
        watts = at_full_rate + row.joules_per_hbm_byte * row.hbm_bytes_per_s
        assert 80 < watts < 1100
    assert row.link_bytes_per_s <= row.hbm_bytes_per_s


def test_unknown_names() -> None:
    with pytest.raises(CostModelError, match="v5e, v5p"):
        chip("v3")
    with pytest.raises(CostModelError, match="time, energy"):
        objective("memory", CHIPS["v5e"])


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name} {m.topology.name}")
def test_every_model_grows_with_the_work(model: CostModel) -> None:
    assert isinstance(model, CostModel)
    work = np.array([1e6, 1e9, 1e12])
    for engine in ("matrix", "vector"):
        for dtype in ("float32", "bfloat16", "int8", "float64", "complex64", "bool"):
            by_flops = model.compute_seconds(
                kind="op", engine=engine, dtype=dtype, flops=work, bytes=np.zeros_like(work)
            )
            by_bytes = model.compute_seconds(
                kind="op", engine=engine, dtype=dtype, flops=np.zeros_like(work), bytes=work
            )
            both = model.compute_seconds(kind="op", engine=engine, dtype=dtype, flops=work, bytes=work)
            assert by_flops.shape == work.shape
            assert (np.diff(by_flops) > 0).all()
            assert (np.diff(by_bytes) > 0).all()
            np.testing.assert_allclose(both, np.maximum(by_flops, by_bytes))
    topology = parse_topology("cpu:8") if model.name == "measured" else model.topology  # type: ignore[attr-defined]
    links = topology.links((2, topology.num_devices // 2))
    assert links is not None
    for kind in COLLECTIVE_KINDS:
        latency_s, per_byte = model.collective_affine(kind, links)
        assert latency_s > 0
        assert per_byte > 0
    with pytest.raises(CostModelError, match="all-reduce"):
        model.collective_affine("gossip", links)


def test_a_large_matmul_runs_at_the_efficient_peak() -> None:
    model = Roofline(topology=parse_topology("v5e:4x4"))
    seconds = model.compute_seconds(
        kind="dot_general", engine="matrix", dtype="bfloat16", flops=np.array([197e12]), bytes=np.array([1e9])
    )
    assert seconds[0] == pytest.approx(1 / CHIPS["v5e"].matrix_efficiency)


def test_objectives() -> None:
    v5e = CHIPS["v5e"]
    one = np.ones(1)
    assert objective("time", v5e) == TimeObjective()
    assert objective("time", v5e).compute(seconds=2 * one, flops=one, bytes=one)[0] == 2
    assert objective("time", v5e).collective("all-reduce", (), (1.0, 2.0)) == (1.0, 2.0)
    energy = objective("energy", v5e)
    assert energy == EnergyObjective(chip=v5e)
    joules = energy.compute(seconds=2 * one, flops=3e12 * one, bytes=4e9 * one)[0]
    expected = 2 * v5e.static_watts + 3e12 * v5e.joules_per_flop + 4e9 * v5e.joules_per_hbm_byte
    assert joules == pytest.approx(expected)


def test_measured_interpolates_between_group_sizes_and_never_shrinks_beyond() -> None:
    topology = parse_topology("cpu:16")
    model = Measured(profile=profile(), topology=topology)
    figures: list[tuple[float, float]] = []
    for size in (1, 2, 4, 8, 16):
        links = topology.links((16 // size, size))
        assert links is not None
        figures.append(model.collective_affine("all-reduce", (links[1],)))
    assert figures[0] == (0, 0)
    np.testing.assert_allclose(figures[1], (2e-4, 2e-9))
    np.testing.assert_allclose(figures[2], (5e-4, 5e-9))
    np.testing.assert_allclose(figures[3], (8e-4, 8e-9))
    assert figures[4][0] > figures[3][0]
    assert figures[4][1] > figures[3][1]


def test_measured_needs_a_profile_of_its_platform_and_of_the_collective() -> None:
    with pytest.raises(CostModelError, match="v5e:4x4"):
        Measured(profile=profile(), topology=parse_topology("v5e:4x4"))
    bare = dataclasses.replace(profile(), collectives=(), matmuls=())
    model = Measured(profile=bare, topology=parse_topology("cpu:8"))
    links = parse_topology("cpu:8").links((8,))
    assert links is not None
    with pytest.raises(CostModelError, match="calibrate"):
        model.collective_affine("all-reduce", links)
    with pytest.raises(CostModelError, match="calibrate"):
        model.compute_seconds(kind="op", engine="matrix", dtype="int8", flops=np.ones(1), bytes=np.ones(1))


def test_a_profile_comes_back_from_disk(tmp_path: Path) -> None:
    path = profile_path(tmp_path / "cache", platform="gpu", device_kind="NVIDIA H100 80GB", num_devices=8)
    assert path.name == "profile-gpu-nvidia-h100-80gb-8.json"
    save_profile(profile(), path)
    assert load_profile(path) == profile()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "meshwright profile 1"}', '{"format": 3}'])
def test_a_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(CostModelError, match="python -m planner calibrate"):
        load_profile(path)


def test_a_missing_profile_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="python -m planner calibrate"):
        load_profile(tmp_path / "none.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(CostModelError, match="cannot write"):
        save_profile(profile(), tmp_path / "file" / "profile.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(CostModelError, match="cannot write"):
        save_profile(profile(), tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_line_is_found_and_never_negative() -> None:
    found = fit_line([1, 10, 100], [3 + 2, 3 + 20, 3 + 200])
    assert (found.latency_s, found.seconds_per_unit) == pytest.approx((3, 2))
    assert found.residual == pytest.approx(0, abs=1e-9)
    assert fit_line([1, 2, 4], [1, 2.2, 5]).latency_s == 0
    assert fit_line([1, 2, 4], [3, 2, 1]).seconds_per_unit == 0


def test_calibration_measures_the_devices_at_hand() -> None:
    lines: list[str] = []
    found = calibrate(jax.devices()[:2], budget_seconds=0.1, progress=lines.append)
    assert (found.platform, found.num_devices, found.jax_version) == ("cpu", 2, jax.__version__)
    assert {row.kind for row in found.collectives} == set(COLLECTIVE_KINDS)
    assert {row.group_size for row in found.collectives} == {2}
    assert {row.dtype for row in found.matmuls} == {"bfloat16", "float32"}
    assert len(lines) == 2 + 2 + len(COLLECTIVE_KINDS)
    for one in (found.elementwise, found.vector, *(row.fit for row in found.matmuls)):
        assert one.seconds_per_unit > 0
    with pytest.raises(CostModelError, match="one kind"):
        calibrate([])


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p"])
def test_profiles_of_tpus_come_with_the_package(name: str) -> None:
    found = shipped_profile(name)
    assert found is not None
    assert (found.platform, found.device_kind) == ("tpu", name)
    assert parse_topology(found.topology).num_devices == found.num_devices
    rate = 1 / next(row.fit.seconds_per_unit for row in found.matmuls if row.dtype == "bfloat16")
    assert 0.3 < rate / chip(name).peak("bfloat16") <= 1.01
    assert 0.3 < 1 / found.elementwise.seconds_per_unit / chip(name).hbm_bytes_per_s <= 1.1


def test_no_profile_comes_for_chips_without_one() -> None:
    assert shipped_profile("cpu") is None


def test_a_profile_of_a_small_slice_prices_the_wires_of_a_large_one() -> None:
    small, large = parse_topology("v5e:4x4"), parse_topology("v5e:16x16")
    slow = tuple(
        CollectiveFit(kind=kind, group_size=size, fit=fit(1e-6, 2 * _wires(small, kind, size)))
        for kind in COLLECTIVE_KINDS
        for size in (2, 4, 8, 16)
    )
    known = dataclasses.replace(profile(), platform="tpu", num_devices=16, collectives=slow, topology="v5e:4x4")
    links = large.links((16, 16))
    assert links is not None
    for kind in COLLECTIVE_KINDS:
        for size, group in ((16, links[1:]), (256, links)):
            latency_s, per_byte = Measured(profile=known, topology=large).collective_affine(kind, group)
            assert per_byte == pytest.approx(2 * Roofline(topology=large).collective_affine(kind, group)[1])
            assert (latency_s == 1e-6) == (size == 16)


def _wires(topology: Topology, kind: str, size: int) -> float:
    """Seconds per byte of a collective over the last axis of a mesh, by the data sheet."""
    links = topology.links((topology.num_devices // size, size))
    assert links is not None
    return Roofline(topology=topology).collective_affine(kind, links[1:])[1]
