"""What a jitted function that is handed to `plan` brings along: donation, static arguments, placements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import planner
from planner.errors import ArgumentError, PlanFileError
from planner.program.tracing.trace import trace

X = jnp.linspace(-1.0, 1.0, 64).reshape(8, 8)
NEVER = planner.Options(check="never")


def f(s: jax.Array, n: int, x: jax.Array, mode: str = "once") -> jax.Array:
    return s + x * (n if mode == "once" else 2 * n)


class Stepper:
    @partial(jax.jit, static_argnums=(0, 2), donate_argnums=1)
    def step(self, s: jax.Array, n: int) -> jax.Array:
        return s * n


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...], tuple[int, ...]]] = {
    "positions": (jax.jit(f, donate_argnums=0, static_argnums=(1, 3)), (X, 3, X, "twice"), (0,), (1, 3)),
    "a default left out": (jax.jit(f, donate_argnums=0, static_argnums=(1, 3)), (X, 3, X), (0,), (1,)),
    "names": (jax.jit(f, donate_argnames="s", static_argnames=("n", "mode")), (X, 3, X, "once"), (0,), (1, 3)),
    "from the end": (jax.jit(f, donate_argnums=-2, static_argnums=(-3, -1)), (X, 3, X, "once"), (2,), (1, 3)),
    "partial": (partial(jax.jit(f, donate_argnums=2, static_argnums=1), X), (3, X), (1,), (0,)),
    "keywords": (
        partial(jax.jit(f, donate_argnums=0, static_argnames=("n", "mode")), mode="twice"),
        (X, 3, X),
        (0,),
        (1,),
    ),
    "method": (Stepper().step, (X, 4), (0,), (1,)),
    "nnx.jit": (nnx.jit(f, donate_argnums=0, static_argnums=1), (X, 3, X), (0,), (1,)),
    "filter_jit": (equinox.filter_jit(lambda s, x: s + x, donate="all-except-first"), (X, X), (1,), ()),
    "plain": (lambda s, x: s + x, (X, X), (), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_donation_and_static_arguments_of_a_jitted_function_are_taken_over(name: str) -> None:
    fn, args, donated, static = CASES[name]
    program = trace(fn, args)
    assert (program.donate_argnums, program.static_argnums) == (donated, static)


def test_a_plan_of_a_jitted_function_consumes_what_that_donates() -> None:
    plan = planner.plan(jax.jit(f, donate_argnums=0, static_argnums=1), (X, 3, X), mesh={"x": 8}, options=NEVER)
    assert plan.predicted.alias_bytes == X.nbytes / 8
    donated, kept = X + 0, X + 0
    np.testing.assert_allclose(plan(donated, 3, kept), X + 3 * X, rtol=1e-6)
    assert donated.is_deleted()
    assert not kept.is_deleted()
    placed = plan.place(X + 0, 3, kept)
    np.testing.assert_allclose(plan.jit(*placed), X + 3 * X, rtol=1e-6)
    assert placed[0].is_deleted()


def test_what_plan_is_given_joins_what_the_function_says() -> None:
    jitted = jax.jit(f, donate_argnums=0, static_argnums=1)
    assert trace(jitted, (X, 3, X), donate_argnums=(2,)).donate_argnums == (0, 2)
    for given in ({"static_argnums": (0,)}, {"donate_argnums": (1,)}):
        with pytest.raises(ArgumentError, match=r"both static and donated .the jitted function says"):
            trace(jitted, (X, 3, X), **given)


def test_a_saved_plan_of_a_jitted_function_binds_to_it_only(tmp_path: Path) -> None:
    jitted = jax.jit(f, donate_argnums=0, static_argnums=1)
    planner.plan(jitted, (X, 3, X), mesh={"x": 8}, options=NEVER).save(tmp_path / "plan.json")
    bound = planner.load(tmp_path / "plan.json").bind(jitted, (X, 3, X))
    assert (bound.decision.donate_argnums, bound.decision.static_argnums) == ((0,), (1,))
    planner.plan(jax.jit(f, static_argnums=1), (X, 3, X), mesh={"x": 8}, options=NEVER).save(tmp_path / "plan.json")
    with pytest.raises(PlanFileError, match="donates the arguments"):
        planner.load(tmp_path / "plan.json").bind(jitted, (X, 3, X))


def test_placements_of_the_function_are_its_plans() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
    rows, both = NamedSharding(mesh, PartitionSpec("a")), NamedSharding(mesh, PartitionSpec("a", "b"))
    jitted = jax.jit(lambda x, y: x @ y, in_shardings=(rows, None), out_shardings=both)
    plan = planner.plan(jitted, (X, X), options=NEVER)
    assert plan.mesh.shape == {"a": 4, "b": 2}
    assert (plan.in_specs[0], plan.out_specs) == (PartitionSpec("a"), PartitionSpec("a", "b"))


def test_what_is_not_taken_over_is_said() -> None:
    alone = jax.jit(lambda x: x + 1, out_shardings=SingleDeviceSharding(jax.devices()[0]))
    assert any("shardings" in note and "not taken over" in note for note in trace(alone, (X,)).notes)
    bound = partial(jax.jit(f, donate_argnums=0, static_argnums=1), X)
    assert any("donates is bound" in note for note in trace(bound, (3, X)).notes)
    with pytest.raises(ArgumentError, match="compiler_options"):
        trace(jax.jit(lambda x: x + 1, compiler_options={"xla_cpu_enable_fast_math": True}), (X,))


def test_a_jitted_function_that_does_not_tell_is_refused() -> None:
    class Foreign(jax.stages.Wrapped):
        def __call__(self, *args: Any) -> Any:
            return args

        def trace(self, *args: Any) -> Any:
            return args

        def lower(self, *args: Any) -> Any:
            return args

        def eval_shape(self, *args: Any) -> Any:
            return args

    with pytest.raises(ArgumentError, match="cannot be read"):
        trace(Foreign(), (X,))
