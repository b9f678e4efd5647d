"""Traces a function into a `Program`: its jaxpr, its pytrees and names, and what the user should know of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType

from planner.errors import ArgumentError, TraceError
from planner.program.arguments import abstracted, argument_leaf, aval_of, joined, name_of, parameter_names, positions
from planner.program.gc_pause import paused
from planner.program.jaxpr.bodies import consts_of
from planner.program.jaxpr.constants import hoisted
from planner.program.jaxpr.demands import with_plain_constraints
from planner.program.jaxpr.parallelism import effects_of, parallelism_of
from planner.program.jaxpr.results import result_avals, without_last
from planner.program.jitted import brought
from planner.program.mutation import Changes, Watch, check_immutable, shares, tied
from planner.program.traced import Leaf, Program


@paused()
def trace(
    fn: Callable[..., Any],
    example_args: Sequence[Any],
    *,
    donate_argnums: Sequence[int] = (),
    static_argnums: Sequence[int] = (),
) -> Program:
    """The program `fn` is for arguments like `example_args` (arrays or `jax.ShapeDtypeStruct`s; nothing is computed).

    Donation and static arguments of a jitted function's own join those that are given. What `fn` changes in place in Flax
    nnx objects is among the results, see `Program.updates`.

    Raises: ArgumentError for arguments that are not arrays or positions that do not exist; TraceError when JAX cannot
    trace the function, or when it changes arguments in a way that a compiled function cannot.
    """
    if not callable(fn):
        raise ArgumentError(f"fn must be a function, got {type(fn).__name__}; pass the function to be planned")
    if not isinstance(example_args, (tuple, list)):
        raise ArgumentError(
            f"example_args must be the tuple of positional arguments, got {type(example_args).__name__}; "
            "write plan(fn, (x,)) for one argument"
        )
    args = tuple(example_args)
    own = brought(fn, len(args))
    static = positions("static_argnums", static_argnums, len(args)) | own.static
    donate = positions("donate_argnums", donate_argnums, len(args)) | own.donate
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
    parameters = parameter_names(fn, len(args))

    leaves: list[Leaf] = []
    donated: set[int] = set()
    for i in dynamic:
        for path, value in jax.tree_util.tree_flatten_with_path(args[i])[0]:
            name = joined(parameters[i], path)
            check_immutable(name, value)
            if i in donate:
                donated.add(len(leaves))
            leaves.append(argument_leaf(name, value))

    given = tuple(args[i] for i in dynamic)
    if shares([args[i] for i in dynamic if i in donate]):
        raise ArgumentError(
            "a donated argument holds one nnx Variable at two places, and its buffer cannot be donated twice; do not "
            "donate it"
        )
    retie, seen = tied(given), list[Changes]()

    def call(*copies: Any) -> Any:
        copies = copies if retie is None else retie(copies)
        full = list(args)
        for i, value in zip(dynamic, copies, strict=True):
            full[i] = value
        watch = Watch([parameters[i] for i in dynamic], copies)
        result = fn(*full)
        changes = watch.changes(result, donated)
        seen.append(changes)
        return result, changes.added, [value for _, value in changes.lost]

    explicit = [axis for axis, kind in _ambient_axes() if kind == AxisType.Explicit]
    if explicit:
        raise TraceError(
            f"the mesh set around plan() has the Explicit axes {explicit}, whose shardings are part of the types; make it "
            "with axis_types of AxisType.Auto, or plan outside of it"
        )
    abstract = jax.tree.map(abstracted, given)
    try:
        traced = jax.jit(call).trace(*abstract)
    except TraceError:
        raise
    except Exception as error:
        hint = (
            "It changes a Flax nnx object that it closes over; make the object an argument"
            if type(error).__name__ == "TraceContextError"
            else "The planner accepts what jax.jit accepts; make values that steer Python control flow static_argnums"
        )
        raise TraceError(f"{name_of(fn)} could not be traced: {type(error).__name__}: {error}. {hint}") from error
    jaxpr, notes = traced.jaxpr, [*own.notes]
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
    notes += _told_of_changes(name_of(fn), leaves, changes, useless)
    jaxpr, constants = hoisted(with_plain_constraints(jaxpr))
    leaves += [
        Leaf(name=f"closed_over/{i}", aval=aval_of(abstracted(value)), constant=True)
        for i, value in enumerate(constants)
    ]
    parallelism, effects = parallelism_of(jaxpr), effects_of(jaxpr)
    if parallelism is not None:
        notes.append(f"the mesh {dict(parallelism.shape)} is the one that the function names itself")
    if effects.ordered:
        notes.append("ordered side effects run on one device only, so the plan is for one")
    out_leaves, out_tree = jax.tree_util.tree_flatten_with_path(traced.out_info[0])
    names = [joined("out", path) for path, _ in out_leaves]
    sources = {result: position for position, result in reversed(changes.updates)}
    names += [f"updated/{leaves[sources[i]].name}" for i in range(len(names), len(names) + len(changes.added))]
    outputs = map(aval_of, result_avals(jaxpr))
    results = tuple(Leaf(name=name, aval=aval) for name, aval in zip(names, outputs, strict=True))
    return Program(
        jaxpr=jaxpr,
        arguments=tuple(leaves),
        results=results,
        in_tree=jax.tree.structure(tuple(args[i] for i in dynamic)),
        out_tree=out_tree,
        in_avals=(*jax.tree.leaves(abstract), *map(abstracted, constants)),
        constants=constants,
        parallelism=parallelism,
        effects=effects,
        notes=tuple(notes),
        donated=frozenset(donated),
        updates=changes.updates,
        donate_argnums=tuple(sorted(donate)),
        dynamic_argnums=dynamic,
        num_args=len(args),
        function_name=name_of(fn),
    )


def _told_of_changes(fn: str, leaves: Sequence[Leaf], changes: Changes, useless: Sequence[bool]) -> list[str]:
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


def _ambient_axes() -> list[tuple[str, Any]]:
    """The axes of the mesh that `jax.set_mesh` has set, and their types."""
    mesh = jax.sharding.get_abstract_mesh()
    return list(zip(mesh.axis_names, mesh.axis_types, strict=True))
