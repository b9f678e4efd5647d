"""Factor rules: how one op may be split, as data with a text form that prints and parses.

A *factor* is one logical index of an op, shared by dims of its operands and results, as in einsum. A dim is a product
of factors, major first; a dim of size 1 has no factor. The text form lists operands, an arrow, results, and the factors
that are not pass-through by kind::

    i k, k j -> i j | reduce k            dot_general
    (i j) k -> i j k                      reshape
    i j -> i j | replicate j              sort
    v d, b t -> b t d | reduce v          embedding lookup
    i j -> j | reduce(max) i              reduce_max

Categories follow Shardy's op sharding rules
(https://openxla.org/shardy/propagation#factor-based_propagation).
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from planner.errors import RuleError

Kind = Literal["pass", "reduce", "replicate", "permute"]
Combiner = Literal["add", "max", "min", "and", "or", "mul", "arg"]
Dim = tuple[int, ...]
"""The factors of one dim, major first."""
Dims = tuple[Dim, ...]
"""The factors of every dim of one array."""

FACTOR_NAMES = tuple(string.ascii_lowercase) + tuple(string.ascii_uppercase)
_NAME = re.compile(r"[A-Za-z](?:[1-9][0-9]*)?")


def factor_name(factor: int) -> str:
    """The name of a factor by its number: a to z, A to Z, then a1 to Z1, a2 and so on."""
    turn, letter = divmod(factor, len(FACTOR_NAMES))
    return f"{FACTOR_NAMES[letter]}{turn or ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The factors of one op.

    `operands[n][d]` and `results[n][d]` are the factors (indices into `sizes`) of dim d, major first. `kinds[f]` says
    what splitting factor f costs: nothing ("pass"), a combination of partial results ("reduce", with `combiner`), a
    neighbour exchange ("permute"), or that it must stay whole ("replicate").
    """

    operands: tuple[tuple[Dim, ...], ...]
    results: tuple[tuple[Dim, ...], ...]
    sizes: tuple[int, ...]
    kinds: tuple[Kind, ...]
    combiner: Combiner = "add"

    def __str__(self) -> str:
        def tensor(dims: tuple[Dim, ...]) -> str:
            dims_text: list[str] = []
            for dim in dims:
                letters = " ".join(map(factor_name, dim))
                dims_text.append(letters if len(dim) == 1 else f"({letters})" if dim else "1")
            return " ".join(dims_text) or "()"

        text = ", ".join(map(tensor, self.operands)) + " -> " + ", ".join(map(tensor, self.results))
        for kind in ("reduce", "replicate", "permute"):
            letters = " ".join(factor_name(f) for f, k in enumerate(self.kinds) if k == kind)
            if letters:
                label = f"reduce({self.combiner})" if kind == "reduce" and self.combiner != "add" else kind
                text += f" | {label} {letters}"
        return text


def parse_rule(text: str, sizes: Mapping[str, int] | None = None) -> Rule:
    """The rule a text form stands for; factors are numbered in order of first appearance.

    Parameters: `text`, the form printed by `str(rule)`; `sizes`, factor name to size (default 0: unknown).
    Raises: RuleError when the text is malformed.
    """
    signature, *clauses = (part.strip() for part in text.split("|"))
    if signature.count("->") != 1:
        raise RuleError(f"a rule needs exactly one '->', got {text!r}; write e.g. 'i k, k j -> i j | reduce k'")
    index: dict[str, int] = {}

    def tensor(dims_text: str) -> tuple[Dim, ...]:
        dims: list[Dim] = []
        group: list[int] | None = None
        for token in dims_text.replace("(", " ( ").replace(")", " ) ").split():
            if token == "(":
                group = []
            elif token == ")":
                if group is None:
                    raise RuleError(f"unbalanced ')' in the rule {text!r}; close only what was opened")
                if group or dims_text.strip() != "()":
                    dims.append(tuple(group))
                group = None
            elif token == "1":
                dims.append(())
            else:
                if not _NAME.fullmatch(token):
                    raise RuleError(
                        f"factor {token!r} in the rule {text!r} is no letter; use a-z or A-Z, and a number after it if "
                        "these do not suffice (a1)"
                    )
                factor = index.setdefault(token, len(index))
                if group is None:
                    dims.append((factor,))
                else:
                    group.append(factor)
        if group is not None:
            raise RuleError(f"unbalanced '(' in the rule {text!r}; close what was opened")
        return tuple(dims)

    left, right = signature.split("->")
    operands = tuple(tensor(parts) for parts in left.split(",")) if left.strip() else ()
    results = tuple(tensor(parts) for parts in right.split(",")) if right.strip() else ()
    kinds: list[Kind] = ["pass"] * len(index)
    combiner: Combiner = "add"
    for clause in clauses:
        label, *letters = clause.split()
        if label.startswith("reduce(") and label.endswith(")"):
            combiner = label[len("reduce(") : -1]  # pyright: ignore[reportAssignmentType]
            label = "reduce"
        if label not in ("reduce", "replicate", "permute"):
            raise RuleError(f"unknown factor kind {label!r} in the rule {text!r}; use reduce, replicate or permute")
        for letter in letters:
            if letter not in index:
                raise RuleError(f"factor {letter!r} of clause {clause!r} is in no operand or result of {text!r}")
            kinds[index[letter]] = label
    size_of = sizes or {}
    return Rule(
        operands=operands,
        results=results,
        sizes=tuple(size_of.get(name, 0) for name in index),
        kinds=tuple(kinds),
        combiner=combiner,
    )
