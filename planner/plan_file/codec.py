"""Records as JSON and back, by the types of their fields: nothing is converted, so that what is read means what is written.

A dataclass is an object with the names of its fields, a tuple a list, a PartitionSpec a list of the axes of every dim.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar

from jax.sharding import PartitionSpec

from planner.pricing.candidates.specs import entries_of, from_entries

T = TypeVar("T")

MOST_INTEGER = 2**63 - 1
MOST_NUMBER = 1e100
"""No figure of a plan is as large, and sums and products of such can be told."""
UNLIMITED = frozenset(("memory_limit",))
"""Fields that may be infinite."""
MOST_TOLD = 40
"""Letters of a value that are told."""


def as_json(value: Any) -> Any:
    """A record as what JSON can tell."""
    if isinstance(value, PartitionSpec):
        return entries_of(value)
    if dataclasses.is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in _fields(type(value))}
    if isinstance(value, Mapping):
        return {key: as_json(held) for key, held in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(held) for held in value]
    return value


def from_json(kind: type[T], value: Any, *, grown: Collection[type] = ()) -> T:
    """The record of type `kind` that JSON tells. Raises: ValueError that says where it tells something else.

    Of the `grown` types, fields with defaults may be missing: files of earlier planners lack them.
    """
    return _read(kind, value, "", grown)


def _read(kind: Any, value: Any, where: str, grown: Collection[type]) -> Any:
    plain = _PLAIN.get(kind)
    if plain is not None:
        return plain(value, where)
    origin, options = _parts(kind)
    if kind is Any:
        return value
    if origin is Literal:
        return _one_of(options, value, where)
    if origin in (typing.Union, types.UnionType):
        return _read(_option(options, value), value, where, grown)
    if origin is tuple:
        return _tuple(options, value, where, grown)
    if origin is not None and issubclass(origin, Mapping):
        return {
            _text(key, where): _read(options[1], held, f"{where}.{key}", grown)
            for key, held in _object(value, where).items()
        }
    return _record(kind, value, where, grown)


@lru_cache(maxsize=256)
def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """What a type is a kind of, and of what: `tuple`, `(int, ...)`."""
    return typing.get_origin(kind), typing.get_args(kind)


def _option(options: Sequence[Any], value: Any) -> Any:
    """The type among those of a union that looks like the value."""
    if value is None or isinstance(value, str):
        wanted: Any = types.NoneType if value is None else str
        return wanted if wanted in options else next(o for o in options if o is not types.NoneType)
    for option in options:
        is_object = dataclasses.is_dataclass(option) or typing.get_origin(option) not in (None, tuple)
        if option not in (types.NoneType, str) and is_object == isinstance(value, dict):
            return option
    return next(o for o in options if o is not types.NoneType)


def _record(kind: Any, value: Any, where: str, grown: Collection[type]) -> Any:
    told, hints = dict(_object(value, where)), _hints(kind)
    found: dict[str, Any] = {}
    for field in _fields(kind):
        at = f"{where}.{field.name}" if where else field.name
        if field.name in told:
            found[field.name] = _read(hints[field.name], told.pop(field.name), at, grown)
        elif kind not in grown or (field.default is field.default_factory is dataclasses.MISSING):
            raise ValueError(f"{at} is missing")
    if told:
        raise ValueError(f"{where or 'the file'} has a field {_told(next(iter(told)))} that no plan has")
    return kind(**found)


@lru_cache(maxsize=64)
def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(field for field in dataclasses.fields(kind) if field.init)


@lru_cache(maxsize=64)
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _tuple(kinds: Sequence[Any], value: Any, where: str, grown: Collection[type]) -> tuple[Any, ...]:
    values = _list(value, where)
    if len(kinds) == 2 and kinds[1] is ...:
        return tuple(_read(kinds[0], held, f"{where}[{i}]", grown) for i, held in enumerate(values))
    if len(values) != len(kinds):
        raise _wrong(value, where, f"a list of {len(kinds)}")
    return tuple(
        _read(kind, held, f"{where}[{i}]", grown) for i, (kind, held) in enumerate(zip(kinds, values, strict=True))
    )


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(value, where, "a list")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(value, where, "an object")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not _can_be_printed(value):
        raise _wrong(value, where, "text")
    return value


def _can_be_printed(text: str) -> bool:
    """Whether text is free of halves of surrogate pairs, which no file or screen takes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text) if not text.isascii() else True


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")
    return value


def _int(value: Any, where: str) -> int:
    if type(value) is not int or abs(value) > MOST_INTEGER:
        raise _wrong(value, where, "a whole number")
    return value


def _float(value: Any, where: str) -> float:
    unlimited = where.rpartition(".")[2] in UNLIMITED and value == math.inf
    if type(value) not in (int, float) or not (abs(value) <= MOST_NUMBER or unlimited):
        raise _wrong(value, where, "a number")
    return value


def _spec(value: Any, where: str) -> PartitionSpec:
    entries = [[_text(axis, where) for axis in _list(axes, where)] for axes in _list(value, where)]
    spec = from_entries(entries)
    if entries_of(spec) != entries:
        raise _wrong(value, where, "a list of the axes of every dim")
    return spec


def _none(value: Any, where: str) -> None:
    if value is not None:
        raise _wrong(value, where, "null")


def _one_of(options: Sequence[Any], value: Any, where: str) -> Any:
    if not any(type(value) is type(option) and value == option for option in options):
        raise _wrong(value, where, f"one of {', '.join(map(repr, options))}")
    return value


_PLAIN: Mapping[Any, Callable[[Any, str], Any]] = {
    str: _text,
    bool: _bool,
    int: _int,
    float: _float,
    types.NoneType: _none,
    PartitionSpec: _spec,
}


def _wrong(value: Any, where: str, wanted: str) -> ValueError:
    return ValueError(f"{where or 'the file'} is {_told(value)}, not {wanted}")


def _told(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    words = ascii(value)
    return words if len(words) <= MOST_TOLD else f"{words[:MOST_TOLD]}..."
