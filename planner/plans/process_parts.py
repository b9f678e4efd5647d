"""Arguments of which every process brings its own part: those that a user names, made wholes to plan for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from planner.errors import ArgumentError
from planner.machine.host_parts import whole_of
from planner.machine.target import Target
from planner.pricing.candidates.pins import close_names, matcher
from planner.program.tracing.arguments import joined
from planner.program.tracing.call import Call

ProcessLocal = Sequence[str] | Mapping[str, int]
"""Names of arguments, or patterns over names, or these to the dim along which the parts are put together (else 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithWholes:
    """A call with the arguments that its function takes, and the dims of parts by the names of their arrays."""

    call: Call
    dims: Mapping[str, int]


def with_wholes(call: Call, process_local: ProcessLocal, target: Target, *, static: Sequence[int]) -> WithWholes:
    """The call with wholes in the place of this process's parts. Raises: ArgumentError, MeshError."""
    by_pattern = _dims_by_pattern(process_local)
    if not by_pattern:
        return WithWholes(call=call, dims={})
    names = call.parameters
    known: list[str] = []
    dims: dict[str, int] = {}
    used: set[str] = set()
    matches = [(pattern, matcher(pattern), dim) for pattern, dim in by_pattern.items()]
    wholes: list[Any] = []
    for i, value in enumerate(call.args):
        if i in static:
            wholes.append(value)
            continue
        leaves, tree = jax.tree_util.tree_flatten_with_path(value)
        made: list[Any] = []
        for path, leaf in leaves:
            name = joined(names[i], path)
            known.append(name)
            dim = None
            for pattern, is_meant, of_dim in matches:
                if is_meant(name) or name.startswith(f"{pattern}/"):
                    used.add(pattern)
                    dim = of_dim
            if dim is not None:
                _check_dim(name, leaf, dim)
                dims[name] = dim
                leaf = whole_of(name, leaf, dim, target.devices or ())
            made.append(leaf)
        same = all(one is other for one, (_, other) in zip(made, leaves, strict=True))
        wholes.append(value if same else jax.tree.unflatten(tree, made))
    for pattern in by_pattern:
        if pattern not in used:
            raise ArgumentError(
                f"process_local names {pattern!r}, and no argument is called so; names look like "
                f"{close_names(pattern, [*names, *known])}"
            )
    return WithWholes(call=replace(call, args=tuple(wholes)), dims=dims)


def _dims_by_pattern(process_local: ProcessLocal) -> dict[str, int]:
    """The dims by pattern. Raises: ArgumentError."""
    given = process_local if isinstance(process_local, Mapping) else None
    if given is None and isinstance(process_local, (tuple, list)):
        given = dict.fromkeys(process_local, 0)
    if given is None or not all(isinstance(name, str) and type(dim) is int and dim >= 0 for name, dim in given.items()):
        raise ArgumentError(
            f"process_local is {process_local!r:.200}; give a tuple of names of arguments, such as ('batch',), or a "
            "mapping from names to the dim along which the parts of the processes are put together"
        )
    return dict(given)


def _check_dim(name: str, leaf: Any, dim: int) -> None:
    rank = len(getattr(leaf, "shape", ()))
    if dim >= rank:
        raise ArgumentError(
            f"process_local names {name}, which has {rank} dims and no dim {dim} along which parts could be put together; "
            "name the arrays of the batch only"
        )
