"""Pytrees in words: the structure of a plan's arguments as JSON can tell it.

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


def words_of_tree(tree: Any) -> Any:
    """A treedef in words, or None where it holds nodes that only their own code can rebuild."""
    leaf = object()
    try:
        return _words(jax.tree.unflatten(tree, [leaf] * tree.num_leaves), leaf, 0)
    except Exception:  # a user's own node may refuse a placeholder in any way it likes
        return None


def _words(node: Any, leaf: object, depth: int) -> Any:
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
        items = [_words(child, leaf, depth + 1) for child in node]
        return {"namedtuple": [kind.__module__, kind.__qualname__], "items": items}
    if kind in (tuple, list):
        return {kind.__name__: [_words(child, leaf, depth + 1) for child in node]}
    if kind is dict and all(isinstance(key, (str, int)) for key in node):
        return {"dict": [[key, _words(node[key], leaf, depth + 1)] for key in node]}
    raise TypeError(f"{kind.__name__} is not a container JSON can tell")


def leaves_in_words(words: Any, depth: int = 0) -> int:
    """How many arrays a tree in words has. Raises: ValueError where these are no such words."""
    if words in ("*", "None"):
        return int(words == "*")
    if depth == MOST_DEEP:
        raise ValueError(f"in_tree has more than {MOST_DEEP} containers within each other")
    return sum(leaves_in_words(child, depth + 1) for child in _children(words))


def _children(words: Any) -> list[Any]:
    """The items of a container in words. Raises: ValueError."""
    kinds = sorted(words) if isinstance(words, dict) else []
    items = words["items" if kinds == ["items", "namedtuple"] else kinds[0]] if kinds else None
    if kinds in (["list"], ["tuple"]) and isinstance(items, list):
        return items
    if kinds == ["items", "namedtuple"] and isinstance(items, list):
        name = words["namedtuple"]
        if isinstance(name, list) and len(name) == 2 and all(isinstance(part, str) for part in name):
            return items
    if kinds == ["dict"] and isinstance(items, list):
        pairs = [pair for pair in items if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (str, int)]
        if len({pair[0] for pair in pairs}) == len(items):
            return [pair[1] for pair in pairs]
    raise ValueError("in_tree holds what is neither an array nor a container")


def tree_from_words(words: Any) -> Any:
    """The treedef that words tell, or None where it holds containers that only their own code can rebuild.

    Named tuples are looked up in modules that are already imported: nothing is imported, and no code of theirs is run.
    """
    if words is None:
        return None
    try:
        return jax.tree.structure(_from_words(words))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _from_words(words: Any) -> Any:
    if words == "*":
        return 0
    if words == "None":
        return None
    if "namedtuple" in words:
        module, name = words["namedtuple"]
        kind: Any = sys.modules[module]
        for part in name.split("."):
            # As it stands there: getattr would run a module's own __getattr__, which may import others.
            held: Mapping[str, Any] = vars(kind)
            kind = held[part]
        fields: Any = vars(kind).get("_fields") if isinstance(kind, type) and issubclass(kind, tuple) else None
        if not isinstance(fields, tuple) or len(fields) != len(words["items"]):
            raise ValueError(f"{module}.{name} is not a named tuple of so many fields")
        return tuple.__new__(kind, map(_from_words, words["items"]))
    if "dict" in words:
        return {key: _from_words(child) for key, child in words["dict"]}
    if "list" in words:
        return [_from_words(child) for child in words["list"]]
    return tuple(_from_words(child) for child in words["tuple"])
