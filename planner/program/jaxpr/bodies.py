"""Where call-like primitives of the supported JAX releases keep their bodies, and how those are read and put back.

What a release changes in them is mended here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.extend.core as jex_core

from planner.program.graph import Path


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
    bodies: tuple[tuple[str, int | None], ...]
    """(param, index within the param or None) of each body."""
    num_consts: int = 0
    num_carry: int = 0
    cond_consts: int = 0
    length: float = 1
    copies: int = 1
    takes: tuple[int, ...] | None = None
    """The operands that the body takes, where it does not take all."""


def _inlined(param: str) -> Callable[[Any], Structure]:
    """The reader of a call whose body, the param of this name, is expanded in place."""
    structure = Structure(kind="inline", bodies=((param, None),))
    return lambda eqn: structure


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


def structure_of(eqn: Any) -> Structure | None:
    """How to read the bodies of `eqn`, or None for a leaf (opaque kernels included)."""
    read = _STRUCTURES.get(eqn.primitive.name)
    return None if read is None else read(eqn)


REMATS = frozenset(("remat2", "checkpoint"))
"""Calls that mean more than what they compute: it is computed again in a gradient, apart from what equals it outside."""


def opened(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def consts_of(jaxpr: Any) -> Sequence[Any]:
    return getattr(jaxpr, "consts", ())


def holds_constants(jaxpr: Any) -> bool:
    """Whether a body comes with arrays of its own."""
    return bool(len(consts_of(jaxpr)) or opened(jaxpr).constvars)


def body_of(eqn: Any, body: tuple[str, int | None]) -> Any:
    param, index = body
    return eqn.params[param] if index is None else eqn.params[param][index]


def put_body(params: dict[str, Any], body: tuple[str, int | None], new: Any) -> None:
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


def with_bodies(eqn: Any, structure: Structure, rewritten: Callable[[Any, str], Any]) -> Any:
    """An equation with its bodies rewritten, each told with the param it is in; the same object where none changes."""
    params, changed = dict(eqn.params), False
    for place in structure.bodies:
        inner = body_of(eqn, place)
        new = rewritten(inner, place[0])
        if new is not inner:
            put_body(params, place, new)
            changed = True
    return eqn.replace(params=params) if changed else eqn


def body_path(path: Path, body: tuple[str, int | None]) -> Path:
    param, index = body
    return (*path, param if index is None else f"{param}[{index}]")


def closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "consts") else jex_core.ClosedJaxpr(jaxpr, ())


def fresh_var(var: Any) -> Any:
    return jex_core.Var(var.aval)
