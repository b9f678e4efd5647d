"""Saving and loading plans as JSON: readable, diffable, and bound to the program they were made for."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import PartitionSpec

from cost_models import Chip, CostModelError, Topology, parse_topology
from planner.decision import Certificate, Checked, Decision, Guessed, Replicated, Request, Ruled
from planner.errors import ArgumentError, PlanFileError
from planner.one_mesh.specs import entries_of, from_entries
from planner.predicted import Collective, Predicted
from planner.program.form import Form
from planner.program.graph import Aval
from planner.program.slots import Slot
from planner.program.spec_entries import parts_over
from planner.program.traced import Leaf, Program
from planner.refined import Correction, Moved, Refined, Trial

FORMAT = "meshwright plan"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a file holds: the decision, the structure of the arguments in words (`tree_from_words`), the saver's JAX."""

    decision: Decision
    in_tree: Any
    jax_version: str


def save_decision(decision: Decision, path: Path, program: Program) -> None:
    """Writes a decision to `path`, whole or not at all. Raises: ArgumentError where nothing can be written there."""
    text = json.dumps(record_of(decision, program), indent=1) + "\n"
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        temporary = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        raise ArgumentError(f"the plan cannot be saved as {path}: {error}; give a path that can be written") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def record_of(decision: Decision, program: Program) -> dict[str, Any]:
    """A decision as what JSON can tell; `decision_of` reads it back."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "jax": jax.__version__,
        "function": decision.function_name,
        "fingerprint": decision.fingerprint,
        "form": dataclasses.asdict(decision.form),
        "topology": _topology_record(decision.request.topology),
        "request": {
            **{key: getattr(decision.request, key) for key in _PLAIN_REQUEST},
            "pins": {pattern: entries_of(spec) for pattern, spec in decision.request.pins.items()},
        },
        "mesh": dict(decision.mesh_shape),
        "arguments": _leaf_records(decision.arguments, decision.in_specs),
        "results": _leaf_records(decision.results, decision.out_specs),
        "in_tree": _tree_words(program.in_tree),
        "donate_argnums": list(decision.donate_argnums),
        "static_argnums": list(decision.static_argnums),
        "compiler_options": dict(decision.compiler_options),
        "choice": list(decision.choice),
        "constraints": [
            {"at": slot[0], "path": list(slot[1]), "index": slot[2], "specs": [entries_of(spec) for spec in specs]}
            for slot, specs in decision.constraints.items()
        ],
        "intermediates": {name: entries_of(spec) for name, spec in decision.intermediates.items()},
        "predicted": dataclasses.asdict(decision.predicted),
        "certificate": dataclasses.asdict(decision.certificate),
        "replicated": [dataclasses.asdict(op) for op in decision.replicated],
        "by_shardy": [dataclasses.asdict(op) for op in decision.by_shardy],
        "guessed": [dataclasses.asdict(op) for op in decision.guessed],
        "checked": [dataclasses.asdict(check) for check in decision.checked],
        "notes": list(decision.notes),
        "refined": None if decision.refined is None else dataclasses.asdict(decision.refined),
    }


_PLAIN_REQUEST = ("platform", "objective", "memory_limit", "cost_model", "profile", "while_trips")


def _leaf_records(leaves: Sequence[Leaf], specs: Sequence[PartitionSpec]) -> list[dict[str, Any]]:
    return [
        {
            "name": leaf.name,
            "shape": list(leaf.aval.shape),
            "dtype": leaf.aval.dtype,
            "itemsize": leaf.aval.itemsize,
            "weak": leaf.weak,
            "constant": leaf.constant,
            "spec": entries_of(spec),
        }
        for leaf, spec in zip(leaves, specs, strict=True)
    ]


def _topology_record(topology: Topology) -> Any:
    """The topology's name where that says all, else its figures."""
    try:
        if parse_topology(topology.name) == topology:
            return topology.name
    except CostModelError:
        pass  # a topology of the user's own
    figures = {field.name: getattr(topology, field.name) for field in dataclasses.fields(topology)}
    chip: dict[str, Any] = {
        field.name: getattr(topology.chip, field.name) for field in dataclasses.fields(topology.chip)
    }
    return {**figures, "chip": {**chip, "peak_flops_per_s": dict(topology.chip.peak_flops_per_s)}}


# ---------------------------------------------------------------- reading


def load_saved(path: Path) -> Saved:
    """What the file of a saved plan holds. Raises: PlanFileError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanFileError(f"the plan file {path} cannot be read: {error}; give the path of a saved plan") from error
    try:
        record = json.loads(text)
    except ValueError as error:
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
        decision = decision_of(record)
        _check_axes(decision)
        return Saved(decision=decision, in_tree=record["in_tree"], jax_version=str(record["jax"]))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, CostModelError) as error:
        raise PlanFileError(
            f"the plan file {path} lacks or garbles a field ({type(error).__name__}: {error}); save the plan again"
        ) from error


def decision_of(record: Mapping[str, Any]) -> Decision:
    """The decision that a record tells. Raises: what garbled fields raise."""
    topology = _read_topology(record["topology"])
    request = record["request"]
    constraints: dict[Slot, tuple[PartitionSpec, ...]] = {
        (row["at"], tuple(row["path"]), int(row["index"])): tuple(map(from_entries, row["specs"]))
        for row in record["constraints"]
    }
    collectives: list[dict[str, Any]] = record["predicted"]["collectives"]
    predicted: dict[str, Any] = dict(record["predicted"])
    predicted["collectives"] = tuple(
        replace(
            Collective(**c), axes=tuple(c["axes"]), lifted=tuple(c["lifted"]), by_dim=tuple(map(tuple, c["by_dim"]))
        )
        for c in collectives
    )
    return Decision(
        function_name=record["function"],
        fingerprint=record["fingerprint"],
        topology=topology.name,
        request=Request(
            topology=topology,
            pins={pattern: from_entries(entries) for pattern, entries in request["pins"].items()},
            **{key: request[key] for key in _PLAIN_REQUEST},
        ),
        choice=tuple(map(int, record["choice"])),
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
        by_shardy=tuple(Ruled(**row) for row in record["by_shardy"]),
        # Not in files of earlier planners, which did not tell it.
        guessed=tuple(Guessed(**row) for row in record.get("guessed", ())),
        checked=tuple(Checked(**row) for row in record["checked"]),
        notes=tuple(record["notes"]),
        donate_argnums=tuple(map(int, record["donate_argnums"])),
        static_argnums=tuple(map(int, record["static_argnums"])),
        # Nor this, as they gave none.
        compiler_options={str(name): str(value) for name, value in record.get("compiler_options", {}).items()},
        refined=_read_refined(record.get("refined")),
        # Nor this: they computed programs as written.
        form=Form(**record.get("form", {})),
    )


def _read_refined(record: Mapping[str, Any] | None) -> Refined | None:
    if record is None:
        return None
    trials: list[dict[str, Any]] = [dict(trial) for trial in record["trials"]]
    for trial in trials:
        trial["collectives"] = tuple(
            replace(Moved(**moved), axes=tuple(moved["axes"])) for moved in trial["collectives"]
        )
    corrections = tuple(replace(Correction(**row), axes=tuple(row["axes"])) for row in record["corrections"])
    told: dict[str, Any] = {**record, "trials": tuple(Trial(**trial) for trial in trials), "corrections": corrections}
    return Refined(**told)


def _read_leaf(record: Mapping[str, Any]) -> Leaf:
    aval = Aval(shape=tuple(record["shape"]), dtype=record["dtype"], itemsize=record["itemsize"])
    return Leaf(name=record["name"], aval=aval, weak=record["weak"], constant=record["constant"])


def _read_topology(record: Any) -> Topology:
    if isinstance(record, str):
        return parse_topology(record)
    figures: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    figures["chip"] = Chip(**record["chip"])
    return Topology(**figures)


def _check_axes(decision: Decision) -> None:
    """Raises: ValueError where a spec splits by an axis that the mesh has not, or unevenly."""
    if any(size < 1 for size in decision.mesh_shape.values()) or min(decision.choice, default=0) < 0:
        raise ValueError("a size or a choice is negative")
    borders = zip((*decision.arguments, *decision.results), (*decision.in_specs, *decision.out_specs), strict=True)
    for leaf, spec in borders:
        for extent, axes in zip(leaf.aval.shape, entries_of(spec), strict=False):
            if extent % parts_over(axes, decision.mesh_shape):
                raise ValueError(f"{leaf.name} of shape {leaf.aval.shape} is not divisible by its spec {spec}")
        if len(spec) > len(leaf.aval.shape):
            raise ValueError(f"{leaf.name} has a spec longer than its shape")
    inside = [spec for specs in decision.constraints.values() for spec in specs]
    for spec in (*inside, *decision.intermediates.values()):
        for axis in (axis for axes in entries_of(spec) for axis in axes):
            if axis not in decision.mesh_shape:
                raise ValueError(f"a spec names the axis {axis!r}")


# ---------------------------------------------------------------- argument pytrees in words


def _tree_words(tree: Any) -> Any:
    """A treedef as JSON, or None where it holds nodes that only their own code can rebuild.

    Tuples, lists, dicts with string or integer keys, None and named tuples can be told, the last by module and name.
    """
    leaf = object()
    try:
        return _words(jax.tree.unflatten(tree, [leaf] * tree.num_leaves), leaf)
    except Exception:  # a user's own node may refuse a placeholder in any way it likes
        return None


def _words(node: Any, leaf: object) -> Any:
    if node is leaf:
        return "*"
    if node is None:
        return "None"
    kind: Any = type(node)
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        if "<locals>" in kind.__qualname__:
            raise TypeError("a local class cannot be found by name")
        return {"namedtuple": [kind.__module__, kind.__qualname__], "items": [_words(child, leaf) for child in node]}
    if kind in (tuple, list):
        return {kind.__name__: [_words(child, leaf) for child in node]}
    if kind is dict and all(isinstance(key, (str, int)) for key in node):
        return {"dict": [[key, _words(node[key], leaf)] for key in node]}
    raise TypeError(f"{kind.__name__} is not a container JSON can tell")


def tree_from_words(words: Any) -> Any:
    """The treedef that a file tells, or None where it holds containers that only their own code can rebuild.

    Named tuples are looked up in modules that are already imported: a plan file imports nothing.
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
            kind = getattr(kind, part)
        if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
            raise ValueError(f"{module}.{name} is not a named tuple")
        return kind(*map(_from_words, words["items"]))
    if "dict" in words:
        return {key: _from_words(child) for key, child in words["dict"]}
    if "list" in words:
        return [_from_words(child) for child in words["list"]]
    return tuple(_from_words(child) for child in words["tuple"])
