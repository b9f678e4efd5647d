"""Records as JSON and back, by the types of their fields: nothing is converted, so that what is read means what is written.

A dataclass is an object with the names of its fields, a tuple a list, a PartitionSpec a list of the axes of every dim.
`cattrs` walks the types; the hooks here make it strict. Fields with defaults may be missing: older files lack them.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import cattrs
from cattrs.cols import list_structure_factory
from cattrs.gen import make_dict_structure_fn, mapping_structure_factory
from jax.sharding import PartitionSpec

from planner.pricing.candidates.specs import entries_of, from_entries

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]
"""Reads a JSON value as a type. Raises: ValueError whose text follows the name of the field."""

MOST_INTEGER = 2**63 - 1
MOST_NUMBER = 1e100
"""No figure of a plan is as large; sums and products of smaller ones stay finite."""
MOST_OF_VALUE = 40
"""Letters of a value that an error quotes."""
MOST_OF_PATH = 100
"""Letters of the path of a field in an error."""


def as_json(value: Any) -> Any:
    """A record as what JSON can tell."""
    if isinstance(value, PartitionSpec):
        return entries_of(value)
    if dataclasses.is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {key: as_json(held) for key, held in value.items()}
    if isinstance(value, (tuple, list)):
        return [as_json(held) for held in value]
    return value


def from_json(
    kind: type[T], value: Any, *, read: Hook | None = None, names: Mapping[str, str] = MappingProxyType({})
) -> T:
    """The record of type `kind` that JSON tells, as `read` reads it if that is given; `names` are those of its fields in
    the file, where they differ.

    Raises: ValueError with the path of the first field that is something else, its value and what it must be.
    """
    try:
        return (read or CONVERTER.structure)(value, kind)
    except (cattrs.BaseValidationError, ValueError) as error:
        message, _, path = cattrs.transform_error(error, "", _message_of)[0].rpartition(" @ ")
        first, *others = re.split(r"(?=[.[])", path.lstrip("."))
        where = "".join((names.get(first, first), *others))
        raise ValueError(f"{shortened(where, MOST_OF_PATH) or 'the file'} {message}") from error


def read_by_fields(kind: type[T], converter: cattrs.Converter, **overrides: Any) -> Hook:
    """Reads an object as a dataclass, without fields that it has not; `overrides` are those of `cattrs.override`."""
    read = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True, **overrides)
    return _if(lambda value: isinstance(value, dict), "an object", read)


def shortened(text: str, most: int = MOST_OF_VALUE) -> str:
    """The start of a text, for an error."""
    return text if len(text) <= most else f"{text[:most]}..."


def not_a(wanted: str, value: Any) -> ValueError:
    """The error for a value that is not what was wanted."""
    if isinstance(value, (dict, list)):
        text = f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    else:
        text = shortened(ascii(value))
    return ValueError(f"is {text}, not {wanted}")


def _message_of(error: BaseException, _: type | None) -> str:
    """What follows the path of a field in an error."""
    if isinstance(error, KeyError):
        return "is missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"has a field {shortened(ascii(min(error.extra_fields)))} that no plan has"
    return str(error)


def _if(holds: Callable[[Any], bool], wanted: str, read: Hook = lambda value, _: value) -> Hook:
    """Reads a value only if a condition holds."""

    def checked(value: Any, kind: Any) -> Any:
        if not holds(value):
            raise not_a(wanted, value)
        return read(value, kind)

    return checked


def _is_text(value: Any) -> bool:
    """Whether a value is text without halves of surrogate pairs, which no file or screen takes."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST_NUMBER


def _spec(value: Any, _: Any) -> PartitionSpec:
    spec = from_entries(CONVERTER.structure(value, tuple[tuple[str, ...], ...]))
    if entries_of(spec) != value:
        raise not_a("a list of the axes of every dim", value)
    return spec


def _literal(kind: Any, _: Any) -> Hook:
    options = typing.get_args(kind)
    names = f"one of {', '.join(map(repr, options))}"
    return _if(lambda value: any(type(value) is type(o) and value == o for o in options), names)


def _tuple(kind: Any, converter: Any) -> Hook:
    """Reads tuples of any length, or of a fixed one, whose items are of one type."""
    item, *others = typing.get_args(kind)
    read_list = list_structure_factory(list[item], converter)

    def read(value: Any, kind: Any) -> tuple[Any, ...]:
        return tuple(read_list(value, kind))

    if others == [...]:
        return _if(lambda value: isinstance(value, list), "a list", read)
    length = 1 + len(others)
    return _if(lambda value: isinstance(value, list) and len(value) == length, f"a list of {length}", read)


def _mapping(kind: Any, converter: Any) -> Hook:
    return _if(lambda value: isinstance(value, dict), "an object", mapping_structure_factory(kind, converter, dict))


def _either(json_kind: type, held: Any, plain: Any) -> Hook:
    """Reads a union of a type that JSON writes as a `json_kind` and another one."""
    return lambda value, _: CONVERTER.structure(value, held if isinstance(value, json_kind) else plain)


def _converter() -> cattrs.Converter:
    made = cattrs.Converter()
    made.register_structure_hook(str, _if(_is_text, "text"))
    made.register_structure_hook(bool, _if(lambda value: isinstance(value, bool), "true or false"))
    made.register_structure_hook(
        int, _if(lambda value: type(value) is int and abs(value) <= MOST_INTEGER, "a whole number")
    )
    made.register_structure_hook(float, _if(_is_number, "a number"))
    made.register_structure_hook(PartitionSpec, _spec)
    # The unions of `Request.while_trips`, of `Request.inputs` and of the paths of places.
    made.register_structure_hook(float | Mapping[str, float], _either(dict, Mapping[str, float], float))
    made.register_structure_hook(Literal["auto"] | tuple[str, ...], _either(list, tuple[str, ...], Literal["auto"]))
    made.register_structure_hook(int | str, _either(str, str, int))
    made.register_structure_hook_factory(dataclasses.is_dataclass, read_by_fields)
    made.register_structure_hook_factory(lambda kind: typing.get_origin(kind) is Literal, _literal)
    made.register_structure_hook_factory(lambda kind: typing.get_origin(kind) is tuple, _tuple)
    made.register_structure_hook_factory(lambda kind: typing.get_origin(kind) is Mapping, _mapping)
    return made


CONVERTER = _converter()
"""Reads all that plan files hold; `record` adds how a decision is read."""
