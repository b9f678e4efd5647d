"""How large is the code, and how is it laid out?

    python -m benchmarks.code_structure [--out FILE.json]

Prints the measures that the layout of the project is held to, then the size of each folder, so that growth is seen when it
happens. It reads source files alone and imports nothing of the project; the import graph is that of `grimp`, which
import-linter brings.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grimp
import networkx as nx

from benchmarks.stamp import stamp

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("planner", "pbqp", "cost_models")
PRIVATE = (ROOT / "tests" / "private_words.txt").read_text(encoding="utf-8").split()
"""Words that no identifier bears, whole or as a part between underscores or capitals; see docs/glossary.md."""
PLATFORMS = {"tpu", "gpu", "cpu", "cuda"}
FREE_OF_PLATFORMS = ("planner/compiler/", "planner/machine/", "planner/verify/")
"""Folders that may compare a platform's name."""
ONE_ROW_FILES = ("planner/rules/ops/",)
CROWDED = 16
SMALL = 40
PLANS_FAMILY = ("request", "planning", "variants", "plans", "plan_file", "report", "studies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A source file: its path from the root, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def name(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def modules() -> list[Module]:
    """Every module of the packages, by path."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    return [Module(path=str(path.relative_to(ROOT)), text=text, tree=ast.parse(text)) for path, text in texts.items()]


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def identifiers(module: Module) -> Iterator[str]:
    """Every name that a module gives: modules, classes, functions, arguments, variables, fields."""
    yield module.path.rsplit("/", 1)[-1].removesuffix(".py")
    for node in ast.walk(module.tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def parts(identifier: str) -> list[str]:
    """The words of an identifier: `row_order` and `RowOrder` have the same two."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", identifier)]


def is_record(node: ast.ClassDef) -> bool:
    """Whether a class is a dataclass or a NamedTuple."""
    marks = [*node.bases, *(mark.func if isinstance(mark, ast.Call) else mark for mark in node.decorator_list)]
    return any(isinstance(mark, ast.Name) and mark.id in ("dataclass", "NamedTuple") for mark in marks)


def compares_platform(node: ast.AST) -> bool:
    """Whether an expression compares something with the name of a platform."""
    if not isinstance(node, ast.Compare):
        return False
    constants = [leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
    return any(isinstance(value, str) and value in PLATFORMS for value in constants)


def import_graph() -> nx.DiGraph:
    """Who imports whom among the modules: an edge from the importer."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    edges = ((module, target) for module in graph.modules for target in graph.find_modules_directly_imported_by(module))
    return nx.DiGraph(edges)


def longest_chain(graph: nx.DiGraph) -> list[str]:
    """The longest chain of imports, from the user's end down."""
    return nx.dag_longest_path(graph) if nx.is_directed_acyclic_graph(graph) else []


def folders(every: list[Module]) -> dict[str, tuple[int, int]]:
    """Modules, `__init__` left out, and lines of every folder, those of the folders inside left out."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for module in every:
        folder, _, name = module.path.rpartition("/")
        counts[folder][0] += name != "__init__.py"
        counts[folder][1] += module.lines
    return {folder: (number, lines) for folder, (number, lines) in sorted(counts.items())}


def definitions(every: list[Module]) -> Counter[str]:
    """In how many places each public class or function of a module's top level is defined."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    found = Counter(n.name for m in every for n in m.tree.body if isinstance(n, kinds) and not n.name.startswith("_"))
    return Counter({name: number for name, number in found.items() if number > 1})


def measures(every: list[Module], graph: nx.DiGraph) -> dict[str, Any]:
    """The measures, each under a sentence that says what it counts."""
    planner = [module for module in every if module.path.startswith("planner/")]
    nodes = [(module, node) for module in planner for node in ast.walk(module.tree)]
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for module in planner for node in functions(module)]
    used = {module.name: graph.in_degree(module.name) if module.name in graph else 0 for module in planner}
    small = [
        module.path
        for module in planner
        if module.lines < SMALL and used[module.name] == 1 and not module.path.endswith(("__init__.py", "__main__.py"))
        if not module.path.startswith(ONE_ROW_FILES)
    ]
    private = Counter(
        word for module in planner for name in identifiers(module) for word in parts(name) if word in PRIVATE
    )
    outside = [(module, node) for module, node in nodes if not module.path.startswith(FREE_OF_PLATFORMS)]
    calls = [ast.unparse(node.func) for _, node in nodes if isinstance(node, ast.Call)]
    clocks = [m for m, n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n) == "time.monotonic"]
    return {
        "lines of planner/": sum(module.lines for module in planner),
        "lines of pbqp/": sum(module.lines for module in every if module.path.startswith("pbqp/")),
        "lines of cost_models/": sum(module.lines for module in every if module.path.startswith("cost_models/")),
        "lines of the family of plans": sum(m.lines for m in planner if m.path.split("/")[1] in PLANS_FAMILY),
        "modules of planner/": len(planner),
        "folders with more than 16 modules": sorted(f for f, (number, _) in folders(every).items() if number > CROWDED),
        "modules under 40 lines with one importer": small,
        "longest chain of imports": len(longest_chain(graph)),
        "dataclasses and NamedTuples": sum(isinstance(node, ast.ClassDef) and is_record(node) for _, node in nodes),
        "public names defined more than once": dict(definitions(planner).most_common()),
        "identifiers with a private word": dict(private.most_common()),
        "comparisons of a platform's name outside of its folders": sum(compares_platform(node) for _, node in outside),
        "functions of more than 60 lines": sum(length > 60 for length in lengths),
        "modules that read the clock": sorted({module.path for module in clocks}),
        "calls of copy.copy": calls.count("copy.copy"),
        "calls of send on generators": sum(call.endswith(".send") for call in calls),
        "comment lines": sum(line.lstrip().startswith("#") for m in planner for line in m.text.splitlines()),
        "lines of README.md": _lines("README.md"),
        "lines of docs/design.md": _lines("docs/design.md"),
        "decision records": len(list((ROOT / "docs" / "decisions").glob("[0-9]*.md"))),
    }


def _lines(path: str) -> int:
    return (ROOT / path).read_text(encoding="utf-8").count("\n")


def printed(found: Mapping[str, Any], rooms: Mapping[str, tuple[int, int]], chain: list[str]) -> str:
    """The measures and the rooms as text."""
    lines = []
    for name, value in found.items():
        details = f" ({', '.join(f'{k} {v}' for k, v in value.items())})" if isinstance(value, dict) and value else ""
        details = f" ({', '.join(value)})" if isinstance(value, list) and value else details
        lines.append(f"{name:58} {len(value) if isinstance(value, list | dict) else value:6}{details}")
    lines += ["", f"{'folder':40} modules  lines"]
    lines += [f"{folder:40} {number:7} {size:6}" for folder, (number, size) in rooms.items()]
    lines += ["", "the longest chain of imports:"]
    return "\n".join([*lines, *(f"  {upper} -> {lower}" for upper, lower in pairwise(chain))])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the measures as JSON")
    arguments = parser.parse_args()
    every, graph = modules(), import_graph()
    found, rooms = measures(every, graph), folders(every)
    print(printed(found, rooms, longest_chain(graph)))
    if arguments.out:
        report = {"stamp": stamp(), "measures": found, "folders": rooms}
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
