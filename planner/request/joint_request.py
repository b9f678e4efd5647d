"""Several programs as a user gives them: functions, their arguments and keywords by name, checked and made ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import ArgumentError, PinError
from planner.former_names import renamed
from planner.pricing.candidates.pins import close_names
from planner.request.layouts import program_leaves
from planner.request.matching_arrays import SharedArrays, shared_arrays
from planner.request.pins import Pins, named_pins, names_meant, with_common
from planner.request.resolve import PlanRequest

OWN = (
    "example_kwargs",
    "donate_argnums",
    "donate_argnames",
    "static_argnums",
    "static_argnames",
    "pins",
    "memory_limit",
    "process_local",
)
"""Keywords of `plan` that a program may have of its own."""
LAYOUTS = ("one", "own")
Given = tuple[Callable[..., Any], Sequence[Any]] | tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A function, its example arguments, and keywords of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedProgram:
    """A function, the tuple of its example arguments, and keywords of its own.

    Of several programs these are those of `OWN`, the pins of `pins=` among them.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Its example arguments by keyword."""
        return self.keywords.get("example_kwargs") or {}

    @property
    def pins(self) -> Pins | None:
        """Its own pins."""
        return self.keywords.get("pins")


def requested_programs(
    programs: Mapping[str, Given], pins: Any = None
) -> tuple[dict[str, RequestedProgram], dict[str, Any]]:
    """The programs given, checked, and the pins that hold for all of them. Raises: ArgumentError, PinError."""
    if not isinstance(programs, Mapping) or not programs:
        raise ArgumentError(f"programs is {programs!r:.200}; give a mapping from names to (fn, example_args)")
    found: dict[str, RequestedProgram] = {}
    for name, given in programs.items():
        if not isinstance(name, str):
            raise ArgumentError(f"programs has the name {name!r}; give text")
        if not isinstance(given, tuple) or len(given) not in (2, 3):
            raise ArgumentError(
                f"the program {name!r} is {given!r:.200}; give (fn, example_args), or (fn, example_args, keywords)"
            )
        keywords = given[2] if len(given) == 3 else {}
        if isinstance(keywords, Mapping):
            keywords = renamed(keywords, levels=3)
        if not isinstance(keywords, Mapping) or not set(keywords) <= set(OWN):
            raise ArgumentError(
                f"the program {name!r} has the keywords {keywords!r:.200}; of its own it may have {', '.join(OWN)}: all "
                "others are for all programs"
            )
        if not isinstance(given[1], (tuple, list)):
            raise ArgumentError(
                f"the program {name!r} has the arguments {type(given[1]).__name__}; give the tuple of positional arguments"
            )
        found[name] = RequestedProgram(fn=given[0], args=tuple(given[1]), keywords=keywords)
    return _with_pins(found, pins)


def _with_pins(programs: dict[str, RequestedProgram], pins: Any) -> tuple[dict[str, RequestedProgram], dict[str, Any]]:
    """The programs with what is pinned by their names, and what is pinned for all. Raises: PinError."""
    if pins is not None and not isinstance(pins, Mapping):
        raise PinError(
            f"pins is {pins!r:.200}; give a mapping from names of programs to their pins, and from names or patterns to "
            "what holds for all programs that have such arguments or results"
        )
    common: dict[str, Any] = {}
    found = dict(programs)
    for key, value in (pins or {}).items():
        if not isinstance(key, str):
            raise PinError(
                f"pins has the key {key!r}, of no program; give the positions of arguments by program, such as "
                f"pins={{{next(iter(programs))!r}: {{{key!r}: ...}}}}"
            )
        if key not in programs:
            common[key] = value
            continue
        if not isinstance(value, Mapping):
            raise PinError(
                f"pins says {value!r:.200} of {key!r}, which is a program; give a mapping of its pins, such as "
                f"{{{key!r}: {{'params': ...}}}}"
            )
        if programs[key].pins is not None:
            raise PinError(f"the program {key!r} has pins among its keywords and in pins=; give them in one place")
        found[key] = replace(programs[key], keywords={**programs[key].keywords, "pins": value})
    return found, common


def check_common_pins(common: Mapping[str, Any], ready: Mapping[str, PlanRequest]) -> None:
    """Nothing. Raises: PinError for a pin for all programs that is of an argument or result of none."""
    programs = [made.variants.program for made in ready.values()]
    for key in common:
        if not any(names_meant(key, program) for program in programs):
            names = [leaf.name for program in programs for leaf in program_leaves(program)]
            raise PinError(
                f"the pin {key!r} is neither one of the programs {', '.join(map(repr, ready))} nor matches an argument or "
                f"result of one; names look like {close_names(key, names)}, and what lies inside a program is pinned by "
                f"program, as pins={{{next(iter(ready))!r}: {{{key!r}: ...}}}}"
            )


def call_counts(calls: Mapping[str, float] | None, programs: Mapping[str, RequestedProgram]) -> dict[str, float]:
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


def all_pins(programs: Mapping[str, RequestedProgram], common: Mapping[str, Any]) -> dict[str, Any]:
    """All that is pinned, for what it says of the mesh."""
    found = dict(common)
    for name, program in programs.items():
        if isinstance(program.pins, Mapping):
            found.update((f"{name} {key}", value) for key, value in program.pins.items())
    return found


def shared_by(
    programs: Mapping[str, RequestedProgram], common: Mapping[str, Any], ready: Mapping[str, PlanRequest]
) -> SharedArrays:
    """The arrays that several of the programs have, but for those that are left free by a pin of None."""
    traced = {name: made.variants.program for name, made in ready.items()}
    named = {
        name: named_pins(with_common(programs[name].pins, common, program), program) for name, program in traced.items()
    }
    found = shared_arrays(
        {name: program_leaves(program) for name, program in traced.items()},
        {name: pins.free for name, pins in named.items()},
    )
    return replace(found, pinned={name: tuple(pins.specs) for name, pins in named.items()})
