"""The house: what is light to import, and which folder alone looks into jaxprs."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
JAXPR = ROOT / "planner" / "program" / "jaxpr"
OF_JAXPRS = ("constvars", "eqns", "invars", "outvars")
"""Attributes that jaxprs and their equations alone have."""


def loaded_by(statement: str) -> set[str]:
    """The modules of the planner that a statement loads in a fresh process."""
    told = "import sys, json; print(json.dumps([m for m in sys.modules if m.split('.')[0] == 'planner']))"
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}; {told}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in json.loads(done.stdout) if _is_file(name)}


def _is_file(name: str) -> bool:
    """Whether a module is more than the three lines that say what a package is for."""
    return not (ROOT / name.replace(".", "/") / "__init__.py").exists()


@pytest.mark.parametrize(
    ("statement", "most"),
    [("import planner", 0), ("import planner.options", 4), ("import planner.plan_file.store", 24)],
    ids=["the package", "options", "reading a saved plan"],
)
def test_records_load_no_algorithms(statement: str, most: int) -> None:
    found = loaded_by(statement)
    assert len(found) <= most, sorted(found)


def test_one_folder_alone_reads_jaxprs() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "planner").rglob("*.py")
        if JAXPR not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in OF_JAXPRS
    }
    assert not readers


PACKAGES = sorted(path for name in ("planner", "cost_models", "pbqp") for path in (ROOT / name).rglob("__init__.py"))


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_every_package_says_what_goes_in_and_what_comes_out(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "\nIn: " in text
    assert "\nOut: " in text
    for entry in re.findall(r"^Entry: `([\w.]+)`\.$", text, re.MULTILINE):
        assert pkgutil.resolve_name(entry)
