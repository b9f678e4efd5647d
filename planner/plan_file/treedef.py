"""Pytrees as JSON: the structure of a plan's arguments.

`"*"` is an array, `"None"` None, `{"list": [...]}` and `{"tuple": [...]}` are what they say, `{"dict": [[key, ...], ...]}`
has keys of text or whole numbers, `{"namedtuple": [module, name], "items": [...]}` is looked up where it was defined.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import jax

MOST_DEEP = 200
"""Containers within containers that can be told."""


def json_of_tree(tree: Any) -> Any:
    """A treedef as JSON, or None where it holds nodes that only their own code can rebuild."""
    leaf = object()
    try:
        return _json(jax.tree.unflatten(tree, [leaf] * tree.num_leaves), leaf, 0)
    except Exception:  # a user's own node may refuse a placeholder in any way it likes
        return None


def _json(node: Any, leaf: object, depth: int) -> Any:
    if node is leaf:
        return "*"
    if node is None:
        return "None"
    if depth == MOST_DEEP:
        raise TypeError("containers this deep cannot be told")
    kind: Any = type(node)
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        if "<locals>" in kind.__qualname__:
            raise TypeError("a local class cannot be found by name")
        items = [_json(child, leaf, depth + 1) for child in node]
        return {"namedtuple": [kind.__module__, kind.__qualname__], "items": items}
    if kind in (tuple, list):
        return {kind.__name__: [_json(child, leaf, depth + 1) for child in node]}
    if kind is dict and all(isinstance(key, (str, int)) for key in node):
        return {"dict": [[key, _json(node[key], leaf, depth + 1)] for key in node]}
    raise TypeError(f"{kind.__name__} is not a container JSON can tell")


def leaves_in_json(data: Any, depth: int = 0) -> int:
    """How many arrays a tree has. Raises: ValueError where the JSON is not that of a tree."""
    if data in ("*", "None"):
        return int(data == "*")
    if depth == MOST_DEEP:
        raise ValueError(f"in_tree has more than {MOST_DEEP} containers within each other")
    return sum(leaves_in_json(child, depth + 1) for child in _children(data))


def _children(data: Any) -> list[Any]:
    """The items of a container. Raises: ValueError."""
    kinds = sorted(data) if isinstance(data, dict) else []
    items = data["items" if kinds == ["items", "namedtuple"] else kinds[0]] if kinds else None
    if kinds in (["list"], ["tuple"]) and isinstance(items, list):
        return items
    if kinds == ["items", "namedtuple"] and isinstance(items, list):
        name = data["namedtuple"]
        if isinstance(name, list) and len(name) == 2 and all(isinstance(part, str) for part in name):
            return items
    if kinds == ["dict"] and isinstance(items, list):
        pairs = [pair for pair in items if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)]
        if len({pair[0] for pair in pairs}) == len(items):
            return [pair[1] for pair in pairs]
    raise ValueError("in_tree holds what is neither an array nor a container")


def tree_of_json(data: Any) -> Any:
    """The treedef of its JSON, or None where it holds containers that only their own code can rebuild.

    Named tuples are looked up in modules that are already imported: nothing is imported, and no code of theirs is run.
    """
    if data is None:
        return None
    try:
        return jax.tree.structure(_of_json(data))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _of_json(data: Any) -> Any:
    if data == "*":
        return 0
    if data == "None":
        return None
    if "namedtuple" in data:
        module, name = data["namedtuple"]
        kind: Any = sys.modules[module]
        for part in name.split("."):
            # As it stands there: getattr would run a module's own __getattr__, which may import others.
            held: Mapping[str, Any] = vars(kind)
            kind = held[part]
        fields: Any = vars(kind).get("_fields") if isinstance(kind, type) and issubclass(kind, tuple) else None
        if not isinstance(fields, tuple) or len(fields) != len(data["items"]):
            raise ValueError(f"{module}.{name} is not a named tuple of so many fields")
        return tuple.__new__(kind, map(_of_json, data["items"]))
    if "dict" in data:
        return {key: _of_json(child) for key, child in data["dict"]}
    if "list" in data:
        return [_of_json(child) for child in data["list"]]
    return tuple(_of_json(child) for child in data["tuple"])
