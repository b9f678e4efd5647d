"""Stacks that a loop makes in the place of donated ones: carried where nothing else reads them, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import planner
from planner.compiler.analysis import model_of
from planner.program.jaxpr.bodies import equations_of
from planner.program.jaxpr.canonicalize import carried_stacks
from planner.program.jaxpr.canonicalize.carried_stacks import with_stacks_carried
from planner.program.jaxpr.flatten import build_graph
from planner.program.tracing.trace import trace

LAYERS, BATCH, LENGTH, WIDTH = 4, 2, 8, 4
CACHE = np.arange(LAYERS * BATCH * LENGTH * WIDTH, dtype=np.float32).reshape(LAYERS, BATCH, LENGTH, WIDTH) / 99
X = np.ones((BATCH, WIDTH), np.float32) / 7
AT, EACH = (3,), (5, LENGTH + 3)
"""Positions: one for all sequences, or each sequence's own."""
Result = tuple[jax.Array, jax.Array]


def _mixed(x: jax.Array, keys: jax.Array) -> jax.Array:
    return jnp.einsum("bt,btw->bw", jax.nn.softmax(jnp.einsum("bw,btw->bt", x, keys)), keys)


def _scan(body: Callable[[jax.Array, jax.Array], Result], c: jax.Array, x: jax.Array, **settings: Any) -> Result:
    x, c = lax.scan(body, x, c, **settings)
    return c, x


def _token(x: jax.Array, keys: jax.Array, at: jax.Array) -> Result:
    keys = lax.dynamic_update_slice(keys, x[:, None], (0, at, 0))
    return _mixed(x, keys), keys


def _updated(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    return _scan(lambda x, keys: _token(x, keys, at), c, x)


def _updated_with_a_dim_more(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    def body(x: jax.Array, keys: jax.Array) -> Result:
        keys = lax.dynamic_update_slice(keys[:, :, None], x[:, None, None], (0, at, 0, 0))[:, :, 0]
        return _mixed(x, keys), keys

    return _scan(body, c, x)


def _scattered(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    def body(x: jax.Array, keys: jax.Array) -> Result:
        keys = keys.at[jnp.arange(BATCH), at].add(x)
        return _mixed(x, keys), keys

    return _scan(body, c, x)


def _scattered_with_a_dim_more(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    def body(x: jax.Array, keys: jax.Array) -> Result:
        # One place too far, so that it is dropped; then where it stands.
        keys = keys[None].at[1, jnp.arange(BATCH), at].set(9 * x)[0]
        keys = keys[None].at[0, jnp.arange(BATCH), at].set(x, mode="clip")[0]
        return _mixed(x, keys), keys

    return _scan(body, c, x)


def _mapped(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    def body(x: jax.Array, keys: jax.Array) -> Result:
        keys = jax.vmap(lambda k, new, n: lax.dynamic_update_slice(k, new[None], (n, 0)))(keys, x, at)
        return _mixed(x, keys), keys

    return _scan(body, c, x)


def _read_before(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    def body(x: jax.Array, keys: jax.Array) -> Result:
        new = lax.dynamic_update_slice(keys, x[:, None], (0, at, 0))
        return _mixed(_mixed(x, new), keys), new

    return _scan(body, c, x)


def _written_late(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    def body(x: jax.Array, keys: jax.Array) -> Result:
        new = _mixed(x, keys) + x
        return new, lax.dynamic_update_slice(keys[:, :, None], x[:, None, None], (0, at, 0, 0)).reshape(keys.shape)

    return _scan(body, c, x)


def _scaled(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    return _scan(lambda x, keys: (x + keys[:, 0], 2 * keys), c, x)


def _backwards(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    return _scan(lambda x, keys: _token(x, keys, at), c, x, reverse=True, unroll=3)


def _called(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    return jax.jit(_updated)(c, 2 * x, at + 1)


def _generated(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    def body(carry: Any) -> Any:
        c, x, at = carry
        return *_updated(c, x, at), at + 1

    c, x, _ = lax.while_loop(lambda carry: carry[2] < LENGTH, body, (c, x, at))
    return c, x


def _twice(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    c, x = _updated(c, x, at)
    return _updated(c, x, at + 1)


def _read_later(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    new, x = _updated(c, x, at)
    return new, x + c[0, :, 0]


def _another(c: jax.Array, x: jax.Array, at: jax.Array) -> Result:
    new, x = _updated(c + 1, x, at)
    return new[:, :, 1:], x


def _args(at: tuple[int, ...] = AT) -> tuple[jax.Array, jax.Array, jax.Array]:
    return jnp.asarray(CACHE), jnp.asarray(X), jnp.asarray(at if at[1:] else at[0], jnp.int32)


@dataclass(frozen=True)
class Case:
    """A program, how many of its loops carry the stack, and how many of these update it where it stands."""

    fn: Callable[[jax.Array, jax.Array, jax.Array], Result]
    carried: int
    within: int
    at: tuple[int, ...] = AT
    donated: bool = True


CASES = {
    "updated": Case(_updated, 1, 1),
    "updated past the end": Case(_updated, 1, 1, (LENGTH + 5,)),
    "updated with a dim more": Case(_updated_with_a_dim_more, 1, 1),
    "scattered": Case(_scattered, 1, 1, EACH),
    "scattered with a dim more": Case(_scattered_with_a_dim_more, 1, 1, EACH),
    "mapped over sequences": Case(_mapped, 1, 1, EACH),
    "read as it was before": Case(_read_before, 1, 0),
    "read only before": Case(_written_late, 1, 1),
    "computed anew": Case(_scaled, 1, 0),
    "backwards and unrolled": Case(_backwards, 1, 1),
    "in a call": Case(_called, 1, 1),
    "in a loop": Case(_generated, 1, 1),
    "two loops": Case(_twice, 2, 2),
    "read later": Case(_read_later, 0, 0),
    "not returned": Case(_another, 0, 0),
    "kept": Case(_updated, 0, 0, donated=False),
}


@pytest.mark.parametrize("name", CASES)
def test_a_stack_is_carried_and_the_results_are_the_same(name: str) -> None:
    case = CASES[name]
    args, donated = _args(case.at), (0,) if case.donated else ()
    plain = trace(case.fn, args, donate_argnums=donated)
    program = with_stacks_carried(trace(case.fn, args, donate_argnums=donated))
    loops = [eqn for eqn in equations_of(program.jaxpr) if eqn.primitive.name == "scan"]
    carrying = [eqn for eqn in loops if CACHE.shape in [var.aval.shape for var in eqn.params["jaxpr"].jaxpr.outvars]]
    assert len(carrying) == case.carried
    bodies = [list(equations_of(eqn.params["jaxpr"])) for eqn in carrying]
    slices = [[eqn.outvars[0].aval.shape for eqn in body if eqn.primitive.name == "dynamic_slice"] for body in bodies]
    written = [[eqn.invars[1].aval.shape for eqn in body if "update" in eqn.primitive.name] for body in bodies]
    whole = (1, *CACHE.shape[1:])
    assert all(whole in found for found in slices)
    assert sum(whole not in found for found in written) == case.within
    for made, meant in zip(_run(program, args), _run(plain, args), strict=True):
        np.testing.assert_array_equal(made, meant)


def _run(program: Any, args: tuple[jax.Array, ...]) -> list[jax.Array]:
    return jax.jit(jex_core.jaxpr_as_fun(program.jaxpr))(*args)


def test_what_is_written_stands_at_the_lines_of_the_program() -> None:
    graph = build_graph(with_stacks_carried(trace(_updated, _args(), donate_argnums=(0,))))
    assert {op.source.split(":")[0] for op in graph.ops} == {"program/test_carried_stacks.py"}


def test_plans_for_tpus_carry_them_and_others_do_not() -> None:
    cache = jax.ShapeDtypeStruct((64, BATCH, LENGTH, 128), jnp.float32)
    x = jax.ShapeDtypeStruct((BATCH, 128), jnp.float32)

    def peak(topology: str) -> float:
        plan = planner.plan(
            _updated,
            (cache, x, jnp.int32(3)),
            topology=topology,
            mesh={"x": 1},
            donate_argnums=0,
            options=planner.Options(check="never"),
        )
        return plan.predicted.peak_bytes / (cache.size * 4)

    assert peak("v5e:2x2") < 1.5 < peak("cpu:4")


def test_a_saved_plan_finds_its_program_again(tmp_path: Any) -> None:
    args = _args()
    plan = planner.plan(_updated, args, topology="v5e:2x2", donate_argnums=0, options=planner.Options(check="never"))
    plan.save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(_updated, devices=jax.devices()[:4])
    for made, meant in zip(bound(*_args()), jax.jit(_updated)(*args), strict=True):
        np.testing.assert_allclose(made, meant, rtol=1e-6)


def test_one_stack_stands_in_memory() -> None:
    graph = build_graph(with_stacks_carried(trace(_updated, _args(), donate_argnums=(0,))))
    model = model_of(graph, pinned_outputs=set(), kept=set())
    copied = [graph.tensors[graph.ops[op].results[0]].aval.shape for op in model.compiled.in_place.extra_traffic]
    assert CACHE.shape not in copied
    stacks = [graph.tensors[buffer.tensor].aval.shape for buffer in model.compiled.buffers]
    assert CACHE.shape not in stacks


def test_calls_in_calls_are_read_once_however_many_arguments_they_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    read = mock.Mock(wraps=carried_stacks.structure_of)
    monkeypatch.setattr(carried_stacks, "structure_of", read)

    def step(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(lax.dynamic_update_slice(x, x[:1] + 1, (0,)) for x in arrays)

    depth, arrays = 6, tuple(np.ones(4, np.float32) for _ in range(6))
    for _ in range(depth):
        step = jax.jit(lambda *arrays, inner=step: inner(*arrays), inline=False)
    program = trace(step, arrays, donate_argnums=tuple(range(len(arrays))))
    with_stacks_carried(program)
    assert read.call_count < 500
