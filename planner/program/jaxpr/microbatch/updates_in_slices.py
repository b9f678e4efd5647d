"""Updates in slices: arrays that wait on hosts, updated slice by slice by a loop that takes each to the device and back.

An array that a program takes and gives back, such as the state of an optimizer, goes through the loop in its carry: so its
memory on the host is written in place, and the device holds one slice of it. What else the loop reads of whole arrays it
reads in slices of the same number, from the device or the host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax

from planner.program.batch_parts import Batch, Part
from planner.program.jaxpr.bodies import body_of, closed, opened, put_body, structure_of, with_fields
from planner.program.jaxpr.calls import equations_by, variable
from planner.program.jaxpr.microbatch.loop import adding, part_jaxpr, read_by
from planner.program.jaxpr.microbatch.slicing import NotInParts, PartWriter
from planner.program.jaxpr.variables import all_named, variables_in

Space = jax.memory.Space


class NotOnHosts(Exception):
    """Arguments, by position, that are read otherwise than in slices; its text says by what."""

    def __init__(self, positions: Collection[int], why: str) -> None:
        super().__init__(why)
        self.positions = frozenset(positions)


def updated_in_slices(batch: Batch, pairs: Mapping[int, int], on_host: Collection[int]) -> Any:
    """The program as a jaxpr whose arguments at the positions `on_host` are taken, and given back, on hosts.

    `batch` says what is computed in `batch.extent` slices. `pairs` are, by the position of an argument, that of the result
    that takes its place. Of arguments on hosts that loops read, what the loops make in their place goes there as well.
    Raises: NotOnHosts.
    """
    body = opened(batch.jaxpr)
    update = _Update(batch, body)
    carried = {body.invars[taken]: body.outvars[made] for taken, made in pairs.items()}
    moved = {body.invars[i]: _on_host(body.invars[i]) for i in on_host}
    before, after = update.apart(variables_in(body.outvars))
    held_back = {carried[var]: i for i in on_host for var in [body.invars[i]]}
    position = {body.invars[i]: i for i in on_host}
    others: list[Any] = []
    refused: dict[int, str] = {}
    for eqn in (*before, *after):
        read = variables_in(eqn.invars)
        refused |= {
            held_back[var]: f"{eqn.primitive.name} reads what takes its place" for var in read & held_back.keys()
        }
        hits = read & moved.keys()
        try:
            others.append(_from_hosts(eqn, moved) if hits else eqn)
        except NotOnHosts as error:
            refused |= {position[var]: str(error) for var in hits}
    if refused:
        raise NotOnHosts(refused, next(iter(refused.values())))
    if not read_by([*before, *after]).isdisjoint(moved):
        others, sent = _sent(others, update, body)
        moved |= sent
    first = len(before)
    loop, results = update.equations(carried, moved)
    eqns = [*others[:first], *loop, *others[first:]]
    invars = all_named(body.invars, moved)
    return with_fields(batch.jaxpr, eqns=eqns, invars=invars, outvars=all_named(body.outvars, results))


def _on_host(var: Any) -> Any:
    return jex_core.Var(var.aval.update(memory_space=Space.Host))


def _in(atom: Any, some: Iterable[Any]) -> bool:
    return not isinstance(atom, jex_core.Literal) and atom in some


def _put(value: Any, where: jax.memory.Space) -> Any:
    return jax.device_put(value, where)


def _from_hosts(eqn: Any, moved: Mapping[Any, Any]) -> Any:
    """A loop, or a call, that takes slices of arrays from the hosts where they lie. Raises: NotOnHosts."""
    structure = structure_of(eqn)
    hits = {i for i, atom in enumerate(eqn.invars) if _in(atom, moved)}
    if structure is None or structure.kind not in ("scan", "inline"):
        raise NotOnHosts((), f"{eqn.primitive.name} reads it whole")
    (place,) = structure.bodies
    inner = body_of(eqn, place)
    body, takes = opened(inner), structure.takes or range(len(eqn.invars))
    entering: list[Any] = list(body.invars)
    eqns, whole = [], dict[Any, Any]()
    for at, i in enumerate(takes):
        if i not in hits:
            continue
        var = body.invars[at]
        entering[at] = _on_host(var)
        if structure.kind == "inline" or i < structure.num_consts:
            whole[var] = entering[at]
        elif i < structure.num_consts + structure.num_carry:
            raise NotOnHosts((), "a loop carries it")
        else:
            eqns += equations_by(lambda x: _put(x, Space.Device), [entering[at]], [var], eqn.source_info)[0]
    for step in body.eqns:
        eqns.append(_from_hosts(step, whole) if any(_in(atom, whole) for atom in step.invars) else step)
    if any(_in(atom, whole) for atom in body.outvars):
        raise NotOnHosts((), f"{eqn.primitive.name} reads it whole")
    params = dict(eqn.params)
    put_body(params, place, with_fields(inner, eqns=eqns, invars=entering))
    return eqn.replace(invars=all_named(eqn.invars, moved), params=params)


def _sent(eqns: list[Any], update: _Update, body: Any) -> tuple[list[Any], dict[Any, Any]]:
    """The equations whose loops send to hosts what only the update reads of them, slice by slice; what that is called."""
    read = read_by(eqns) | variables_in(body.outvars)
    sent: dict[Any, Any] = {}
    found: list[Any] = []
    for eqn in eqns:
        structure = structure_of(eqn)
        if structure is None or structure.kind != "scan" or structure.length != update.count:
            found.append(eqn)
            continue
        inner = opened(eqn.params["jaxpr"])
        more, leaving, outvars = list(inner.eqns), list(inner.outvars), list(eqn.outvars)
        for i, var in enumerate(eqn.outvars):
            stacked = i >= structure.num_carry and var not in read and update.reads_slices_of(var)
            if not stacked or isinstance(leaving[i], jex_core.Literal):
                continue
            outvars[i] = sent[var] = _on_host(var)
            made = _on_host(leaving[i])
            more += equations_by(lambda x: _put(x, Space.Host), [leaving[i]], [made], eqn.source_info)[0]
            leaving[i] = made
        new = with_fields(eqn.params["jaxpr"], eqns=more, outvars=leaving)
        found.append(eqn.replace(outvars=outvars, params={**eqn.params, "jaxpr": new}))
    return found, sent


class _Update:
    """The loop over slices while it is written: its body, and what that takes."""

    def __init__(self, batch: Batch, body: Any) -> None:
        self.count, self._batch, self._body = batch.extent, batch, body
        self._index = variable((), jnp.int32)
        self._held: dict[Any, tuple[Any, Part | None]] = {}
        self._consts: dict[Any, Any] = {}
        self._slices: dict[Any, tuple[Any, Part]] = {}
        writer = PartWriter(batch=batch, count=batch.extent, index=self._index)
        self._inside = batch.inside
        chosen = [(n, eqn) for n, eqn in enumerate(body.eqns) if n in batch.inside or n in batch.drawn]
        self._source = next(eqn.source_info for n, eqn in chosen if n in batch.inside)
        for i, var in enumerate(body.invars):
            part = batch.parts.get(("invar", (), i))
            if part is not None:
                self._held[var] = self._slice(var, part), part
        try:
            self._eqns = writer.steps(chosen, (), self._held, self._read)
        except NotInParts as error:
            raise NotOnHosts((), str(error)) from error

    def _read(self, atom: Any, part: Part | None, eqn: Any) -> tuple[Any, list[Any]]:
        """What is there before the loop: a slice of it, or all of it."""
        del eqn
        if part is None:
            return self._consts.setdefault(atom, jex_core.Var(atom.aval)), []
        return self._slice(atom, part), []

    def _slice(self, var: Any, part: Part) -> Any:
        """The variable of a slice of an array. Raises: NotInParts where its parts are no slices."""
        if var not in self._slices:
            if part.before > 1:
                raise NotInParts("an array whose slices lie apart")
            shape = part.shape(var.aval.shape, self.count)
            self._slices[var] = jex_core.Var(var.aval.update(shape=shape, memory_space=Space.Device)), part
        found, known = self._slices[var]
        if known != part:
            raise NotInParts("an array that is read in two kinds of slices")
        return found

    def reads_slices_of(self, var: Any) -> bool:
        """Whether it reads an array in slices along its leading dim, one at a time, and not otherwise."""
        return var in self._slices and self._slices[var][1] == Part(0, 1, 1) and var not in self._consts

    def apart(self, returned: Collection[Any]) -> tuple[list[Any], list[Any]]:
        """The other equations: those before the loop, and those behind it."""
        made = {var for n, eqn in enumerate(self._body.eqns) if n in self._inside for var in eqn.outvars}
        before: list[Any] = []
        after: list[Any] = []
        late = set(made)
        for n, eqn in enumerate(self._body.eqns):
            if n in self._inside:
                continue
            if any(_in(atom, late) for atom in eqn.invars):
                after.append(eqn)
                late.update(eqn.outvars)
            else:
                before.append(eqn)
        wanted = read_by(after) | set(returned)
        self._wanted = [var for var in self._held if var in made and var in wanted]
        return before, after

    def equations(self, carried: Mapping[Any, Any], moved: Mapping[Any, Any]) -> tuple[list[Any], dict[Any, Any]]:
        """The equations of the loop, and what the results that lie on hosts are called.

        `carried` are by argument the variables that take their place, `moved` those of the arrays on hosts.
        """
        successors = {new: var for var, new in carried.items()}
        sums = [var for var in self._wanted if self._held[var][1] is None]
        stacks = [var for var in self._wanted if self._held[var][1] is not None]
        places: dict[Any, Part] = {var: part for var in stacks if (part := self._held[var][1]) is not None}
        consts, arrays = list(self._consts), list(self._slices)
        in_place = {
            arrays.index(successors[var]): k
            for k, var in enumerate(stacks)
            if var in successors and successors[var] in arrays and self._slices[successors[var]][1] == places[var]
        }
        given = [*self._consts.values(), *(var for var, _ in self._slices.values()), self._index]
        run = jex_core.jaxpr_as_fun(
            closed(part_jaxpr(self._eqns, given, [self._held[var][0] for var in (*sums, *stacks)]))
        )
        on_host = {k for at, k in in_place.items() if arrays[at] in moved}
        count = self.count

        def looped(*operands: Any) -> list[Any]:
            wholes = list(operands[len(consts) :])
            begin = [
                next((wholes[at] for at, k in in_place.items() if k == number), None) for number in range(len(stacks))
            ]
            new = [
                jnp.empty(var.aval.shape, var.aval.dtype) if start is None else start
                for var, start in zip(stacks, begin, strict=True)
            ]

            def trip(carry: tuple[Any, Any], index: Any) -> tuple[tuple[Any, Any], None]:
                totals, kept = carry
                now = [kept[in_place[at]] if at in in_place else whole for at, whole in enumerate(wholes)]
                taken = [
                    _slice_of(whole, index, self._slices[var][1], count, moved=var in moved)
                    for whole, var in zip(now, arrays, strict=True)
                ]
                found = run(*operands[: len(consts)], *taken, index)
                added = [
                    total + lax.convert_element_type(value, total.dtype)
                    for total, value in zip(totals, found[: len(sums)], strict=True)
                ]
                written = [
                    _written(stack, value, index, places[var], moved=k in on_host)
                    for k, (stack, value, var) in enumerate(zip(kept, found[len(sums) :], stacks, strict=True))
                ]
                return (added, written), None

            zeros = [jnp.zeros(var.aval.shape, adding(var.aval.dtype)) for var in sums]
            (totals, made), _ = lax.scan(trip, (zeros, new), jnp.arange(count, dtype=jnp.int32))
            whole = [lax.convert_element_type(t, var.aval.dtype) for t, var in zip(totals, sums, strict=True)]
            return [*whole, *made]

        names = {stacks[k]: _on_host(stacks[k]) for k in on_host}
        operands = all_named([*consts, *arrays], moved)
        return equations_by(looped, operands, all_named([*sums, *stacks], names), self._source)[0], names


def _slice_of(whole: Any, index: Any, part: Part, count: int, *, moved: bool) -> Any:
    """A slice of an array, taken to the device where that lies on the host."""
    size = whole.shape[part.dim] // count
    taken = lax.dynamic_slice_in_dim(whole, _times(index, size), size, part.dim)
    return _put(taken, Space.Device) if moved else taken


def _written(stack: Any, value: Any, index: Any, part: Part, *, moved: bool) -> Any:
    """An array with a slice written into it, sent to the host where that lies there."""
    value = _put(value, Space.Host) if moved else value
    return lax.dynamic_update_slice_in_dim(stack, value, _times(index, value.shape[part.dim]), part.dim)


def _times(index: Any, size: int) -> Any:
    return index if size == 1 else index * size
