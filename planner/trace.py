"""Reading and rewriting programs: the only file that touches jaxprs, and long for that: what a JAX release changes in
them is mended here and nowhere else.

`trace` turns a function into a `Program` (its jaxpr, pytrees and names); `build_graph` flattens the program into a
`Graph`; `constrained` inserts sharding constraints into the jaxpr, loop bodies included. What the call-like primitives of
the supported JAX releases carry in their params is known to `_structure` alone.

Bodies of `jit`, `remat` and custom rules are expanded in place. A loop or branch body is a region of its own, entered
and left through boundary ops that make the crossing visible to costs and to emission:

    loop_const        outer tensor -> the same inside the loop
    loop_carry_in     initial value -> carry of the body      } tied: one spec
    loop_carry_out    carry the body returns -> outer result  }
    loop_slice        stacked xs -> the slice of one trip
    loop_stack        the slice of one trip -> stacked ys
    branch_in         outer tensor -> operand of a branch; tied over the branches
    branch_out        the same result of every branch -> outer result
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import compress, pairwise
from typing import Any, Literal, Protocol

import jax
import jax.extend.core as jex_core
import jax.extend.source_info_util as source_info_util
import numpy as np
from jax.interpreters import partial_eval
from jax.sharding import AxisType, Mesh, NamedSharding

from planner.arguments import abstracted, argument_leaf, aval_of, joined, name_of, parameter_names, positions
from planner.collector import paused
from planner.errors import ArgumentError, TraceError
from planner.feeds import pair_outputs
from planner.graph import Aval, Graph, Op, Path, Region, Tensor
from planner.jitted import brought
from planner.mutation import Changes, Watch, check_immutable, shares, tied
from planner.places import Slot
from planner.program import Effects, Leaf, Parallelism, Program

# ---------------------------------------------------------------- tracing


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
    if any(isinstance(value, jax.Ref) for value in _consts(jaxpr)):
        raise TraceError(
            f"{name_of(fn)} closes over a mutable array (jax.Ref), which a plan cannot place; give its value as an "
            "argument and return the new one"
        )
    jaxpr, useless = _without_last(jaxpr, len(changes.lost))
    notes += _told_of_changes(name_of(fn), leaves, changes, useless)
    jaxpr, constants = _hoisted(_with_plain_constraints(jaxpr))
    leaves += [
        Leaf(name=f"closed_over/{i}", aval=aval_of(abstracted(value)), constant=True)
        for i, value in enumerate(constants)
    ]
    parallelism, effects = _parallelism(jaxpr), _effects(jaxpr)
    if parallelism is not None:
        notes.append(f"the mesh {dict(parallelism.shape)} is the one that the function names itself")
    if effects.ordered:
        notes.append("ordered side effects run on one device only, so the plan is for one")
    out_leaves, out_tree = jax.tree_util.tree_flatten_with_path(traced.out_info[0])
    names = [joined("out", path) for path, _ in out_leaves]
    sources = {result: position for position, result in reversed(changes.updates)}
    names += [f"updated/{leaves[sources[i]].name}" for i in range(len(names), len(names) + len(changes.added))]
    outputs = [aval_of(v.aval) for v in _open(jaxpr).outvars]
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
    names = list(dict.fromkeys(name for name, _ in changes.lost))
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


def _without_last(jaxpr: Any, count: int) -> tuple[Any, list[bool]]:
    """The program without its last results, and which of them were computed for nothing else."""
    if not count:
        return jaxpr, []
    body = _open(jaxpr)
    kept, cut = body.outvars[:-count], body.outvars[-count:]
    needed: set[Any] = {atom for atom in kept if not isinstance(atom, jex_core.Literal)}
    computed: set[Any] = set()
    for eqn in reversed(body.eqns):
        computed.update(eqn.outvars)
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            needed.update(atom for atom in eqn.invars if not isinstance(atom, jex_core.Literal))
    useless = [not isinstance(atom, jex_core.Literal) and atom in computed and atom not in needed for atom in cut]
    new = body.replace(outvars=kept)
    return (new if jaxpr is body else jaxpr.replace(jaxpr=new)), useless


def _ambient_axes() -> list[tuple[str, Any]]:
    """The axes of the mesh that `jax.set_mesh` has set, and their types."""
    mesh = jax.sharding.get_abstract_mesh()
    return list(zip(mesh.axis_names, mesh.axis_types, strict=True))


def _with_plain_constraints(jaxpr: Any) -> Any:
    """The program with the placements of inner `jit`s and `device_put`s written as constraints, as it demands them.

    The program itself where it demands none.
    """
    if not any(map(_demands_placement, _equations(jaxpr))):
        return jaxpr
    body = _open(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        structure, params = _structure(eqn), dict(eqn.params)
        for place in structure.bodies if structure else ():
            _with_body(params, place, _with_plain_constraints(_body(eqn, place)))
        if eqn.primitive.name == "device_put" and _demands_placement(eqn):
            for operand, result, place in zip(eqn.invars, eqn.outvars, params["devices"], strict=True):
                sharding = place if isinstance(place, NamedSharding) else None
                eqns.append(_constraint(operand.aval, sharding).replace(invars=[operand], outvars=[result]))
            continue
        if _demands_placement(eqn):
            sides = ("in_shardings", "out_shardings")
            params["jaxpr"] = _constrained_body(params["jaxpr"], *(params[side] for side in sides))
            params |= {side: tuple(_unspecified() for _ in params[side]) for side in sides}
        eqns.append(eqn.replace(params=params))
    new = body.replace(eqns=eqns)
    return new if jaxpr is body else jaxpr.replace(jaxpr=new)


def _demands_placement(eqn: Any) -> bool:
    """Whether an equation is a `device_put` onto a mesh, or a `jit` with shardings of its operands or results."""
    name, params = eqn.primitive.name, eqn.params
    if name == "device_put":
        return any(isinstance(place, NamedSharding) for place in params["devices"])
    if name in ("jit", "pjit"):
        return any(isinstance(place, NamedSharding) for place in (*params["in_shardings"], *params["out_shardings"]))
    return False


def _constrained_body(jaxpr: Any, entering: Sequence[Any], leaving: Sequence[Any]) -> Any:
    """A body whose operands and results are constrained, where a sharding is given for them."""

    def edits(slot: Slot) -> Sequence[Any]:
        side = {"invar": entering, "outvar": leaving}.get(slot[0]) if not slot[1] else None
        return [] if side is None or not isinstance(side[slot[2]], NamedSharding) else [side[slot[2]]]

    return _Rewriter(edits=edits, keep_placements=True).rewrite(jaxpr, ())


def _constraint(aval: Any, sharding: Any) -> Any:
    """An equation that lays a sharding on an array, or copies it where there is none; its variables are to be replaced."""
    spec = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
    if sharding is None:
        return _open(jax.make_jaxpr(jax.numpy.copy)(spec)).eqns[0]
    return _open(jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(spec)).eqns[0]


def _unspecified() -> Any:
    """What stands in a `jit` equation for a sharding that is not given."""
    return _open(jax.make_jaxpr(jax.jit(lambda x: x))(1.0)).eqns[0].params["in_shardings"][0]


HOISTED_BYTES = 64 * 1024
"""Least size of an array that a function closes over for it to be planned as an argument is."""


def _hoisted(jaxpr: Any) -> tuple[Any, tuple[Any, ...]]:
    """The program with its large constants as trailing arguments, and their values.

    JAX bakes what a function closes over into the program, whole on every device. Constants of functions jitted on
    their own are found where they are called from outside of any loop; what a loop reads, JAX passes in from outside.
    """
    if not _holds_large(jaxpr):
        return jaxpr, ()
    body = _open(jaxpr)
    held = {id(value): (var, value) for var, value in zip(body.constvars, _consts(jaxpr), strict=True)}
    eqns, outvars = _spliced(body, held)
    large = [(var, value) for var, value in held.values() if _is_large(value)]
    small = [(var, value) for var, value in held.values() if not _is_large(value)]
    new = {"eqns": eqns, "outvars": outvars, "constvars": [var for var, _ in small]}
    new["invars"] = [*body.invars, *(var for var, _ in large)]
    left = [value for _, value in small]
    closed = body.replace(**new, consts=left) if jaxpr is body else jex_core.ClosedJaxpr(body.replace(**new), left)
    return closed, tuple(value for _, value in large)


def _is_large(value: Any) -> bool:
    return hasattr(value, "dtype") and aval_of(jax.typeof(value)).bytes >= HOISTED_BYTES


def _spliced(body: Any, held: dict[int, tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    """The equations and results of a body with calls of jitted functions that hold large constants expanded.

    `held` are (variable, value) of all constants so far, by identity of the value; those of expanded calls join it.
    """
    found: list[Any] = []
    renamed: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, jex_core.Literal) else renamed.get(atom, atom)

    for eqn in body.eqns:
        inner = eqn.params["jaxpr"] if eqn.primitive.name in ("jit", "pjit") else None
        if inner is None or not _holds_large(inner):
            found.append(eqn.replace(invars=list(map(read, eqn.invars))))
            continue
        called = _open(inner)
        local: dict[Any, Any] = dict(zip(called.invars, map(read, eqn.invars), strict=True))
        for var, value in zip(called.constvars, _consts(inner), strict=True):
            local[var] = held.setdefault(id(value), (_fresh(var), value))[0]

        def look(atom: Any, local: dict[Any, Any] = local) -> Any:
            return atom if isinstance(atom, jex_core.Literal) else local.get(atom, atom)

        steps, results = _spliced(called, held)
        for step in steps:
            local.update((var, _fresh(var)) for var in step.outvars if not isinstance(var, jex_core.DropVar))
            found.append(step.replace(invars=list(map(look, step.invars)), outvars=list(map(look, step.outvars))))
        renamed.update((var, look(atom)) for var, atom in zip(eqn.outvars, results, strict=True))
    return found, list(map(read, body.outvars))


def _holds_large(jaxpr: Any) -> bool:
    inner = [e.params["jaxpr"] for e in _open(jaxpr).eqns if e.primitive.name in ("jit", "pjit")]
    return any(map(_is_large, _consts(jaxpr))) or any(map(_holds_large, inner))


def _parallelism(jaxpr: Any) -> Parallelism | None:
    """The mesh that constraints and `shard_map`s of a program name. Raises: TraceError where they name several."""
    meshes: list[Any] = []
    for eqn in _equations(jaxpr):
        if eqn.primitive.name == "shard_map":
            meshes.append(eqn.params["mesh"])
        elif eqn.primitive.name == "sharding_constraint" and isinstance(eqn.params["sharding"], NamedSharding):
            meshes.append(eqn.params["sharding"].mesh)
    shapes = {tuple(mesh.shape.items()) for mesh in meshes}
    if len(shapes) > 1:
        words = " and ".join(str(dict(shape)) for shape in sorted(shapes))
        raise TraceError(f"the function names several meshes itself, {words}; a plan has one mesh: use one throughout")
    if not shapes:
        return None
    concrete = next((mesh for mesh in meshes if isinstance(mesh, Mesh)), None)
    return Parallelism(shape=dict(shapes.pop()), mesh=concrete)


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, those of bodies that are planned included."""
    for eqn in _open(jaxpr).eqns:
        yield eqn
        structure = _structure(eqn)
        for place in structure.bodies if structure else ():
            yield from _equations(_body(eqn, place))


def _effects(jaxpr: Any) -> Effects:
    names = {type(effect).__name__ for effect in jaxpr.effects}
    return Effects(
        ordered=any(name.startswith("Ordered") for name in names), io=any("IOEffect" in name for name in names)
    )


# ---------------------------------------------------------------- what call-like primitives carry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Structure:
    """How an equation's bodies relate to its operands and results."""

    kind: Literal["inline", "scan", "while", "cond"]
    bodies: tuple[tuple[str, int | None], ...]
    """(param, index within the param or None) of each body."""
    num_consts: int = 0
    num_carry: int = 0
    cond_consts: int = 0
    length: float = 1
    copies: int = 1
    takes: tuple[int, ...] | None = None
    """The operands that the body takes, where it does not take all."""


def _inlined(param: str) -> Callable[[Any], _Structure]:
    """The reader of a call whose body, the param of this name, is expanded in place."""
    structure = _Structure(kind="inline", bodies=((param, None),))
    return lambda eqn: structure


def _structure_of_scan(eqn: Any) -> _Structure:
    params = eqn.params
    if "ft_in" in params:  # JAX 0.11 and later
        consts, carry = (len(part) for part in params["ft_in"].unpack()[:2])
    else:
        consts, carry = params["num_consts"], params["num_carry"]
    length, unroll = params["length"], params["unroll"]
    return _Structure(
        kind="scan",
        bodies=(("jaxpr", None),),
        num_consts=consts,
        num_carry=carry,
        length=length,
        copies=unroll + length % unroll if length > unroll else max(length, 1),
    )


def _structure_of_while(eqn: Any) -> _Structure:
    return _Structure(
        kind="while",
        bodies=(("cond_jaxpr", None), ("body_jaxpr", None)),
        cond_consts=eqn.params["cond_nconsts"],
        num_consts=eqn.params["body_nconsts"],
    )


def _structure_of_cond(eqn: Any) -> _Structure:
    return _Structure(kind="cond", bodies=tuple(("branches", i) for i in range(len(eqn.params["branches"]))))


def _structure_of_linear_solve(eqn: Any) -> _Structure:
    """Only the solve is computed; the other functions serve the derivatives."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"]._fields.index("solve")
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    takes = (*range(first, first + lengths.solve), *range(last, len(eqn.invars)))
    return _Structure(kind="inline", bodies=(("jaxprs", solve),), takes=takes)


_STRUCTURES: Mapping[str, Callable[[Any], _Structure]] = {
    "jit": _inlined("jaxpr"),
    "pjit": _inlined("jaxpr"),
    "closed_call": _inlined("call_jaxpr"),
    "core_call": _inlined("call_jaxpr"),
    "eval_jaxpr": _inlined("call_jaxpr"),
    "composite": _inlined("jaxpr"),
    "remat2": _inlined("jaxpr"),
    "checkpoint": _inlined("jaxpr"),
    "custom_jvp_call": _inlined("call_jaxpr"),
    "custom_vjp_call": _inlined("call_jaxpr"),
    "custom_vjp_call_jaxpr": _inlined("fun_jaxpr"),
    "custom_linear_solve": _structure_of_linear_solve,
    "scan": _structure_of_scan,
    "while": _structure_of_while,
    "cond": _structure_of_cond,
}


def _structure(eqn: Any) -> _Structure | None:
    """How to read the bodies of `eqn`, or None for a leaf (opaque kernels included)."""
    read = _STRUCTURES.get(eqn.primitive.name)
    return None if read is None else read(eqn)


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _consts(jaxpr: Any) -> Sequence[Any]:
    return getattr(jaxpr, "consts", ())


def _body(eqn: Any, body: tuple[str, int | None]) -> Any:
    param, index = body
    return eqn.params[param] if index is None else eqn.params[param][index]


def _with_body(params: dict[str, Any], body: tuple[str, int | None], new: Any) -> None:
    """Puts another body in the place of one, in a copy of the parameters of its equation."""
    param, index = body
    old = params[param]
    if index is None:
        params[param] = new
    else:
        bodies = [new if i == index else one for i, one in enumerate(old)]
        params[param] = type(old)(*bodies) if hasattr(old, "_fields") else tuple(bodies)


def _body_path(path: Path, body: tuple[str, int | None]) -> Path:
    param, index = body
    return (*path, param if index is None else f"{param}[{index}]")


# ---------------------------------------------------------------- flattening into a graph


WhileTrips = float | Mapping[str, float]


@dataclass
class _Builder:
    """Accumulates ops and tensors while a jaxpr is walked."""

    while_trips: WhileTrips
    ops: list[Op] = field(default_factory=list[Op])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    regions: list[Region] = field(default_factory=list[Region])
    ties: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    notes: list[str] = field(default_factory=list[str])
    names: dict[str, int] = field(default_factory=dict[str, int])
    avals: dict[Any, Aval] = field(default_factory=dict[Any, Aval])
    sources: dict[Any, str] = field(default_factory=dict[Any, str])
    """By traceback: equal for all layers that one line of a Python loop writes out."""
    literals: dict[Aval, int] = field(default_factory=dict[Aval, int])
    calls: list[str] = field(default_factory=lambda: ["(no source)"])

    def tensor(self, aval: Aval, producer: int | None, name: str, kind: Any) -> int:
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        unique = name if count == 0 else f"{name}#{count + 1}"
        number = len(self.tensors)
        self.tensors.append(Tensor(number, aval, producer, unique, kind))
        return number

    def literal(self, literal: Any) -> int:
        aval = self.aval(literal.aval)
        if aval.shape:
            return self.tensor(aval, None, "constant", "constant")
        if aval not in self.literals:
            self.literals[aval] = self.tensor(aval, None, f"literal {aval.dtype}", "constant")
        return self.literals[aval]

    def op(
        self,
        kind: str,
        operands: Sequence[int],
        avals: Sequence[Aval],
        region: int,
        path: Path,
        source: str,
        params: Mapping[str, Any],
        primitive: Any = None,
        name: str | None = None,
    ) -> list[int]:
        """The results of a new op, named after its source line where it has no name."""
        number, name = len(self.ops), name or f"{source} {kind}"
        results = [self.tensor(aval, number, name, "intermediate") for aval in avals]
        self.ops.append(Op(number, kind, tuple(operands), tuple(results), params, primitive, region, path, source))
        return results

    def region(self, parent: int, kind: str, length: float, source: str, *, known: bool = True, copies: int = 1) -> int:
        outside = self.regions[parent]
        self.regions.append(
            Region(
                id=len(self.regions),
                parent=parent,
                kind=kind,
                trips=outside.trips * length,
                length=length,
                source=source,
                assumed=outside.assumed * (1.0 if known else length),
                copies=copies,
            )
        )
        return len(self.regions) - 1

    def aval(self, value: Any) -> Aval:
        found = self.avals.get(value)
        if found is None:
            found = self.avals[value] = aval_of(value)
        return found

    def source(self, eqn: Any) -> str:
        """`file:line` of the user's code that made the equation; that of the enclosing call where it has none."""
        traceback = eqn.source_info.traceback
        found = self.sources.get(traceback)
        if found is None:
            found = self.sources[traceback] = _short_source(source_info_util.summarize(eqn.source_info))
        return found or self.calls[-1]


def _short_source(text: str) -> str:
    """`dir/file.py:line` of a summary such as `/path/dir/file.py:12:8 (function)`."""
    place = text.split(" ", 1)[0]
    pieces = place.split(":")
    directory, _, file = pieces[0].rpartition("/")
    short = f"{directory.rpartition('/')[2]}/{file}" if directory else file
    return f"{short}:{pieces[1]}" if len(pieces) > 1 else short


Env = dict[Any, int]


def build_graph(program: Program, *, while_trips: WhileTrips = 1.0) -> Graph:
    """The flat op graph of a program; `while_trips` is assumed of `while` loops whose counter does not say it.

    It may be a mapping from shell-style patterns over the loops' source lines (`*/solve.py:12`) to trip counts.
    """
    builder = _Builder(while_trips=while_trips, notes=list(program.notes))
    builder.regions.append(Region(id=0, parent=None, kind="program", trips=1, length=1, source=""))
    jaxpr = _open(program.jaxpr)
    env: Env = {}
    inputs: list[int] = []
    for var, leaf in zip(jaxpr.invars, program.arguments, strict=True):
        env[var] = builder.tensor(leaf.aval, None, leaf.name, "argument")
        inputs.append(env[var])
    outputs = _walk(builder, program.jaxpr, env, (), 0)
    ops, tensors, ties = _live(builder, outputs)
    aliases, feeds = pair_outputs(program)
    return Graph(
        ops=ops,
        tensors=tensors,
        regions=tuple(builder.regions),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        output_names=tuple(leaf.name for leaf in program.results),
        ties=ties,
        aliases=aliases,
        feeds=feeds,
        kept=_kept(program),
        notes=tuple(dict.fromkeys(builder.notes)),
    )


def _kept(program: Program) -> frozenset[int]:
    """The arguments that `jax.jit` keeps: those its own removal of dead code leaves."""
    body = _open(program.jaxpr)
    _, used = partial_eval.dce_jaxpr(body, [True] * len(body.outvars))
    return frozenset(i for i, kept in enumerate(used) if kept)


def _walk(b: _Builder, jaxpr: Any, env: Env, path: Path, region: int) -> list[int]:
    """Adds the ops of one body; returns the tensors it returns. `env` maps the body's variables to tensors."""
    body = _open(jaxpr)
    for var, const in zip(body.constvars, _consts(jaxpr), strict=False):
        env[var] = b.tensor(b.aval(jax.typeof(const)), None, "constant", "constant")

    def read(atom: Any) -> int:
        return b.literal(atom) if isinstance(atom, jex_core.Literal) else env[atom]

    for index, eqn in enumerate(body.eqns):
        here = (*path, index)
        operands = [read(atom) for atom in eqn.invars]
        structure = _structure(eqn)
        if structure is None:
            results = _leaf(b, eqn, operands, here, region)
        elif structure.kind == "inline":
            results = _inline(b, eqn, structure, operands, here, region)
        elif structure.kind == "scan":
            results = _scan(b, eqn, structure, operands, here, region)
        elif structure.kind == "while":
            results = _while(b, eqn, structure, operands, here, region)
        else:
            results = _cond(b, eqn, structure, operands, here, region)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in body.outvars]


def _leaf(b: _Builder, eqn: Any, operands: list[int], path: Path, region: int) -> Sequence[int]:
    kind, source = eqn.primitive.name, b.source(eqn)
    avals = [b.aval(v.aval) for v in eqn.outvars]
    if kind == "optimization_barrier":
        # One op per operand: the operands of a barrier have nothing to do with one another.
        return [
            b.op(kind, [operand], [aval], region, path, source, {"position": i})[0]
            for i, (operand, aval) in enumerate(zip(operands, avals, strict=True))
        ]
    name = str(eqn.params["name"]) if kind == "name" else None
    params = _fixed(b, eqn, avals, source) if kind in ("sharding_constraint", "shard_map") else eqn.params
    return b.op(kind, operands, avals, region, path, source, params, eqn.primitive, name)


def _fixed(b: _Builder, eqn: Any, avals: Sequence[Aval], source: str) -> dict[str, Any]:
    """What a constraint or a `shard_map` demands of its operands and results: params of its op.

    `operand_specs` and `result_specs` hold, for each array, the axes of every dim (None where a dim is free), or None
    where nothing is demanded; `mesh` is the shape of the mesh they name.
    """
    params = eqn.params
    if eqn.primitive.name == "shard_map":
        spec_of: list[tuple[Any, Collection[int]]] = [(s, ()) for s in (*params["in_specs"], *params["out_specs"])]
        mesh, arrays = params["mesh"], [*(b.aval(v.aval) for v in eqn.invars), *avals]
    elif isinstance(params["sharding"], NamedSharding):
        mesh, arrays = params["sharding"].mesh, list(avals)
        spec_of = [(params["sharding"].spec, params["unconstrained_dims"])]
    else:
        b.notes.append(f"{source}: the constraint {params['sharding']} names no mesh and is left to the compiler")
        return {"operand_specs": (None,), "result_specs": (None,)}
    shape = dict(mesh.shape)
    found: list[tuple[tuple[str, ...] | None, ...] | None] = []
    for (spec, free), aval in zip(spec_of, arrays, strict=True):
        entries = [*spec, *[None] * (len(aval.shape) - len(spec))]
        axes = [(e,) if isinstance(e, str) else e if isinstance(e, tuple) else () for e in entries]
        parts = [math.prod(shape[name] for name in names) for names in axes]
        ordered = all(list(names) == sorted(names, key=list(shape).index) for names in axes)
        even = all(extent % n == 0 for extent, n in zip(aval.shape, parts, strict=True))
        if not (ordered and even):
            b.notes.append(
                f"{source}: {spec} is left to the compiler: it splits {list(aval.shape)} unevenly, or by axes in another "
                f"order than the mesh's, {tuple(shape)}"
            )
            found.append(None)
        else:
            found.append(tuple(None if dim in free else names for dim, names in enumerate(axes)))
    count = len(eqn.invars) if eqn.primitive.name == "shard_map" else 0
    return {
        "operand_specs": tuple(found[:count]) if count else (None,) * len(eqn.invars),
        "result_specs": tuple(found[count:]),
        "mesh": shape,
        "collectives": tuple(_collectives(b, params["jaxpr"], 1.0)) if count else (),
    }


_COLLECTIVES: Mapping[str, str] = {
    "all_gather": "all-gather",
    "all_gather_invariant": "all-gather",
    "all_to_all": "all-to-all",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "ppermute": "collective-permute",
    "psum": "all-reduce",
    "psum2": "all-reduce",
    "psum_invariant": "all-reduce",
    "reduce_scatter": "reduce-scatter",
}


def _collectives(b: _Builder, jaxpr: Any, trips: float) -> Iterator[tuple[str, float, tuple[str, ...], float, str]]:
    """(kind, bytes, axes, trips, dtype) of the collectives in the body of a `shard_map`."""
    for eqn in _open(jaxpr).eqns:
        kind = _COLLECTIVES.get(eqn.primitive.name)
        if kind is not None:
            axes = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
            names = tuple(name for name in (axes if isinstance(axes, tuple) else (axes,)) if isinstance(name, str))
            for operand, result in zip(eqn.invars, eqn.outvars, strict=True):
                sides = (b.aval(operand.aval), b.aval(result.aval))
                yield kind, max(aval.bytes for aval in sides), names, trips, sides[0].dtype
        structure = _structure(eqn)
        length = structure.length if structure else 1.0
        if structure is not None and structure.kind == "while":
            length, _ = _while_trips(b, eqn, structure, b.source(eqn))
        for place in structure.bodies if structure else ():
            yield from _collectives(b, _body(eqn, place), trips * length)


def _inline(b: _Builder, eqn: Any, s: _Structure, operands: list[int], path: Path, region: int) -> list[int]:
    inner = _body(eqn, s.bodies[0])
    taken = operands if s.takes is None else [operands[i] for i in s.takes]
    env = dict(zip(_open(inner).invars, taken, strict=True))
    b.calls.append(b.source(eqn))
    results = _walk(b, inner, env, _body_path(path, s.bodies[0]), region)
    b.calls.pop()
    return results


def _boundary(
    b: _Builder,
    kind: str,
    operands: Sequence[int],
    aval: Aval,
    region: int,
    place: tuple[Path, str, int, int],
    source: str,
) -> int:
    """The result tensor of a boundary op. `place`: equation path, body, position in the equation and in the body."""
    path, body, outer, inner = place
    params = {"body": body, "outer": outer, "inner": inner}
    return b.op(kind, operands, [aval], region, path, source, params)[0]


def _scan(b: _Builder, eqn: Any, s: _Structure, operands: list[int], path: Path, region: int) -> list[int]:
    body, inner = s.bodies[0], _body(eqn, s.bodies[0])
    source, name, variables = b.source(eqn), _body_path((), s.bodies[0])[0], _open(inner).invars
    loop = b.region(region, "scan", s.length, source, copies=s.copies)
    env: Env = {}
    carries: list[int] = []
    for i, (operand, var) in enumerate(zip(operands, variables, strict=True)):
        carry = s.num_consts <= i < s.num_consts + s.num_carry
        kind = "loop_const" if i < s.num_consts else "loop_carry_in" if carry else "loop_slice"
        env[var] = _boundary(b, kind, [operand], b.aval(var.aval), loop, (path, str(name), i, i), source)
        if carry:
            carries.append(env[var])
    outs = _walk(b, inner, env, _body_path(path, body), loop)
    results: list[int] = []
    for i, (out, var) in enumerate(zip(outs, eqn.outvars, strict=True)):
        kind = "loop_carry_out" if i < s.num_carry else "loop_stack"
        results.append(_boundary(b, kind, [out], b.aval(var.aval), loop, (path, str(name), i, i), source))
    b.ties.extend(zip(carries, results[: s.num_carry], strict=True))
    return results


def _while(b: _Builder, eqn: Any, s: _Structure, operands: list[int], path: Path, region: int) -> list[int]:
    source = b.source(eqn)
    length, known = _while_trips(b, eqn, s, source)
    loop = b.region(region, "while", length, source, known=known)
    test, body = _body(eqn, s.bodies[0]), _body(eqn, s.bodies[1])
    split = (s.cond_consts, s.cond_consts + s.num_consts)
    test_env: Env = {}
    body_env: Env = {}
    for i, var in enumerate(_open(test).invars[: s.cond_consts]):
        test_env[var] = _boundary(
            b, "loop_const", [operands[i]], b.aval(var.aval), loop, (path, "cond_jaxpr", i, i), source
        )
    for i, var in enumerate(_open(body).invars[: s.num_consts]):
        place = (path, "body_jaxpr", split[0] + i, i)
        body_env[var] = _boundary(b, "loop_const", [operands[split[0] + i]], b.aval(var.aval), loop, place, source)
    carries: list[int] = []
    for i, var in enumerate(_open(body).invars[s.num_consts :]):
        place = (path, "body_jaxpr", split[1] + i, s.num_consts + i)
        carry = _boundary(b, "loop_carry_in", [operands[split[1] + i]], b.aval(var.aval), loop, place, source)
        body_env[var] = test_env[_open(test).invars[s.cond_consts + i]] = carry
        carries.append(carry)
    tests = _walk(b, test, test_env, _body_path(path, s.bodies[0]), loop)
    b.op("loop_test", tests, [], loop, path, source, {})
    outs = _walk(b, body, body_env, _body_path(path, s.bodies[1]), loop)
    results = [
        _boundary(b, "loop_carry_out", [out], b.aval(var.aval), loop, (path, "body_jaxpr", i, i), source)
        for i, (out, var) in enumerate(zip(outs, eqn.outvars, strict=True))
    ]
    b.ties.extend(zip(carries, results, strict=True))
    return results


def _while_trips(b: _Builder, eqn: Any, s: _Structure, source: str) -> tuple[float, bool]:
    """How often a while loop is taken to run, and whether its counter says so; what is assumed is noted."""
    limits, exact = _counter_limits(eqn, s)
    if exact:
        return limits[0], True
    hint, why = b.while_trips, "was assumed (Options(while_trips=...) sets it)"
    if isinstance(hint, Mapping):
        named = [trips for pattern, trips in hint.items() if fnmatchcase(source, pattern)]
        hint, why = (named[0], "is hinted") if named else (1.0, "was assumed (no pattern of Options(while_trips) fits)")
    elif limits and hint == 1.0:
        hint, why = min(limits), "the most its counter allows, was assumed (Options(while_trips=...) sets it)"
    b.notes.append(f"{source}: the trip count of this while loop is not known; {hint:g} {why}")
    return hint, False


def _counter_limits(eqn: Any, s: _Structure) -> tuple[list[float], bool]:
    """The trip counts that conditions `counter < limit` of a while loop allow, and whether one is the only condition."""
    test, body = _open(_body(eqn, s.bodies[0])), _open(_body(eqn, s.bodies[1]))
    made = {var: step for step in test.eqns for var in step.outvars}
    first = s.cond_consts + s.num_consts

    def number(atom: Any) -> float | None:
        """What a scalar of the condition is at every trip, or None."""
        if not isinstance(atom, jex_core.Literal) and atom in test.invars:
            i = test.invars.index(atom)
            k = i - s.cond_consts
            if k >= 0 and body.outvars[k] is not body.invars[s.num_consts + k]:
                return None
            atom = eqn.invars[i] if k < 0 else eqn.invars[first + k]
        if not isinstance(atom, jex_core.Literal) or np.shape(atom.val):
            return None
        return float(atom.val)

    def trips(counter: Any, limit: Any, extra: float) -> float | None:
        if isinstance(counter, jex_core.Literal) or counter not in test.invars:
            return None
        k = test.invars.index(counter) - s.cond_consts
        start, end = eqn.invars[first + k], number(limit)
        step: Any = next((e for e in body.eqns if body.outvars[k] in e.outvars), None)
        if k < 0 or end is None or not isinstance(start, jex_core.Literal) or step is None:
            return None
        amounts = [a.val for a in step.invars if isinstance(a, jex_core.Literal)]
        if step.primitive.name != "add" or body.invars[s.num_consts + k] not in step.invars or len(amounts) != 1:
            return None
        if not float(amounts[0]) > 0:
            return None
        return max(math.ceil((end + extra - float(start.val)) / float(amounts[0])), 0)

    def limits(atom: Any) -> list[float]:
        if isinstance(atom, jex_core.Literal) or atom not in made:
            return []
        step = made[atom]
        name = step.primitive.name
        if name == "and":
            return [found for operand in step.invars for found in limits(operand)]
        if name == "convert_element_type":
            return limits(step.invars[0])
        if name in ("lt", "le"):
            found = trips(step.invars[0], step.invars[1], float(name == "le"))
        elif name in ("gt", "ge"):
            found = trips(step.invars[1], step.invars[0], float(name == "ge"))
        else:
            found = None
        return [] if found is None else [found]

    found = limits(test.outvars[0])
    only = bool(found) and not any(step.primitive.name == "and" for step in test.eqns)
    return found, only


def _cond(b: _Builder, eqn: Any, s: _Structure, operands: list[int], path: Path, region: int) -> list[int]:
    source = b.source(eqn)
    returned: list[list[int]] = []
    entered: list[list[int]] = []
    for body in s.bodies:
        inner, name = _body(eqn, body), str(_body_path((), body)[0])
        branch = b.region(region, "cond", 1, source)
        entered.append(
            [
                _boundary(b, "branch_in", [operand], b.aval(var.aval), branch, (path, name, i + 1, i), source)
                for i, (operand, var) in enumerate(zip(operands[1:], _open(inner).invars, strict=True))
            ]
        )
        env = dict(zip(_open(inner).invars, entered[-1], strict=True))
        returned.append(_walk(b, inner, env, _body_path(path, body), branch))
    # The equation has one operand for all branches, so it has one spec.
    for here, there in pairwise(entered):
        b.ties.extend(zip(here, there, strict=True))
    names = [str(_body_path((), body)[0]) for body in s.bodies]
    results: list[int] = []
    for i, var in enumerate(eqn.outvars):
        operands_out = [outs[i] for outs in returned]
        params = {"bodies": names, "outer": i, "inner": i}
        results += b.op("branch_out", operands_out, [b.aval(var.aval)], region, path, source, params)
    return results


def _live(
    b: _Builder, outputs: Sequence[int]
) -> tuple[tuple[Op, ...], tuple[Tensor, ...], tuple[tuple[int, int], ...]]:
    """The ops whose results reach an output (or that have an effect), numbered; XLA drops the rest as well."""
    keep, needed = _needed(b, outputs)
    numbers: dict[int | None, int] = {made: number for number, made in enumerate(compress(range(len(keep)), keep))}
    ops, tensors = tuple(b.ops), tuple(b.tensors)
    if len(numbers) < len(ops):
        ops = tuple([op._replace(id=number) for number, op in enumerate(compress(ops, keep))])
        tensors = tuple([t if t.producer is None else t._replace(producer=numbers.get(t.producer)) for t in tensors])
    return ops, tensors, tuple((i, o) for i, o in b.ties if needed[i] and needed[o])


def _needed(b: _Builder, outputs: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """Which ops reach an output or have an effect, and which tensors they and the outputs need."""
    keep, needed = [False] * len(b.ops), [False] * len(b.tensors)
    for tensor in outputs:
        needed[tensor] = True
    left = range(len(b.ops) - 1, -1, -1)
    while left:
        idle: list[int] = []
        for number in left:
            op = b.ops[number]
            if not op.results or op.kind in _EFFECTS or any(map(needed.__getitem__, op.results)):
                keep[number] = True
                for tensor in op.operands:
                    needed[tensor] = True
            else:
                idle.append(number)
        left = idle if _need_through_ties(b, needed) else ()
    return keep, needed


def _need_through_ties(b: _Builder, needed: list[bool]) -> bool:
    """Whether the other end of a tie is needed as well now."""
    changed = False
    for inside, outside in b.ties:
        if needed[inside] and not needed[outside]:
            needed[outside] = changed = True
        if needed[outside] and not needed[inside] and _is_carried(b, inside):
            needed[inside] = changed = True
    return changed


def _is_carried(b: _Builder, tensor: int) -> bool:
    """Whether a tensor is the carry in a loop, which takes its initial value even where no pass reads it.

    Of a loop of one pass XLA leaves the body alone.
    """
    producer = b.tensors[tensor].producer
    op = b.ops[producer] if producer is not None else None
    return op is not None and op.kind == "loop_carry_in" and b.regions[op.region].length != 1


_EFFECTS = frozenset(("debug_callback", "io_callback", "debug_print", "check", "swap", "addupdate", "ref_set"))


# ---------------------------------------------------------------- rewriting


class Edits(Protocol):
    """The shardings to be laid on the places of a program, one after the other; () where nothing was decided."""

    def __call__(self, slot: Slot) -> Sequence[Any]: ...


Replacements = Mapping[Path, Callable[..., Sequence[Any]]]
"""For the path of an equation, a function of its operands that gives its results, to be called in its place."""


def constrained(program: Program, edits: Edits, replacements: Replacements | None = None) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, with the shardings of `edits` laid on, bodies included.

    The operands of a replaced equation are laid as those of any other before its function sees them, and so are its
    results. The result is as differentiable as the original: constraints are inserted as equations, nothing is
    interpreted.
    """
    rewriter = _Rewriter(edits=edits, replacements=replacements or {})
    jaxpr = rewriter.rewrite(program.jaxpr, ())
    return jex_core.jaxpr_as_fun(_closed(jaxpr))


def _closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else jex_core.ClosedJaxpr(jaxpr, ())


@dataclass
class _Rewriter:
    """Copies jaxprs with constraint equations added; `templates` are constraint equations by aval and sharding."""

    edits: Edits
    replacements: Replacements = field(default_factory=dict[Path, Callable[..., Sequence[Any]]])
    keep_placements: bool = False
    """Whether constraints that the program holds itself stay."""
    templates: dict[tuple[Any, Any], Any] = field(default_factory=dict[tuple[Any, Any], Any])

    def _lay(
        self,
        atom: Any,
        shardings: Sequence[Any],
        eqns: list[Any],
        laid: dict[Any, Any],
        *,
        like: Any = None,
        final: Any = None,
    ) -> Any:
        """Appends equations that lay `shardings` on `atom`, the last one defining `final` if given.

        `laid` remembers what was laid in this body, so that two readers of one form share it, and the form of every
        variable; the equations carry the source line of the equation `like`.
        """
        for i, sharding in enumerate(shardings):
            if final is None and (atom, sharding) in laid:
                atom = laid[atom, sharding]
                continue
            key = (atom.aval, sharding)
            template = self.templates.get(key)
            if template is None:
                template = self.templates[key] = _constraint(atom.aval, sharding)
            var = final if final is not None and i == len(shardings) - 1 else _fresh(atom)
            source = template.source_info if like is None else like.source_info
            eqns.append(template.replace(invars=[atom], outvars=[var], source_info=source))
            laid[atom, sharding] = var
            laid[var] = (sharding,)
            atom = var
        return atom

    def rewrite(self, jaxpr: Any, path: Path, entering: Sequence[Sequence[Any]] | None = None) -> Any:
        """`jaxpr` (open or closed) with the constraints of its places, and of those of its bodies.

        `entering` are the shardings that its operands are known to have, to be laid on where nothing else is.
        """
        body = _open(jaxpr)
        renamed: dict[Any, Any] = {}
        eqns: list[Any] = []
        laid: dict[Any, Any] = {}

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, jex_core.Literal) else renamed.get(atom, atom)

        for i, var in enumerate(body.invars):
            shardings = self.edits(("invar", path, i)) or (entering[i] if entering else ())
            if shardings:
                renamed[var] = self._lay(var, shardings, eqns, laid, like=next(iter(body.eqns), None))
        for index, eqn in enumerate(body.eqns):
            here = (*path, index)
            operands: list[Any] = []
            for i, atom in enumerate(eqn.invars):
                shardings = () if isinstance(atom, jex_core.Literal) else self.edits(("operand", here, i))
                operands.append(self._lay(read(atom), shardings, eqns, laid, like=eqn))
            if not self.keep_placements and _is_placement(eqn):
                # What the program demands is part of the plan, and laid on by it.
                renamed[eqn.outvars[0]] = self._lay(operands[0], self.edits(("result", here, 0)), eqns, laid, like=eqn)
                continue
            outvars = list(eqn.outvars)
            after: list[tuple[Any, Any, Sequence[Any]]] = []
            for i, var in enumerate(eqn.outvars):
                shardings = self.edits(("result", here, i))
                if shardings and not isinstance(var, jex_core.DropVar):
                    outvars[i] = _fresh(var)
                    after.append((outvars[i], var, shardings))
            structure = _structure(eqn)
            params = dict(eqn.params)
            for place in structure.bodies if structure else ():
                # The remat of a gradient has a barrier around its operands, which takes the form of its first reader.
                barred = params.get("prevent_cse") and params.get("differentiated")
                known = [_form(operand, laid) for operand in operands] if barred else None
                inner = self.rewrite(_body(eqn, place), _body_path(here, place), known)
                _with_body(params, place, inner)
            if here in self.replacements:
                eqns.append(_call_of(self.replacements[here], eqn).replace(invars=operands, outvars=outvars))
            else:
                eqns.append(eqn.replace(invars=operands, outvars=outvars, params=params))
            for fresh, var, shardings in after:
                self._lay(fresh, shardings, eqns, laid, like=eqn, final=var)
        outvars = []
        for i, atom in enumerate(body.outvars):
            shardings = () if isinstance(atom, jex_core.Literal) else self.edits(("outvar", path, i))
            outvars.append(self._lay(read(atom), shardings, eqns, laid, like=next(reversed(body.eqns), None)))
        new = body.replace(eqns=eqns, outvars=outvars)
        return new if jaxpr is body else jaxpr.replace(jaxpr=new)


def _call_of(function: Callable[..., Sequence[Any]], eqn: Any) -> Any:
    """An equation that calls `function` on operands like those of `eqn`, at its source line."""
    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in eqn.invars]
    call = _open(jax.make_jaxpr(jax.jit(lambda *operands: list(function(*operands))))(*avals)).eqns[0]
    return _at(call, eqn.source_info)


def _at(eqn: Any, source_info: Any) -> Any:
    """An equation with all that is in it at one source line."""
    params = dict(eqn.params)
    for name, value in params.items():
        if hasattr(_open(value), "eqns"):
            body = _open(value)
            new = body.replace(eqns=[_at(step, source_info) for step in body.eqns])
            params[name] = new if value is body else value.replace(jaxpr=new)
    return eqn.replace(params=params, source_info=source_info)


def _form(atom: Any, laid: Mapping[Any, Any]) -> Sequence[Any]:
    return () if isinstance(atom, jex_core.Literal) else laid.get(atom, ())


def _fresh(var: Any) -> Any:
    return jex_core.Var(var.aval)


def fingerprint(program: Program) -> str:
    """A digest of the traced program: its equations, what each reads and its plain parameters.

    Two programs with one fingerprint have the same places to constrain, and the same reasons to.
    """
    digest, words = hashlib.sha256(), _Words()

    def visit(jaxpr: Any) -> None:
        body = _open(jaxpr)
        numbers: dict[Any, str] = {}
        for var in (*body.constvars, *body.invars):
            numbers[var] = str(len(numbers))

        def named(atoms: Sequence[Any]) -> str:
            return ",".join(
                ["literal" if isinstance(atom, jex_core.Literal) else numbers.get(atom, "None") for atom in atoms]
            )

        for eqn in body.eqns:
            for var in eqn.outvars:
                numbers[var] = str(len(numbers))
            avals = ", ".join([words.of_aval(var.aval) for var in eqn.outvars])
            digest.update(f"{named(eqn.invars)}[{avals}]{words.of_params(eqn)}".encode())
            structure = _structure(eqn)
            for place in structure.bodies if structure else ():
                visit(_body(eqn, place))
        digest.update(f"returns {named(body.outvars)}".encode())

    visit(program.jaxpr)
    return digest.hexdigest()[:16]


@dataclass
class _Words:
    """What primitives with their parameters, and avals, are called in a fingerprint: found once for all that are equal."""

    params: dict[Any, str] = field(default_factory=dict[Any, str])
    avals: dict[Any, str] = field(default_factory=dict[Any, str])
    dtypes: dict[Any, str] = field(default_factory=dict[Any, str])

    def of_params(self, eqn: Any) -> str:
        """The primitive of an equation and its plain parameters."""
        key = (eqn.primitive.name, tuple(eqn.params.values()))
        try:
            found = self.params.get(key)
        except TypeError:  # a parameter that cannot be hashed
            return self._of_params(eqn)
        if found is None:
            found = self.params[key] = self._of_params(eqn)
        return found

    def _of_params(self, eqn: Any) -> str:
        plain = sorted([(name, self.of(value)) for name, value in eqn.params.items() if _is_plain(value)])
        return f"{eqn.primitive.name}{plain}"

    def of_aval(self, aval: Any) -> str:
        found = self.avals.get(aval)
        if found is None:
            found = repr((aval.shape, self.of(aval.dtype)) if hasattr(aval, "shape") else str(aval))
            self.avals[aval] = found
        return found

    def of(self, value: Any) -> str:
        if not isinstance(value, np.dtype):
            return str(value)
        found = self.dtypes.get(value)
        if found is None:
            found = self.dtypes[value] = str(value)
        return found


_WORDS = frozenset((type(None), bool, int, float, str))


def _is_plain(value: Any) -> bool:
    """Whether a parameter is numbers and words only, so that it reads the same in every process."""
    if type(value) in _WORDS:
        return True
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str, np.dtype))


def _is_placement(eqn: Any) -> bool:
    """Whether an equation only says on which devices its operand lies."""
    if eqn.primitive.name != "sharding_constraint":
        return False
    return getattr(eqn.params["sharding"], "memory_kind", None) not in ("pinned_host", "unpinned_host")


def plain(program: Program) -> Callable[..., list[Any]]:
    """The traced program as a function of its flat arguments, without the placements that it names itself."""
    return constrained(program, lambda slot: ())


def narrowest_float(program: Program) -> str | None:
    """The floating-point type of fewest significant bits that an op of the program makes, or None."""
    found: set[str] = set()

    for eqn in _equations(program.jaxpr):
        for var in eqn.outvars:
            dtype = getattr(var.aval, "dtype", None)
            if dtype is not None and jax.dtypes.issubdtype(dtype, np.floating):
                found.add(str(dtype))
    return max(found, key=lambda name: float(jax.numpy.finfo(name).eps), default=None)


def widened(program: Program, kinds: Container[str]) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, for one device, with these ops of 16-bit floats done in float32."""
    return constrained(replace(program, jaxpr=_widen(program.jaxpr, kinds)), lambda slot: ())


def _widen(jaxpr: Any, kinds: Container[str]) -> Any:
    body = _open(jaxpr)
    eqns: list[Any] = []
    for eqn in body.eqns:
        structure = _structure(eqn)
        params = dict(eqn.params)
        for place in structure.bodies if structure else ():
            _with_body(params, place, _widen(_body(eqn, place), kinds))
        narrow = [str(getattr(v.aval, "dtype", "")) in ("bfloat16", "float16") for v in (*eqn.invars, *eqn.outvars)]
        eqns.append(_in_float32(eqn) if eqn.primitive.name in kinds and all(narrow) else eqn.replace(params=params))
    new = body.replace(eqns=eqns)
    return new if jaxpr is body else jaxpr.replace(jaxpr=new)


def _in_float32(eqn: Any) -> Any:
    """The equation as a call that converts its operands to float32 and its results back."""
    params = dict(eqn.params)
    if params.get("preferred_element_type") is not None:
        params["preferred_element_type"] = np.dtype(np.float32)

    def wide(*operands: Any) -> list[Any]:
        results = eqn.primitive.bind(*(x.astype(np.float32) for x in operands), **params)
        values = results if eqn.primitive.multiple_results else [results]
        return [x.astype(var.aval.dtype) for x, var in zip(values, eqn.outvars, strict=True)]

    avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    call = _open(jax.make_jaxpr(jax.jit(wide))(*avals)).eqns[0]
    return call.replace(invars=list(eqn.invars), outvars=list(eqn.outvars))
