"""Tables: integers that follow from the place in a grid, with a dim for each of its axes; how they are made and read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.extend.core as jex_core
import numpy as np
import numpy.typing as npt

from planner.program.jaxpr.bodies import body_of, opened

Table = npt.NDArray[np.int64]
MOST_POINTS = 1 << 22
"""Tables of more points of a grid are not made: what they would hold is unknown."""


def _same(params: Mapping[str, Any], x: Any, *_: Any) -> Any:
    return x


def _quotient(params: Mapping[str, Any], x: Any, y: Any) -> Any:
    """Rounded towards zero, as of integers on devices; 0 where they divide by 0, which nothing reads."""
    safe = np.where(y == 0, 1, y)
    return np.where(y == 0, 0, np.sign(x) * np.sign(safe) * (np.abs(x) // np.abs(safe)))


def _remainder(params: Mapping[str, Any], x: Any, y: Any) -> Any:
    return x - _quotient(params, x, y) * y


def _converted(params: Mapping[str, Any], x: Any, *_: Any) -> Any:
    return (x != 0).astype(np.int64) if str(params["new_dtype"]) == "bool" else x


def _selected(params: Mapping[str, Any], which: Any, *cases: Any) -> Any:
    found = cases[0]
    for number, case in enumerate(cases[1:], 1):
        found = np.where(which >= number, case, found)
    return found


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *values: np.asarray(function(*values)).astype(np.int64)


SCALAR_STEPS: Mapping[str, Callable[..., Any]] = {
    "abs": _of(np.abs),
    "add": _of(np.add),
    "and": _of(np.bitwise_and),
    "clamp": _of(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "convert_element_type": _converted,
    "copy": _same,
    "div": _quotient,
    "eq": _of(np.equal),
    "ge": _of(np.greater_equal),
    "gt": _of(np.greater),
    "le": _of(np.less_equal),
    "lt": _of(np.less),
    "max": _of(np.maximum),
    "min": _of(np.minimum),
    "mul": _of(np.multiply),
    "multiple_of": _same,
    "ne": _of(np.not_equal),
    "neg": _of(np.negative),
    "not": _of(lambda x: 1 - x),
    "or": _of(np.bitwise_or),
    "rem": _remainder,
    "select_n": _selected,
    "shift_left": _of(np.left_shift),
    "sign": _of(np.sign),
    "sub": _of(np.subtract),
}
"""Of the params and tables of a step the table that it makes. Truth values are 0 and 1; `not` is that of truth values."""


def period_of(table: Table, axis: int) -> int:
    """After how many steps along an axis a table is the same again."""
    along = np.moveaxis(table, axis, 0)
    extent = len(along)
    return next(n for n in range(1, extent + 1) if extent % n == 0 and (n == extent or (along[n:] == along[:-n]).all()))


def fetches(numbers: Sequence[Table | None], grid: Sequence[int]) -> float:
    """How often the number of a block changes over a grid, whose last axis changes first; None follows from data."""
    tables = [table for table in numbers if table is not None]
    if len(tables) < len(numbers):
        return float(math.prod(grid))
    axes = [axis for table in tables for axis, extent in enumerate(table.shape) if extent > 1]
    outer = tuple(grid[: max(axes, default=-1) + 1])
    if math.prod(outer) > MOST_POINTS or not outer:
        return float(math.prod(outer))
    places = [np.broadcast_to(table, (*outer, *(1,) * (len(grid) - len(outer)))).reshape(-1) for table in tables]
    return 1.0 + np.count_nonzero(np.any([np.diff(place) != 0 for place in places], axis=0))


def is_integer(var: Any, name: str) -> bool:
    """Whether what a step makes is an integer or a truth value; of `not` the latter alone."""
    dtype = getattr(var.aval, "dtype", None)
    if dtype is None or var.aval.shape:
        return False
    return dtype == np.bool_ or (name != "not" and np.dtype(dtype).kind in "iu")


def is_whole_number(literal: Any) -> bool:
    return not np.shape(literal.val) and np.asarray(literal.val).dtype.kind in "iub"


def bodies_of(eqn: Any) -> Iterator[Any]:
    for param in eqn.params.values():
        for each in param if isinstance(param, (tuple, list)) else (param,):
            if hasattr(each, "eqns") or hasattr(each, "jaxpr"):
                yield each


def is_all(indexer: Any, shape: Sequence[int]) -> bool:
    """Whether an indexer names all elements of an array; of ours, whose operands are numbers of operands."""
    indices = getattr(indexer, "indices", None)
    if indices is None or tuple(indexer.shape) != tuple(shape):
        return False
    return all(
        (index.start == 0 and index.size == extent and index.stride == 1) if hasattr(index, "size") else extent == 1
        for index, extent in zip(indices, shape, strict=True)
    )


def looked_up(indexers: Sequence[Any], values: Sequence[Any]) -> list[Table | None] | None:
    """For each dim which element is looked up, None what follows from data; None unless it is single elements."""
    if len(indexers) != 1 or not hasattr(indexers[0], "indices"):
        return None
    found: list[Table | None] = []
    for index in indexers[0].indices:
        if not isinstance(index, int):
            return None
        value = values[index]
        found.append(value if isinstance(value, np.ndarray) else None)
    return found


def trips_of(eqn: Any, structure: Any, values: Sequence[Any], constant: Callable[[Any], Table]) -> Table | None:
    """How often a `fori_loop` runs whose bounds follow from the place in the grid."""
    test, body = (opened(body_of(eqn, place)) for place in structure.bodies)
    if len(test.eqns) != 1 or test.eqns[0].primitive.name != "lt" or test.outvars[0] is not test.eqns[0].outvars[0]:
        return None
    first = structure.cond_consts + structure.num_consts

    def carried(atom: Any) -> int | None:
        known = not isinstance(atom, jex_core.Literal) and atom in test.invars
        return test.invars.index(atom) - structure.cond_consts if known else None

    counter, end = test.eqns[0].invars
    at, limit = carried(counter), carried(end)
    if at is None or at < 0:
        return None
    step = next((e for e in body.eqns if body.outvars[at] in e.outvars), None)
    if step is None or step.primitive.name != "add" or body.invars[structure.num_consts + at] not in step.invars:
        return None
    if not any(isinstance(atom, jex_core.Literal) and atom.val == 1 for atom in step.invars):
        return None
    start = values[first + at]
    if isinstance(end, jex_core.Literal):
        stop = constant(int(end.val))
    elif limit is None:
        return None
    elif limit < 0:
        stop = values[limit + structure.cond_consts]
    else:
        kept = body.outvars[limit] is body.invars[structure.num_consts + limit]
        stop = values[first + limit] if kept else None
    if not isinstance(start, np.ndarray) or not isinstance(stop, np.ndarray):
        return None
    return stop - start
