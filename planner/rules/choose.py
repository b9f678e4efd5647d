"""Whose rule an op follows: one of ours, else one of Shardy's registry, else none.

What encloses a body has rules of its own: boundary ops of loops and branches (see `jaxpr.flatten`), and `shard_map`.

Shardy's registry comes with every jaxlib. A primitive that no rule of ours covers is lowered alone, Shardy annotates the
ops it lowers to, and their rules are composed to one. Ops that Shardy has no rule for stay whole.
Reference: https://github.com/openxla/shardy/blob/main/docs/sharding_representation.md (sharding rules).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy
from jaxlib.mlir.dialects import stablehlo as hlo

from planner.program.graph import Aval, Graph, Op
from planner.program.spec_entries import parts_over
from planner.rules.composite import CompositeStep, compose
from planner.rules.factors import Factors, fits, replicated, with_whole
from planner.rules.ops.named import Names, named_rule
from planner.rules.primitives import rule_of, traits
from planner.rules.rule import Combiner, Dim, Kind, Rule


def _identity(operands: Sequence[Aval], results: Sequence[Aval]) -> Rule:
    """Every dim passes through unchanged, from each operand to the one result (or to none)."""
    factors = Factors()
    dims = factors.dims(operands[0].shape)
    return factors.rule([dims] * len(operands), [dims] * len(results))


def _stacked(operands: Sequence[Aval], results: Sequence[Aval]) -> Rule:
    """One side has the trips stacked in front; that dim stays whole, or every trip would fetch its slice."""
    (operand,), (result,) = operands, results
    entering = len(operand.shape) > len(result.shape)
    outer, inner = (operand, result) if entering else (result, operand)
    factors = Factors()
    trips, body = factors.dim(outer.shape[0], "replicate"), factors.dims(inner.shape)
    stacked = (trips, *body)
    return factors.rule([stacked if entering else body], [body if entering else stacked])


def manual_rule(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule | None:
    """The rule of a `shard_map`: a factor for each axis of its mesh, in every dim that the axis splits; the rest is whole.

    Its only strategy splits every factor by the axis it stands for. None where it demands what a plan cannot say.
    """
    names = list(params["mesh"])
    sizes = list(params["mesh"].values())
    kinds: list[Kind] = ["pass"] * len(names)
    sides: list[tuple[tuple[Dim, ...], ...]] = []
    for avals, specs in ((operands, params["operand_specs"]), (results, params["result_specs"])):
        side: list[tuple[Dim, ...]] = []
        for aval, spec in zip(avals, specs, strict=True):
            if spec is None:
                return None
            dims: list[Dim] = []
            for extent, axes in zip(aval.shape, spec, strict=True):
                factors = [names.index(axis) for axis in axes if params["mesh"][axis] > 1]
                rest = extent // parts_over(axes, params["mesh"])
                if rest != 1:
                    sizes.append(rest)
                    kinds.append("replicate")
                    factors.append(len(sizes) - 1)
                dims.append(tuple(factors))
            side.append(tuple(dims))
        sides.append(tuple(side))
    return Rule(operands=sides[0], results=sides[1], sizes=tuple(sizes), kinds=tuple(kinds))


BOUNDARY_RULES: Mapping[str, Callable[[Sequence[Aval], Sequence[Aval]], Rule]] = {
    "branch_in": _identity,
    "branch_out": _identity,
    "loop_carry_in": _identity,
    "loop_carry_out": _identity,
    "loop_const": _identity,
    "loop_slice": _stacked,
    "loop_stack": _stacked,
    "loop_test": _identity,
}


def op_rule(graph: Graph, op: Op) -> tuple[Rule | None, bool]:
    """The rule of an op (None where nothing says how to split it), and whether it is Shardy's.

    What the program returns without elements stays whole: JAX 0.10 cannot fetch it where a jit returned it split.
    """
    rule, theirs = _found(graph, op)
    results = graph.avals(op.results)
    whole = [not aval.size and tensor in graph.returned for aval, tensor in zip(results, op.results, strict=True)]
    return (rule if rule is None else with_whole(rule, results, whole)), theirs


def _found(graph: Graph, op: Op) -> tuple[Rule | None, bool]:
    """The same by the op alone."""
    operands, results = graph.avals(op.operands), graph.avals(op.results)
    if op.kind in BOUNDARY_RULES:
        return BOUNDARY_RULES[op.kind](operands, results), False
    if op.kind == "shard_map":
        return manual_rule(operands, results, op.params), False
    if traits(op.kind).collective is not None:
        return replicated(operands, results), False  # it stands in a body that runs on one device's parts
    ours = rule_of(op.kind, operands, results, op.params)
    if ours is not None:
        return ours, False
    theirs = shardy_rule(op.primitive, operands, results, op.params)
    return theirs, theirs is not None


POPULATE = "builtin.module(func.func(sdy-populate-op-sharding-rules))"

MADE = frozenset(("stablehlo.constant", "stablehlo.iota"))
"""Ops that make an array from nothing: any part of it can be made alone."""

CARRIES = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"))

SUMS = frozenset(("stablehlo.convolution", "stablehlo.dot_general", "stablehlo.gather"))
"""Ops whose reduced factors are summed; those of others combine as their bodies say."""

COMBINERS: Mapping[str, tuple[Combiner, frozenset[str]]] = {
    "stablehlo.add": ("add", frozenset(("0.000000e+00", "0", "-0.000000e+00"))),
    "stablehlo.and": ("and", frozenset(("true",))),
    "stablehlo.maximum": ("max", frozenset(("0xFC00", "0xFF80", "0xFF800000", "0xFFF0000000000000"))),
    "stablehlo.minimum": ("min", frozenset(("0x7C00", "0x7F80", "0x7F800000", "0x7FF0000000000000"))),
    "stablehlo.or": ("or", frozenset(("false",))),
}
"""For the op in the body of a reduction: how partial results combine, and the initial values that change nothing.

Any other initial value would count once per shard.
"""


def rule_of_attribute(attribute: Any, operands: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> Rule:
    """The rule that Shardy's attribute `#sdy.op_sharding_rule` says.

    Parameters: `operands` and `results`, the extents of the arrays. What Shardy would split by exchange between
    neighbours, or knows nothing of (a factor of size 1 on a dim of a larger extent), stays whole.
    Raises: ValueError for another attribute.
    """
    given: Any = sdy.OpShardingRuleAttr(attribute)
    kinds: dict[str, Kind] = dict.fromkeys(map(str, given.reduction_factors), "reduce")
    kinds.update(dict.fromkeys(map(str, given.need_replication_factors), "replicate"))
    kinds.update(dict.fromkeys(map(str, given.permutation_factors), "replicate"))
    sizes = {str(factor): extent for factor, extent in enumerate(given.factor_sizes)}
    left, right = (list(map(_names, side)) for side in (given.operand_mappings, given.result_mappings))
    return named_rule(left, right, (*operands, *results), sizes, kinds)


def _names(mapping: Any) -> Names:
    """The factors, by their numbers, of every dim of one array."""
    dims = (sdy.DimMappingAttr(dim) for dim in sdy.TensorMappingAttr(mapping).dim_mappings)
    return [list(map(str, dim.factor_indices)) for dim in dims]


def annotated(primitive: Any, operands: Sequence[Any], params: Mapping[str, Any]) -> Any:
    """The MLIR module that a primitive lowers to for a TPU, each op with Shardy's rule as `sdy.sharding_rule`.

    `operands` are `jax.ShapeDtypeStruct`s, or values for what is written in place. Raises: whatever lowering raises.
    """
    structs = [operand for operand in operands if isinstance(operand, jax.ShapeDtypeStruct)]

    def bound(*arrays: Any) -> Any:
        rest = iter(arrays)
        values = [next(rest) if isinstance(operand, jax.ShapeDtypeStruct) else operand for operand in operands]
        return primitive.bind(*values, **params)

    lowered = jax.jit(bound, keep_unused=True).trace(*structs).lower(lowering_platforms=("tpu",))
    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse(POPULATE).run(module.operation)
    return module


def shardy_rule(
    primitive: Any, operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]
) -> Rule | None:
    """The rule that Shardy's registry gives a primitive; None where it gives none by which anything could be split.

    Parameters: as of `planner.rules.rule_of`, but for the primitive itself. Raises nothing.
    """
    if primitive is None or traits(primitive.name).opaque or not results:
        return None
    try:
        structs = [jax.ShapeDtypeStruct(aval.shape, jnp.dtype(aval.dtype)) for aval in operands]
        module = annotated(primitive, structs, params)
        with module.context:
            functions = {ir.StringAttr(op.attributes["sym_name"]).value: op for op in module.body.operations}
            rule = _composed(functions, "main")
    except Exception:
        # The lowering of a foreign primitive may raise anything. Without a rule the op is whole, and listed.
        return None
    useful = (
        rule is not None and fits(rule, operands, results) and any(kind in ("pass", "reduce") for kind in rule.kinds)
    )
    return rule if useful else None


def _composed(functions: Mapping[str, Any], name: str) -> Rule | None:
    """The rule of one function of a module."""
    block = functions[name].regions[0].blocks[0]
    numbers: dict[Any, int] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    constants: dict[Any, str] = {}

    def number(value: Any) -> int:
        if value not in numbers:
            shapes[len(numbers)] = tuple(ir.RankedTensorType(value.type).shape)
            numbers[value] = len(numbers)
        return numbers[value]

    inputs = [number(argument) for argument in block.arguments]
    steps: list[CompositeStep] = []
    outputs: list[int] = []
    for op in block.operations:
        kind = op.operation.name
        operands, results = [number(v) for v in op.operands], [number(v) for v in op.results]
        if kind in ("func.return", "return"):
            outputs = operands
            continue
        if kind == "stablehlo.constant":
            found = re.match(r"dense<([^\[>]*)>", str(op.attributes["value"]))
            constants[op.results[0]] = found.group(1) if found else ""
        if kind in ("func.call", "call"):
            rule = _composed(functions, ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
        else:
            rule = _rule(op, kind, [shapes[t] for t in operands], [shapes[t] for t in results], constants)
        carries = kind in CARRIES
        steps.append(CompositeStep(rule=rule, operands=tuple(operands), results=tuple(results), carries=carries))
    return compose(steps, shapes, inputs, outputs)


def _rule(
    op: Any,
    kind: str,
    operands: Sequence[tuple[int, ...]],
    results: Sequence[tuple[int, ...]],
    constants: Mapping[Any, str],
) -> Rule | None:
    """The rule of one op; None where all of it stays whole."""
    factors = Factors()
    if kind in MADE:
        return factors.rule((), [factors.dims(shape) for shape in results])
    if kind.startswith("chlo.") and len(results) == 1 and all(shape == results[0] for shape in operands):
        # What has no op of its own in StableHLO is elementwise, where all arrays agree: erf, lgamma, next_after.
        dims = factors.dims(results[0])
        return factors.rule([dims] * len(operands), [dims])
    if "sdy.sharding_rule" not in op.attributes or kind == "stablehlo.custom_call":
        # For custom calls Shardy says what may be propagated through them; the compiler gathers their operands.
        return None
    if kind == "stablehlo.convolution" and _grouped(op):
        return None
    rule = rule_of_attribute(op.attributes["sdy.sharding_rule"], operands, results)
    combiner: Combiner | None = "add" if kind in SUMS else _combiner(op, kind, constants)
    whole = _miscompiled(op, kind, rule, operands)
    kinds: list[Kind] = [
        "replicate" if factor in whole or (old == "reduce" and combiner is None) else old
        for factor, old in enumerate(rule.kinds)
    ]
    return Rule(
        operands=rule.operands,
        results=rule.results,
        sizes=rule.sizes,
        kinds=tuple(kinds),
        combiner=combiner or "add",
    )


def _miscompiled(op: Any, kind: str, rule: Rule, operands: Sequence[tuple[int, ...]]) -> set[int]:
    """Factors that Shardy would split, but the compiler computes wrongly: a convolution's space, an update's place."""
    dims: list[Dim] = []
    if kind == "stablehlo.convolution":
        numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        dims += [rule.operands[0][d] for d in numbers.input_spatial_dimensions]
        dims += [rule.operands[1][d] for d in numbers.kernel_spatial_dimensions]
        dims += [rule.results[0][d] for d in numbers.output_spatial_dimensions]
    elif kind == "stablehlo.dynamic_update_slice":
        dims += [dim for dim, n, part in zip(rule.operands[0], *operands[:2], strict=True) if n != part]
    return {factor for dim in dims for factor in dim}


def _grouped(op: Any) -> bool:
    """Whether a convolution has groups, on which the compiler may abort."""
    return any(ir.IntegerAttr(op.attributes[name]).value > 1 for name in ("feature_group_count", "batch_group_count"))


def _combiner(op: Any, kind: str, constants: Mapping[Any, str]) -> Combiner | None:
    """How the partial results of a reduction combine; None where they do not, or where that is not known."""
    if kind not in ("stablehlo.reduce", "stablehlo.scatter") or len(op.results) != 1:
        return None
    body = list(op.regions[0].blocks[0].operations)
    known = COMBINERS.get(body[0].operation.name) if len(body) == 2 else None
    if known is None:
        return None
    if kind == "stablehlo.reduce" and constants.get(op.operands[1]) not in known[1]:
        return None
    return known[0]
