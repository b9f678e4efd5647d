"""Lays sharding constraints on the places of a program, bodies included, and puts calls in the place of equations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import jax.extend.core as jex_core
from jax import lax

from planner.program.graph import Path
from planner.program.jaxpr.bodies import Place, body_path, opened, with_bodies, with_fields
from planner.program.jaxpr.calls import call_like, equations_by
from planner.program.jaxpr.distinct_stacks import with_distinct_stacks
from planner.program.jaxpr.placements.meshless import as_function, constraint_equation, is_placement
from planner.program.jaxpr.variables import called, fresh_var
from planner.program.slots import Refetch, Slot
from planner.program.tracing.traced import Program


class Edits(Protocol):
    """The shardings to be laid on the places of a program, one after the other; () where nothing was decided."""

    def __call__(self, slot: Slot) -> Sequence[Any]: ...


Replacements = Mapping[Path, Callable[..., Sequence[Any]]]
"""For the path of an equation, a function of its operands that gives its results, to be called in its place."""


@dataclass(frozen=True, slots=True)
class Around:
    """What goes around an equation: functions of single operands and of single results, by position."""

    entering: dict[int, Callable[[Any], Any]] = field(default_factory=dict[int, Callable[[Any], Any]])
    leaving: dict[int, Callable[[Any], Any]] = field(default_factory=dict[int, Callable[[Any], Any]])


def constrained(
    program: Program,
    edits: Edits,
    replacements: Replacements | None = None,
    around: Mapping[Path, Around] | None = None,
    *,
    refetched: Mapping[Slot, Refetch] | None = None,
    distinct_stacks: int = 0,
) -> Callable[..., list[Any]]:
    """The program as a function of its flat arguments, with the shardings of `edits` laid on, bodies included.

    The operands of a replaced equation are laid as those of any other before its function sees them, and so are its
    results; what goes `around` an equation comes between it and what is laid. Operands that are `refetched` are laid by
    themselves, behind a barrier. Up to `distinct_stacks` loops with stacks of one type have stacks of different shapes. The
    result is as differentiable as the original: constraints are inserted as equations, nothing is interpreted.
    """
    rewriter = Rewriter(edits=edits, replacements=replacements or {}, around=around or {}, refetched=refetched or {})
    jaxpr = rewriter.rewrite(program.jaxpr, ())
    return as_function(with_distinct_stacks(jaxpr, distinct_stacks) if distinct_stacks else jaxpr)


@dataclass
class Rewriter:
    """Copies jaxprs with constraint equations added; `templates` are constraint equations by aval and sharding."""

    edits: Edits
    replacements: Replacements = field(default_factory=dict[Path, Callable[..., Sequence[Any]]])
    around: Mapping[Path, Around] = field(default_factory=dict[Path, Around])
    refetched: Mapping[Slot, Refetch] = field(default_factory=dict[Slot, Refetch])
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
                template = self.templates[key] = constraint_equation(atom.aval, sharding)
            var = final if final is not None and i == len(shardings) - 1 else fresh_var(atom)
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
        body = opened(jaxpr)
        renamed: dict[Any, Any] = {}
        eqns: list[Any] = []
        laid: dict[Any, Any] = {}
        for i, var in enumerate(body.invars):
            shardings = self.edits(("invar", path, i)) or (entering[i] if entering else ())
            if shardings:
                renamed[var] = self._lay(var, shardings, eqns, laid, like=next(iter(body.eqns), None))
        for index, eqn in enumerate(body.eqns):
            here = (*path, index)
            operands: list[Any] = []
            for i, atom in enumerate(eqn.invars):
                shardings = () if isinstance(atom, jex_core.Literal) else self.edits(("operand", here, i))
                own, refetch = called(atom, renamed), self.refetched.get(("operand", here, i))
                if refetch is not None and shardings:
                    own = self._lay(own, shardings[: refetch.shared], eqns, laid, like=eqn)
                    shardings = shardings[refetch.shared :]
                    _, (*_, maker), position = refetch.behind
                    behind = called(body.eqns[maker].outvars[position], renamed)
                    own = _waiting(own, behind, eqns, laid, like=eqn)
                operands.append(self._lay(own, shardings, eqns, laid, like=eqn))
            if not self.keep_placements and is_placement(eqn):
                # What the program demands is part of the plan, and laid on by it.
                renamed[eqn.outvars[0]] = self._lay(operands[0], self.edits(("result", here, 0)), eqns, laid, like=eqn)
                continue
            outvars = list(eqn.outvars)
            after: list[tuple[Any, Any, Sequence[Any]]] = []
            for i, var in enumerate(eqn.outvars):
                shardings = self.edits(("result", here, i))
                if shardings and not isinstance(var, jex_core.DropVar):
                    outvars[i] = fresh_var(var)
                    after.append((outvars[i], var, shardings))
            # The remat of a gradient has a barrier around its operands, which takes the form of its first reader.
            barred = eqn.params.get("prevent_cse") and eqn.params.get("differentiated")
            known = [_form(operand, laid) for operand in operands] if barred else None
            step = with_bodies(eqn, partial(self._inside, here, known))
            ends = self.around.get(here, Around())
            for i, function in ends.entering.items():
                eqns += _applied(function, operands[i], whole := fresh_var(eqn.invars[i]), eqn)
                operands[i] = whole
            left = {i: outvars[i] for i in ends.leaving if not isinstance(outvars[i], jex_core.DropVar)}
            for i, var in left.items():
                outvars[i] = fresh_var(var)
            if here in self.replacements:
                eqns.append(_call_of(self.replacements[here], eqn).replace(invars=operands, outvars=outvars))
            else:
                eqns.append(step.replace(invars=operands, outvars=outvars))
            for i, var in left.items():
                eqns += _applied(ends.leaving[i], outvars[i], var, eqn)
            for fresh, var, shardings in after:
                self._lay(fresh, shardings, eqns, laid, like=eqn, final=var)
        outvars = []
        for i, atom in enumerate(body.outvars):
            shardings = () if isinstance(atom, jex_core.Literal) else self.edits(("outvar", path, i))
            own = called(atom, renamed)
            outvars.append(self._lay(own, shardings, eqns, laid, like=next(reversed(body.eqns), None)))
        return with_fields(jaxpr, eqns=eqns, outvars=outvars)

    def _inside(self, here: Path, known: Sequence[Sequence[Any]] | None, inner: Any, place: Place) -> Any:
        return self.rewrite(inner, body_path(here, place), known)


def _waiting(atom: Any, behind: Any, eqns: list[Any], laid: dict[Any, Any], *, like: Any) -> Any:
    """Appends a barrier that gives out an atom once something else is there, too; one for all readers that wait for it."""
    if (atom, behind) not in laid:
        laid[atom, behind] = fresh_var(atom)
        operands, results = [atom, behind], [laid[atom, behind]]
        eqns += equations_by(lambda x, y: [lax.optimization_barrier((x, y))[0]], operands, results, like.source_info)[0]
    return laid[atom, behind]


def _applied(function: Callable[[Any], Any], operand: Any, result: Any, like: Any) -> list[Any]:
    """The equations that make a variable of an operand by a function, at the source line of another equation."""
    return [_at(eqn, like.source_info) for eqn in equations_by(function, [operand], [result], like.source_info)[0]]


def _call_of(function: Callable[..., Sequence[Any]], eqn: Any) -> Any:
    """An equation that calls `function` on operands like those of `eqn`, at its source line."""
    return _at(call_like(eqn, lambda *operands: list(function(*operands))), eqn.source_info)


def _at(eqn: Any, source_info: Any) -> Any:
    """An equation with all that is in it at one source line."""
    params = dict(eqn.params)
    for name, value in params.items():
        if hasattr(opened(value), "eqns"):
            params[name] = with_fields(value, eqns=[_at(step, source_info) for step in opened(value).eqns])
    return eqn.replace(params=params, source_info=source_info)


def _form(atom: Any, laid: Mapping[Any, Any]) -> Sequence[Any]:
    return () if isinstance(atom, jex_core.Literal) else laid.get(atom, ())


def plain(program: Program) -> Callable[..., list[Any]]:
    """The traced program as a function of its flat arguments, without the placements that it names itself."""
    return constrained(program, lambda slot: ())


def as_traced(program: Program) -> Callable[..., list[Any]]:
    """The function as the user wrote it, of its flat arguments, with the placements that it names itself."""
    return as_function(program.traced)
