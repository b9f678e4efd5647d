"""Names of dims that arguments bring: those of Flax's boxes (`nn.with_logical_partitioning`) and of nnx variables."""

from __future__ import annotations

import sys
from typing import Any

import jax

from planner.logical import Names

_METADATA = ("out_sharding", "sharding_names", "sharding")
"""Where nnx variables have the names of their dims; it has changed between releases."""


def names_of_dims(tree: Any) -> list[Names | None]:
    """For every leaf of a pytree the names of its dims, None where nothing names them.

    Entries that are no single names, such as several mesh axes, are None.
    """
    boxes = jax.tree.leaves(tree, is_leaf=lambda node: _dim_names(node) is not None)
    found: list[Names | None] = []
    for box in boxes:
        own_names, leaves = _dim_names(box), jax.tree.leaves(box)
        for leaf in leaves:
            fits = own_names is not None and len(leaves) == 1 and len(getattr(leaf, "shape", ())) == len(own_names)
            found.append(tuple(name if isinstance(name, str) else None for name in own_names or ()) if fits else None)
    return found


def _dim_names(node: Any) -> tuple[Any, ...] | None:
    """The names that a node of a pytree says its array's dims have, None where it says none."""
    # Whoever has such nodes has imported what defines them.
    meta, nnx = sys.modules.get("flax.core.meta"), sys.modules.get("flax.nnx")
    if meta is not None and isinstance(node, meta.Partitioned):
        names = node.names
    elif nnx is not None and isinstance(node, nnx.Variable):
        metadata = node.get_metadata()
        names = next((metadata[key] for key in _METADATA if metadata.get(key) is not None), None)
    else:
        return None
    return tuple(names) if isinstance(names, (tuple, list, jax.sharding.PartitionSpec)) else None
