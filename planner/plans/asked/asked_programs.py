"""Several programs as a user gives them: functions, their arguments and keywords by name, checked and made ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import ArgumentError
from planner.plans.asked.asked_layout import arrays_of
from planner.plans.asked.made_ready import Ready
from planner.plans.asked.named_pins import Pins, named_pins
from planner.plans.asked.shared_arrays import SharedArrays, shared_arrays

OWN = ("donate_argnums", "static_argnums", "pins", "memory_limit", "host_local")
"""Keywords of `plan` that a program may have of its own."""
LAYOUTS = ("one", "own")
Given = tuple[Callable[..., Any], Sequence[Any]] | tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A function, its example arguments, and keywords of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedProgram:
    """A function, the tuple of its example arguments, and keywords of its own: those of `OWN`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]


def asked_programs(programs: Mapping[str, Given]) -> dict[str, AskedProgram]:
    """The programs given, checked. Raises: ArgumentError."""
    if not isinstance(programs, Mapping) or not programs:
        raise ArgumentError(f"programs is {programs!r:.200}; give a mapping from names to (fn, example_args)")
    found: dict[str, AskedProgram] = {}
    for name, given in programs.items():
        if not isinstance(name, str):
            raise ArgumentError(f"programs has the name {name!r}; give text")
        if not isinstance(given, tuple) or len(given) not in (2, 3):
            raise ArgumentError(
                f"the program {name!r} is {given!r:.200}; give (fn, example_args), or (fn, example_args, keywords)"
            )
        keywords = given[2] if len(given) == 3 else {}
        if not isinstance(keywords, Mapping) or not set(keywords) <= set(OWN):
            raise ArgumentError(
                f"the program {name!r} has the keywords {keywords!r:.200}; of its own it may have {', '.join(OWN)}: all "
                "others are for all programs"
            )
        if not isinstance(given[1], (tuple, list)):
            raise ArgumentError(
                f"the program {name!r} has the arguments {type(given[1]).__name__}; give the tuple of positional arguments"
            )
        found[name] = AskedProgram(fn=given[0], args=tuple(given[1]), keywords=keywords)
    return found


def asked_counts(calls: Mapping[str, float] | None, programs: Mapping[str, AskedProgram]) -> dict[str, float]:
    """How often every program is called; once where it is not said. Raises: ArgumentError."""
    if calls is not None and not isinstance(calls, Mapping):
        raise ArgumentError(f"calls is {calls!r:.200}; give a mapping from names of programs to numbers of calls")
    for name, count in (calls or {}).items():
        if name not in programs:
            raise ArgumentError(f"calls has {name!r}, which is none of the programs {', '.join(map(repr, programs))}")
        if isinstance(count, bool) or not isinstance(count, (int, float)) or not 0 < count < float("inf"):
            raise ArgumentError(f"calls says that {name!r} is called {count!r} times; give a number above 0")
    return {name: float((calls or {}).get(name, 1)) for name in programs}


def check_layouts(layouts: str) -> None:
    """Nothing. Raises: ArgumentError."""
    if layouts not in LAYOUTS:
        raise ArgumentError(f"layouts is {layouts!r}; use one of {', '.join(map(repr, LAYOUTS))}")


def all_pins(programs: Mapping[str, AskedProgram]) -> dict[str, Any]:
    """All that is pinned, for what it says of the mesh."""
    found: dict[str, Any] = {}
    for name, program in programs.items():
        pins: Pins | None = program.keywords.get("pins")
        if isinstance(pins, Mapping):
            found.update((f"{name} {key}", value) for key, value in pins.items())
    return found


def shared_by(programs: Mapping[str, AskedProgram], ready: Mapping[str, Ready]) -> SharedArrays:
    """The arrays that several of the programs have, but for those that are left free by a pin of None."""
    traced = {name: made.sessions.program for name, made in ready.items()}
    return shared_arrays(
        {name: arrays_of(program) for name, program in traced.items()},
        {name: named_pins(programs[name].keywords.get("pins"), program).free for name, program in traced.items()},
    )
