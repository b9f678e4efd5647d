"""Flattens a program into a graph.

Bodies of `jit`, `remat` and custom rules are expanded in place. A loop or branch body is a region of its own, entered
and left through boundary ops that make the crossing visible to costs and to emission:

    loop_const        outer tensor -> the same inside the loop
    loop_carry_in     initial value -> carry of the body      } tied: one spec
    loop_carry_out    carry the body returns -> outer result  }
    loop_slice        stacked xs -> the slice of one trip
    loop_stack        the slice of one trip -> stacked ys
    branch_in         outer tensor -> operand of a branch; tied over the branches
    branch_out        the same result of every branch -> outer result

The body of an op that stays one op, as a `shard_map`, is a graph of its own (`Op.body`), which says what the op works.

`while` loops run as often as their counters say, or as is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np
from jax.interpreters import partial_eval

from planner.program.fed_back import pair_outputs
from planner.program.graph import Aval, Body, Graph, Path, Region
from planner.program.jaxpr.bodies import Structure, body_of, body_path, consts_of, counted_body, opened, structure_of
from planner.program.jaxpr.builder import Builder, WhileTrips, live
from planner.program.jaxpr.calls import is_zero
from planner.program.jaxpr.origins import Origin
from planner.program.jaxpr.placements.demanded_specs import demanded_specs
from planner.program.tracing.traced import Program

Env = dict[Any, int]


def build_graph(program: Program, *, while_trips: WhileTrips = 1.0, tests: bool = False) -> Graph:
    """The flat op graph of a program; `while_trips` is assumed of `while` loops whose counter does not say it.

    It may be a mapping from shell-style patterns over the loops' source lines (`*/solve.py:12`) to trip counts. With
    `tests` there is an op (`branch_test`) that reads what a branch hangs on: it takes no time, but says what needs what.
    """
    builder = Builder(while_trips=while_trips, tests=tests, notes=list(program.notes))
    graph = _graph(builder, program.jaxpr, [(leaf.aval, leaf.name) for leaf in program.arguments])
    aliases, feeds = pair_outputs(program)
    names = tuple(leaf.name for leaf in program.results)
    return replace(graph, output_names=names, aliases=aliases, feeds=feeds, kept=_kept(program))


def _graph(b: Builder, jaxpr: Any, arguments: Sequence[tuple[Aval, str]]) -> Graph:
    """The graph of a program or of a body with these arguments (type, name), all of which are kept."""
    b.regions.append(Region(id=0, parent=None, kind="program", trips=1, length=1, source=""))
    inputs = [b.tensor(aval, None, name, "argument") for aval, name in arguments]
    outputs = _walk(b, jaxpr, dict(zip(opened(jaxpr).invars, inputs, strict=True)), (), 0)
    ops, tensors, ties = live(b, outputs)
    return Graph(
        ops=ops,
        tensors=tensors,
        regions=tuple(b.regions),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        output_names=tuple(f"result {i}" for i in range(len(outputs))),
        ties=ties,
        aliases={},
        feeds={},
        kept=frozenset(range(len(inputs))),
        equal=b.equal.first,
        zeros=frozenset(b.zeros),
        notes=tuple(dict.fromkeys(b.notes)),
    )


def _body(b: Builder, eqn: Any) -> Body | None:
    """What an op computes that stays one op, where that can be read."""
    counted = counted_body(eqn)
    if counted is None:
        return None
    key = (id(counted.jaxpr), tuple(counted.axes.items()) if counted.axes is not None else None)
    if key not in b.bodies:
        number = id(counted.jaxpr)
        if number not in b.graphs:
            with b.inside(eqn):
                inner = b.of_body()
            variables = opened(counted.jaxpr).invars
            b.graphs[number] = _graph(
                inner, counted.jaxpr, [(b.aval(v.aval), f"operand {i}") for i, v in enumerate(variables)]
            )
        b.bodies[key] = Body(graph=b.graphs[number], axes=counted.axes)
    body = b.bodies[key]
    b.notes += body.graph.notes
    return body


def _kept(program: Program) -> frozenset[int]:
    """The arguments that `jax.jit` keeps: those its own removal of dead code leaves."""
    body = opened(program.jaxpr)
    _, used = partial_eval.dce_jaxpr(body, [True] * len(body.outvars))
    return frozenset(i for i, kept in enumerate(used) if kept)


def _walk(b: Builder, jaxpr: Any, env: Env, path: Path, region: int) -> list[int]:
    """Adds the ops of one body; returns the tensors it returns. `env` maps the body's variables to tensors."""
    body = opened(jaxpr)
    for var, const in zip(body.constvars, consts_of(jaxpr), strict=False):
        env[var] = b.tensor(b.aval(jax.typeof(const)), None, "constant", "constant")

    def read(atom: Any) -> int:
        return b.literal(atom) if isinstance(atom, jex_core.Literal) else env[atom]

    for index, eqn in enumerate(body.eqns):
        here = (*path, index)
        operands = [read(atom) for atom in eqn.invars]
        structure = structure_of(eqn)
        if structure is None:
            results = _leaf(b, eqn, operands, here, region)
            b.equal.add(eqn, operands, results, region)
        elif structure.kind == "inline":
            results = _inline(b, eqn, structure, operands, here, region)
        elif structure.kind == "scan":
            results = _scan(b, eqn, structure, operands, here, region)
        elif structure.kind == "while":
            results = _while(b, eqn, structure, operands, here, region)
        else:
            results = _cond(b, eqn, structure, operands, here, region)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in body.outvars]


def _leaf(b: Builder, eqn: Any, operands: list[int], path: Path, region: int) -> Sequence[int]:
    kind, origin = eqn.primitive.name, b.origin(eqn)
    avals = [b.aval(v.aval) for v in eqn.outvars]
    if kind == "optimization_barrier":
        # One op per operand: the operands of a barrier have nothing to do with one another.
        return [
            b.op(kind, [operand], [aval], region, path, origin, {"position": i})[0]
            for i, (operand, aval) in enumerate(zip(operands, avals, strict=True))
        ]
    if kind == "broadcast_in_dim" and is_zero(eqn.invars[0]):
        b.zeros.add((path, 0))
    name = str(eqn.params["name"]) if kind == "name" else None
    demands = kind in ("sharding_constraint", "shard_map")
    params = demanded_specs(b, eqn, avals, origin.source) if demands else eqn.params
    return b.op(kind, operands, avals, region, path, origin, params, eqn.primitive, name, _body(b, eqn))


def _inline(b: Builder, eqn: Any, s: Structure, operands: list[int], path: Path, region: int) -> list[int]:
    inner = body_of(eqn, s.bodies[0])
    taken = operands if s.takes is None else [operands[i] for i in s.takes]
    if eqn.primitive.name == "compute_on" and "host" in str(eqn.params["compute_type"]):
        where = b.origin(eqn).source
        b.notes.append(f"{where}: what a compute_on leaves to the host is counted as if the device computed it")
    env = dict(zip(opened(inner).invars, taken, strict=True))
    outside = b.equal.enter(eqn)
    with b.inside(eqn):
        results = _walk(b, inner, env, body_path(path, s.bodies[0]), region)
    b.equal.leave(outside)
    return results


def _boundary(
    b: Builder,
    kind: str,
    operands: Sequence[int],
    aval: Aval,
    region: int,
    place: tuple[Path, str, int, int],
    origin: Origin,
) -> int:
    """The result tensor of a boundary op. `place`: equation path, body, position in the equation and in the body."""
    path, body, outer, inner = place
    params = {"body": body, "outer": outer, "inner": inner}
    return b.op(kind, operands, [aval], region, path, origin, params)[0]


def _scan(b: Builder, eqn: Any, s: Structure, operands: list[int], path: Path, region: int) -> list[int]:
    body, inner = s.bodies[0], body_of(eqn, s.bodies[0])
    origin, name, variables = b.origin(eqn), body_path((), s.bodies[0])[0], opened(inner).invars
    loop = b.region(region, "scan", s.length, origin.source, copies=s.copies, reverse=s.reverse)
    env: Env = {}
    carries: list[int] = []
    for i, (operand, var) in enumerate(zip(operands, variables, strict=True)):
        carry = s.num_consts <= i < s.num_consts + s.num_carry
        kind = "loop_const" if i < s.num_consts else "loop_carry_in" if carry else "loop_slice"
        env[var] = _boundary(b, kind, [operand], b.aval(var.aval), loop, (path, str(name), i, i), origin)
        if carry:
            carries.append(env[var])
    with b.inside(eqn):
        outs = _walk(b, inner, env, body_path(path, body), loop)
    results: list[int] = []
    for i, (out, var) in enumerate(zip(outs, eqn.outvars, strict=True)):
        kind = "loop_carry_out" if i < s.num_carry else "loop_stack"
        results.append(_boundary(b, kind, [out], b.aval(var.aval), loop, (path, str(name), i, i), origin))
    b.ties.extend(zip(carries, results[: s.num_carry], strict=True))
    return results


def _while(b: Builder, eqn: Any, s: Structure, operands: list[int], path: Path, region: int) -> list[int]:
    origin = b.origin(eqn)
    length, known = while_trips_of(b, eqn, s, origin)
    loop = b.region(region, "while", length, origin.source, known=known)
    test, body = body_of(eqn, s.bodies[0]), body_of(eqn, s.bodies[1])
    split = (s.cond_consts, s.cond_consts + s.num_consts)
    test_env: Env = {}
    body_env: Env = {}
    for i, var in enumerate(opened(test).invars[: s.cond_consts]):
        test_env[var] = _boundary(
            b, "loop_const", [operands[i]], b.aval(var.aval), loop, (path, "cond_jaxpr", i, i), origin
        )
    for i, var in enumerate(opened(body).invars[: s.num_consts]):
        place = (path, "body_jaxpr", split[0] + i, i)
        body_env[var] = _boundary(b, "loop_const", [operands[split[0] + i]], b.aval(var.aval), loop, place, origin)
    carries: list[int] = []
    for i, var in enumerate(opened(body).invars[s.num_consts :]):
        place = (path, "body_jaxpr", split[1] + i, s.num_consts + i)
        carry = _boundary(b, "loop_carry_in", [operands[split[1] + i]], b.aval(var.aval), loop, place, origin)
        body_env[var] = test_env[opened(test).invars[s.cond_consts + i]] = carry
        carries.append(carry)
    with b.inside(eqn):
        tests = _walk(b, test, test_env, body_path(path, s.bodies[0]), loop)
    b.op("loop_test", tests, [], loop, path, origin, {})
    with b.inside(eqn):
        outs = _walk(b, body, body_env, body_path(path, s.bodies[1]), loop)
    results = [
        _boundary(b, "loop_carry_out", [out], b.aval(var.aval), loop, (path, "body_jaxpr", i, i), origin)
        for i, (out, var) in enumerate(zip(outs, eqn.outvars, strict=True))
    ]
    b.ties.extend(zip(carries, results, strict=True))
    return results


def _cond(b: Builder, eqn: Any, s: Structure, operands: list[int], path: Path, region: int) -> list[int]:
    origin = b.origin(eqn)
    if b.tests:
        b.op("branch_test", operands[:1], [], region, path, origin, {})
    returned: list[list[int]] = []
    entered: list[list[int]] = []
    for body in s.bodies:
        inner, name = body_of(eqn, body), str(body_path((), body)[0])
        branch = b.region(region, "cond", 1, origin.source)
        entered.append(
            [
                _boundary(b, "branch_in", [operand], b.aval(var.aval), branch, (path, name, i + 1, i), origin)
                for i, (operand, var) in enumerate(zip(operands[1:], opened(inner).invars, strict=True))
            ]
        )
        env = dict(zip(opened(inner).invars, entered[-1], strict=True))
        with b.inside(eqn):
            returned.append(_walk(b, inner, env, body_path(path, body), branch))
    # The equation has one operand for all branches, so it has one spec.
    for here, there in pairwise(entered):
        b.ties.extend(zip(here, there, strict=True))
    names = [str(body_path((), body)[0]) for body in s.bodies]
    results: list[int] = []
    for i, var in enumerate(eqn.outvars):
        operands_out = [outs[i] for outs in returned]
        params = {"bodies": names, "outer": i, "inner": i}
        results += b.op("branch_out", operands_out, [b.aval(var.aval)], region, path, origin, params)
    return results


def while_trips_of(b: Builder, eqn: Any, s: Structure, origin: Origin) -> tuple[float, bool]:
    """How often a while loop is taken to run, and whether its counter says so; what is assumed is noted."""
    limits, exact = _counter_limits(eqn, s)
    if exact:
        return limits[0], True
    at = (origin.source, origin.line)
    hint, why = b.while_trips, "was assumed (Options(while_trips=...) sets it)"
    if isinstance(hint, Mapping):
        named = [trips for pattern, trips in hint.items() if any(fnmatchcase(line, pattern) for line in at)]
        hint, why = (named[0], "is hinted") if named else (1.0, "was assumed (no pattern of Options(while_trips) fits)")
    elif limits and hint == 1.0:
        hint, why = min(limits), "the most its counter allows, was assumed (Options(while_trips=...) sets it)"
    b.notes.append(f"{origin.source}: the trip count of this while loop is not known; {hint:g} {why}")
    return hint, False


def _counter_limits(eqn: Any, s: Structure) -> tuple[list[float], bool]:
    """The trip counts that conditions `counter < limit` of a while loop allow, and whether one is the only condition."""
    test, body = opened(body_of(eqn, s.bodies[0])), opened(body_of(eqn, s.bodies[1]))
    made = {var: step for step in test.eqns for var in step.outvars}
    first = s.cond_consts + s.num_consts

    def number(atom: Any) -> float | None:
        """What a scalar of the condition is at every trip, or None."""
        if not isinstance(atom, jex_core.Literal) and atom in test.invars:
            i = test.invars.index(atom)
            k = i - s.cond_consts
            if k >= 0 and body.outvars[k] is not body.invars[s.num_consts + k]:
                return None
            atom = eqn.invars[i] if k < 0 else eqn.invars[first + k]
        if not isinstance(atom, jex_core.Literal) or np.shape(atom.val):
            return None
        return float(atom.val)

    def trips(counter: Any, limit: Any, extra: float) -> float | None:
        if isinstance(counter, jex_core.Literal) or counter not in test.invars:
            return None
        k = test.invars.index(counter) - s.cond_consts
        start, end = eqn.invars[first + k], number(limit)
        step: Any = next((e for e in body.eqns if body.outvars[k] in e.outvars), None)
        if k < 0 or end is None or not isinstance(start, jex_core.Literal) or step is None:
            return None
        amounts = [a.val for a in step.invars if isinstance(a, jex_core.Literal)]
        if step.primitive.name != "add" or body.invars[s.num_consts + k] not in step.invars or len(amounts) != 1:
            return None
        if not float(amounts[0]) > 0:
            return None
        return max(math.ceil((end + extra - float(start.val)) / float(amounts[0])), 0)

    def limits(atom: Any) -> list[float]:
        if isinstance(atom, jex_core.Literal) or atom not in made:
            return []
        step = made[atom]
        name = step.primitive.name
        if name == "and":
            return [found for operand in step.invars for found in limits(operand)]
        if name == "convert_element_type":
            return limits(step.invars[0])
        if name in ("lt", "le"):
            found = trips(step.invars[0], step.invars[1], float(name == "le"))
        elif name in ("gt", "ge"):
            found = trips(step.invars[1], step.invars[0], float(name == "ge"))
        else:
            found = None
        return [] if found is None else [found]

    found = limits(test.outvars[0])
    only = bool(found) and not any(step.primitive.name == "and" for step in test.eqns)
    return found, only
