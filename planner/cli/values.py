"""Values of the command line in text: sizes, meshes, pins, specs, argument positions.

Each function is an argparse `type`: it raises argparse.ArgumentTypeError, whose text argparse prints.
"""

from __future__ import annotations

import argparse
import math
import re

from jax.sharding import PartitionSpec

from planner.units import bytes_of


def parse_bytes(text: str) -> float:
    """Bytes of "14GB", "15.75GiB", "500 MB" or "1.4e10". Raises: argparse.ArgumentTypeError."""
    try:
        return bytes_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_seconds(text: str) -> float:
    """The seconds of "60". Raises: argparse.ArgumentTypeError where they are not above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} are no seconds; write a number above 0")
    return value


def parse_count(text: str) -> int:
    """The number of "8". Raises: argparse.ArgumentTypeError where it is not 1 or more."""
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of things; write a whole number of 1 or more")
    return int(text)


def parse_seed(text: str) -> int:
    """The seed of "0". Raises: argparse.ArgumentTypeError where it is not 0 or more."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed; write a whole number of 0 or more, of at most 9 digits")
    return int(text)


def parse_mesh(text: str) -> dict[str, int]:
    """The mesh of "data=16,model=16". Raises: argparse.ArgumentTypeError."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*([0-9]{1,9})\s*", part)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is no mesh; write AXIS=SIZE,... such as data=16,model=16")
        if match[1] in found:
            raise argparse.ArgumentTypeError(f"{text!r} names the axis {match[1]!r} twice; name each axis once")
        found[match[1]] = int(match[2])
    return found


def parse_names(text: str) -> tuple[str, ...]:
    """The names of "data,model". Raises: argparse.ArgumentTypeError."""
    names = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names):
        raise argparse.ArgumentTypeError(f"{text!r} are no names of axes; write NAME,... such as data,model")
    return names


def parse_rules(text: str) -> tuple[tuple[str, str | tuple[str, ...] | None], ...]:
    """The logical rules of "batch=data,mlp=(data,model),embed=None". Raises: argparse.ArgumentTypeError."""
    axis = r"[A-Za-z_]\w*"
    rule = re.compile(rf"\s*([^\s=,()]+)\s*=\s*({axis}|\(\s*{axis}(?:\s*,\s*{axis})*\s*\))\s*(,|$)")
    found: list[tuple[str, str | tuple[str, ...] | None]] = []
    position, more = 0, True
    while more:
        match = rule.match(text, position)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{text!r} are no logical rules; write NAME=AXIS,... with an axis, several in brackets or None for every "
                "name, such as batch=data,mlp=(data,model),embed=None"
            )
        (entry,) = parse_spec(match[2])
        found.append((match[1], entry))
        position, more = match.end(), match[3] == ","
    return tuple(found)


def parse_pin(text: str) -> tuple[str, PartitionSpec]:
    """(pattern, spec) of "params/*/kernel=None,(data,model)". Raises: argparse.ArgumentTypeError."""
    pattern, sign, spec = text.rpartition("=")
    if not sign or not pattern:
        raise argparse.ArgumentTypeError(f"{text!r} is no pin; write PATTERN=SPEC such as 'params/*=None,(x,y)'")
    return pattern.strip(), parse_spec(spec)


def parse_spec(text: str) -> PartitionSpec:
    """The PartitionSpec of "x,None,(y,z)"; of the empty text, P(). Raises: argparse.ArgumentTypeError."""
    entry = re.compile(r"\s*(?:\(([^()]*)\)|([A-Za-z_]\w*))\s*(,|$)")
    entries: list[str | tuple[str, ...] | None] = []
    position, more = 0, bool(text.strip())
    while more:
        match = entry.match(text, position)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no spec; write an axis, several in brackets or None per dim, such as x,None,(y,z)"
            )
        if match[1] is not None:
            axes = tuple(axis.strip() for axis in match[1].split(",") if axis.strip())
            entries.append(axes or None)
        else:
            entries.append(None if match[2] == "None" else match[2])
        position, more = match.end(), match[3] == "," and bool(text[match.end() :].strip())
    return PartitionSpec(*entries)


def parse_arguments(text: str) -> tuple[int | str, ...]:
    """The arguments of "0,mode", by position or by name. Raises: argparse.ArgumentTypeError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(re.fullmatch(r"[0-9]{1,9}|[A-Za-z_]\w*", part) for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} are no arguments; write positions from 0, or names, such as 0,1 or params,mode"
        )
    return tuple(int(part) if part[0].isdigit() else part for part in parts)
