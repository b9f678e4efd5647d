"""Planned functions: one plan per types of the arguments and static values, made when a call first needs it.

A call is told from the last one by the types that its arrays bring, which costs microseconds. Where they differ, the plan
is looked up by what a plan depends on: the structure of the arguments, shapes, element types, static values, and the mesh
that is set where it has Explicit axes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, NamedTuple, final

import jax
from jax.core import Tracer
from jax.sharding import get_abstract_mesh
from jax.tree import flatten

from planner.api import plan
from planner.calls.call_form import CallForm, CallForms
from planner.calls.leaves import Parted, StaticResults, check_hash, example, is_same, kinds_of, placeless, static_leaves
from planner.emit.runner import Runner
from planner.errors import ArgumentError, NothingSharedError
from planner.plans.loaded import LoadedPlan
from planner.plans.plan import Plan
from planner.program.mesh_axes import explicit_mesh
from planner.program.tracing.arguments import name_of

PLACE = ("devices", "topology", "mesh", "axis_names")
"""Keywords that say where a plan lies: one that follows another lies where that does."""


class _Key(NamedTuple):
    """All that the plan of a call depends on; `mesh` is the one that is set around it where that has Explicit axes."""

    form: tuple[Any, ...]
    tree: Any
    types: tuple[Any, ...]
    mesh: Any
    static: tuple[Any, ...]


class _Call(NamedTuple):
    """The arguments of one call: all of its `values` in order, and the leaves of those that are not static."""

    form: CallForm
    values: tuple[Any, ...]
    leaves: list[Any]
    tree: Any
    kinds: list[Any]
    mesh: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartedArgument:
    """An argument that has static leaves: its position among the values, and that of its first leaf among all."""

    position: int
    start: int
    parted: Parted

    @property
    def end(self) -> int:
        return self.start + self.parted.tree.num_leaves


@final
class _Prepared:
    """A function of the arguments of calls without their static leaves."""

    def __init__(self, fn: Callable[..., Any], call: _Call) -> None:
        form = call.form
        dynamic = [call.values[i] for i in form.dynamic]
        static = static_leaves(tuple(dynamic), [form.names[i] for i in form.dynamic])
        self.static_leaves = static
        self.form = form
        self.parted: list[_PartedArgument] = []
        start = 0
        for i, tree in zip(form.dynamic, call.tree.children(), strict=True):
            within = {at - start: value for at, value in static.items() if start <= at < start + tree.num_leaves}
            if within:
                parted = Parted(tree=tree, static=within)
                self.parted.append(_PartedArgument(position=i, start=start, parted=parted))
            start += tree.num_leaves
        self.results = StaticResults() if self.parted else None
        # As it is, the function brings along what it is known by: what jax.jit was told, its place in the source.
        self.fn = fn
        if self.results is not None:
            self.fn = form.around(fn, self.results.taken_out(self._whole(fn)))

    def _whole(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function of arguments in order, which puts the static leaves back."""

        def whole(*values: Any) -> Any:
            full = list(values)
            for one in self.parted:
                full[one.position] = one.parted.whole(full[one.position])
            return self.form.call(fn, full)

        return whole

    def values(self, call: _Call) -> Sequence[Any]:
        """The values of a call, of which the static leaves are taken out."""
        if not self.parted:
            return call.values
        values = list(call.values)
        for one in self.parted:
            values[one.position] = one.parted.dynamic(call.leaves[one.start : one.end])
        return values

    def called(self, fn: Callable[..., Any], call: _Call) -> Any:
        """What a function like the planned one returns for a call."""
        return call.form.call(fn, self.values(call))

    def result(self, result: Any) -> Any:
        """The result of a call, with its static leaves."""
        return result if self.results is None else self.results.put_back(result)


@final
class _Entry:
    """A plan, and what is known of the call that it was last used for. Its arrays are not kept."""

    def __init__(self, made: Plan, prepared: _Prepared, call: _Call) -> None:
        self.plan, self.prepared = made, prepared
        self.form, self.tree, self.kinds, self.mesh = call.form, call.tree, call.kinds, call.mesh
        self.static = {i: call.values[i] for i in sorted(call.form.static)}
        plain = not (call.form.given or self.static or prepared.parted)
        self.quick = _quick_call(made.runner, call) if plain else None

    def has_types(self, tree: Any, kinds: list[Any], mesh: Any) -> bool:
        """Whether arrays of such types came in the last call."""
        if tree != self.tree or kinds != self.kinds or (mesh is not self.mesh and mesh != self.mesh):
            return False
        # Results of one executable share the objects of their types: the next comparison is then one of addresses.
        self.kinds = kinds
        return True

    def serves(self, call: _Call) -> bool:
        """Whether a call is like the last one: then it has the same plan."""
        if call.form is not self.form or not self.has_types(call.tree, call.kinds, call.mesh):
            return False
        pairs = ((self.prepared.static_leaves, call.leaves), (self.static, call.values))
        return all(is_same(value, given[i]) for planned, given in pairs for i, value in planned.items())


_UNLIKE = object()
"""The answer to a call that is not like the last one."""


def _quick_call(run: Runner, last: _Call) -> Callable[[tuple[Any, ...]], Any]:
    """The call of a plan for arguments by position alone, whose result is `_UNLIKE` where they are not like the last ones.

    As in `planner.emit.short_call`, all that it needs is bound once.
    """
    planned, mesh, kinds = last.tree, last.mesh, last.kinds

    def quick(args: tuple[Any, ...]) -> Any:
        nonlocal kinds
        leaves, tree = flatten(args)
        found = kinds_of(leaves)
        under = get_abstract_mesh()
        if tree != planned or found != kinds or (under is not mesh and under != mesh):
            return _UNLIKE
        kinds = found  # shared by the results of one executable, so that the next comparison is one of addresses
        return run(args, leaves)

    return quick


@final
class PlannedFunction:
    """A function that is planned when it is called, as `planner.jit` returns it.

    Call it like the function. `plan_for` gives the plan of a call, `plans` those made so far; `lower`, `trace` and
    `eval_shape` are those of `jax.jit`. As an attribute of a class it is a method.
    """

    def __init__(self, fn: Callable[..., Any], forms: CallForms, keywords: Mapping[str, Any], like: Any) -> None:
        self._fn, self._forms, self._keywords, self._like = fn, forms, dict(keywords), like
        self._entries: dict[_Key, _Entry] = {}
        self._last: _Entry | None = None
        self._lock = threading.RLock()
        update_wrapper(self, fn)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans made so far, the first one first."""
        return tuple(entry.plan for entry in self._entries.values())

    def plan_for(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan that a call with these arguments, or shapes, has: made where there is none yet. Nothing is run.

        Raises: as `planner.plan`.
        """
        return self._entry(self._call(args, kwargs)).plan

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, computed as its plan for such arguments places it; see `Plan.__call__`.

        Raises: as `planner.plan`.
        """
        entry = self._last
        if entry is not None and entry.quick is not None and not kwargs:
            result = entry.quick(args)
            if result is not _UNLIKE:
                return result
        call = self._call(args, kwargs)
        if entry is None or not entry.serves(call):
            entry = self._entry(call)
        return entry.prepared.result(entry.prepared.called(entry.plan, call))

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Traced` of the sharded function. Raises: as `plan_for`."""
        return self._of_jit("trace", args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """`jax.stages.Lowered` of the sharded function. Raises: as `plan_for`."""
        return self._of_jit("lower", args, kwargs)

    def _of_jit(self, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        call = self._call(args, kwargs)
        entry = self._entry(call)
        return entry.prepared.called(getattr(entry.plan.jit, what), call)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and element types of the result, as `jax.eval_shape` gives them; nothing is planned."""
        call = self._call(args, kwargs)
        prepared = _Prepared(self._fn, call)
        values = list(prepared.values(call))

        def of_dynamic(*dynamic: Any) -> Any:
            for i, value in zip(call.form.dynamic, dynamic, strict=True):
                values[i] = value
            return call.form.call(prepared.fn, values)

        return prepared.result(jax.eval_shape(of_dynamic, *(values[i] for i in call.form.dynamic)))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else PlannedMethod(self, instance)

    def __repr__(self) -> str:
        return f"<planned function {name_of(self._fn)}: {len(self._entries)} plans>"

    # ------------------------------------------------------------ plans of calls

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Call:
        form = self._forms.form(args, kwargs)
        values = form.values(args, kwargs)
        leaves, tree = flatten(tuple([values[i] for i in form.dynamic]) if form.static else values)
        return _Call(form, values, leaves, tree, kinds_of(leaves), get_abstract_mesh())

    def _entry(self, call: _Call) -> _Entry:
        """The plan of a call, made where there is none yet. Raises: as `planner.plan`."""
        prepared = _Prepared(self._fn, call)
        mesh = explicit_mesh()
        for i in call.form.static:
            check_hash(call.form.names[i], call.values[i])
        static = [*(call.values[i] for i in sorted(call.form.static)), *prepared.static_leaves.values()]
        key = _Key(
            form=call.form.key,
            tree=call.tree,
            types=placeless(call.kinds, typed=mesh is not None),
            mesh=mesh,
            static=tuple((type(value), value) for value in static),
        )
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                made = self._planned(call, prepared, mesh)
            else:
                made, prepared = found.plan, found.prepared
            # The dict keeps the order in which plans were made.
            self._last = self._entries[key] = _Entry(made, prepared, call)
            return self._last

    def _planned(self, call: _Call, prepared: _Prepared, mesh: Any) -> Plan:
        """A plan for a call; under a mesh that is set, it follows plans made under that mesh only."""
        form, values = call.form, prepared.values(call)
        if any(isinstance(leaf, Tracer) for leaf in call.leaves):
            values = [value if i in form.static else jax.tree.map(example, value) for i, value in enumerate(values)]
        make = partial(
            plan,
            prepared.fn,
            tuple(values[: form.positional]),
            example_kwargs=form.by_keyword(values),
            donate_argnames=[form.names[i] for i in sorted(form.donated)],
            static_argnames=[form.names[i] for i in sorted(form.static)],
        )
        alone = {name: value for name, value in self._keywords.items() if name not in PLACE}
        for other in [entry.plan for key, entry in self._entries.items() if key.mesh == mesh]:
            try:
                return make(like=other, **alone)
            except NothingSharedError:
                continue
        return make(like=_plan_of(self._like), **self._keywords)


def _plan_of(like: Any) -> Plan | LoadedPlan | None:
    """The plan whose layout another is to have: of a planned function its first. Raises: ArgumentError."""
    if not isinstance(like, PlannedFunction):
        return like
    if not like.plans:
        raise ArgumentError(f"like is {like!r}; call it, or its plan_for, before the function that is to follow it")
    return like.plans[0]


@final
class PlannedMethod:
    """A planned function with its first argument: the object whose method it is."""

    def __init__(self, function: PlannedFunction, instance: Any) -> None:
        self._function, self.__self__ = function, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self.__self__, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._function, name)
        return partial(found, self.__self__) if name in ("plan_for", "trace", "lower", "eval_shape") else found
