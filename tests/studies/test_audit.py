"""`planner.audit` prices the shardings a user has, and finds what was put wrong into them on purpose."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import planner
from planner.errors import ArgumentError, PinError
from planner.studies.compiled_shardings import AsCompiled
from planner.verify.aot import unavailable_reason
from tests.small import mlp, shapes, train_args, train_step

MESH = {"data": 4, "model": 2}
ARGS = shapes(train_args(width=512, batch=8192))
STATE = {"params": P(None, "model"), "m": P(None, "model"), "v": P(None, "model")}


def named(tree: Any) -> Any:
    mesh = Mesh(np.asarray(jax.devices()).reshape(4, 2), ("data", "model"))
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), tree, is_leaf=lambda leaf: isinstance(leaf, P))


def audited(**more: Any) -> planner.Audit:
    return planner.audit(train_step, ARGS, **{"mesh": MESH, "topology": "cpu:8", "donate_argnums": 0, **more})


@pytest.fixture(scope="module")
def replicated() -> planner.Audit:
    """Everything held whole, the batch too: what nobody should do."""
    return audited(in_shardings=P(), out_shardings=P())


def test_the_shardings_given_are_those_priced(replicated: planner.Audit) -> None:
    assert set(replicated.own.in_specs) == {P()}
    assert set(replicated.own.out_specs) == {P()}
    assert dict(replicated.own.mesh_shape) == MESH
    pinned = planner.plan(
        train_step,
        ARGS,
        mesh=MESH,
        topology="cpu:8",
        donate_argnums=0,
        pins={0: P(), 1: P(), "out": P()},
        options=planner.Options(check="never", remat="as written", microbatches=1),
    )
    assert replicated.own.predicted == pinned.predicted


def test_what_is_held_whole_is_found_and_what_its_split_saves(replicated: planner.Audit) -> None:
    assert replicated.free.predicted.seconds <= replicated.own.predicted.seconds
    assert [one.name for one in replicated.whole] == ["x"], "the others are small beside a device's memory"
    large = planner.audit(
        lambda w, x: x @ w,
        shapes((jnp.zeros((1 << 15, 1 << 13), jnp.bfloat16), jnp.zeros((64, 1 << 15), jnp.bfloat16))),
        in_shardings=(P(), P("data")),
        mesh=MESH,
        topology="v5e:2x4",
    )
    assert [one.name for one in large.whole] == ["w"]
    assert large.whole[0].axes == ("data", "model")
    assert large.whole[0].bytes == 2**29
    assert large.whole[0].saved == 2**29 * 7 / 8
    (gain,) = [gain for gain in large.gains if gain.name == "w"]
    assert gain.seconds >= 0 < gain.bytes
    assert "held whole" in str(large)


def test_a_wrong_sharding_is_a_surprise_with_its_line_and_leaving_it_to_the_planner_gains() -> None:
    good = planner.plan(
        mlp,
        shapes((train_args(512)[0]["params"], jnp.zeros((8192, 512)))),
        mesh=MESH,
        topology="cpu:8",
        pins={"x": P("data")},
        options=planner.Options(check="never"),
    )
    found = planner.audit(
        mlp,
        shapes((train_args(512)[0]["params"], jnp.zeros((8192, 512)))),
        in_shardings=({"w0": P("data"), "b0": None, "w1": None}, P("data")),
        mesh=MESH,
        topology="cpu:8",
    )
    assert found.own.predicted.seconds >= good.predicted.seconds
    (gather, *_) = [one for one in found.surprises if one.tensor.startswith("params/w0")]
    assert "small.py:" in gather.source
    assert gather.axes == ("data",)
    assert gather.seconds is not None
    gain = next(gain for gain in found.gains if gain.name == "params/w0")
    assert gain.spec == P("data")
    assert gain.better != P("data")
    assert gain.seconds > 0
    text = str(found)
    assert "collectives that the free plan does without" in text
    assert "best completion" in text


def test_jitted_functions_and_shardings_bring_their_mesh() -> None:
    given = ({"params": P(), "m": P(), "v": P()}, P("data"))
    specs = planner.audit(train_step, ARGS, in_shardings=given, mesh=MESH)
    shardings = planner.audit(train_step, ARGS, in_shardings=named(given))
    jitted = planner.audit(jax.jit(train_step, in_shardings=named(given)), ARGS)
    for other in (shardings, jitted):
        assert other.own.in_specs == specs.own.in_specs
        assert other.own.predicted == specs.own.predicted


def test_what_a_jitted_function_donates_and_holds_constant_is_taken_over() -> None:
    def scaled(state: jax.Array, times: int, x: jax.Array) -> jax.Array:
        return state + times * x

    args = (*shapes((jnp.zeros((64, 64)),)), 3, *shapes((jnp.zeros((64, 64)),)))
    given = named((P("data"), P("data")))
    jitted = jax.jit(scaled, in_shardings=given, static_argnums=1, donate_argnums=0)
    found = planner.audit(jitted, args)
    assert [leaf.name for leaf in found.own.arguments] == ["state", "x"]
    assert set(found.own.in_specs) == {P("data")}
    assert found.own.predicted.alias_bytes == 64 * 64 * 4 / 4
    assert found.compiled is not None, found.notes


def test_a_program_that_names_shardings_inside_is_priced_as_it_is() -> None:
    sharding = named(P("data"))

    def constrained(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.tanh(jax.lax.with_sharding_constraint(x, sharding) @ w)

    found = planner.audit(constrained, shapes((jnp.zeros((64, 64)), jnp.zeros((512, 64)))))
    assert found.free.request.annotations == "free"
    assert found.free.predicted.seconds <= found.own.predicted.seconds
    assert str(found)


def test_shardings_that_do_not_fit_are_priced_and_told() -> None:
    found = audited(in_shardings=P(), out_shardings=P(), memory_limit=20e6)
    assert found.own.predicted.peak_bytes > 20e6
    assert any("nothing is predicted to fit" in note for note in found.notes)


def test_it_is_data_for_programs(replicated: planner.Audit) -> None:
    told = json.loads(json.dumps(replicated.summary, allow_nan=False))
    assert told["own"]["predicted"]["seconds"] == replicated.own.predicted.seconds
    assert len(told["surprises"]) == len(replicated.surprises)


def test_bad_input_is_told() -> None:
    with pytest.raises(ArgumentError, match="nothing is sharded"):
        planner.audit(train_step, ARGS, mesh=MESH)
    with pytest.raises(ArgumentError, match="give mesh="):
        planner.audit(train_step, ARGS, in_shardings=P("data"), topology="cpu:8")
    with pytest.raises(ArgumentError, match="has 3 entries, but there are 2 arguments"):
        audited(in_shardings=(P(), P(), P()))
    with pytest.raises(ArgumentError, match="shardings of its own"):
        planner.audit(jax.jit(train_step, in_shardings=named((P(), P()))), ARGS, out_shardings=P())
    with pytest.raises(PinError, match="axis 'absent'"):
        audited(in_shardings=(None, P("absent")))


# ---------------------------------------------------------------- as it stands


def product(w: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


FACTORS = shapes((jnp.zeros((512, 512)), jnp.zeros((1024, 512))))


def as_it_stands(**more: Any) -> AsCompiled:
    asked = {"mesh": MESH, "devices": jax.devices(), "topology": "cpu:8", **more}
    found = planner.audit(asked.pop("fn", product), asked.pop("args", FACTORS), **asked)
    assert found.compiled is not None, found.notes
    assert "it was compiled for the devices here" in found.notes[0]
    return found.compiled


def test_what_the_compiler_makes_of_the_shardings_stands_beside_their_best_completion() -> None:
    """A weight split on the dim that is summed over: moving it is cheaper than the sum of all results, which XLA takes."""
    found = planner.audit(
        product,
        FACTORS,
        in_shardings=(P("model"), P("data")),
        mesh=MESH,
        devices=jax.devices(),
        topology="cpu:8",
    )
    assert {(one.kind, one.axes) for one in found.own.predicted.collectives} == {("all-to-all", ("model",))}
    compiled = found.compiled
    assert compiled is not None
    (surprise,) = compiled.surprises
    assert (surprise.kind, surprise.axes, surprise.runs) == ("all-reduce", ("model",), 1)
    assert surprise.bytes == 1024 / 4 * 512 * 4
    assert surprise.source.startswith("studies/test_audit.py:")
    assert "dot_general" in surprise.operation
    assert surprise.seconds == compiled.communication_seconds
    assert surprise.seconds > found.own.predicted.communication_seconds
    assert compiled.argument_bytes == (512 * 512 / 2 + 1024 * 512 / 4) * 4
    assert compiled.peak_bytes is None
    assert compiled.seconds is None, "between virtual devices seconds say nothing"
    assert "compiled collectives that the best completion does without" in str(found)
    told = json.loads(json.dumps(found.summary, allow_nan=False))["compiled"]
    assert told["surprises"][0]["kind"] == "all-reduce"


def test_shardings_that_leave_nothing_open_hold_no_surprise() -> None:
    found = as_it_stands(in_shardings=(P(None, "model"), P("data")), out_shardings=P("data", "model"))
    assert found.surprises == found.collectives == found.repeated == found.larger == ()


def test_what_every_device_computes_anew_is_told_by_line() -> None:
    """Nothing tells XLA to split by the second axis, so both of its devices compute the same."""
    found = planner.audit(
        product, FACTORS, in_shardings=(P(), P("data")), mesh=MESH, devices=jax.devices(), topology="cpu:8"
    )
    assert found.compiled is not None
    (repeated,) = found.compiled.repeated
    assert repeated.source.startswith("studies/test_audit.py:")
    assert repeated.flops == 2 * 1024 / 4 * 512 * 512 == 2 * repeated.best
    assert "of which every device computes more" in str(found)


def test_lines_are_the_users_own_also_of_modules() -> None:
    layers: Any = nnx.Linear(256, 256, use_bias=False, rngs=nnx.Rngs(0))
    for _ in range(6):
        layers = nnx.Sequential(layers)
    args = (layers, jax.ShapeDtypeStruct((1024, 256), jnp.float32))
    given = (P(), P("data"))
    found = planner.audit(
        lambda layers, x: layers(x), args, in_shardings=given, mesh=MESH, devices=jax.devices(), topology="cpu:8"
    )
    assert found.compiled is not None
    (repeated,) = found.compiled.repeated
    assert repeated.source.startswith("studies/test_audit.py:")
    assert repeated.flops == 2 * repeated.best


def test_what_is_left_open_and_held_whole_is_told() -> None:
    """Nothing tells XLA how to split the moments, so every device holds them whole."""

    def step(w: jax.Array, moments: list[jax.Array], x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        return product(w, x), [0.9 * m + 1.0 for m in moments]

    args = (FACTORS[0], [FACTORS[0]] * 2, FACTORS[1])
    given = (P(None, "model"), None, P("data"))
    found = planner.audit(step, args, in_shardings=given, mesh=MESH, devices=jax.devices(), topology="cpu:8")
    compiled = found.compiled
    assert compiled is not None
    assert [(one.name, one.count) for one in compiled.larger] == [("moments/{0,1}", 2), ("out/1/{0,1}", 2)]
    assert all(one.bytes == 512 * 512 * 4 == 8 * one.best for one in compiled.larger)
    assert "what you leave open" in str(found)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_between_slices_nothing_is_said_of_collectives() -> None:
    always = planner.Options(check="always")
    found = planner.audit(
        product, FACTORS, in_shardings=(P(), P("data")), mesh={"data": 8}, topology="v5e:2x2*2", options=always
    )
    assert found.compiled is not None
    assert found.compiled.collectives is None
    assert found.compiled.communication_seconds is None
    assert "transfers by the hosts" in found.notes[0]
    assert "compiled collective" not in str(found)


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_what_is_gathered_whole_on_the_way_is_told() -> None:
    mesh = Mesh(np.asarray(jax.devices()).reshape(2, 2, 2), ("a", "b", "c"))

    def turned(x: jax.Array) -> jax.Array:
        x = jax.lax.with_sharding_constraint(jnp.cos(x), NamedSharding(mesh, P(None, "a", "c")))
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P(("c", "a", "b"))))

    always = planner.Options(check="always")
    found = planner.audit(turned, shapes((jnp.zeros((8, 12, 16)),)), topology="v5e:2x4", options=always)
    assert found.compiled is not None, found.notes
    (held,) = found.compiled.held
    assert held.array == "f32[8,6,8]"
    assert "sharding_constraint" in held.operation
    assert held.source.startswith("studies/test_audit.py:")
    assert "gathered whole" in str(found)


def test_the_compiler_completes_arguments_that_are_left_open_too() -> None:
    assert as_it_stands(in_shardings=(P("model"), None)).argument_bytes == (512 * 512 / 2 + 1024 * 512 / 2) * 4
    assert as_it_stands(in_shardings=(P("model"), P())).argument_bytes == (512 * 512 / 2 + 1024 * 512) * 4


def test_the_program_compiled_is_the_users_own() -> None:
    """Constraints inside, what is closed over, a roll, donation: as `jax.jit` has them, and nothing of the planner's."""
    table = jnp.ones((1 << 14, 8))
    row = named(P("data"))

    def step(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = jax.lax.with_sharding_constraint(jnp.roll(x, 1, 0) @ table.T, row)
        return state + 1.0, y.sum(0)

    args = shapes((jnp.zeros((256, 256)), jnp.zeros((64, 8))))
    found = as_it_stands(fn=step, args=args, in_shardings=(P("data"), P("data")), donate_argnums=0)
    jitted = jax.jit(step, in_shardings=(row, row), donate_argnums=0).lower(*args).compile()
    assert found.argument_bytes == jitted.memory_analysis().argument_size_in_bytes
    kinds = {one.kind for one in found.collectives or ()}
    assert kinds == {kind for kind in ("all-reduce", "collective-permute", "all-gather") if kind in jitted.as_text()}
    assert kinds >= {"all-reduce", "collective-permute"}


def test_what_is_not_compiled_is_told(replicated: planner.Audit) -> None:
    assert replicated.compiled is None
    assert "has no devices here" in replicated.notes[0]
    assert "your program as it stands" not in str(replicated)
    never = audited(in_shardings=P(), out_shardings=P(), options=planner.Options(check="never"))
    assert never.compiled is None
    assert "it was not compiled as it stands: Options(check='never')" in never.notes[0]


def test_a_program_that_does_not_compile_is_priced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*leaves: Any) -> Any:
        raise RuntimeError("no such lowering")

    monkeypatch.setattr("planner.verify.compiled.as_traced", lambda program: refused)  # pyright: ignore
    found = planner.audit(product, FACTORS, in_shardings=P(), mesh=MESH, devices=jax.devices(), topology="cpu:8")
    assert found.compiled is None
    assert "RuntimeError: no such lowering" in found.notes[0]


@pytest.mark.skipif(bool(unavailable_reason("tpu")), reason=unavailable_reason("tpu") or "libtpu is there")
def test_the_compiler_of_a_tpu_tells_seconds_and_the_peak() -> None:
    args = shapes((jnp.zeros((4096, 4096), jnp.bfloat16), jnp.zeros((16384, 4096), jnp.bfloat16)))
    found = planner.audit(
        product,
        args,
        in_shardings=(P("model"), P("data")),
        mesh=MESH,
        topology="v5e:2x4",
        options=planner.Options(check="always"),
    )
    compiled = found.compiled
    assert compiled is not None
    assert compiled.seconds is not None
    assert compiled.peak_bytes is not None
    assert compiled.seconds > found.own.predicted.seconds
    assert compiled.peak_bytes >= compiled.argument_bytes == (4096 * 4096 / 2 + 16384 * 4096 / 4) * 2
    assert [(one.kind, one.axes) for one in compiled.collectives or ()] == [("all-gather", ("model",))]
    assert {(one.kind, one.axes) for one in found.own.predicted.collectives} == {("all-to-all", ("model",))}
    (surprise,) = compiled.surprises
    assert (surprise.kind, surprise.axes) == ("all-gather", ("model",)), (
        "no matmul hides it, and each device computes half"
    )
    assert "it was compiled for v5e:2x4" in found.notes[0]


def test_it_is_traced_once() -> None:
    traces: list[None] = []

    def counted(w: jax.Array, x: jax.Array) -> jax.Array:
        traces.append(None)
        return product(w, x)

    found = planner.audit(
        counted, FACTORS, in_shardings=(P("model"), P("data")), mesh=MESH, devices=jax.devices(), topology="cpu:8"
    )
    assert found.gains
    assert len(traces) == 1
