"""Our rules against Shardy's own registry, which every jaxlib carries, up to the names of factors.

Only what a plan may use is compared: factors that pass or reduce. A factor that must stay whole, or that Shardy would
split by exchange between neighbours (permutation), reads `*`; so does a factor of Shardy's that shows up in one array
only and could therefore not be split with anything else. Operands without dims are left out.
References: https://github.com/openxla/shardy/blob/main/docs/sharding_representation.md (sharding rules).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import pytest
from jaxlib.mlir import passmanager

import rule_cases
from planner.factors import FACTOR_NAMES, Rule
from planner.rules import rule_of

WHOLE = "*"

SEVERAL = {
    "add extent 1": "stablehlo.add",
    "add scalar": "stablehlo.add",
    "approx_top_k": "stablehlo.custom_call",
    "cummax": "stablehlo.reduce_window",
    "cummin": "stablehlo.reduce_window",
    "cumsum": "stablehlo.reduce_window",
    "gather along": "stablehlo.gather",
    "gather embedding": "stablehlo.gather",
    "reduce_window_max": "stablehlo.reduce_window",
    "reduce_window_min": "stablehlo.reduce_window",
    "reduce_window_sum": "stablehlo.reduce_window",
    "select_and_scatter_add": "stablehlo.select_and_scatter",
}
"""Cases lowered to several ops: the one that stands for the primitive."""

DIFFERENT: Mapping[str, tuple[str, str]] = {
}
"""Cases where Shardy says something else: what, and why we do not."""

UNCOMPARED: Mapping[str, str] = {
}
"""Cases that lower to nothing that Shardy has one rule for: why."""


def _shardy(text: str) -> tuple[list[list[list[str]]], int, dict[str, str]]:
    """The arrays of a printed Shardy rule as dims of factors, the number of operands, and the kind of each factor."""
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", text)}
    kinds = dict.fromkeys(sizes, "pass")
    for label, kind in (("reduction", "reduce"), ("need_replication", WHOLE), ("permutation", WHOLE)):
        for names in re.findall(label + r"=\{([^}]*)\}", text):
            kinds.update(dict.fromkeys(names.replace(" ", "").split(","), kind))
    left, right = re.search(r"<\((.*?)\)->\((.*?)\)", text).groups()  # pyright: ignore[reportOptionalMemberAccess]

    def arrays(side: str) -> list[list[list[str]]]:
        return [
            [
                [name for name in re.findall(r"[a-z](?:_\d+)?", dim) if sizes[name] > 1]
                for dim in (array.split(",") if array else [])
            ]
            for array in re.findall(r"\[([^\]]*)\]", side)
        ]

    operands, results = arrays(left), arrays(right)
    return operands + results, len(operands), kinds


def _ours(rule: Rule) -> tuple[list[list[list[str]]], int, dict[str, str]]:
    """The same of one of our rules."""
    arrays = [[[FACTOR_NAMES[f] for f in dim] for dim in dims] for dims in (*rule.operands, *rule.results)]
    kinds = {FACTOR_NAMES[f]: kind for f, kind in enumerate(rule.kinds)}
    return arrays, len(rule.operands), {name: WHOLE if kind == "replicate" else kind for name, kind in kinds.items()}


def _canonical(arrays: list[list[list[str]]], operands: int, kinds: dict[str, str]) -> str:
    """One text for what may be split together; what may not be split, or never with anything else, is `*`."""
    seen = {name: sum(any(name in dim for dim in array) for array in arrays) for name in kinds}
    whole = {name for name, kind in kinds.items() if kind == WHOLE or (kind == "pass" and seen[name] == 1)}
    while True:
        # A factor behind one that stays whole can never be split.
        hidden = {
            name
            for array in arrays
            for dim in array
            for n, name in enumerate(dim)
            if name not in whole and any(major in whole for major in dim[:n])
        }
        if not hidden:
            break
        whole |= hidden
    letters: dict[str, str] = {}

    def text(array: Sequence[Sequence[str]]) -> str:
        words: list[str] = []
        for dim in array:
            names = [WHOLE if name in whole else letters.setdefault(name, FACTOR_NAMES[len(letters)]) for name in dim]
            shown = names[: names.index(WHOLE) + 1] if WHOLE in names else names
            words.append(shown[0] if len(shown) == 1 else f"({' '.join(shown)})" if shown else "1")
        return " ".join(words)

    left = ", ".join(text(array) for array in arrays[:operands] if array)
    right = ", ".join(text(array) or "()" for array in arrays[operands:])
    reduced = " ".join(sorted(letter for name, letter in letters.items() if kinds[name] == "reduce"))
    return f"{left} -> {right}" + (f" | reduce {reduced}" if reduced else "")


def _registered(equation: rule_cases.Equation) -> Iterator[tuple[str, str]]:
    """The name and Shardy's rule of every op that the primitive lowers to for a TPU."""
    structs = [
        jax.ShapeDtypeStruct(aval.shape, dtype)
        for n, (aval, dtype) in enumerate(zip(equation.operands, equation.dtypes, strict=True))
        if n not in equation.literals
    ]

    def bound(*arrays: Any) -> Any:
        rest = iter(arrays)
        operands = [equation.literals[n] if n in equation.literals else next(rest) for n in range(len(equation.operands))]
        return equation.primitive.bind(*operands, **equation.params)

    lowered = jax.jit(bound, keep_unused=True).trace(*structs).lower(lowering_platforms=("tpu",))
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        pipeline = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
        passmanager.PassManager.parse(pipeline).run(module.operation)
        for function in module.body.operations:
            for op in function.regions[0].blocks[0].operations:
                if "sdy.sharding_rule" in op.attributes:
                    yield op.operation.name, str(op.attributes["sdy.sharding_rule"])


@pytest.mark.parametrize(("name", "function", "arrays", "text"), rule_cases.CASES, ids=[c[0] for c in rule_cases.CASES])
def test_agrees_with_shardy(name: str, function: Callable[..., Any], arrays: str, text: str) -> None:
    del text
    equation = rule_cases.equation(name, function, arrays)
    if equation is None:
        pytest.skip("this JAX has no such primitive")
    rule = rule_of(name.split()[0], equation.operands, equation.results, equation.params)
    assert rule is not None
    if name in UNCOMPARED:
        pytest.skip(UNCOMPARED[name])
    registered = [rule for op, rule in _registered(equation) if SEVERAL.get(name, op) == op]
    assert len(registered) == 1, f"{name}: Shardy has {len(registered)} rules for what it lowers to"
    theirs = _canonical(*_shardy(registered[0]))
    expected = DIFFERENT[name][0] if name in DIFFERENT else _canonical(*_ours(rule))
    assert theirs == expected, registered[0]


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_a_difference_is_one(name: str) -> None:
    _, function, arrays, _ = next(case for case in rule_cases.CASES if case[0] == name)
    equation = rule_cases.equation(name, function, arrays)
    assert equation is not None
    rule = rule_of(name.split()[0], equation.operands, equation.results, equation.params)
    assert rule is not None
    assert _canonical(*_ours(rule)) != DIFFERENT[name][0]


def test_exceptions_are_cases() -> None:
    names = {name for name, *_ in rule_cases.CASES}
    for table in (SEVERAL, DIFFERENT, UNCOMPARED):
        assert list(table) == sorted(table)
        assert set(table) <= names
