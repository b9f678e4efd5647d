"""Kernels that look up constants of the program, such as which blocks a mask leaves: their work, counted with these.

Splash attention has its mask as integers that it fetches first; with those of a causal mask it computes about half of its
blocks. Whoever reads a call alone does not see them, so that such a call is given an estimate of its work.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np
from jax.core import Tracer

from planner.program.jaxpr.bodies import (
    Place,
    Structure,
    consts_of,
    opened,
    structure_of,
    unchanging,
    with_bodies,
    with_fields,
)
from planner.program.jaxpr.pallas.grid_reading import grid_reading
from planner.program.jaxpr.pallas.grid_tables import Table
from planner.program.jaxpr.pallas.kernel_counts import counted_steps
from planner.program.jaxpr.pallas.pallas_calls import READ_FORMS, PallasCall, pallas_call_of

MOST_BYTES = 1 << 20
"""Constants of more bytes are not looked into."""
Known = Mapping[Any, Table]
"""Integers that are known, by variable."""


def with_estimates(jaxpr: Any) -> Any:
    """The program whose kernels that look up constants say what they work; the program itself where there are none."""
    return _estimated(jaxpr, {})


def _estimated(jaxpr: Any, given: Known) -> Any:
    body = opened(jaxpr)
    held = {var: _integers(value) for var, value in zip(body.constvars, consts_of(jaxpr), strict=False)}
    known = {**given, **{var: value for var, value in held.items() if value is not None}}
    eqns = [_step(eqn, known) for eqn in body.eqns]
    same = all(new is old for new, old in zip(eqns, body.eqns, strict=True))
    return jaxpr if same else with_fields(jaxpr, eqns=eqns)


def _step(eqn: Any, known: Known) -> Any:
    structure = structure_of(eqn)
    if structure is not None:
        return with_bodies(eqn, partial(_inside, eqn, structure, known))
    if eqn.primitive.name == "shard_map":
        inner = eqn.params["jaxpr"]
        whole = [atom if not any(spec) else None for atom, spec in zip(eqn.invars, eqn.params["in_specs"], strict=True)]
        new = _estimated(inner, _passed(opened(inner).invars, whole, known))
        return eqn if new is inner else eqn.replace(params={**eqn.params, "jaxpr": new})
    if eqn.primitive.name == "pallas_call" and eqn.params["cost_estimate"] is None:
        return _kernel(eqn, known)
    return eqn


def _inside(eqn: Any, structure: Structure, known: Known, inner: Any, place: Place) -> Any:
    return _estimated(inner, _passed(opened(inner).invars, unchanging(eqn, structure, place[0]), known))


def _passed(variables: Any, operands: Any, known: Known) -> Known:
    pairs = zip(variables, operands, strict=False)
    return {var: known[atom] for var, atom in pairs if _is_variable(atom) and atom in known}


def _is_variable(atom: Any) -> bool:
    return atom is not None and not isinstance(atom, jex_core.Literal)


def _integers(value: Any) -> Table | None:
    if isinstance(value, Tracer) or not isinstance(value, (np.ndarray, jax.Array)):
        return None
    if value.nbytes > MOST_BYTES or not (np.issubdtype(value.dtype, np.integer) or value.dtype == np.bool_):
        return None
    return np.asarray(value).astype(np.int64)


def _kernel(eqn: Any, known: Known) -> Any:
    mapping = eqn.params["grid_mapping"]
    first = mapping.num_dynamic_grid_bounds
    scalars = eqn.invars[first : first + mapping.num_index_operands]
    found = {n: known[atom] for n, atom in enumerate(scalars) if _is_variable(atom) and atom in known}
    call = pallas_call_of(eqn.params)
    if not found or call.reading is None or call.known is not None:
        return eqn
    estimated = _counted(call, tuple((n, table.shape, table.tobytes()) for n, table in found.items()))
    return eqn if estimated is None else eqn.replace(params=dict(estimated.params))


@lru_cache(maxsize=READ_FORMS)
def _counted(call: PallasCall, scalars: tuple[tuple[int, tuple[int, ...], bytes], ...]) -> PallasCall | None:
    known = {n: np.frombuffer(data, np.int64).reshape(shape) for n, shape, data in scalars}
    reading = grid_reading(call.params, known)
    counts = counted_steps(reading)
    if counts.guessed:
        return None
    moved = PallasCall(params=call.params, reading=reading).moved_bytes
    return call.estimated(counts.flops, counts.exponentials, moved)
