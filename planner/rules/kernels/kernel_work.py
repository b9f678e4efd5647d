"""The work of a kernel that nobody can look into, as its user says it: operations, and bytes read and written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from cost_models.hardware import Engine
from planner.errors import ArgumentError

Declared = float | Callable[..., float]
"""What a user says: a number, or a function of the kernel's arguments as `jax.ShapeDtypeStruct`s."""

Amount = float | Callable[[Sequence[tuple[int, ...]]], float]
"""A number is that of the whole arrays, which parts share evenly; a function takes the shapes of the operands of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWork:
    """One run of the kernel `name`: its `flops` on the unit `engine`, and the `bytes` that it reads and writes.

    None where nothing says: then it counts one operation per result element, and every operand and result once.
    `guessed` says whether the flops are not known, or those of a part of it are not; `dtype` is that of the products that
    take most of them, None for that of the first operand. `attends`: it computes exponentials between its products, as
    attention does, or nobody knows that it does not. `exponentials` are how many of its `flops` are such, where they are
    counted.
    """

    name: str
    flops: Amount | None
    bytes: Amount | None
    engine: Engine
    guessed: bool
    dtype: str | None = None
    attends: bool = True
    exponentials: float = 0.0

    @property
    def depends_on_shapes(self) -> bool:
        """Whether the parts of a split kernel may have less work in all than the whole."""
        return callable(self.flops) or callable(self.bytes)


def checked(what: str, declared: Declared | None) -> Declared | None:
    """What a user says of `what`. Raises: ArgumentError where it is neither a number of at least 0 nor a function."""
    if declared is None or callable(declared):
        return declared
    if not _is_amount(declared):
        raise ArgumentError(f"{what}= is {declared!r}; {_WANTED}, or a function that takes the arguments of the kernel")
    return float(declared)


_WANTED = "give a number, finite and not negative"


def _is_amount(value: Any) -> bool:
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return number and bool(math.isfinite(value) and value >= 0)


def amount(
    what: str, name: str, declared: Declared | None, tree: Any, leaves: Sequence[jax.ShapeDtypeStruct]
) -> Amount | None:
    """What a user says of `what` in terms of shapes; `tree` and `leaves` are the arguments of the kernel `name`."""
    if not callable(declared):
        return declared

    def of(shapes: Sequence[tuple[int, ...]]) -> float:
        structs = [jax.ShapeDtypeStruct(shape, leaf.dtype) for shape, leaf in zip(shapes, leaves, strict=True)]
        operands = ", ".join(f"{struct.dtype}{list(struct.shape)}" for struct in structs)
        args, kwargs = jax.tree.unflatten(tree, structs)
        try:
            found = declared(*args, **kwargs)
        except Exception as error:
            raise ArgumentError(
                f"{what}= of {name} failed for a part with the operands {operands}: {type(error).__name__}: {error}; it is "
                "called with the kernel's arguments as jax.ShapeDtypeStructs"
            ) from error
        if not _is_amount(found):
            raise ArgumentError(f"{what}= of {name} gives {found!r} for a part with the operands {operands}; {_WANTED}")
        return float(found)

    return of
