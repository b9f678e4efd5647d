"""Saving and loading plans as JSON: readable, diffable, and bound to the program they were made for."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from planner.decision import Certificate, Checked, Decision, Replicated
from planner.errors import PlanFileError
from planner.graph import Aval
from planner.predict import Collective, Predicted
from planner.specs import entries_of, from_entries
from planner.trace import Leaf, Program, Slot

FORMAT = "meshwright plan"
VERSION = 1


def save_decision(decision: Decision, path: Path, program: Program) -> None:
    """Writes a decision to `path`, whole or not at all; with the argument pytree where it can be told in words."""
    record: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "jax": jax.__version__,
        "function": decision.function_name,
        "fingerprint": decision.fingerprint,
        "topology": decision.topology,
        "mesh": dict(decision.mesh_shape),
        "arguments": [_leaf(leaf, spec) for leaf, spec in zip(decision.arguments, decision.in_specs, strict=True)],
        "results": [_leaf(leaf, spec) for leaf, spec in zip(decision.results, decision.out_specs, strict=True)],
        "in_tree": _tree_words(program.in_tree),
        "num_args": program.num_args,
        "donate_argnums": list(decision.donate_argnums),
        "static_argnums": list(decision.static_argnums),
        "constraints": [
            {"at": slot[0], "path": list(slot[1]), "index": slot[2], "specs": [entries_of(spec) for spec in specs]}
            for slot, specs in decision.constraints.items()
        ],
        "intermediates": {name: entries_of(spec) for name, spec in decision.intermediates.items()},
        "predicted": dataclasses.asdict(decision.predicted),
        "certificate": dataclasses.asdict(decision.certificate),
        "replicated": [dataclasses.asdict(op) for op in decision.replicated],
        "checked": [dataclasses.asdict(check) for check in decision.checked],
        "notes": list(decision.notes),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _leaf(leaf: Leaf, spec: Any) -> dict[str, Any]:
    return {
        "name": leaf.name,
        "shape": list(leaf.aval.shape),
        "dtype": leaf.aval.dtype,
        "itemsize": leaf.aval.itemsize,
        "weak": leaf.weak,
        "spec": entries_of(spec),
    }


def _read_leaf(record: Mapping[str, Any]) -> Leaf:
    aval = Aval(shape=tuple(record["shape"]), dtype=record["dtype"], itemsize=record["itemsize"])
    return Leaf(name=record["name"], aval=aval, weak=record["weak"])


def load_decision(path: Path) -> tuple[Decision, Any, int]:
    """(decision, argument pytree or None, number of arguments) of a saved plan. Raises: PlanFileError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PlanFileError(f"the plan file {path} cannot be read: {error}; give the path of a saved plan") from error
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlanFileError(
            f"the plan file {path} is not JSON ({error}); it is damaged, save the plan again"
        ) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise PlanFileError(
            f"{path} is not a saved plan (its format is not {FORMAT!r}); give a file written by Plan.save"
        )
    if record.get("version") != VERSION:
        raise PlanFileError(
            f"the plan file {path} has version {record.get('version')!r}, this planner reads {VERSION}; plan again"
        )
    try:
        return _read(record), _tree_from_words(record["in_tree"]), int(record["num_args"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PlanFileError(
            f"the plan file {path} lacks or garbles a field ({type(error).__name__}: {error}); save the plan again"
        ) from error


def _read(record: Mapping[str, Any]) -> Decision:
    constraints: dict[Slot, Any] = {
        (row["at"], tuple(row["path"]), row["index"]): tuple(map(from_entries, row["specs"]))
        for row in record["constraints"]
    }
    predicted = dict(record["predicted"])
    predicted["collectives"] = tuple(Collective(**{**c, "axes": tuple(c["axes"])}) for c in predicted["collectives"])
    return Decision(
        function_name=record["function"],
        fingerprint=record["fingerprint"],
        topology=record["topology"],
        mesh_shape={str(name): int(size) for name, size in record["mesh"].items()},
        arguments=tuple(map(_read_leaf, record["arguments"])),
        results=tuple(map(_read_leaf, record["results"])),
        in_specs=tuple(from_entries(row["spec"]) for row in record["arguments"]),
        out_specs=tuple(from_entries(row["spec"]) for row in record["results"]),
        constraints=constraints,
        intermediates={name: from_entries(entries) for name, entries in record["intermediates"].items()},
        predicted=Predicted(**predicted),
        certificate=Certificate(**record["certificate"]),
        replicated=tuple(Replicated(**row) for row in record["replicated"]),
        checked=tuple(Checked(**row) for row in record["checked"]),
        notes=tuple(record["notes"]),
        donate_argnums=tuple(record["donate_argnums"]),
        static_argnums=tuple(record["static_argnums"]),
    )


# ---------------------------------------------------------------- argument pytrees in words


def _tree_words(tree: Any) -> Any:
    """A treedef as JSON, or None where it holds nodes that only their own code can rebuild.

    Tuples, lists, dicts with string keys, None and named tuples can be told; named tuples by module and name.
    """
    sentinel = object()
    try:
        return _words(jax.tree.unflatten(tree, [sentinel] * tree.num_leaves), sentinel)
    except (TypeError, ValueError, AttributeError):
        return None


def _words(node: Any, leaf: object) -> Any:
    if node is leaf:
        return "*"
    if node is None:
        return "None"
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        kind = type(node)
        if "<locals>" in kind.__qualname__:
            raise TypeError("a local class cannot be imported by name")
        return {"namedtuple": [kind.__module__, kind.__qualname__], "items": [_words(child, leaf) for child in node]}
    if type(node) in (tuple, list):
        return {type(node).__name__: [_words(child, leaf) for child in node]}
    if type(node) is dict and all(isinstance(key, str) for key in node):
        return {"dict": {key: _words(child, leaf) for key, child in node.items()}}
    raise TypeError(f"{type(node).__name__} is not a container JSON can tell")


def _tree_from_words(words: Any) -> Any:
    return None if words is None else jax.tree.structure(_from_words(words), is_leaf=lambda node: node == "*")


def _from_words(words: Any) -> Any:
    if words == "*":
        return "*"
    if words == "None":
        return None
    if "namedtuple" in words:
        module, name = words["namedtuple"]
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
        if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
            raise ValueError(f"{module}.{name} is not a named tuple")
        return kind(*map(_from_words, words["items"]))
    if "dict" in words:
        return {key: _from_words(child) for key, child in words["dict"].items()}
    if "list" in words:
        return [_from_words(child) for child in words["list"]]
    return tuple(_from_words(child) for child in words["tuple"])
