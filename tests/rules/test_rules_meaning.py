"""What every rule claims is true: the op run part by part, put together as the rule says, gives the whole.

For each factor that may be split, operands are cut along it, the same primitive runs on every part alone, and
results are concatenated along the dims that have the factor, or combined where none has. The oracle is the primitive on
whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from planner.rules.ops.elementwise import elementwise
from planner.rules.primitives import rule_of, slides, traits
from planner.rules.rule import Dim, Rule
from planner.rules.sliding import image_of
from tests.rules import rule_cases

SKIPPED = {
    "empty": "its elements are not defined",
    "random_bits": "an element follows from its place in the whole array",
    "random_gamma": "an element follows from its place in the whole array",
    "random_split": "an element follows from its place in the whole array",
    "random_split vmapped": "an element follows from its place in the whole array",
    "rng_bit_generator": "an element follows from its place in the whole array",
    "rng_uniform": "an element follows from its place in the whole array",
    "sharding_constraint": "runs on the devices of its mesh only",
}
"""Cases whose parts mean nothing by themselves: why."""

COMBINE: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "and": np.logical_and,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "or": np.logical_or,
}
IDENTITY = {"add": 0, "mul": 1}


def _data(kind: str, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Any:
    """Values the primitive takes: small positive floats, well-conditioned matrices, indices within bounds."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), shape)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        lowest = 1 if kind == "ragged_dot_general" else 0  # groups of no rows would hide a wrong rule
        return rng.integers(lowest, 3, shape).astype(dtype)
    values = rng.uniform(0.1, 0.9, shape)
    if _is_linalg(kind) and len(shape) >= 2 and shape[-1] == shape[-2]:
        values = values + shape[-1] * np.eye(shape[-1])
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * rng.uniform(0.1, 0.9, shape)
    return values.astype(dtype)


def _is_linalg(kind: str) -> bool:
    rule: Any = traits(kind).rule
    return getattr(rule, "func", rule).__module__.endswith(".linalg")


def _bind(equation: rule_cases.Equation, operands: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    """The results of the primitive, key arrays as the words they consist of."""
    results = equation.primitive.bind(*operands, **params)
    results = results if equation.primitive.multiple_results else [results]
    keys = [jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) for x in results]
    return [np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(results, keys, strict=True)]


def _factored(shape: Sequence[int], dims: Sequence[Dim], rule: Rule) -> tuple[list[int], list[int]]:
    """A shape with a dim per factor (trailing dims kept), and the factor of each dim (-1 for none)."""
    extents: list[int] = []
    owners: list[int] = []
    for d, extent in enumerate(shape):
        factors = dims[d] if d < len(dims) else ()
        extents += [rule.sizes[f] for f in factors] or [extent]
        owners += list(factors) or [-1]
    return extents, owners


def _index(owners: Sequence[int], factor: int, part: int, size: int) -> tuple[slice, ...]:
    return tuple(slice(part * size, (part + 1) * size) if owner == factor else slice(None) for owner in owners)


def _cut(array: Any, dims: Sequence[Dim], rule: Rule, factor: int, part: int, size: int) -> Any:
    """The elements of an array from `part * size` onwards of the factor; all of it where no dim has the factor."""
    if not any(factor in dim for dim in dims):
        return array
    extents, owners = _factored(array.shape, dims, rule)
    shape = [
        extent // rule.sizes[factor] * size if factor in dim else extent
        for extent, dim in zip(array.shape, dims, strict=True)
    ]
    return array.reshape(extents)[_index(owners, factor, part, size)].reshape(shape)


def _localised(
    kind: str, params: Mapping[str, Any], whole: Sequence[Any], parts: Sequence[Any], result: tuple[int, ...]
) -> dict[str, Any]:
    """The params for the parts: those that hold shapes, with the shapes of the parts. `result` is the result's."""
    local = dict(params)
    match kind:
        case "broadcast_in_dim" | "iota":
            local["shape"] = result
        case "reshape":
            local["new_sizes"] = result
        case "dynamic_slice":
            local["slice_sizes"] = result
        case "tile":
            local["reps"] = tuple(after // before for after, before in zip(result, parts[0].shape, strict=True))
        case "slice":
            local["limit_indices"] = tuple(
                part if limit == extent else limit
                for limit, extent, part in zip(params["limit_indices"], whole[0].shape, parts[0].shape, strict=True)
            )
        case "gather":
            local["slice_sizes"] = tuple(
                part if size == extent else size
                for size, extent, part in zip(params["slice_sizes"], whole[0].shape, parts[0].shape, strict=True)
            )
        case "conv_general_dilated":
            lhs, rhs, out = params["dimension_numbers"]
            local["feature_group_count"] = parts[0].shape[lhs[1]] // parts[1].shape[rhs[1]]
            local["batch_group_count"] = parts[0].shape[lhs[0]] // result[out[0]]
        case _:
            pass
    return local


def _part(
    kind: str, equation: rule_cases.Equation, rule: Rule, operands: Sequence[Any], factor: int, part: int, size: int
) -> list[Any]:
    """The results of one part; ops that address elements, or know their place, are told where it begins."""
    parts = [_cut(x, dims, rule, factor, part, size) for x, dims in zip(operands, rule.operands, strict=True)]
    shape = tuple(
        extent // rule.sizes[factor] * size if factor in dim else extent
        for extent, dim in zip(equation.results[0].shape, rule.results[0], strict=True)
    )
    params = _localised(kind, equation.params, operands, parts, shape)
    start = part * size
    if kind == "iota":
        return [
            x + (start if factor in rule.results[0][params["dimension"]] else 0) for x in _bind(equation, [], params)
        ]
    if kind == "gather" and rule.kinds[factor] == "reduce":
        numbers = params["dimension_numbers"]
        column = next(n for n, d in enumerate(numbers.start_index_map) if factor in rule.operands[0][d])
        indices = parts[1].copy()
        indices[..., column] -= start
        here = (indices[..., column] >= 0) & (indices[..., column] < size)
        indices[..., column] = np.clip(indices[..., column], 0, size - 1)
        (result,) = _bind(equation, [parts[0], indices], params)
        batch = iter(here.shape)
        here = here.reshape([1 if d in numbers.offset_dims else next(batch) for d in range(result.ndim)])
        return [np.where(here, result, 0)]
    if kind == "dynamic_update_slice":
        dim = next(d for d, dims in enumerate(rule.operands[0]) if factor in dims)
        if factor not in rule.operands[1][dim]:
            place = int(np.clip(operands[2 + dim], 0, operands[0].shape[dim] - 1)) - start
            if not 0 <= place < size:
                return [parts[0]]
            parts[2 + dim] = np.int32(place)
    if kind.startswith("scatter"):
        numbers = params["dimension_numbers"]
        column = next(
            (n for n, d in enumerate(numbers.scatter_dims_to_operand_dims) if factor in rule.operands[0][d]), None
        )
        if column is not None and not any(factor in dim for dim in rule.operands[2]):
            params["mode"] = lax.GatherScatterMode.FILL_OR_DROP
            parts[1] = parts[1].copy()
            parts[1][..., column] -= start
        if rule.kinds[factor] == "reduce" and part and rule.combiner in IDENTITY:
            parts[0] = np.full_like(parts[0], IDENTITY[rule.combiner])
    return _bind(equation, parts, params)


def _joined(whole: Any, parts: Sequence[Any], dims: Sequence[Dim], rule: Rule, factor: int, size: int) -> Any:
    """The result made of its parts, by the rule."""
    if any(factor in dim for dim in dims):
        extents, owners = _factored(whole.shape, dims, rule)
        joined = np.zeros(extents, whole.dtype)
        for n, part in enumerate(parts):
            index = _index(owners, factor, n, size)
            joined[index] = part.reshape(joined[index].shape)
        return joined.reshape(whole.shape)
    if rule.kinds[factor] == "reduce":
        return reduce(COMBINE[rule.combiner], parts)
    for part in parts[1:]:
        np.testing.assert_allclose(part, parts[0], rtol=1e-4, atol=1e-4)
    return parts[0]


def _best(kind: str, operand: Any, parts: Sequence[Any], axis: int, size: int) -> Any:
    """The index of the extreme over all parts, from the index in each part: the "arg" combination."""
    sign = 1 if kind == "argmax" else -1
    places = np.stack([part + n * size for n, part in enumerate(parts)], axis)
    values = sign * np.take_along_axis(operand, places, axis)
    best = np.expand_dims(np.argmax(values, axis), axis)
    return np.squeeze(np.take_along_axis(places, best, axis), axis)


@pytest.mark.parametrize(("name", "function", "arrays", "text"), rule_cases.CASES, ids=[c[0] for c in rule_cases.CASES])
def test_parts_make_the_whole(name: str, function: Callable[..., Any], arrays: str, text: str) -> None:
    del text
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    equation = rule_cases.equation(name, function, arrays)
    if equation is None:
        pytest.skip("this JAX has no such primitive")
    kind = name.split()[0]
    rule = rule_of(kind, equation.operands, equation.results, equation.params)
    assert rule is not None
    rng = np.random.default_rng(0)
    operands = [
        np.asarray(equation.literals[n]) if n in equation.literals else _data(kind, aval.shape, dtype, rng)
        for n, (aval, dtype) in enumerate(zip(equation.operands, equation.dtypes, strict=True))
    ]
    whole = _bind(equation, operands, equation.params)
    # Parts that need elements of their neighbours are not to be had by cutting alone: see `test_halo`.
    moving = slides(kind, equation.operands, equation.results, equation.params)
    neighbourly = {f for slide in moving for f in rule.operands[image_of(kind)][slide.image_dim]}
    # One dim of an elementwise op is like any other: one of them is enough, and spares half of the compiling.
    alike = traits(kind).rule is elementwise
    for factor, extent in list(enumerate(rule.sizes))[-1 if alike else 0 :]:
        if rule.kinds[factor] not in ("pass", "reduce") or factor in neighbourly:
            continue
        count = 2 if extent % 2 == 0 else extent
        size = extent // count
        parts = [_part(kind, equation, rule, operands, factor, n, size) for n in range(count)]
        for n, (result, dims) in enumerate(zip(whole, rule.results, strict=True)):
            mine = [part[n] for part in parts]
            if rule.combiner == "arg" and rule.kinds[factor] == "reduce":
                (axis,) = equation.params["axes"]
                joined = _best(kind, operands[0], mine, axis, size)
            else:
                joined = _joined(result, mine, dims, rule, factor, size)
            np.testing.assert_allclose(
                np.asarray(joined, result.dtype),
                result,
                rtol=1e-4,
                atol=1e-4,
                err_msg=f"{name}: {rule}, factor {factor}",
            )


def test_every_skip_is_a_case() -> None:
    assert set(SKIPPED) <= {name for name, *_ in rule_cases.CASES}
