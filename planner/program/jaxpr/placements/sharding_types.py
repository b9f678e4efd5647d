"""Sharding in types: a program traced under Explicit mesh axes, made a plain one that says the same by constraints.

Under Explicit axes (`jax.set_mesh` of a mesh as `jax.make_mesh` makes it) every type names the axes that split its dims.
JAX carries them from operands to results; where that is ambiguous the user says it, with `out_sharding=`, `reshard` and
`auto_axes`. What the user says becomes a `sharding_constraint` on the same mesh with Auto axes. What JAX derives is left
to the planner: the types of values in between, and all placements in a backward pass, where a cotangent has the type of
its primal; those in backward rules of the user's own cannot be told from them. All types become those of a trace under no
mesh.

Arrays that are made of one number or of none are made wherever they are needed. A dim that a placement leaves whole is
free where the mesh also has Auto axes. A sum that is left unreduced is the sum: it
is placed where it is reduced. What JAX releases call all this is known here alone.

Derivative rules of a program traced under Explicit mesh axes, for its plain equations.

Equations hold the rules of `custom_jvp` and `custom_vjp` as functions, which JAX traces when the program is differentiated,
wherever that is. Here they are traced under the mesh that they were written for, and what they trace to is made plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex_core
import jax.extend.linear_util as linear_util
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from planner.errors import TraceError
from planner.program.jaxpr.bodies import consts_of, opened, with_constants
from planner.program.jaxpr.placements.meshless import constraint_equation, outside_of_meshes, without_axes
from planner.program.jaxpr.placements.placed_types import named_mesh
from planner.program.jaxpr.variables import fresh_var
from planner.program.mesh_axes import NO_DEVICES, NO_MESH, explicit_axes, with_auto_axes

_PLACEMENTS = ("out_sharding", "sharding")
"""Params that are the placement of an equation's results."""
_RECOMPUTED = "rematted_computation"


def without_sharding_types(jaxpr: Any, mesh: Mesh | AbstractMesh | None) -> tuple[Any, tuple[str, ...]]:
    """The program with constraints in the place of types that name axes, and notes on what it leaves to the planner.

    `mesh` is the one that is set; where it has devices, the constraints are on it, else on the abstract one of the types.
    Raises: TraceError for what has no meaning without types.
    """
    plain = _Plain(mesh if isinstance(mesh, Mesh) else None)
    new = plain.body(jaxpr, derived=False)
    return new, ("placements in gradients are left to the planner",) if plain.has_left_derived else ()


class _Plain:
    """Makes bodies plain, each once: bodies that are called several times stay one object."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = None if mesh is None else with_auto_axes(mesh)
        self.bodies: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self.contexts: dict[Any, Any] = {}
        self.has_left_derived = False

    # ------------------------------------------------------------ bodies and equations

    def body(self, jaxpr: Any, derived: bool) -> Any:
        """A body (open or closed); `derived`: whether it is JAX's own, of a gradient."""
        key = (id(jaxpr), derived)
        if key not in self.bodies:
            self.bodies[key] = (jaxpr, self._body(jaxpr, derived))
        return self.bodies[key][1]

    def _body(self, jaxpr: Any, derived: bool) -> Any:
        body = opened(jaxpr)
        names: dict[Any, Any] = {}
        constvars, invars = ([self._defined(var, names) for var in group] for group in (body.constvars, body.invars))
        eqns = [new for eqn in body.eqns for new in self._equations(eqn, names, derived)]
        outvars = [self._read(atom, names) for atom in body.outvars]
        new = {"invars": invars, "outvars": outvars, "eqns": eqns, "effects": _renamed_effects(body.effects, names)}
        if not hasattr(jaxpr, "consts"):
            return body.replace(**new, constvars=constvars)
        return with_constants(jaxpr, zip(constvars, map(without_axes, consts_of(jaxpr)), strict=True), **new)

    def _defined(self, var: Any, names: dict[Any, Any]) -> Any:
        """The variable that takes the place of one that is defined here."""
        names[var] = type(var)(self._aval(var.aval))
        return names[var]

    def _read(self, atom: Any, names: Mapping[Any, Any]) -> Any:
        if isinstance(atom, jex_core.Literal):
            return jex_core.Literal(atom.val, self._aval(atom.aval))
        return names[atom]

    def _equations(self, eqn: Any, names: dict[Any, Any], derived: bool) -> list[Any]:
        """The equations that compute what one does, and lay on it what the user says of it."""
        stack = str(eqn.source_info.name_stack)
        derived = (derived or "transpose(" in stack) and _RECOMPUTED not in stack
        operands = [self._read(atom, names) for atom in eqn.invars]
        if eqn.primitive.name == "reshard":
            placed = self._constraint_of(eqn, eqn.params["dst_sharding"], derived)
            if placed is None:
                names[eqn.outvars[0]] = operands[0]
                return []
            return [self._constraint(operands[0], self._defined(eqn.outvars[0], names), placed, eqn)]
        params = {name: self._param(value, derived) for name, value in eqn.params.items()}
        if eqn.primitive.name == "shard_map":
            _check_no_partial_sums(eqn)
        if "ctx_mesh" in params:
            params["ctx_mesh"] = NO_DEVICES
        if eqn.primitive.name == "sharding_constraint":
            params["sharding"] = self._with_types(eqn, params["sharding"])
            params["context_mesh"] = NO_MESH
        params |= plain_rules(eqn, lambda body: self.body(body, derived=False))
        given = None
        for name in _PLACEMENTS if eqn.primitive.name != "sharding_constraint" else ():
            if isinstance(params.get(name), NamedSharding):
                given, params[name] = eqn.params[name], None
        placed = None if given is None or _is_made_of_nothing(eqn) else self._constraint_of(eqn, given, derived)
        results = [self._defined(var, names) for var in eqn.outvars]
        made = eqn.replace(
            invars=operands,
            outvars=results,
            params=params,
            ctx=self._context(eqn.ctx),
            effects=_renamed_effects(eqn.effects, names),
        )
        if placed is None:
            return [made]
        before = [var if isinstance(var, jex_core.DropVar) else fresh_var(var) for var in results]
        laid = [self._constraint(a, b, placed, eqn) for a, b in zip(before, results, strict=True) if a is not b]
        return [made.replace(outvars=before), *laid]

    # ------------------------------------------------------------ placements

    def _constraint_of(self, eqn: Any, sharding: NamedSharding, derived: bool) -> NamedSharding | None:
        """The constraint that a placement of an equation's results is, None where the user did not ask for one."""
        mesh, spec, rank = sharding.mesh, sharding.spec, eqn.outvars[0].aval.ndim
        on_host = sharding.memory_kind in ("pinned_host", "unpinned_host")
        if not explicit_axes(mesh) or getattr(spec, "unreduced", None) or not (rank or on_host):
            return None
        if derived and not on_host:
            self.has_left_derived = True
            return None
        entries = _entries(spec, rank)
        if AxisType.Auto in mesh.axis_types:
            entries = [PartitionSpec.UNCONSTRAINED if entry is None else entry for entry in entries]
            if all(entry is PartitionSpec.UNCONSTRAINED for entry in entries):
                return None
        return NamedSharding(self._mesh(mesh), PartitionSpec(*entries), memory_kind=sharding.memory_kind)

    def _mesh(self, mesh: Any) -> Any:
        """The mesh of constraints, for that of a type."""
        if self.mesh is not None and mesh.shape == self.mesh.shape and AxisType.Manual not in mesh.axis_types:
            return self.mesh
        return with_auto_axes(mesh)

    def _with_types(self, eqn: Any, sharding: Any) -> Any:
        """The sharding of a constraint on Auto axes, with what the type of its result says of Explicit ones."""
        aval = eqn.outvars[0].aval
        if not isinstance(sharding, NamedSharding):
            return sharding
        pairs = zip(_entries(aval.sharding.spec, aval.ndim), _entries(sharding.spec, aval.ndim), strict=True)
        joined = [_joined(*pair) for pair in pairs]
        return NamedSharding(self._mesh(sharding.mesh), PartitionSpec(*joined), memory_kind=sharding.memory_kind)

    def _constraint(self, operand: Any, result: Any, sharding: NamedSharding, eqn: Any) -> Any:
        made = constraint_equation(operand.aval, sharding)
        return made.replace(invars=[operand], outvars=[result], source_info=eqn.source_info, ctx=self._context(eqn.ctx))

    # ------------------------------------------------------------ types, params, contexts

    def _aval(self, aval: Any) -> Any:
        inner = getattr(aval, "inner_aval", None)
        if inner is not None:
            return aval.update(inner_aval=self._aval(inner))
        sharding = getattr(aval, "sharding", None)
        if sharding is None or sharding.mesh.empty:
            return aval
        return aval.update(sharding=NamedSharding(_plain_mesh(sharding.mesh), PartitionSpec(*[None] * aval.ndim)))

    def _param(self, value: Any, derived: bool) -> Any:
        """The param of an equation, with the bodies, types and meshes in it made plain."""
        if hasattr(opened(value), "eqns"):
            return self.body(value, derived)
        if isinstance(value, (tuple, list)):
            items: Sequence[Any] = value
            new = [self._param(item, derived) for item in items]
            if all(a is b for a, b in zip(new, items, strict=True)):
                return items
            return type(items)(*new) if hasattr(items, "_fields") else type(items)(new)
        if isinstance(value, jax.core.ShapedArray):
            return self._aval(value)
        if isinstance(value, NamedSharding) and explicit_axes(value.mesh):
            return NamedSharding(
                self._mesh(value.mesh), PartitionSpec(*value.spec.partitions), memory_kind=value.memory_kind
            )
        if isinstance(value, (Mesh, AbstractMesh)) and explicit_axes(value):
            return with_auto_axes(value)
        return value

    def _context(self, context: Any) -> Any:
        """What was set when an equation was made, with a plain mesh."""
        if context not in self.contexts:
            with context.manager, jax.sharding.use_abstract_mesh(_plain_mesh(context.cur_abstract_mesh)):
                self.contexts[context] = type(context)()
        return self.contexts[context]


def _plain_mesh(mesh: Any) -> Any:
    """The mesh of a plain type or context: none, but inside of a `shard_map`, whose axes are Manual."""
    return with_auto_axes(mesh) if AxisType.Manual in mesh.axis_types else NO_MESH


def _entries(spec: PartitionSpec, rank: int) -> list[Any]:
    """The entries of a spec, one for each dim."""
    entries = spec.partitions  # a spec of partial sums is no iterable
    return [*entries, *[None] * (rank - len(entries))]


def _joined(by_type: Any, added: Any) -> Any:
    """The axes that split a dim by its type, then those that a constraint adds."""
    if by_type is None or added is PartitionSpec.UNCONSTRAINED:
        return added if by_type is None else by_type
    axes = [axis for entry in (by_type, added or ()) for axis in (entry if isinstance(entry, tuple) else (entry,))]
    return tuple(dict.fromkeys(axes))


def _is_made_of_nothing(eqn: Any) -> bool:
    """Whether an equation makes an array of one number or of none, which takes no longer wherever it is needed."""
    return not any(atom.aval.ndim for atom in eqn.invars)


def _renamed_effects(effects: Any, names: Mapping[Any, Any]) -> Any:
    """Effects on mutable arrays, which are known by their variables."""
    renamed = [
        effect.replace(input=names[effect.input]) if getattr(effect, "input", None) in names else effect
        for effect in effects
    ]
    return type(effects)(renamed)


def _check_no_partial_sums(eqn: Any) -> None:
    """Nothing. Raises: TraceError where a `shard_map` takes or returns sums that are left to be added up outside."""
    for spec in (*eqn.params["in_specs"], *eqn.params["out_specs"]):
        kinds = [kind for kind in ("unreduced", "reduced") if getattr(spec, kind, None)]
        if kinds:
            raise TraceError(
                f"a shard_map has the spec {spec}, {kinds[0]} over mesh axes, which constraints cannot say; add its sums "
                "up inside, with jax.lax.psum"
            )


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
