"""Arguments that could be donated: every leaf has a result of the same type to stand in its memory.

A leaf is paired with the result that takes its place at the next call (`fed_back`), else with any of the same type that
is no other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.program.tracing.traced import Program


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
