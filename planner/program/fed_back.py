"""Feeds: which results become which arguments at the next call, and which reuse a donated argument's buffer."""

from __future__ import annotations

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
