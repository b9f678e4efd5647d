"""What is known of a primitive stands in its row: nothing but the tables lists primitives by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import planner
from planner.rules.primitives import PRIMITIVES

ROOT = Path(planner.__file__).resolve().parent
EXEMPT = {
    "hlo": "names of HLO's opcodes, some of which are primitives, too",
    "jaxpr": "reads programs without knowing rules: what a loop compares its counter by",
    "rules": "holds the table",
    "trace": "reads programs without knowing rules: what a loop compares its counter by",
}
"""Modules and folders that may list primitives: why."""


def _listed(tree: ast.Module) -> Iterator[tuple[int, set[str]]]:
    """(line, names of primitives) of every list, set or tuple that has two or more of them; not of a type."""
    types = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.List | ast.Set | ast.Tuple) and id(node) not in types:
            words = {item.value for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)}
            if len(words & PRIMITIVES.keys()) > 1:
                yield node.lineno, words & PRIMITIVES.keys()


def test_no_module_besides_the_table_lists_primitives() -> None:
    found = [
        (str(path.relative_to(ROOT)), *listed)
        for path in sorted(ROOT.rglob("*.py"))
        if EXEMPT.keys().isdisjoint(path.relative_to(ROOT).with_suffix("").parts)
        for listed in _listed(ast.parse(path.read_text()))
    ]
    assert found == []


def test_a_list_of_primitives_is_found() -> None:
    text = 'SUMS = frozenset(("add", "sub"))\nKind = Literal["add", "max"]\nWORDS = ("add", "of")\n'
    assert list(_listed(ast.parse(text))) == [(1, {"add", "sub"})]
