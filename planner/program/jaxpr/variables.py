"""What the variables of a program are called where a part of it is put elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.extend.core as jex_core


def called(atom: Any, names: Mapping[Any, Any]) -> Any:
    """What an atom is called where variables have other names; one that has none keeps its own."""
    return atom if isinstance(atom, jex_core.Literal) else names.get(atom, atom)


def all_named(atoms: Iterable[Any], names: Mapping[Any, Any]) -> list[Any]:
    return [called(atom, names) for atom in atoms]


def last_named(atom: Any, names: Mapping[Any, Any]) -> Any:
    """What an atom is called in the end, where names may themselves have been renamed."""
    while not isinstance(atom, jex_core.Literal) and atom in names:
        atom = names[atom]
    return atom


def with_own_variables(eqns: Iterable[Any], names: dict[Any, Any]) -> Iterator[Any]:
    """Equations of a body for one of its places, where their results have new variables, which `names` learns of."""
    for eqn in eqns:
        names.update((var, fresh_var(var)) for var in eqn.outvars if not isinstance(var, jex_core.DropVar))
        yield eqn.replace(invars=all_named(eqn.invars, names), outvars=all_named(eqn.outvars, names))


def fresh_var(var: Any) -> Any:
    return jex_core.Var(var.aval)


def is_on_host(var: Any) -> bool:
    """Whether an array lies in the memory of the host."""
    return getattr(var.aval, "memory_space", None) == jax.memory.Space.Host


def variables_in(atoms: Iterable[Any]) -> set[Any]:
    """The variables among some atoms."""
    return {atom for atom in atoms if not isinstance(atom, jex_core.Literal)}
