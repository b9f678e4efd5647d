"""Hand plans: the specs people write, that programs with them lower, and that the planner takes them as pins."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest
from jax.sharding import PartitionSpec as P

import planner
from benchmarks.hand_plans import NO_WINDOWS, HandPlan, family_of, hand_plans, jitted, meshes_of, pins
from benchmarks.hand_plans.kinds import FSDP, HSDP, Kind
from benchmarks.models import MODELS, llama
from benchmarks.models.attention import Kernel
from benchmarks.models.base import Model
from benchmarks.models.places import placed
from benchmarks.real.kernels import counted_kernels
from cost_models import parse_topology
from planner.compiler.emission.options import plan_options
from tests.problems import small_model

DEVICES = 8
SMALL = 2**8
"""Elements from which the weights of these small programs are worth storing in parts."""
SLOW = {"bert", "gpt_unrolled", "moe", "resnet", "unet", "vit"}
"""Seconds to trace and lower."""


@pytest.fixture(autouse=True)
def small_weights_are_stored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.hand_plans.specs.SMALL_ELEMENTS", SMALL)


def _kind(model: str, name: str) -> Kind:
    return next(kind for kind in family_of(model).kinds if kind.name == name)


def _pins(model: str, kind: Kind | str, mesh: dict[str, int]) -> dict[str, P]:
    hand = HandPlan(kind=_kind(model, kind) if isinstance(kind, str) else kind, mesh=mesh)
    return pins(small_model(model), family_of(model), hand)


def test_every_family_has_eight_plans() -> None:
    for name in MODELS:
        assert len(list(hand_plans(family_of(name), 16))) >= 8, name


def test_meshes_of_two_axes_leave_neither_alone() -> None:
    assert meshes_of(FSDP, 16) == ({"data": 16},)
    assert meshes_of(HSDP, 16) == tuple({"data": n, "model": 16 // n} for n in (2, 4, 8))


def test_fsdp_stores_by_the_largest_dim() -> None:
    found = _pins("llama", FSDP, {"data": 8})
    assert found["params/layers/wo"] == P(None, None, None, "data")
    assert found["params/layers/down"] == P(None, "data")
    assert found["opt_state/1/0/mu/layers/down"] == P(None, "data")
    assert found["params/norm"] == P()
    assert found["batch/ids"] == found["residual"] == P("data")


def test_hsdp_repeats_weights_over_the_axis_in_front() -> None:
    found = _pins("gpt", HSDP, {"data": 2, "model": 4})
    assert found["params/params/layers/up/kernel"] == P(None, None, "model")
    assert found["batch"] == P(("data", "model"))


def test_megatron_splits_columns_and_rows() -> None:
    found = _pins("llama", "fsdp+tp+sp", {"data": 2, "model": 4})
    assert found["params/layers/wq"] == P(None, "data", "model")
    assert found["params/layers/down"] == P(None, "model", "data")
    assert found["residual"] == P("data", "model")
    assert found["attention"] == P("data", None, "model")


def test_dims_that_an_axis_does_not_divide_stay_whole() -> None:
    assert _pins("llama", "dp+tp", {"data": 1, "model": 8})["params/layers/wk"] == P()  # 4 heads of keys


def test_experts_and_caches_go_where_their_kind_says() -> None:
    assert _pins("sparse", "fsdp+ep", {"data": 2, "model": 4})["params/layers/up"] == P(None, "model", None, "data")
    found = _pins("decode", "2-D tp+length", {"data": 2, "model": 4})
    assert found["cache/keys"] == P(None, None, "data", "model")
    assert found["params/layers/gate"] == P(None, "data", "model")


def test_zero_splits_the_state_of_the_optimizer_alone() -> None:
    found = _pins("mlp", "zero-1", {"data": 8})
    assert found["params/params/Dense_0/kernel"] == P()
    assert found["opt_state/0/mu/params/Dense_0/kernel"] == P("data")


def _constraints(model: Model, hand: HandPlan) -> str:
    return str(jax.make_jaxpr(jitted(model, family_of(model.name), hand))(*model.args))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in MODELS if name != "deep"]
)
def test_plans_lower_as_people_write_them(name: str) -> None:
    model, family = small_model(name), family_of(name)
    kind = next((kind for kind in reversed(family.kinds) if kind.gathers), family.kinds[0])
    hand = HandPlan(kind=kind, mesh=meshes_of(kind, DEVICES)[0], gathered=kind.gathers)
    lowered = jitted(model, family, hand).trace(*model.args).lower(lowering_platforms=("tpu",))
    assert f"num_partitions = {DEVICES}" in lowered.as_text()[:300]


@pytest.mark.parametrize("name", ["deep", "gpt", "llama", "lstm"])
def test_weights_are_gathered_where_they_are_used(name: str) -> None:
    model = small_model(name)
    plain = HandPlan(kind=FSDP, mesh={"data": DEVICES})
    (gathered,) = plain.variants(windows=False)
    more = [_constraints(model, hand).count("sharding_constraint") for hand in (plain, gathered)]
    assert more[1] > more[0]


@pytest.mark.parametrize(
    ("kernel", "platform", "call"),
    [("splash", "tpu", "tpu_custom_call"), ("cudnn", "cuda", "__cudnn$fmhaSoftmaxBackward")],
)
def test_kernels_run_on_what_a_device_has(kernel: Kernel, platform: str, call: str) -> None:
    config = replace(llama.SMALL, width=8 * 64, layers=1, sequence=256, kernel=kernel)
    model = llama.llama(config, batch=16, size="real")
    hand = HandPlan(kind=_kind("llama", "fsdp+tp"), mesh={"data": 2, "model": 4})
    with counted_kernels():
        lowered = jitted(model, family_of("llama"), hand).trace(*model.args).lower(lowering_platforms=(platform,))
    calls = [line for line in lowered.as_text().splitlines() if call in line]
    part = "tensor<8x2x256x64xbf16>" if kernel == "splash" else "tensor<8x256x2x64xbf16>"
    assert calls
    assert all(part in line for line in calls)


def test_hand_plans_are_compiled_as_ours_but_for_windows() -> None:
    topology = parse_topology("v5e:4x4")
    ways = HandPlan(kind=FSDP, mesh={"data": DEVICES}).variants(windows=True)
    options = {(way.gathered, way.windows): way.compiler_options(topology) for way in ways}
    assert set(options) == {(False, False), (True, True), (True, False)}
    assert options[True, False] == options[False, False] == plan_options(topology)
    assert options[True, False].items() - options[True, True].items() == NO_WINDOWS.items()


def test_programs_stand_as_they_were_outside() -> None:
    model = small_model("gpt")
    before = str(jax.make_jaxpr(model.fn)(*model.args))
    with placed(lambda x, name: x, lambda x, path: 2 * x):
        assert str(jax.make_jaxpr(model.fn)(*model.args)) != before
    assert str(jax.make_jaxpr(model.fn)(*model.args)) == before


@pytest.mark.parametrize(("name", "kind"), [("llama", "fsdp+tp+sp"), ("lstm", "dp+tp"), ("decode", "2-D tp")])
def test_the_planner_takes_them_as_pins(name: str, kind: str) -> None:
    model, mesh = small_model(name), {"data": 2, "model": 4}
    pinned = _pins(name, kind, mesh)
    plan = planner.plan(
        model.fn,
        model.args,
        topology="v5e:2x4",
        mesh=mesh,
        pins=pinned,
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never"),
    )
    pattern = next(path for path, spec in pinned.items() if len(spec) and path.startswith("params"))
    specs = jax.tree.leaves(plan.in_specs[0], is_leaf=lambda leaf: isinstance(leaf, P))
    assert pinned[pattern] in specs
