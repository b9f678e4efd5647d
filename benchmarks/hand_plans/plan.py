"""A hand plan for a program: as the `jax.jit` that people write, and as pins for the planner."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from benchmarks.hand_plans.families import FAMILIES, Family
from benchmarks.hand_plans.kinds import Kind
from benchmarks.hand_plans.specs import Placement
from benchmarks.models.base import Model
from benchmarks.models.places import path_name, placed
from benchmarks.real.kernels import counted
from cost_models import Topology
from planner.compiler.emission.options import NO_WINDOWED_EINSUM, plan_options

NO_WINDOWS = NO_WINDOWED_EINSUM["tpu"]
"""Compiler options that keep XLA for TPUs from turning gathers and scatters beside matmuls into loops of permutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandPlan:
    """A kind of plan on a mesh {axis: size}.

    `gathered`: the weights of a layer are constrained, where it uses them, to what they are without being stored in parts;
    else the partitioner finds a way. `windows`: whether XLA for TPUs may make windowed einsums.
    """

    kind: Kind
    mesh: Mapping[str, int]
    gathered: bool = False
    windows: bool = True

    @property
    def name(self) -> str:
        """The kind, the mesh, and what is switched."""
        sizes = "x".join(map(str, self.mesh.values()))
        return f"{self.kind.name} {sizes}{' gathered' * self.gathered}{' no windows' * (not self.windows)}"

    def compiler_options(self, topology: Topology) -> dict[str, str]:
        """What `jax.jit` is given as `compiler_options` for a topology: those of plans, but for `windows`."""
        own = plan_options(topology)
        return {name: value for name, value in own.items() if not (self.windows and name in NO_WINDOWS)}

    def variants(self, *, windows: bool) -> tuple[HandPlan, ...]:
        """The other ways to write it: weights gathered at use or not; where there are `windows`, with and without them."""
        gathered = (False, True) if self.kind.gathers else (False,)
        ways = [replace(self, gathered=g, windows=w) for g in gathered for w in ((True, False) if windows else (True,))]
        return tuple(way for way in ways if way != self)


def family_of(name: str) -> Family:
    """The family of a model of `benchmarks.models`, by its name; other programs have only shapes."""
    return FAMILIES.get(name, FAMILIES["any"])


def meshes_of(kind: Kind, devices: int) -> tuple[dict[str, int], ...]:
    """Every mesh of the kind's axes over so many devices, from few rows to many."""
    if len(kind.axes) == 1:
        return ({kind.axes[0]: devices},)
    first, second = kind.axes
    return tuple({first: n, second: devices // n} for n in range(2, devices) if devices % n == 0)


def hand_plans(family: Family, devices: int) -> Iterator[HandPlan]:
    """Every kind of plan of a family on every mesh, as plainly written."""
    for kind in family.kinds:
        for mesh in meshes_of(kind, devices):
            yield HandPlan(kind=kind, mesh=mesh)


def jitted(model: Model, family: Family, hand: HandPlan) -> Any:
    """The program as people write it: shardings on arguments and results, constraints on what the model names.

    Over an abstract mesh; compile it with `hand.compiler_options(topology)`.
    """
    place = Placement(kind=hand.kind, family=family, mesh=hand.mesh)
    sizes, names = tuple(hand.mesh.values()), tuple(hand.mesh)
    mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))

    def constrain(x: jax.Array, spec: PartitionSpec | None) -> jax.Array:
        return x if spec is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def activation(x: jax.Array, name: str) -> jax.Array:
        return constrain(x, place.activation(name, x.shape))

    def weight(x: jax.Array, path: str) -> jax.Array:
        return constrain(x, place.weight(path, x.shape, stored=False))

    def on_parts(kernel: Any, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        # Heads of queries are split as those of the keys that they share.
        spec = place.activation("attention", key.shape)
        return jax.shard_map(kernel, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(query, key, value)

    def step(*args: Any) -> Any:
        with placed(activation, weight if hand.gathered else None, on_parts):
            return counted(model.fn)(*args)

    given = argument_specs(model, place)
    results = _result_specs(model, given)
    return jax.jit(
        step,
        in_shardings=jax.tree.map(lambda spec: NamedSharding(mesh, spec), given, is_leaf=_is_spec),
        out_shardings=jax.tree.map(lambda spec: NamedSharding(mesh, spec), results, is_leaf=_is_spec),
        donate_argnums=model.donate_argnums,
    )


def argument_specs(model: Model, place: Placement) -> tuple[Any, ...]:
    """The PartitionSpecs of a model's arguments: of a train step (weights, further state, data), of others (weights, data).

    The weights are the first argument, unless that is data that is given back; what else is donated is state of their kind.
    """

    def spec(number: int, path: tuple[Any, ...], leaf: Any) -> PartitionSpec:
        name = "/".join(filter(None, (_parameters(model)[number], path_name(path))))
        if _is_data(model, place.family, number, name):
            return place.data(name, leaf.shape)
        return place.weight(name, leaf.shape, stored=number > 0 or place.kind.stored_for == "all")

    return tuple(
        jax.tree_util.tree_map_with_path(lambda path, leaf, number=number: spec(number, path, leaf), arg)
        for number, arg in enumerate(model.args)
    )


def _is_data(model: Model, family: Family, number: int, name: str) -> bool:
    """Whether an argument's leaf is data: named as such, or neither the weights nor state that a train step takes over."""
    if any(f"/{name}".endswith(f"/{pattern}") for pattern in family.data):
        return True
    return number > 0 and (model.kind != "train" or number not in model.donate_argnums)


def _result_specs(model: Model, given: tuple[Any, ...]) -> Any:
    """The specs of a program's results: those of the arguments that they replace; None, to be chosen, of others."""
    results = jax.eval_shape(model.fn, *model.args)
    known: dict[tuple[str, tuple[int, ...]], PartitionSpec] = {}
    for arg, specs in zip(model.args, given, strict=True):
        leaves = jax.tree_util.tree_leaves_with_path(arg)
        for (path, leaf), spec in zip(leaves, jax.tree.leaves(specs, is_leaf=_is_spec), strict=True):
            known.setdefault((path_name(path), leaf.shape), spec)
    # A result is a tuple of what the arguments are, so that the first key of its path is the position.
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: known.get((path_name(path[1:]), leaf.shape), None if leaf.shape else PartitionSpec()),
        results,
    )


def pins(model: Model, family: Family, hand: HandPlan) -> dict[str, PartitionSpec]:
    """The plan as `planner.plan(pins=...)` takes it: every argument by its name, every activation that the model names.

    An activation that is named at several shapes is pinned by the axes that divide all of them.
    """
    place = Placement(kind=hand.kind, family=family, mesh=hand.mesh)
    found: dict[str, PartitionSpec] = {}
    for root, arg, specs in zip(_parameters(model), model.args, argument_specs(model, place), strict=True):
        leaves = jax.tree_util.tree_leaves_with_path(arg)
        for (path, _), spec in zip(leaves, jax.tree.leaves(specs, is_leaf=_is_spec), strict=True):
            tail = jax.tree_util.keystr(path, simple=True, separator="/")
            found[f"{root}/{tail}" if tail else root] = spec
    for name, shapes in named_shapes(model).items():
        wanted = {place.activation(name, shape) for shape in shapes}
        if len(wanted) == 1 and (spec := wanted.pop()) is not None:
            found[name] = spec
    return found


def named_shapes(model: Model) -> dict[str, set[tuple[int, ...]]]:
    """The shapes of the activations that a program names, as they are in its jaxpr."""
    shapes: dict[str, set[tuple[int, ...]]] = {}

    def walk(jaxpr: Any) -> None:
        for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            if equation.primitive.name == "name":
                shapes.setdefault(equation.params["name"], set()).add(equation.outvars[0].aval.shape)
            for value in jax.tree.leaves(list(equation.params.values())):
                if isinstance(value, (Jaxpr, ClosedJaxpr)):
                    walk(value)

    walk(jax.make_jaxpr(model.fn)(*model.args))
    return shapes


def _parameters(model: Model) -> tuple[str, ...]:
    return tuple(inspect.signature(model.fn).parameters)


def _is_spec(value: Any) -> bool:
    return isinstance(value, PartitionSpec)
