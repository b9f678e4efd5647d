"""Traces a function into a `Program`: its jaxpr, its pytrees and names, and what the user should know of it.

Arguments may bring names of dims: Flax's boxes (`nn.with_logical_partitioning`) and nnx variables do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from planner.errors import ArgumentError, TraceError
from planner.logical import Names
from planner.program.jaxpr.bodies import consts_of
from planner.program.jaxpr.calls import with_lowered
from planner.program.jaxpr.canonicalize.broadcasts_in_loops import with_broadcasts_in_loops
from planner.program.jaxpr.canonicalize.interiors import with_interiors
from planner.program.jaxpr.canonicalize.rewritten import rewritten
from planner.program.jaxpr.canonicalize.rolls import with_rolls
from planner.program.jaxpr.constants import hoisted, result_avals, without_last
from planner.program.jaxpr.dead_code import without_dead_kernels
from planner.program.jaxpr.pallas.known_scalars import with_estimates
from planner.program.jaxpr.placements.demanded_specs import with_plain_constraints
from planner.program.jaxpr.placements.free_annotations import without_annotations
from planner.program.jaxpr.placements.parallelism import effects_of, parallelism_of
from planner.program.jaxpr.placements.placed_types import left_unreduced, names_axes, sharding_types
from planner.program.jaxpr.placements.sharding_types import without_sharding_types
from planner.program.mesh_axes import explicit_mesh
from planner.program.tracing.arguments import (
    abstracted,
    argument_leaf,
    aval_of,
    joined,
    name_of,
    positions,
    typed_as_placed,
)
from planner.program.tracing.call import Call, call_of, marked, named_as
from planner.program.tracing.gc_pause import paused
from planner.program.tracing.jitted import brought
from planner.program.tracing.libraries import heard
from planner.program.tracing.mutation import Changes, Watch, check_immutable, shares, tied
from planner.program.tracing.own_frames import users_line
from planner.program.tracing.traced import Annotations, Leaf, Program, ShardingTypes


def trace(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    donate_argnums: Sequence[int] | int = (),
    static_argnums: Sequence[int] | int = (),
    annotations: Annotations = "keep",
) -> Program:
    """The program `fn` is for arguments like `example_args`; see `trace_call`."""
    call = call_of(fn, example_args)
    donate, static = marked(call, "donate", donate_argnums), marked(call, "static", static_argnums)
    return trace_call(call, donate=donate, static=static, annotations=annotations)


@paused()
def trace_call(
    call: Call, *, donate: Sequence[int] = (), static: Sequence[int] = (), annotations: Annotations = "keep"
) -> Program:
    """The program that a function is for arguments like those of a call (arrays or `jax.ShapeDtypeStruct`s).

    Nothing is computed. `donate` and `static` are positions among the arguments in order; those of a jitted function's own
    join them. What the function changes in place in Flax nnx objects is among the results, see `Program.updates`.
    `annotations` says whether placements that it names itself stay (see `Options`).

    Raises: ArgumentError for arguments that are not arrays or positions that do not exist; TraceError when JAX cannot
    trace the function, or when it changes arguments in a way that a compiled function cannot.
    """
    given = _checked_arguments(call, donate, static)
    return _as_program(given, _traced(given), annotations)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """The arguments that a function is traced for: the `leaves` of those not static, the `donated` by position.

    `notes` are what a jitted function tells of itself.
    """

    call: Call
    donate: frozenset[int]
    dynamic: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    donated: frozenset[int]
    notes: tuple[str, ...]

    @property
    def values(self) -> tuple[Any, ...]:
        """The arguments that are not static."""
        return tuple(self.call.args[i] for i in self.dynamic)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """A function's jaxpr for `abstract` arguments, what it changed in place, and the function's own result `out`."""

    jaxpr: Any
    abstract: tuple[Any, ...]
    changes: Changes
    out: Any
    notes: tuple[str, ...]
    types: ShardingTypes | None
    sums: Sequence[int]


def _checked_arguments(call: Call, to_donate: Sequence[int], constant: Sequence[int]) -> _Given:
    """The arguments a function is given, with what a jitted one says of them. Raises: ArgumentError."""
    args, parameters = call.args, call.parameters
    own = brought(call.fn, call.positional, call.keywords)
    static = positions("static_argnums", constant, len(args)) | own.static
    donate = positions("donate_argnums", to_donate, len(args)) | own.donate
    if both := static & donate:
        whose = " (the jitted function says one of it itself)" if both & (own.static | own.donate) else ""
        raise ArgumentError(f"argument {min(both)} is both static and donated{whose}; only arrays can be donated")
    for i in static:
        if not isinstance(args[i], Hashable):
            raise ArgumentError(
                f"static argument {i} is {type(args[i]).__name__}, which has no hash; give a hashable value, such as a "
                "tuple for a list, or do not make it static"
            )
    dynamic = tuple(i for i in range(len(args)) if i not in static)
    leaves, donated = _leaves(args, parameters, dynamic, donate)
    return _Given(
        call=call,
        donate=donate,
        dynamic=dynamic,
        leaves=leaves,
        donated=donated,
        notes=own.notes,
    )


def _leaves(
    args: Sequence[Any], parameters: Sequence[str], dynamic: Sequence[int], donate: Collection[int]
) -> tuple[tuple[Leaf, ...], frozenset[int]]:
    """The leaves of the arguments that are not static, and the positions of the donated ones. Raises: ArgumentError."""
    leaves: list[Leaf] = []
    donated: set[int] = set()
    for i in dynamic:
        named = jax.tree_util.tree_flatten_with_path(args[i])[0]
        for (path, value), logical in zip(named, names_of_dims(args[i]), strict=True):
            name = joined(parameters[i], path)
            check_immutable(name, value)
            if i in donate:
                donated.add(len(leaves))
            leaf = argument_leaf(name, value)
            leaves.append(leaf if logical is None else replace(leaf, logical=logical))
    if shares([args[i] for i in dynamic if i in donate]):
        raise ArgumentError(
            "a donated argument holds one nnx Variable at two places, and its buffer cannot be donated twice; do not "
            "donate it"
        )
    return tuple(leaves), frozenset(donated)


def _traced(given: _Given) -> _Traced:
    """The jaxpr of a function, whose last results are what it changed in place. Raises: TraceError."""
    fn = given.call.fn
    call, seen = _watched(given)
    mesh = explicit_mesh()
    typed = jax.tree.map(abstracted if mesh is None else typed_as_placed, given.values)
    try:
        with heard() as ignored:
            traced = jax.jit(call).trace(*typed)
    except TraceError:
        raise
    except Exception as error:
        line = users_line(error)
        raise TraceError(
            f"{name_of(fn)} could not be traced: {f'{line}: ' if line else ''}{type(error).__name__}: "
            f"{str(error).rstrip('.')}. {_remedy(error)}"
        ) from error
    jaxpr, notes = traced.jaxpr, ignored
    if getattr(jaxpr, "is_high", False):  # JAX 0.12: primitives such as custom_root, which only their lowering can run
        jaxpr = traced.lojax.jaxpr
        notes.append("holds primitives with a derivative of their own that the planned function does not keep")
    (changes,) = seen
    if any(isinstance(value, jax.Ref) for value in consts_of(jaxpr)):
        raise TraceError(
            f"{name_of(fn)} closes over a mutable array (jax.Ref), which a plan cannot place; give its value as an "
            "argument and return the new one"
        )
    jaxpr, useless = without_last(jaxpr, len(changes.lost))
    notes += _notes_on_changes(name_of(fn), given.leaves, changes, useless)
    types = None if mesh is None else sharding_types(jaxpr, jax.tree.leaves(typed), mesh)
    sums = left_unreduced(jaxpr)
    if mesh is not None or names_axes(jaxpr):
        jaxpr, left = without_sharding_types(jaxpr, mesh)
        notes += left
    return _Traced(
        jaxpr=jaxpr,
        abstract=jax.tree.map(abstracted, given.values),
        changes=changes,
        out=traced.out_info[0],
        notes=tuple(notes),
        types=types,
        sums=sums,
    )


def _watched(given: _Given) -> tuple[Callable[..., Any], list[Changes]]:
    """A function of the arguments that are not static, which also returns what it changed; and where that is told."""
    retie, seen = tied(given.values), list[Changes]()

    def call(*copies: Any) -> Any:
        copies = copies if retie is None else retie(copies)
        full = list(given.call.args)
        for i, value in zip(given.dynamic, copies, strict=True):
            full[i] = value
        watch = Watch([given.call.parameters[i] for i in given.dynamic], copies)
        result = given.call.result(full)
        changes = watch.changes(result, given.donated)
        seen.append(changes)
        return result, changes.added, [value for _, value in changes.lost]

    return named_as(given.call, given.dynamic, call), seen


def _remedy(error: Exception) -> str:
    """What to do about an error that JAX traced into."""
    if type(error).__name__ == "TraceContextError":
        return "It changes a Flax nnx object that it closes over; make the object an argument"
    if explicit_mesh() is None and any(word in str(error) for word in ("PartitionSpec", "mesh")):
        return (
            "Placements such as out_sharding= are for a mesh with Explicit axes that is set: plan the function under its "
            "own, with jax.set_mesh(jax.make_mesh(sizes, names)): planner.plan(...)"
        )
    if isinstance(error, _NEED_VALUES):
        return (
            "Values that Python or numpy needs must be static arguments (static_argnums, static_argnames); else compute "
            "with jax.numpy and jax.lax"
        )
    return "Under jax.jit it fails so, too; make it run there first"


_NEED_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors for want of a value that is not there while a function is traced."""


def _as_program(given: _Given, traced: _Traced, annotations: Annotations) -> Program:
    """The program of a traced function: its large constants made arguments, its results named."""
    jaxpr, of_annotations = without_annotations(with_plain_constraints(with_lowered(traced.jaxpr)), annotations)
    jaxpr = with_interiors(with_rolls(rewritten(without_dead_kernels(with_estimates(jaxpr)))))
    jaxpr, constants = hoisted(with_broadcasts_in_loops(jaxpr))
    closed_over = [
        Leaf(name=f"closed_over/{i}", aval=aval_of(abstracted(value)), constant=True)
        for i, value in enumerate(constants)
    ]
    types, of_types = _kept_types(traced.types, annotations)
    parallelism, effects = parallelism_of(jaxpr, types), effects_of(jaxpr)
    notes = [*given.notes, *traced.notes, *of_annotations, *of_types]
    if parallelism is not None:
        notes.append(f"the mesh {dict(parallelism.shape)} is the one that the function names itself")
    if effects.ordered:
        notes.append("ordered side effects run on one device only, so the plan is for one")
    names, outputs = _result_names(given.leaves, traced), map(aval_of, result_avals(jaxpr))
    notes += [f"{names[i]} is a sum that the function leaves unreduced; a plan returns the sum" for i in traced.sums]
    return Program(
        jaxpr=jaxpr,
        arguments=(*given.leaves, *closed_over),
        results=tuple(Leaf(name=name, aval=aval) for name, aval in zip(names, outputs, strict=True)),
        in_tree=jax.tree.structure(given.values),
        out_tree=jax.tree.structure(traced.out),
        in_avals=(*jax.tree.leaves(traced.abstract), *map(abstracted, constants)),
        constants=constants,
        parallelism=parallelism,
        effects=effects,
        notes=tuple(notes),
        donated=given.donated,
        updates=traced.changes.updates,
        donate_argnums=tuple(sorted(given.donate)),
        dynamic_argnums=given.dynamic,
        parameters=given.call.parameters,
        keywords=given.call.keywords,
        function_name=name_of(given.call.fn),
        annotations=annotations,
        traced=traced.jaxpr,
        types=types,
    )


def _kept_types(types: ShardingTypes | None, annotations: Annotations) -> tuple[ShardingTypes | None, tuple[str, ...]]:
    """What types say of placements, None where that is free; and a note on it."""
    if types is None or not any(spec is not None for spec in (*types.arguments, *types.results)):
        return types, ()
    shape = dict(types.mesh.shape)
    if annotations == "keep" and math.prod(shape.values()) > 1:
        return types, ()
    return None, (f"placements in the types of arguments and results, on the mesh {shape}, are free",)


def _result_names(leaves: Sequence[Leaf], traced: _Traced) -> list[str]:
    """The names of the results: the function's own, then what it has changed in place."""
    names = [joined("out", path) for path, _ in jax.tree_util.tree_flatten_with_path(traced.out)[0]]
    sources = {result: position for position, result in reversed(traced.changes.updates)}
    added = range(len(names), len(names) + len(traced.changes.added))
    return [*names, *(f"updated/{leaves[sources[i]].name}" for i in added)]


def _notes_on_changes(fn: str, leaves: Sequence[Leaf], changes: Changes, useless: Sequence[bool]) -> list[str]:
    """What a plan notes of changes in place. Raises: TraceError where what is written is computed for nothing."""
    roots = dict.fromkeys(leaves[position].name.split("/")[0] for position, _ in changes.updates)
    notes = [f"a call updates {', '.join(roots)} in place, as nnx.jit does"] if roots else []
    names = list(dict.fromkeys([*(name for name, _ in changes.lost), *changes.dropped]))
    wrong = [name for (name, _), is_useless in zip(changes.lost, useless, strict=True) if is_useless]
    if wrong:
        raise TraceError(
            f"{fn} changes {', '.join(wrong[:3])} in place and does not return it, so that its new value would be lost: "
            "a compiled function gets a copy of the argument's containers. Return the changed argument beside the "
            "result, and give what is returned to the next call; or keep it in a Flax nnx object, which is updated"
        )
    if names:
        notes.append(
            f"{fn} changes {', '.join(names[:3])} in place, which its caller does not see, as under jax.jit; return the "
            "new value where it is wanted"
        )
    return notes


_METADATA = ("out_sharding", "sharding_names", "sharding")
"""Where nnx variables have the names of their dims; it has changed between releases."""


def names_of_dims(tree: Any) -> list[Names | None]:
    """For every leaf of a pytree the names of its dims, None where nothing names them.

    Entries that are no single names, such as several mesh axes, are None.
    """
    boxes = jax.tree.leaves(tree, is_leaf=lambda node: _dim_names(node) is not None)
    found: list[Names | None] = []
    for box in boxes:
        own_names, leaves = _dim_names(box), jax.tree.leaves(box)
        for leaf in leaves:
            fits = own_names is not None and len(leaves) == 1 and len(getattr(leaf, "shape", ())) == len(own_names)
            found.append(tuple(name if isinstance(name, str) else None for name in own_names or ()) if fits else None)
    return found


def _dim_names(node: Any) -> tuple[Any, ...] | None:
    """The names that a node of a pytree says its array's dims have, None where it says none."""
    # Whoever has such nodes has imported what defines them.
    meta, nnx = sys.modules.get("flax.core.meta"), sys.modules.get("flax.nnx")
    if meta is not None and isinstance(node, meta.Partitioned):
        names = node.names
    elif nnx is not None and isinstance(node, nnx.Variable):
        metadata = node.get_metadata()
        names = next((metadata[key] for key in _METADATA if metadata.get(key) is not None), None)
    else:
        return None
    return tuple(names) if isinstance(names, (tuple, list, jax.sharding.PartitionSpec)) else None
