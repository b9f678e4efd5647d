"""Where call-like primitives of the supported JAX releases keep their bodies, and how those are read and put back.

What a release changes in them is mended here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.extend.core as jex_core
from jax.sharding import AxisType

from planner.program.graph import Path

Place = tuple[str, int | None]
"""Where an equation keeps a body: (param, index within the param or None)."""


def equations_of(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program, those of bodies that are planned included."""
    for eqn in opened(jaxpr).eqns:
        yield eqn
        structure = structure_of(eqn)
        for place in structure.bodies if structure else ():
            yield from equations_of(body_of(eqn, place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """How an equation's bodies relate to its operands and results."""

    kind: Literal["inline", "scan", "while", "cond"]
    bodies: tuple[Place, ...]
    num_consts: int = 0
    num_carry: int = 0
    cond_consts: int = 0
    length: float = 1
    copies: int = 1
    reverse: bool = False
    takes: tuple[int, ...] | None = None
    """The operands that the body takes, where it does not take all."""


def _inlined(*params: str) -> Callable[[Any], Structure]:
    """The reader of a call whose body is expanded in place: the first of these params that there is."""
    structures = {param: Structure(kind="inline", bodies=((param, None),)) for param in params}
    return lambda eqn: structures[next(param for param in params if param in eqn.params)]


def _structure_of_scan(eqn: Any) -> Structure:
    params = eqn.params
    if "ft_in" in params:  # JAX 0.11 and later
        consts, carry = (len(part) for part in params["ft_in"].unpack()[:2])
    else:
        consts, carry = params["num_consts"], params["num_carry"]
    length, unroll = params["length"], params["unroll"]
    return Structure(
        kind="scan",
        bodies=(("jaxpr", None),),
        num_consts=consts,
        num_carry=carry,
        length=length,
        copies=unroll + length % unroll if length > unroll else max(length, 1),
        reverse=params["reverse"],
    )


def _structure_of_while(eqn: Any) -> Structure:
    return Structure(
        kind="while",
        bodies=(("cond_jaxpr", None), ("body_jaxpr", None)),
        cond_consts=eqn.params["cond_nconsts"],
        num_consts=eqn.params["body_nconsts"],
    )


def _structure_of_cond(eqn: Any) -> Structure:
    return Structure(kind="cond", bodies=tuple(("branches", i) for i in range(len(eqn.params["branches"]))))


def _structure_of_linear_solve(eqn: Any) -> Structure:
    """Only the solve is computed; the other functions serve the derivatives."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"]._fields.index("solve")
    first, last = lengths.matvec + lengths.vecmat, sum(lengths)
    takes = (*range(first, first + lengths.solve), *range(last, len(eqn.invars)))
    return Structure(kind="inline", bodies=(("jaxprs", solve),), takes=takes)


_STRUCTURES: Mapping[str, Callable[[Any], Structure]] = {
    "jit": _inlined("jaxpr"),
    "pjit": _inlined("jaxpr"),
    "call": _inlined("call_jaxpr"),
    "closed_call": _inlined("call_jaxpr"),
    "core_call": _inlined("call_jaxpr"),
    "eval_jaxpr": _inlined("call_jaxpr", "jaxpr"),
    "composite": _inlined("call_jaxpr", "jaxpr"),
    "compute_on": _inlined("jaxpr"),
    "linear_call": _inlined("callee"),
    "program_order": _inlined("call_jaxpr"),
    "xla_metadata_call": _inlined("jaxpr"),
    "remat2": _inlined("jaxpr"),
    "remat_opt": _inlined("fwd_jaxpr"),
    "checkpoint": _inlined("jaxpr"),
    "custom_jvp_call": _inlined("call_jaxpr"),
    "custom_vjp_call": _inlined("call_jaxpr"),
    "custom_vjp_call_jaxpr": _inlined("fun_jaxpr"),
    "custom_vmap_call": _inlined("call"),
    "custom_linear_solve": _structure_of_linear_solve,
    "scan": _structure_of_scan,
    "while": _structure_of_while,
    "cond": _structure_of_cond,
}
"""Calls whose bodies are part of the graph."""

LOWERED = frozenset(("custom_fusion", "fusible", "run_state"))
"""Calls that JAX lowers as what their `impl` computes, which is more than their body (see `calls.with_lowered`)."""

_COUNTED: Mapping[str, str] = {
    "cudnn_fusion": "jaxpr",
    "custom_partitioning": "call",
    "fused_call": "jaxpr",
    "run_state": "jaxpr",
    "shard_map": "jaxpr",
}
"""Equations that stay one op, with the param whose body says what they work."""

_COMBINES = "its body combines two elements: cost_models has its work"
_KERNEL = "a kernel: its body reads and writes references to blocks, and the rules of kernels have its work"
_IN_KERNELS = "stands in the bodies of Pallas kernels alone"
_NEVER_LOWERED = "stands in no program that runs: it is gone once a function is differentiated or lowered"
_OTHER_PROGRAMS = "stands in programs of GPU thunks alone, which JAX runs from within an op of their own"

UNOPENED: Mapping[str, str] = {
    "call_exported": "its body is serialized code for one platform",
    "call_hi_primitive": "a program that holds it is planned as what it lowers to (see `trace`)",
    "call_hi_primitive_linearized": _NEVER_LOWERED,
    "core_map": _KERNEL,
    "custom_lin": _NEVER_LOWERED,
    "dot_product_attention_bwd": _KERNEL,
    "dot_product_attention_fwd": _KERNEL,
    "emit_pipeline": _IN_KERNELS,
    "jaxpr_call": _IN_KERNELS,
    "mpmd_map": _KERNEL,
    "pallas_call": _KERNEL,
    "parallel_loop": _IN_KERNELS,
    "pipeline_body": _IN_KERNELS,
    "reduce": _COMBINES,
    "reduce_window": _COMBINES,
    "run_scoped": _IN_KERNELS,
    "scatter": _COMBINES,
    "scatter-add": _COMBINES,
    "scatter-max": _COMBINES,
    "scatter-min": _COMBINES,
    "scatter-mul": _COMBINES,
    "scatter-sub": _COMBINES,
    "select_and_scatter": _COMBINES,
    "thunky.async_start": _OTHER_PROGRAMS,
    "thunky.call_thunky_nested": _OTHER_PROGRAMS,
    "thunky.collective_group": _OTHER_PROGRAMS,
    "thunky.cond": _OTHER_PROGRAMS,
    "thunky.while": _OTHER_PROGRAMS,
}
"""Primitives with bodies that are neither expanded nor counted, and why."""


def is_known(name: str) -> bool:
    """Whether it is decided what becomes of the body of a primitive of this name."""
    return name in _STRUCTURES or name in _COUNTED or name in LOWERED or name in UNOPENED


def structure_of(eqn: Any) -> Structure | None:
    """How to read the bodies of `eqn`, or None for a leaf (opaque kernels included)."""
    read = _STRUCTURES.get(eqn.primitive.name)
    return None if read is None else read(eqn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The body of an equation that stays one op: what it works. `axes` as of `planner.program.graph.Body`."""

    jaxpr: Any
    axes: Mapping[str, int] | None


def counted_body(eqn: Any) -> Counted | None:
    """The body that says what an equation works that stays one op; None where there is none, or it says no such thing.

    A primitive that no table here knows is taken for a call of its body if it has one whose operands and results are its
    own, by their types.
    """
    name, params = eqn.primitive.name, eqn.params
    if name == "shard_map":
        return Counted(jaxpr=params["jaxpr"], axes={axis: params["mesh"].shape[axis] for axis in manual_axes(eqn)})
    if name in _COUNTED:
        return Counted(jaxpr=params[_COUNTED[name]], axes=None)
    if is_known(name):
        return None
    bodies = [value for value in params.values() if hasattr(opened(value), "eqns")]
    called = len(bodies) == 1 and _types(opened(bodies[0])) == _types(eqn)
    return Counted(jaxpr=bodies[0], axes=None) if called else None


def free_axes(eqn: Any) -> tuple[str, ...]:
    """The axes of the mesh of a `shard_map`, of more than one device, along which the compiler may split its body."""
    mesh, manual = eqn.params["mesh"], manual_axes(eqn)
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(a for a, kind in kinds if kind != AxisType.Manual and a not in manual and mesh.shape[a] > 1)


def manual_axes(eqn: Any) -> tuple[str, ...]:
    """The axes over which a `shard_map` is one, in the order of its mesh; the rest is left to the compiler in its body."""
    manual = eqn.params["newly_manual_axes" if "newly_manual_axes" in eqn.params else "manual_axes"]
    return tuple(axis for axis in eqn.params["mesh"].axis_names if axis in manual)


def _types(of: Any) -> tuple[list[Any], ...]:
    """The types of what a body or an equation takes and gives, but for how they are placed."""
    return tuple(
        [(getattr(a.aval, "shape", None), getattr(a.aval, "dtype", a.aval)) for a in side]
        for side in (of.invars, of.outvars)
    )


REMATS = frozenset(("remat2", "checkpoint"))
"""Calls that mean more than what they compute: it is computed again in a gradient, apart from what equals it outside."""


def opened(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    return getattr(jaxpr, "consts", ())


def holds_constants(jaxpr: Any) -> bool:
    """Whether a body comes with arrays of its own."""
    return bool(len(consts_of(jaxpr)) or opened(jaxpr).constvars)


def body_of(eqn: Any, body: Place) -> Any:
    param, index = body
    return eqn.params[param] if index is None else eqn.params[param][index]


def put_body(params: dict[str, Any], body: Place, new: Any) -> None:
    """Puts another body in the place of one, in a copy of the parameters of its equation."""
    param, index = body
    old = params[param]
    if index is None:
        params[param] = new
    else:
        bodies = [new if i == index else one for i, one in enumerate(old)]
        params[param] = type(old)(*bodies) if hasattr(old, "_fields") else tuple(bodies)


def unchanging(eqn: Any, structure: Structure, param: str) -> Sequence[Any]:
    """The operands that are the first variables of the body in a param in every pass, in their order."""
    operands = eqn.invars
    match structure.kind:
        case "inline":
            return operands if structure.takes is None else [operands[i] for i in structure.takes]
        case "cond":
            return operands[1:]
        case "while" if param == "cond_jaxpr":
            return operands[: structure.cond_consts]
        case "while":
            return operands[structure.cond_consts :][: structure.num_consts]
        case "scan":
            return operands[: structure.num_consts]


def with_bodies(eqn: Any, rewritten: Callable[[Any, Place], Any]) -> Any:
    """An equation with its bodies rewritten, each given with its place; the same object where none changes."""
    structure = structure_of(eqn)
    if structure is None:
        return eqn
    params, changed = dict(eqn.params), False
    for place in structure.bodies:
        inner = body_of(eqn, place)
        new = rewritten(inner, place)
        if new is not inner:
            put_body(params, place, new)
            changed = True
    return eqn.replace(params=params) if changed else eqn


def with_fields(jaxpr: Any, **fields: Any) -> Any:
    """A program, open or closed, with other equations, operands, results or variables of its constants."""
    body = opened(jaxpr)
    if "constvars" in fields and hasattr(body, "consts"):
        return with_constants(body, zip(fields["constvars"], body.consts, strict=True), **fields)
    new = body.replace(**fields)
    return new if jaxpr is body else jaxpr.replace(jaxpr=new)


def with_constants(jaxpr: Any, held: Iterable[tuple[Any, Any]], **fields: Any) -> Any:
    """A program, open or closed, that holds these constants, as (variable, value), with other fields of its body.

    One that cannot hold values, as open ones before JAX 0.12, keeps the variables. Since then both are replaced at once:
    variables without values become operands.
    """
    body, held = opened(jaxpr), list(held)
    fields["constvars"], values = [var for var, _ in held], [value for _, value in held]
    if jaxpr is not body:
        return jex_core.ClosedJaxpr(body.replace(**fields), values)
    return body.replace(**fields, consts=values) if hasattr(body, "consts") else body.replace(**fields)


def body_path(path: Path, body: Place) -> Path:
    param, index = body
    return (*path, param if index is None else f"{param}[{index}]")


def closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else jex_core.ClosedJaxpr(jaxpr, ())
