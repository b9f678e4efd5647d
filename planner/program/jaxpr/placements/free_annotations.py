"""Annotations taken out of a program: what it says of placement itself, so that the planner may place it otherwise.

Constraints are dropped, `shard_map`s are opened (`open_shard_map`), and so are `pmap`s. What only a mesh of one device is
named for says nothing of placement, and is always taken out; a `pmap` too: it names the devices that happen to be here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.extend.core as jex_core
from jax.core import ShapedArray
from jax.sharding import NamedSharding

from planner.program.jaxpr.bodies import equations_of, manual_axes, opened, with_bodies, with_fields
from planner.program.jaxpr.calls import equations_by
from planner.program.jaxpr.origins import lines_of
from planner.program.jaxpr.placements.open_shard_map import opened_shard_map
from planner.program.jaxpr.placements.vmappable_collectives import Unopenable, vmappable
from planner.program.jaxpr.variables import last_named
from planner.program.tracing.traced import Annotations

MOST_LINES = 3
"""Source lines that a note names."""


@dataclass(kw_only=True)
class _Freed:
    """What was taken out, by its kind and source line; and the `shard_map`s that stay, by source line and reason."""

    lines: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    kept: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    sizes: set[tuple[tuple[str, int], ...]] = field(default_factory=set[tuple[tuple[str, int], ...]])


def without_annotations(jaxpr: Any, annotations: Annotations) -> tuple[Any, tuple[str, ...]]:
    """A program without the annotations that are free, the same object where there are none; and notes on them."""
    if not any(map(_is_annotation, equations_of(jaxpr))):
        return jaxpr, ()
    free, freed = annotations == "free", _Freed()
    new = _Walk(free=free, freed=freed).walk(jaxpr, {})
    if freed.kept:
        # The mesh is that of the one that stays, and opened ones would only be further from how their bodies are written.
        again = _Freed(kept=freed.kept)
        new, freed = _Walk(free=free, opens=False, freed=again).walk(jaxpr, {}), again
    return new, _notes(freed, annotations)


def _is_annotation(eqn: Any) -> bool:
    return eqn.primitive.name in ("shard_map", "sharding_constraint")


@dataclass(kw_only=True)
class _Walk:
    """Copies bodies without what is free in them. `axes` are those of the `shard_map`s around a body that is opened."""

    free: bool
    freed: _Freed
    opens: bool = True
    pmapped: bool = False
    outside: Any = None
    """The context of the `shard_map` that is opened: within it, equations are traced under its manual axes."""

    def walk(self, jaxpr: Any, axes: Mapping[str, int]) -> Any:
        """A body (open or closed) without its annotations. Raises: Unopenable, within a `shard_map`."""
        body, renamed = opened(jaxpr), dict[Any, Any]()
        variables = [*body.constvars, *body.invars]
        if axes:
            renamed |= {var: _unvaried(var) for var in variables}

        def in_the_end(atoms: Sequence[Any]) -> list[Any]:
            return [last_named(atom, renamed) for atom in atoms]

        eqns: list[Any] = []
        for eqn in body.eqns:
            eqn = eqn.replace(invars=in_the_end(eqn.invars))
            if axes:
                eqn = eqn.replace(ctx=self.outside, params=_of_no_mesh(eqn.params))
                renamed |= {var: _unvaried(var) for var in eqn.outvars if not isinstance(var, jex_core.DropVar)}
            made, others = self._steps(eqn.replace(outvars=in_the_end(eqn.outvars)), axes)
            eqns += made
            renamed |= others
        return with_fields(
            jaxpr,
            constvars=in_the_end(body.constvars),
            invars=in_the_end(body.invars),
            outvars=in_the_end(body.outvars),
            eqns=eqns,
            **({"effects": _of_no_axes(body.effects)} if axes else {}),
        )

    def _steps(self, eqn: Any, axes: Mapping[str, int]) -> tuple[Sequence[Any], Mapping[Any, Any]]:
        """The equations that stand for one, and what those of its results are that need none."""
        name = eqn.primitive.name
        if name == "sharding_constraint" and (axes or self._is_free(eqn.params["sharding"])):
            self._record("constraint", eqn, getattr(eqn.params["sharding"], "mesh", None))
            return (), {eqn.outvars[0]: eqn.invars[0]}
        if name == "shard_map":
            return (self._shard_map(eqn, axes),), {}
        if axes:
            written = vmappable(eqn, axes)
            if written is not None:
                scope = [(axis, size) for axis, size in axes.items() if size > 1]
                return equations_by(written, eqn.invars, eqn.outvars, eqn.source_info, axis_env=scope)
            eqn = eqn.replace(effects=_of_no_axes(eqn.effects))
        outside = self.pmapped
        self.pmapped = self.pmapped or _is_pmap(eqn)
        new = with_bodies(eqn, lambda inner, _: self.walk(inner, axes))
        self.pmapped = outside
        return (new,), {}

    def _shard_map(self, eqn: Any, axes: Mapping[str, int]) -> Any:
        """A `shard_map` opened where it is free and can be, itself where not."""
        mesh = eqn.params["mesh"]
        alone = self.pmapped or _is_alone(mesh)
        if not (axes or alone or (self.free and self.opens)):
            return eqn
        inside = _Walk(free=True, freed=_Freed(), outside=self.outside or eqn.ctx)
        sizes = dict(mesh.shape)
        scope = {**axes, **{axis: sizes[axis] for axis in manual_axes(eqn)}}
        try:
            body = inside.walk(eqn.params["jaxpr"], scope)
            call = opened_shard_map(eqn, body, [(axis, size) for axis, size in axes.items() if size > 1])
        except Unopenable as reason:
            if axes:
                raise
            self.freed.kept.append((_line(eqn), str(reason)))
            return eqn
        self._record("pmap" if self.pmapped else "shard_map", eqn, mesh)
        for kind, lines in inside.freed.lines.items():
            self.freed.lines.setdefault(kind, []).extend(lines)
        return call

    def _is_free(self, of: Any) -> bool:
        """Whether what a sharding says is free."""
        return self.free or (isinstance(of, NamedSharding) and _is_alone(of.mesh))

    def _record(self, kind: str, eqn: Any, mesh: Any) -> None:
        self.freed.lines.setdefault(kind, []).append(_line(eqn))
        if mesh is not None and kind != "pmap":
            self.freed.sizes.add(tuple(mesh.shape.items()))


def _is_alone(mesh: Any) -> bool:
    """Whether a mesh is of one device."""
    return math.prod(mesh.shape.values()) == 1


def _is_pmap(eqn: Any) -> bool:
    """Whether a call is what `jax.pmap` traces to: a `jit` of its own around a `shard_map` over devices at hand."""
    if eqn.primitive.name not in ("jit", "pjit") or eqn.params["name"] != "_fun":
        return False
    inner = opened(eqn.params["jaxpr"]).eqns
    return len(inner) == 1 and inner[0].primitive.name == "shard_map" and len(inner[0].params["mesh"].shape) == 1


def _unvaried(var: Any) -> Any:
    """A new variable of the same type, but for the axes of a `shard_map` along which it varies."""
    return jex_core.Var(_plain(var.aval))


def _plain(aval: Any) -> Any:
    """An array's type without the mesh and the manual axes of a `shard_map`."""
    return type(aval)(aval.shape, aval.dtype, weak_type=aval.weak_type) if hasattr(aval, "weak_type") else aval


def _of_no_mesh(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters without a mesh: in tuples of types, such as those of what a kernel returns, and where results lie."""

    def plain(name: str, value: Any) -> Any:
        if name in ("sharding", "out_sharding") and isinstance(value, NamedSharding):
            return None
        is_avals = type(value) is tuple and value and all(isinstance(one, ShapedArray) for one in value)
        return tuple(map(_plain, value)) if is_avals else value

    return {name: plain(name, value) for name, value in params.items()}


def _of_no_axes(effects: Iterable[Any]) -> frozenset[Any]:
    return frozenset(effect for effect in effects if type(effect).__name__ != "NamedAxisEffect")


def _line(eqn: Any) -> str:
    """The user's own line of an equation, or of the first in its body; "" where nothing tells it."""
    inner = opened(eqn.params["jaxpr"]).eqns if eqn.primitive.name == "shard_map" else ()
    return next(filter(None, (lines_of(one.source_info)[0] for one in (eqn, *inner))), "")


def _notes(freed: _Freed, annotations: Annotations) -> tuple[str, ...]:
    """What a plan says of annotations that were taken out, and of those that could not be."""
    notes: list[str] = []
    found = dict(freed.lines)
    if pmaps := found.pop("pmap", None):
        notes.append(
            f"{_counted('pmap', pmaps)}: the parts that it maps over are a dim of its arrays, placed like any other"
        )
    if found:
        counted = " and ".join(_counted(kind, lines) for kind, lines in found.items())
        why = (
            "annotations='free'"
            if annotations == "free"
            else f"a mesh of one device, {' and '.join(str(dict(sizes)) for sizes in sorted(freed.sizes))}, places nothing"
        )
        notes.append(f"the planner places freely what the function names itself ({why}): {counted}")
    if freed.kept:
        reasons = "; ".join(dict.fromkeys(f"{line}: {reason}" if line else reason for line, reason in freed.kept))
        notes.append(f"shard_maps stay on the axes of their mesh, as one cannot be opened: {reasons}")
    return tuple(notes)


def _counted(kind: str, lines: Sequence[str]) -> str:
    """How many there are of a kind, and where most of them stand."""
    known = Counter(filter(None, lines))
    where = [line if count == 1 else f"{line} ({count})" for line, count in known.most_common(MOST_LINES)]
    more = [f"{len(known) - MOST_LINES} more lines"] if len(known) > MOST_LINES else []
    place = f" at {', '.join((*where, *more))}" if where else ""
    return f"{len(lines)} {kind}{'s' if len(lines) > 1 else ''}{place}"
