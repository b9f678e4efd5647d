"""Feeds: which results become which arguments at the next call, and which reuse a donated argument's buffer.

An argument could be donated where every leaf has a result of the same type to stand in its memory. A leaf is paired
with the result that takes its place at the next call (`fed_back`), else with any of the same type that is no other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.program.graph import Aval
from planner.program.tracing.traced import Program


def pair_outputs(program: Program) -> tuple[dict[int, int], dict[int, int]]:
    """(aliases, feeds): the donated input an output reuses, and the input an output becomes at the next call.

    An output is fed back where it is written into an argument, where a subtree of the results has the structure and
    avals of an argument (a train state, a cache), or where it can reuse a donated argument's buffer.
    """
    mine = program.arguments[: len(program.arguments) - len(program.constants)]
    arguments = _subtrees(program.in_tree, [leaf.aval for leaf in mine], depth=1)
    results = _subtrees(program.out_tree, [leaf.aval for leaf in program.results], depth=3)
    feeds: dict[int, int] = {}
    for taken, made in program.updates:
        if made not in feeds and program.arguments[taken].aval == program.results[made].aval:
            feeds[made] = taken
    used = set(feeds.values())
    for start, stop, tree, avals in sorted(arguments, key=lambda part: part[0] - part[1]):
        donated = all(i in program.donated for i in range(start, stop))
        if stop == start or (stop - start == 1 and not donated) or used & set(range(start, stop)):
            continue
        for out_start, out_stop, out_tree, out_avals in results:
            taken = any(i in feeds for i in range(out_start, out_stop))
            if tree == out_tree and avals == out_avals and not taken:
                feeds.update(zip(range(out_start, out_stop), range(start, stop), strict=True))
                used.update(range(start, stop))
                break
    free = [i for i in sorted(program.donated) if i not in used]
    for position, leaf in enumerate(program.results):
        if position in feeds:
            continue
        match = next((i for i in free if program.arguments[i].aval == leaf.aval), None)
        if match is not None:
            feeds[position] = match
            free.remove(match)
    aliases = {out: arg for out, arg in feeds.items() if arg in program.donated}
    return aliases, feeds


def _subtrees(tree: Any, avals: list[Aval], *, depth: int) -> list[tuple[int, int, Any, list[Aval]]]:
    """(start, stop, treedef, avals) of the subtrees down to `depth`, outermost first."""
    found: list[tuple[int, int, Any, list[Aval]]] = []

    def visit(node: Any, start: int, level: int) -> None:
        stop = start + node.num_leaves
        if level:
            found.append((start, stop, node, avals[start:stop]))
        if level < depth:
            for child in node.children():
                visit(child, start, level + 1)
                start += child.num_leaves

    visit(tree, 0, 0)
    found.sort(key=lambda part: part[0] - part[1])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Donatable:
    """An argument by its position among all, its name, and by the positions of its leaves those of the paired results.

    `fed_back` says whether those take its place at the next call, as far as the structure tells.
    """

    argument: int
    name: str
    leaves: Mapping[int, int]
    fed_back: bool


def donatable(program: Program, feeds: Mapping[int, int]) -> tuple[Donatable, ...]:
    """The arguments that are not donated and could be, in order, given what is fed back (`Graph.feeds`)."""
    fed = {argument: out for out, argument in feeds.items()}
    free = [out for out in range(len(program.results)) if out not in feeds]
    found: list[Donatable] = []
    for argument, leaves in program.leaves.items():
        if argument in program.donate_argnums:
            continue
        pairs, left = dict[int, int](), free.copy()
        for leaf in leaves:
            out = fed.get(leaf, next((i for i in left if _alike(program, leaf, i)), None))
            if out is None:
                break
            pairs[leaf] = out
            left = [i for i in left if i != out]
        if leaves and len(pairs) == len(leaves):
            free = left
            found.append(
                Donatable(
                    argument=argument,
                    name=program.parameters[argument],
                    leaves=pairs,
                    fed_back=all(leaf in fed for leaf in leaves),
                )
            )
    return tuple(found)


def _alike(program: Program, leaf: int, result: int) -> bool:
    return program.arguments[leaf].aval == program.results[result].aval
