"""Derivative rules of a program traced under Explicit mesh axes, for its plain equations.

Equations hold the rules of `custom_jvp` and `custom_vjp` as functions, which JAX traces when the program is differentiated,
wherever that is. Here they are traced under the mesh that they were written for, and what they trace to is made plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.linear_util as linear_util

from planner.program.jaxpr.bodies import opened
from planner.program.jaxpr.placements.meshless import outside_of_meshes, without_axes
from planner.program.jaxpr.placements.placed_types import named_mesh

_RULES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk")
"""Params that make the jaxpr of a rule; `bwd` is a function of arrays."""


def plain_rules(eqn: Any, plain: Callable[[Any], Any]) -> dict[str, Any]:
    """The params of an equation that are derivative rules, by name, for plain operands; `plain` makes bodies so."""
    found: dict[str, Any] = {name: _Rule(plain, eqn.params[name], eqn.ctx) for name in _RULES if name in eqn.params}
    if "bwd" in eqn.params and "fwd_jaxpr_thunk" in found:
        found["bwd"] = _backward(found["fwd_jaxpr_thunk"], eqn)
    return found


class _Rule:
    """A rule as equations hold it: what makes the plain jaxpr of it. `types` are those of its results, once it is made."""

    def __init__(self, plain: Callable[[Any], Any], rule: Any, context: Any) -> None:
        self._plain, self._rule, self._context = plain, rule, context
        self.debug_info = rule.debug_info
        self.types: list[Any] = []

    def call_wrapped(self, *zeros: Any) -> Any:
        """As of the rule: its jaxpr, the constants of it, and what it tells beside them."""
        with self._context.manager:
            jaxpr, consts, *rest = self._rule.call_wrapped(*zeros)
        self.types = [atom.aval for atom in opened(jaxpr).outvars]
        return (self._plain(jaxpr), [*map(without_axes, consts)], *rest)


def _backward(forward: _Rule, eqn: Any) -> Any:
    """The backward rule of a `custom_vjp` for plain operands: it is called with those that it was written for."""
    rule = eqn.params["bwd"]

    def backward(*operands: Any) -> Any:
        saved = iter(forward.types)
        _, _, forwarded = eqn.params["out_trees"]()
        residuals = [next(saved) if i is None else eqn.invars[i].aval for i in forwarded]
        types = [*residuals, *(var.aval for var in eqn.outvars)]
        with eqn.ctx.manager:
            results = rule.call_wrapped(*map(_typed, operands, types))
        with outside_of_meshes():
            return jax.tree.map(lambda x: without_axes(x) if isinstance(x, jax.Array) else x, results)

    return linear_util.wrap_init(backward, debug_info=rule.debug_info)


def _typed(value: Any, aval: Any) -> Any:
    """An array with the placement in its type that another type has."""
    if named_mesh(aval) is None or not isinstance(value, jax.Array) or value.dtype != aval.dtype:
        return value
    return jax.sharding.reshard(value, aval.sharding)
