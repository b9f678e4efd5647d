"""Options of the command line that are fields of `planner.Options`: names, values, help and defaults come from there."""

from __future__ import annotations

import argparse
import inspect
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union

from planner.former_names import FORMER_KEYWORDS, warn_of
from planner.options import Options

FIELDS = fields(Options)
FLAGS: Mapping[str, str] = {field.name: f"--{field.name.removesuffix('_s').replace('_', '-')}" for field in FIELDS}
"""The flag of every field."""


def add_options(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Adds the fields of `Options` that text can give; their help is the first sentence about them in its docstring."""
    kinds, texts = typing.get_type_hints(Options), _first_sentences()
    for field in FIELDS:
        if field.name not in without and (values := _values(kinds[field.name], field.name)):
            default = "" if field.default is None else f" Default: {_text(field.default)}"
            text = f"{texts[field.name]}{default}".replace("%", "%%")
            parser.add_argument(FLAGS[field.name], dest=field.name, help=text, **values)
            for former in (old for old, new in FORMER_KEYWORDS.items() if new == field.name):
                parser.add_argument(f"--{former}", dest=field.name, action=_Former, help=argparse.SUPPRESS, **values)


KEYWORDS: Mapping[str, str] = {
    "memory_limit": "--memory",
    "axis_names": "--axis-names",
    "logical_rules": "--logical-rules",
    "donate_argnums": "--donate",
    "donate_argnames": "--donate",
    "static_argnums": "--static",
    "static_argnames": "--static",
}
"""The flags of keywords of `planner.plan` that are called otherwise."""


def in_flags(text: str, given: Collection[str]) -> str:
    """An error's text with flags for `Options(...)`, and for the keywords whose flags were `given`."""
    text = re.sub(
        r"Options\((\w+)=('[^']*'|[^()]*)\)",
        lambda m: f"{FLAGS[m[1]]} {m[2].strip(chr(39))}" if m[1] in FLAGS else m[0],
        text,
    )
    for keyword, flag in KEYWORDS.items():
        if flag in given:
            text = re.sub(rf"\b{keyword}(?:=(?:\.\.\.)?)?(?![\w(])", flag, text)
    return text


class _Former(argparse.Action):
    """Takes the flag of the last release, with a warning."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Sets the option."""
        warn_of(str(option_string), FLAGS[self.dest])
        setattr(namespace, self.dest, values)


def _first_sentences() -> dict[str, str]:
    """What the docstring of `Options` says first of every field, with flags for the names of fields."""
    found = re.findall(r"^`(\w+)`: (.+?\.)(?=\s)", inspect.getdoc(Options) or "", re.MULTILINE | re.DOTALL)
    return {name: re.sub(r"`(.+?)`", lambda m: FLAGS.get(m[1], m[1]), " ".join(text.split())) for name, text in found}


def _values(kind: Any, name: str) -> dict[str, Any]:
    """How the parser reads the values of a type; nothing for a type whose values text cannot give."""
    kinds: Sequence[Any] = typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else (kind,)
    choices = [word for one in kinds if typing.get_origin(one) is Literal for word in typing.get_args(one)]
    if float in kinds or int in kinds:
        number = float if float in kinds else int
        metavar = "SECONDS" if name.endswith("_s") else "N"
        return {"type": _choice_or(choices, number, "a number") if choices else number, "metavar": metavar}
    if Sequence[str] in kinds:
        return {"type": _choice_or(choices, _names, "names"), "metavar": "NAME,..."}
    if str in kinds:
        return {"metavar": "PATH"}
    return {"choices": choices} if len(choices) > 1 and bool not in kinds else {}


def _choice_or(choices: Sequence[str], read: Callable[[str], Any], wanted: str) -> Callable[[str], Any]:
    """Reads one of some choices, or something else."""

    def read_either(text: str) -> Any:
        try:
            return text if text in choices else read(text)
        except ValueError:
            possible = " or ".join((*choices, wanted))
            raise argparse.ArgumentTypeError(f"{text!r} is not possible; write {possible}") from None

    return read_either


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
