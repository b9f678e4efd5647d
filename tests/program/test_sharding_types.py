"""Reading programs that are traced under Explicit mesh axes: what the user says of placements, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, auto_axes, explicit_axes, reshard
from jax.sharding import PartitionSpec as P

from planner.errors import TraceError
from planner.program.jaxpr.bodies import equations_of, opened
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program

EXPLICIT = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
MIXED = AbstractMesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Auto))
FREE = P.UNCONSTRAINED


def array(*shape: int, spec: P | None = None, mesh: AbstractMesh = EXPLICIT) -> jax.ShapeDtypeStruct:
    sharding = None if spec is None else NamedSharding(mesh, spec)
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


ROWS, COLUMNS = array(8, 32, spec=P("x")), array(32, 16, spec=P(None, "y"))


def read(fn: Callable[..., Any], *args: Any, mesh: AbstractMesh = EXPLICIT) -> Program:
    """The program of a function under a mesh; no type in it names an axis, and no param is a placement."""
    with jax.sharding.use_abstract_mesh(mesh):
        program = trace(fn, args)
    for eqn in equations_of(program.jaxpr):
        for atom in (*eqn.invars, *eqn.outvars):
            assert getattr(getattr(atom.aval, "sharding", None), "mesh", None) in (None, AbstractMesh((), ()))
        if eqn.primitive.name != "sharding_constraint":
            assert not [value for value in eqn.params.values() if isinstance(value, NamedSharding)]
        assert eqn.primitive.name != "reshard"
        assert eqn.ctx.cur_abstract_mesh.empty
    return program


def constraints(program: Program) -> list[P]:
    """The specs of the constraints in a program, in its order, all on a mesh of Auto axes."""
    found: list[P] = []
    for eqn in equations_of(program.jaxpr):
        if eqn.primitive.name == "sharding_constraint":
            mesh = eqn.params["sharding"].mesh
            assert dict(mesh.shape) == {"x": 4, "y": 2}
            assert set(mesh.axis_types) == {AxisType.Auto}
            found.append(eqn.params["sharding"].spec)
    return found


# ---------------------------------------------------------------- what the user says


def product(a: Any, w: Any, spec: P) -> Any:
    return jnp.einsum("bd,df->bf", a, w, out_sharding=spec)


SAID: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[P]]] = {
    "a product": (lambda a, w: product(a, w, P("x", "y")) + 1, (ROWS, COLUMNS), [P("x", "y")]),
    "a product whole": (lambda a, w: product(a, w, P(None, None)), (ROWS, COLUMNS), [P(None, None)]),
    "a product by JAX's rule": (lambda a, w: a @ w, (ROWS, COLUMNS), []),
    "rows taken": (lambda t, i: t.at[i].get(out_sharding=P("x")), (array(64, 8), np.arange(8)), [P("x", None)]),
    "rows added": (lambda a, i: a.at[i].add(1.0, out_sharding=P("x")), (ROWS, np.arange(8)), [P("x", None)]),
    "reshard": (lambda a: reshard(a, P(None, ("x", "y"))), (ROWS,), [P(None, ("x", "y"))]),
    "a new shape": (lambda a: jnp.reshape(a, (4, 64), out_sharding=P("x")), (ROWS,), [P("x", None)]),
    "zeros": (lambda a: jnp.zeros((8, 32), out_sharding=P("x")) + a, (ROWS,), []),
    "random numbers": (lambda: jax.random.normal(jax.random.key(0), (8,), out_sharding=P("x")), (), [P("x")]),
    "a softmax by Auto axes": (auto_axes(jax.nn.softmax, out_sharding=P("x", "y")), (ROWS,), [P("x", "y")]),
    "explicit within Auto": (
        auto_axes(lambda a: explicit_axes(jnp.sin, in_sharding=P("y"))(a + 1), out_sharding=P("x")),
        (ROWS,),
        [P("y", None), P("x", None)],
    ),
    "a constraint on Auto axes": (
        auto_axes(lambda a: jax.lax.with_sharding_constraint(a, P(None, "y")), out_sharding=P("x")),
        (ROWS,),
        [P(None, "y"), P("x", None)],
    ),
    "an assertion": (lambda a: jax.lax.with_sharding_constraint(a, P("x", None)), (ROWS,), []),
    "a body": (
        lambda a, w: jax.lax.scan(
            lambda c, _: (product(product(c, w, P("x", "y")), w.T, P("x", None)), None), a, None, 3
        ),
        (ROWS, COLUMNS),
        [P("x", "y"), P("x", None)],
    ),
    "branches": (
        lambda a: jax.lax.cond(a.sum() > 0, lambda b: reshard(b, P()), lambda b: reshard(b * 2, P()), a),
        (ROWS,),
        [P(None, None)] * 2,
    ),
    "vmap": (
        lambda a, w: jax.vmap(lambda r: jnp.einsum("d,df->f", r, w, out_sharding=P("y")))(a),
        (ROWS, COLUMNS),
        [P("x", "y")],
    ),
    "a call": (jax.jit(lambda a, w: product(a, w, P("x", "y"))), (ROWS, COLUMNS), [P("x", "y")]),
}


@pytest.mark.parametrize("name", SAID)
def test_placements_in_the_program_are_constraints(name: str) -> None:
    fn, args, specs = SAID[name]
    assert constraints(read(fn, *args)) == specs


def test_what_is_whole_is_free_where_the_mesh_has_auto_axes() -> None:
    rows = array(8, 32, spec=P("x"), mesh=MIXED)
    assert constraints(read(lambda a: reshard(a, P(None, "x")), rows, mesh=MIXED)) == [P(FREE, "x")]
    assert constraints(read(lambda a: reshard(a, P()), rows, mesh=MIXED)) == []
    split = lambda a: jax.lax.with_sharding_constraint(a, NamedSharding(MIXED, P("y")))  # noqa: E731
    assert constraints(read(split, rows, mesh=MIXED)) == [P(("x", "y"), None)]


def test_constraints_are_on_the_devices_of_the_mesh_that_is_set() -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        program = trace(lambda a: reshard(a, P("y")), (array(8, 32),))
    assert program.parallelism is not None
    assert isinstance(program.parallelism.mesh, Mesh)
    assert set(program.parallelism.mesh.axis_types) == {AxisType.Auto}
    assert list(program.parallelism.mesh.devices.flat) == list(mesh.devices.flat)


# ---------------------------------------------------------------- what JAX derives


def loss(w: Any, a: Any) -> Any:
    def layer(c: Any, w: Any) -> tuple[Any, None]:
        return product(jnp.tanh(product(c, w, P("x", "y"))), w.T, P("x", None)), None

    return (jax.lax.scan(jax.checkpoint(layer), a, w)[0] ** 2).sum()


def test_placements_that_jax_derives_for_gradients_are_the_planners() -> None:
    program = read(jax.grad(loss), array(3, 32, 16, spec=P(None, None, "y")), ROWS)
    # The forward loop, and what of it the backward loop computes again.
    assert constraints(program) == [P("x", "y"), P("x", None), P("x", "y")]
    assert "placements in gradients are left to the planner" in program.notes


# ---------------------------------------------------------------- types of arguments and results


def test_types_of_arguments_and_results_are_kept() -> None:
    program = read(lambda a, w: (a @ w, w.T, a.sum()), ROWS, COLUMNS)
    assert program.types is not None
    assert program.types.arguments == (P("x"), P(None, "y"))
    assert program.types.results == (P("x", "y"), P("y", None), None)
    assert program.parallelism is not None
    assert dict(program.parallelism.shape) == {"x": 4, "y": 2}


def test_an_argument_without_a_placement_leaves_whole_results_free() -> None:
    program = read(lambda a, w: (a + 1, w * 2), ROWS, array(32, 16))
    assert program.types is not None
    assert program.types.arguments == (P("x"), None)
    assert program.types.results == (P("x", None), None)


def test_a_program_without_placements_names_no_mesh() -> None:
    program = read(lambda a, w: a @ w, array(8, 32), array(32, 16))
    assert program.parallelism is None


def test_the_results_of_a_jitted_function_lie_as_it_says() -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        program = trace(jax.jit(lambda a: a * 2, out_shardings=P(None, "y")), (array(8, 32),))
    assert program.types is not None
    assert program.types.results == (P(None, "y"),)


# ---------------------------------------------------------------- partial sums, shard_map, mutable arrays


def test_a_sum_left_unreduced_is_placed_where_it_is_reduced() -> None:
    def fn(a: Any, b: Any) -> Any:
        partial = P(None, None, unreduced=frozenset({"x"}))
        terms = [jnp.einsum("ab,bc->ac", a * k, b, out_sharding=partial) for k in (1, 2)]
        return reshard(terms[0] + terms[1], P(None, "y"))

    program = read(fn, array(8, 32, spec=P(None, "x")), array(32, 8, spec=P("x")))
    assert constraints(program) == [P(None, "y")]


def test_a_result_left_unreduced_is_noted() -> None:
    fn = lambda a, b: jnp.einsum("ab,bc->ac", a, b, out_sharding=P(None, None, unreduced=frozenset({"x"})))  # noqa: E731
    program = read(fn, array(8, 32, spec=P(None, "x")), array(32, 8, spec=P("x")))
    assert any("out is a sum that the function leaves unreduced" in note for note in program.notes)


def test_a_shard_map_of_partial_sums_is_refused() -> None:
    def fn(a: Any) -> Any:
        local = lambda b: jax.lax.pcast(b, "x", to="unreduced")  # noqa: E731
        return jax.shard_map(local, in_specs=P("x"), out_specs=P(unreduced=frozenset({"x"})))(a)

    with pytest.raises(TraceError, match=r"unreduced over mesh axes.*psum"):
        read(fn, ROWS)


def test_a_shard_map_keeps_its_axes() -> None:
    def local(a: Any) -> Any:
        return jnp.einsum("ab,cb->ac", a, a, out_sharding=P(None, "y"))

    with jax.sharding.use_abstract_mesh(EXPLICIT):
        program = trace(jax.shard_map(local, axis_names={"x"}, in_specs=P("x"), out_specs=P("x")), (ROWS,))
    (eqn,) = [eqn for eqn in opened(program.jaxpr).eqns if eqn.primitive.name == "shard_map"]
    assert set(eqn.params["mesh"].axis_types) == {AxisType.Auto}
    inside = opened(eqn.params["jaxpr"]).eqns[-1]
    assert inside.params["sharding"].spec == P(None, "y")
    assert inside.params["sharding"].mesh.axis_types == (AxisType.Manual, AxisType.Auto)


def test_mutable_arrays() -> None:
    def fn(a: Any) -> Any:
        held = jax.new_ref(a)

        def step(i: Any, total: Any) -> Any:
            held[...] = held[...] * 2
            return total + i

        jax.lax.fori_loop(0, 3, step, 0)
        return held[...]

    assert constraints(read(fn, ROWS)) == []


# ---------------------------------------------------------------- what JAX refuses


def test_under_no_mesh_jax_says_what_is_missing_and_the_error_what_to_do() -> None:
    with pytest.raises(TraceError, match=r"not under a mesh context.*with jax.set_mesh\(jax.make_mesh"):
        trace(lambda a: reshard(a, P("x")), (array(8, 32),))
    auto = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(auto), pytest.raises(TraceError, match=r"a mesh with Explicit axes"):
        trace(lambda a: product(a, a.T, P("x")), (array(8, 32),))


def test_a_program_under_auto_axes_keeps_its_jaxpr() -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    fn = lambda a: jax.lax.with_sharding_constraint(a * 2, P("x"))  # noqa: E731
    with jax.set_mesh(mesh):
        program = trace(fn, (array(8, 32),))
    assert program.types is None
    assert [eqn.primitive.name for eqn in opened(program.jaxpr).eqns] == ["mul", "sharding_constraint"]
