"""Our rules against Shardy's own registry, which every jaxlib carries, up to the names of factors.

Only what a plan may use is compared: factors that pass or reduce. A factor that must stay whole, or that Shardy would
split by exchange between neighbours (permutation), reads `*`; so does a factor of Shardy's that shows up in one array
only and could therefore not be split with anything else. Operands without dims are left out.
References: https://github.com/openxla/shardy/blob/main/docs/sharding_representation.md (sharding rules).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec
from jaxlib.mlir import ir

import planner
from planner.program.graph import Aval
from planner.rules.choose import annotated, rule_of_attribute, shardy_rule
from planner.rules.primitives import rule_of
from planner.rules.rule import FACTOR_NAMES, Rule
from planner.testing import assert_same_as_single_device
from tests.rules import rule_cases

WHOLE = "*"

SEVERAL = {
    "add extent 1": "stablehlo.add",
    "add scalar": "stablehlo.add",
    "approx_top_k": "stablehlo.custom_call",
    "clamp scalar": "stablehlo.clamp",
    "conj": "stablehlo.complex",
    "cummax": "stablehlo.reduce_window",
    "cummin": "stablehlo.reduce_window",
    "cumsum": "stablehlo.reduce_window",
    "exp2": "stablehlo.exponential",
    "gather along": "stablehlo.gather",
    "gather embedding": "stablehlo.gather",
    "reduce_window_max": "stablehlo.reduce_window",
    "reduce_window_min": "stablehlo.reduce_window",
    "reduce_window_sum": "stablehlo.reduce_window",
    "reshape reordered": "stablehlo.reshape",
    "select_and_scatter_add": "stablehlo.select_and_scatter",
    "stack": "stablehlo.concatenate",
}
"""Cases lowered to several ops: the one that stands for the primitive."""

KEYS = "key arrays are lowered with shardings of their own"
NEEDS_MESH = "is lowered with a mesh"
NO_RULE = "Shardy has no rule for what it lowers to"
NOTHING = "lowers to nothing"
NOT_ON_TPU = "has no lowering for TPUs"
SEVERAL_OPS = "lowers to several ops, none of which is the primitive"

DIFFERENT: Mapping[str, tuple[str, str]] = {
    "add extent 1": ("a b, a b -> a b", "the operand is broadcast before the op"),
    "add scalar": ("a b, a b -> a b", "the operand is broadcast before the op"),
    "approx_top_k": (
        "a b, a b -> a *, a *",
        "Shardy lets propagation pass the searched dim; to find the best it is needed whole",
    ),
    "argmax": ("a b, a b -> a, a | reduce b", "lowers to a reduction of values and indices together"),
    "argmin": ("a b, a b -> b, b | reduce a", "lowers to a reduction of values and indices together"),
    "clamp scalar": ("a b, a b, a b -> a b", "the bounds are broadcast before the op"),
    "conj": ("a b, a b -> a b", "is made again of its parts"),
    "conv_general_dilated pointwise": (
        "a * * b, 1 1 b c -> a * * c | reduce b",
        "a window of one element needs no neighbour",
    ),
    "dynamic_update_slice": ("a b, * b -> a b", "not in newer JAX; the compiler gathers the operand"),
    "dynamic_update_slice one": ("* a, 1 a -> * a", "in newer JAX; the device that holds the element writes it"),
    "eigh": ("a b c -> a b c, a c", "Shardy lets propagation pass the matrix; it is needed whole"),
    "reduce": (
        "a b -> a | reduce b",
        "the combining function is not known, and an initial value would count per shard",
    ),
    "reduce two operands": (
        "a b, a b -> b, b | reduce a",
        "the combining function is not known, and an initial value would count per shard",
    ),
    "reduce_and bits": ("a b -> a | reduce b", "no collective combines integers bit by bit"),
    "reduce_max complex": ("a b -> a | reduce b", "no collective orders complex numbers"),
    "reduce_xor": ("a b -> a | reduce b", "no collective combines by exclusive or"),
    "reshape reordered": ("a b -> (a b)", "the dims are reordered by an op of their own"),
    "select_and_gather_add": ("a * b, a * b -> a * b, a * b", "lowers to a reduction of keys and values together"),
    "stack": ("a 1 b, a 1 b -> a * b", "the operands get their new dim before the op"),
    "triangular_solve": ("a * *, a * * -> a * *", "right-hand sides do not depend on each other"),
    "triangular_solve right": ("a * *, a * * -> a * *", "right-hand sides do not depend on each other"),
}
"""Cases where Shardy (of some JAX release) says something else: what, and why we do not."""

UNCOMPARED: Mapping[str, str] = {
    "acos": NO_RULE,
    "acosh": NO_RULE,
    "asin": NO_RULE,
    "asinh": NO_RULE,
    "atan": NO_RULE,
    "atanh": NO_RULE,
    "bessel_i0e": SEVERAL_OPS,
    "bessel_i1e": NO_RULE,
    "cholesky_update": SEVERAL_OPS,
    "copy": NOTHING,
    "cosh": NO_RULE,
    "device_put": NOTHING,
    "digamma": NO_RULE,
    "eig": NOT_ON_TPU,
    "empty": NO_RULE,
    "erf": NO_RULE,
    "erf_inv": NO_RULE,
    "erfc": NO_RULE,
    "geqp3": NOT_ON_TPU,
    "hessenberg": NOT_ON_TPU,
    "igamma": SEVERAL_OPS,
    "igamma_grad_a": SEVERAL_OPS,
    "igammac": SEVERAL_OPS,
    "integer_pow": SEVERAL_OPS,
    "iota": NO_RULE,
    "lgamma": NO_RULE,
    "log2": SEVERAL_OPS,
    "logistic": SEVERAL_OPS,
    "lu": NO_RULE,
    "lu_pivots_to_permutation": SEVERAL_OPS,
    "mulhi": NO_RULE,
    "name": NOTHING,
    "nextafter": NO_RULE,
    "one_minus_square": SEVERAL_OPS,
    "optimization_barrier": NO_RULE,
    "ormqr": SEVERAL_OPS,
    "polygamma": NO_RULE,
    "polynomial": SEVERAL_OPS,
    "qr": SEVERAL_OPS,
    "ragged_dot_general batch": NO_RULE,
    "ragged_dot_general rows": NO_RULE,
    "ragged_dot_general sum": NO_RULE,
    "random_bits": KEYS,
    "random_clone": KEYS,
    "random_fold_in": KEYS,
    "random_gamma": KEYS,
    "random_seed": KEYS,
    "random_split": KEYS,
    "random_split vmapped": KEYS,
    "random_unwrap": KEYS,
    "random_wrap": KEYS,
    "regularized_incomplete_beta": SEVERAL_OPS,
    "reshape of nothing": NO_RULE,
    "rng_bit_generator": SEVERAL_OPS,
    "rng_uniform": NO_RULE,
    "roll": SEVERAL_OPS,
    "roll past the middle": SEVERAL_OPS,
    "scaled_dot": SEVERAL_OPS,
    "schur": NOT_ON_TPU,
    "sharding_constraint": NEEDS_MESH,
    "sinh": NO_RULE,
    "split": SEVERAL_OPS,
    "split off nothing": SEVERAL_OPS,
    "square": NO_RULE,
    "stop_gradient": NOTHING,
    "svd": SEVERAL_OPS,
    "symmetric_product": SEVERAL_OPS,
    "threefry2x32": SEVERAL_OPS,
    "tile": SEVERAL_OPS,
    "top_k": NO_RULE,
    "tridiagonal": NOT_ON_TPU,
    "tridiagonal_solve": SEVERAL_OPS,
    "unstack": SEVERAL_OPS,
    "zeta": NO_RULE,
}
"""Cases that lower to nothing that Shardy has one rule for: why."""


def _dims(rule: Rule) -> tuple[list[list[list[str]]], int, dict[str, str]]:
    """The arrays of a rule as dims of factors, the number of operands, and the kind of each factor."""
    arrays = [[[FACTOR_NAMES[f] for f in dim] for dim in dims] for dims in (*rule.operands, *rule.results)]
    kinds = {FACTOR_NAMES[f]: kind for f, kind in enumerate(rule.kinds)}
    return (
        arrays,
        len(rule.operands),
        {name: WHOLE if kind in ("replicate", "permute") else kind for name, kind in kinds.items()},
    )


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


def _registered(equation: rule_cases.Equation) -> Iterator[tuple[str, Rule]]:
    """The name and Shardy's rule of every op that the primitive lowers to for a TPU."""
    operands = [
        equation.literals[n] if n in equation.literals else jax.ShapeDtypeStruct(aval.shape, dtype)
        for n, (aval, dtype) in enumerate(zip(equation.operands, equation.dtypes, strict=True))
    ]
    module = annotated(equation.primitive, operands, equation.params)
    with module.context:
        for function in module.body.operations:
            for op in function.regions[0].blocks[0].operations:
                if "sdy.sharding_rule" in op.attributes:
                    shapes = [
                        [ir.RankedTensorType(value.type).shape for value in side] for side in (op.operands, op.results)
                    ]
                    yield op.operation.name, rule_of_attribute(op.attributes["sdy.sharding_rule"], *shapes)


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
    registered = [entry for entry in _registered(equation) if SEVERAL.get(name, entry[0]) == entry[0]]
    assert len(registered) == 1, f"{name}: Shardy has {len(registered)} rules for what it lowers to"
    theirs = _canonical(*_dims(registered[0][1]))
    expected = {_canonical(*_dims(rule))} | ({DIFFERENT[name][0]} if name in DIFFERENT else set())
    assert theirs in expected, str(registered[0][1])


def test_attributes_are_read_by_number() -> None:
    """More factors than there are letters from i to z, of every kind."""
    sizes = "i=4, j=8, " + ", ".join(f"{letter}=2" for letter in "klmnopqrstuvwxyz") + ", z_1=3"
    text = f"#sdy.op_sharding_rule<([ij, z_1])->([z_1, ij]) {{{sizes}}} reduction={{z_1}} permutation={{j}}>"
    with mlir.make_ir_context():
        rule = rule_of_attribute(ir.Attribute.parse(text), [(32, 3)], [(3, 32)])
        with pytest.raises(ValueError, match="OpShardingRuleAttr"):
            rule_of_attribute(ir.Attribute.parse("5 : i32"), [()], [()])
    assert str(rule) == "(a b) c -> c (a b) | reduce c | replicate b"


@pytest.mark.parametrize("name", sorted(name for name, why in UNCOMPARED.items() if why in (SEVERAL_OPS, NO_RULE)))
def test_what_is_composed_of_several_ops_agrees(name: str) -> None:
    _, function, arrays, _ = next(case for case in rule_cases.CASES if case[0] == name)
    equation = rule_cases.equation(name, function, arrays)
    if equation is None:
        pytest.skip("this JAX has no such primitive")
    rule = rule_of(name.split()[0], equation.operands, equation.results, equation.params)
    theirs = shardy_rule(equation.primitive, equation.operands, equation.results, equation.params)
    if theirs is None:
        pytest.skip("not all of the ops have a rule")
    assert rule is not None
    assert _canonical(*_dims(theirs)) == _canonical(*_dims(rule))


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_a_difference_is_one(name: str) -> None:
    _, function, arrays, _ = next(case for case in rule_cases.CASES if case[0] == name)
    equation = rule_cases.equation(name, function, arrays)
    assert equation is not None
    rule = rule_of(name.split()[0], equation.operands, equation.results, equation.params)
    assert rule is not None
    assert _canonical(*_dims(rule)) != DIFFERENT[name][0]


def test_exceptions_are_cases() -> None:
    names = {name for name, *_ in rule_cases.CASES}
    for table in (SEVERAL, DIFFERENT, UNCOMPARED):
        assert list(table) == sorted(table)
        assert set(table) <= names


# ---------------------------------------------------------------- primitives without a rule of ours


def _primitive(name: str, function: Callable[..., Any]) -> Primitive:
    """A primitive of somebody else's, that computes `function`."""
    primitive = Primitive(name)
    primitive.def_impl(function)

    def shape(*avals: Any) -> Any:
        made = jax.eval_shape(function, *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals))
        return ShapedArray(made.shape, made.dtype)

    primitive.def_abstract_eval(shape)
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=False))
    return primitive


FOREIGN: Mapping[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], str | None]] = {
    "norm": (
        lambda x, w: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True)) * w,
        ((16, 32), (32,)),
        "a b, b -> a b | replicate b",
    ),
    "dot of tanh": (lambda x, y: jnp.tanh(x) @ y, ((16, 32), (32, 8)), "a b, b c -> a c | reduce b"),
    "greatest": (lambda x: x.max(0), ((16, 32),), "a b -> b | reduce(max) a"),
    # Its initial value would count once per part.
    "reduce from 5": (
        lambda x: jax.lax.reduce(x, np.float32(5), jax.lax.add, (0,)),
        ((16, 32),),
        "a b -> b | replicate a",
    ),
    "erf": (lambda x: jax.lax.erf(x).T, ((16, 32),), "a b -> b a"),
    "heads": (lambda x: x.reshape(16, 4, 8).sum(1), ((16, 32),), "a (b c) -> a c | reduce b"),
    "called function": (lambda x: jax.jit(jnp.cumsum, static_argnums=1)(x, 1), ((16, 32),), "a b -> a b | replicate b"),
    "grid": (lambda x: x + jnp.arange(32.0), ((16, 32),), "a b -> a b"),
    "convolution": (
        lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"),
        ((8, 4, 6, 6), (8, 4, 3, 3)),
        "a b c d, e b f g -> a e c d | reduce b | replicate c d f g",
    ),
    "all whole": (lambda x: jnp.linalg.svd(x, compute_uv=False), ((16, 16),), None),
    "loop": (lambda x: jax.lax.while_loop(lambda c: c.sum() < 0, lambda c: c + 1, x), ((16, 16),), None),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_primitives_get_the_rule_of_what_they_lower_to(name: str) -> None:
    function, shapes, text = FOREIGN[name]
    operands = [Aval(shape=shape, dtype="float32", itemsize=4) for shape in shapes]
    made = jax.eval_shape(function, *(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes))
    results = [Aval(shape=made.shape, dtype="float32", itemsize=4)]
    rule = shardy_rule(_primitive(name, function), operands, results, {})
    assert (str(rule) if rule else None) == text


def test_a_primitive_that_cannot_be_lowered_has_no_rule() -> None:
    operands = [Aval(shape=(16,), dtype="float32", itemsize=4)]
    assert shardy_rule(Primitive("unheard of"), operands, operands, {}) is None


def test_a_plan_is_right_and_names_the_ops_placed_by_shardy(tmp_path: Path) -> None:
    norm, dot = (_primitive(name, FOREIGN[name][0]) for name in ("norm", "dot of tanh"))

    def fn(x: jax.Array, w: jax.Array, y: jax.Array) -> jax.Array:
        return dot.bind(norm.bind(x, w), y)

    args = (jnp.linspace(-1, 1, 512).reshape(16, 32), jnp.ones(32), jnp.linspace(0, 1, 512).reshape(32, 16))
    plan = assert_same_as_single_device(fn, args, mesh={"x": 4, "y": 2})
    assert not plan.verify().collectives.differs
    assert plan.in_specs[0] == PartitionSpec(("x", "y"))
    assert [op.op for op in plan.by_shardy] == ["norm", "dot of tanh"]
    assert plan.replicated == ()
    assert "placed by Shardy's rule" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert planner.load(tmp_path / "plan.json").bind(fn, args).by_shardy == plan.by_shardy
