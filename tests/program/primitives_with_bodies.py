"""Prints, as JSON, JAX's primitives whose params hold bodies: {name: [params]}. Run in a child, as it imports all of JAX.

A primitive has a body if some function that JAX registers for it (its lowering, its derivative, its batching) takes one by
name, or if some line of JAX's source binds it with one.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import json
import pkgutil
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import jax
from jax.extend.core import Primitive

BODY = re.compile(r"jaxpr|branches|callee|exported|^_?call$|^_?prim$|^(fun|bwd)$")
"""Names of params that hold a body: jaxprs, or what makes them."""

NOT_JAX_ITSELF = ("jax2tf", "test", "collect_profile")


def import_all() -> None:
    for module in pkgutil.walk_packages(jax.__path__, "jax."):
        if not any(word in module.name for word in NOT_JAX_ITSELF):
            try:
                importlib.import_module(module.name)
            except Exception:  # what needs packages that are not there, such as a GPU's
                continue


def signatures(function: Any, seen: set[int]) -> Iterator[inspect.Signature]:
    """Those of a function and of the functions that it wraps."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, partial):
        yield from signatures(function.func, seen)
    elif isinstance(function, FunctionType | MethodType):
        yield inspect.signature(function, follow_wrapped=False)
        for cell in function.__closure__ or ():
            try:
                yield from signatures(cell.cell_contents, seen)
            except ValueError:  # an empty cell
                continue


def registered(primitives: list[Primitive]) -> Iterator[tuple[str, Any]]:
    """(name, function) of what is registered for primitives, in whatever table."""
    for primitive in primitives:
        yield from ((primitive.name, value) for value in vars(primitive).values())
    for table in [one for one in gc.get_objects() if isinstance(one, dict) and one]:
        for key, rule in list(table.items()):
            if isinstance(key, Primitive):
                yield from (
                    (key.name, getattr(one, "rule", one)) for one in (rule if isinstance(rule, tuple) else (rule,))
                )


def bound(names: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(name, param) of the calls of `bind` in JAX's source; `names` are those of primitives by variable."""
    for path in Path(jax.__path__[0]).rglob("*.py"):
        text = path.read_text()
        if ".bind(" not in text or any(word in str(path.relative_to(jax.__path__[0])) for word in NOT_JAX_ITSELF):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "bind":
                owner = node.func.value
                variable = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                for keyword in node.keywords:
                    if variable in names and keyword.arg and BODY.search(keyword.arg):
                        yield names[variable], keyword.arg


def main() -> None:
    warnings.simplefilter("ignore")
    import_all()
    objects = gc.get_objects()
    primitives = [one for one in objects if isinstance(one, Primitive)]
    names = {
        variable: value.name
        for module in objects
        if inspect.ismodule(module) and module.__name__.startswith("jax")
        for variable, value in list(vars(module).items())
        if isinstance(value, Primitive) and variable.endswith("_p")
    }
    found = defaultdict[str, set[str]](set)
    for name, function in registered(primitives):
        for signature in signatures(function, set()):
            own = signature.parameters.values()
            found[name] |= {p.name for p in own if p.kind is p.KEYWORD_ONLY and BODY.search(p.name)}
    for name, param in bound(names):
        found[name].add(param)
    print(json.dumps({name: sorted(params) for name, params in sorted(found.items()) if params}))


if __name__ == "__main__":
    main()
