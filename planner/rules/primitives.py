"""One row per primitive: its factor rule and its traits. A new primitive is a new row here, and a case in the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from planner.program.graph import Aval, Graph, Op
from planner.rules.factors import fits
from planner.rules.kernels.pallas_kernel import pallas_call
from planner.rules.ops.attention import attention, attention_backward
from planner.rules.ops.contract import dot_general, ragged_dot_general, scaled_dot
from planner.rules.ops.convolution import conv_general_dilated
from planner.rules.ops.elementwise import elementwise, leading, paired
from planner.rules.ops.index import dynamic_slice, dynamic_update_slice, gather, scatter, scatter_combined
from planner.rules.ops.linalg import batched, fft, triangular_solve, tridiagonal_solve
from planner.rules.ops.named import custom_partitioning
from planner.rules.ops.order import sort, top_k
from planner.rules.ops.random import drawn, rng_bit_generator
from planner.rules.ops.reduce import reduce, reduce_xor, reduction
from planner.rules.ops.shape import (
    broadcast_in_dim,
    concatenate,
    created,
    pad,
    reshape,
    rev,
    roll,
    slice_,
    split,
    squeeze,
    stack,
    tile,
    transpose,
    unstack,
)
from planner.rules.ops.window import cumulative, pooling, reduce_window, select_and_scatter, select_and_scatter_add
from planner.rules.primitive import Primitive, convolution_product, dot_product
from planner.rules.rule import Rule
from planner.rules.sliding import Slide, convolution_slides, gradient_slides, pooling_slides, roll_slides

PRIMITIVES: Mapping[str, Primitive] = {
    "abs": Primitive(elementwise, fused=True),
    "acos": Primitive(elementwise, fused=True),
    "acosh": Primitive(elementwise, fused=True),
    "add": Primitive(elementwise, fused=True, adds=True, additive="all"),
    "add_any": Primitive(elementwise, fused=True, adds=True, rounds=True, additive="all"),
    "all_gather": Primitive(None, collective="all-gather"),
    "all_gather_done": Primitive(elementwise, fused=True, renames=True),
    "all_gather_invariant": Primitive(None, collective="all-gather"),
    "all_gather_reduced": Primitive(None, collective="all-gather"),
    "all_gather_reduced_start": Primitive(None, collective="all-gather"),
    "all_gather_start": Primitive(None, collective="all-gather"),
    "all_to_all": Primitive(None, collective="all-to-all"),
    "all_to_all_done": Primitive(elementwise, fused=True, renames=True),
    "all_to_all_start": Primitive(None, collective="all-to-all"),
    "and": Primitive(elementwise, fused=True),
    "approx_top_k": Primitive(top_k),
    "argmax": Primitive(partial(reduction, combiner="arg"), fused=True),
    "argmin": Primitive(partial(reduction, combiner="arg"), fused=True),
    "asin": Primitive(elementwise, fused=True),
    "asinh": Primitive(elementwise, fused=True),
    "atan": Primitive(elementwise, fused=True),
    "atan2": Primitive(elementwise, fused=True, slow=True, stored_up_to_bytes=2),
    "atanh": Primitive(elementwise, fused=True),
    "bessel_i0e": Primitive(elementwise, fused=True),
    "bessel_i1e": Primitive(elementwise, fused=True),
    "bitcast_convert_type": Primitive(leading, fused=True),
    "broadcast_in_dim": Primitive(broadcast_in_dim, fused=True, carries=True, reshapes=True, additive="all"),
    "cbrt": Primitive(elementwise, fused=True, slow=True),
    "ceil": Primitive(elementwise, fused=True),
    "cholesky": Primitive(partial(batched, core=2), by_hand="parts"),
    "cholesky_update": Primitive(partial(batched, core=2), by_hand="parts"),
    "clamp": Primitive(elementwise, fused=True),
    "clz": Primitive(elementwise, fused=True),
    "complex": Primitive(elementwise, fused=True, additive="all"),
    "concatenate": Primitive(concatenate, resizes=True, fused=True, moves=True, additive="all"),
    "conj": Primitive(elementwise, fused=True, additive="all"),
    "conv_general_dilated": Primitive(
        conv_general_dilated,
        matmul=True,
        product=convolution_product,
        partial_on_parts=True,
        slides=convolution_slides,
    ),
    "convert_element_type": Primitive(elementwise, fused=True, carries=True, additive="all"),
    "copy": Primitive(elementwise, fused=True, carries=True, additive="all"),
    "cos": Primitive(elementwise, fused=True, slow=True, stored_up_to_bytes=4),
    "cosh": Primitive(elementwise, fused=True),
    "cumlogsumexp": Primitive(cumulative),
    "cummax": Primitive(cumulative),
    "cummin": Primitive(cumulative),
    "cumprod": Primitive(cumulative),
    "cumsum": Primitive(cumulative, rounds=True, additive="all"),
    "custom_partitioning": Primitive(custom_partitioning, by_hand="kernel", opaque=True),
    "debug_callback": Primitive(None, opaque=True, calls_back=True),
    "debug_print": Primitive(None, opaque=True),
    "device_put": Primitive(paired),
    "digamma": Primitive(elementwise, fused=True, stored_up_to_bytes=4),
    "div": Primitive(elementwise, fused=True, slow=True, linear_in=(0,)),
    "dot_general": Primitive(dot_general, matmul=True, product=dot_product, partial_on_parts=True, rounds=True),
    "dot_product_attention_bwd_wrapper": Primitive(attention_backward, by_hand="kernel"),
    "dot_product_attention_fwd_wrapper": Primitive(attention, by_hand="kernel"),
    "dynamic_slice": Primitive(
        dynamic_slice, resizes=True, fused=True, streams=True, picks=True, moves=True, additive=(0,)
    ),
    "dynamic_update_slice": Primitive(
        dynamic_update_slice, streams=True, updates=1, overwrites=True, by_hand="parts", additive=(0, 1)
    ),
    "eig": Primitive(partial(batched, core=2), by_hand="parts"),
    "eigh": Primitive(partial(batched, core=2), by_hand="parts"),
    "empty": Primitive(created, fused=True),
    "empty2": Primitive(created, fused=True),
    "eq": Primitive(elementwise, fused=True),
    "eq_to": Primitive(elementwise, fused=True),
    "erf": Primitive(elementwise, fused=True, costly=True, stored_for_matmuls=True),
    "erf_inv": Primitive(elementwise, fused=True, costly=True, stored_for_matmuls=True, stored_up_to_bytes=4),
    "erfc": Primitive(elementwise, fused=True, costly=True, stored_for_matmuls=True, stored_up_to_bytes=4),
    "exp": Primitive(elementwise, fused=True, slow=True),
    "exp2": Primitive(elementwise, fused=True, slow=True),
    "expm1": Primitive(elementwise, fused=True, slow=True),
    "ffi_call": Primitive(None, opaque=True),
    "fft": Primitive(fft, by_hand="parts", additive="all"),
    "floor": Primitive(elementwise, fused=True),
    "from_edtype": Primitive(leading, fused=True),
    "gather": Primitive(gather, picks=True, moves=True, additive=(0,)),
    "ge": Primitive(elementwise, fused=True),
    "geqp3": Primitive(partial(batched, core=2), by_hand="parts"),
    "geqrf": Primitive(partial(batched, core=2), by_hand="parts"),
    "gt": Primitive(elementwise, fused=True),
    "hessenberg": Primitive(partial(batched, core=2), by_hand="parts"),
    "householder_product": Primitive(partial(batched, core=2), by_hand="parts"),
    "igamma": Primitive(elementwise, fused=True),
    "igamma_grad_a": Primitive(elementwise, fused=True),
    "igammac": Primitive(elementwise, fused=True),
    "imag": Primitive(elementwise, fused=True, additive="all"),
    "integer_pow": Primitive(elementwise, fused=True, squares=True),
    "io_callback": Primitive(None, opaque=True, calls_back=True),
    "iota": Primitive(created, fused=True),
    "iota_2x32_shape": Primitive(created, fused=True),
    "is_finite": Primitive(elementwise, fused=True),
    "layout_constraint": Primitive(elementwise, fused=True),
    "le": Primitive(elementwise, fused=True),
    "le_to": Primitive(elementwise, fused=True),
    "lgamma": Primitive(elementwise, fused=True, stored_up_to_bytes=4),
    "log": Primitive(elementwise, fused=True, slow=True),
    "log1p": Primitive(elementwise, fused=True, slow=True, stored_up_to_bytes=2),
    "log2": Primitive(elementwise, fused=True),
    "logistic": Primitive(elementwise, fused=True, costly=True),
    "lt": Primitive(elementwise, fused=True),
    "lt_to": Primitive(elementwise, fused=True),
    "lu": Primitive(partial(batched, core=2), by_hand="parts"),
    "lu_pivots_to_permutation": Primitive(partial(batched, core=1), by_hand="parts"),
    "max": Primitive(elementwise, fused=True, moves=True),
    "min": Primitive(elementwise, fused=True, moves=True),
    "mul": Primitive(elementwise, fused=True, linear_in=(0, 1)),
    "mulhi": Primitive(elementwise, fused=True),
    "name": Primitive(elementwise, fused=True, renames=True, carries=True, additive="all"),
    "ne": Primitive(elementwise, fused=True),
    "neg": Primitive(elementwise, fused=True, linear_in=(0,)),
    "nextafter": Primitive(elementwise, fused=True),
    "nonbatchable": Primitive(elementwise, fused=True),
    "nondifferentiable_backward": Primitive(elementwise, fused=True),
    "nontraceable": Primitive(elementwise, fused=True),
    "not": Primitive(elementwise, fused=True),
    "one_minus_square": Primitive(elementwise, fused=True),
    "optimization_barrier": Primitive(paired, fused=True, renames=True, bars=True, additive="all"),
    "or": Primitive(elementwise, fused=True),
    "ormqr": Primitive(partial(batched, core=2), by_hand="parts"),
    "pad": Primitive(pad, resizes=True, fused=True, moves=True, additive=(0, 1)),
    "pallas_call": Primitive(pallas_call, by_hand="kernel", opaque=True),
    "pbroadcast": Primitive(None, collective="all-reduce"),
    "pbroadcast_done": Primitive(elementwise, fused=True, renames=True),
    "pbroadcast_dynamic": Primitive(None, collective="all-reduce"),
    "pbroadcast_start": Primitive(None, collective="all-reduce"),
    "philox2x32": Primitive(elementwise),
    "philox4x32": Primitive(elementwise),
    "pmax": Primitive(None, collective="all-reduce"),
    "pmin": Primitive(None, collective="all-reduce"),
    "polygamma": Primitive(elementwise, fused=True),
    "polynomial": Primitive(elementwise, fused=True),
    "population_count": Primitive(elementwise, fused=True),
    "pow": Primitive(elementwise, fused=True, slow=True, stored_up_to_bytes=4),
    "ppermute": Primitive(None, collective="collective-permute"),
    "ppermute_done": Primitive(elementwise, fused=True, renames=True),
    "ppermute_start": Primitive(None, collective="collective-permute"),
    "preduced": Primitive(elementwise, fused=True),
    "psend": Primitive(None, collective="collective-permute"),
    "psum": Primitive(None, collective="all-reduce"),
    "psum_done": Primitive(elementwise, fused=True, renames=True),
    "psum_invariant": Primitive(None, collective="all-reduce"),
    "psum_invariant_start": Primitive(None, collective="all-reduce"),
    "psum_start": Primitive(None, collective="all-reduce"),
    "pure_callback": Primitive(None, opaque=True, calls_back=True),
    "pvary": Primitive(elementwise, fused=True),
    "qr": Primitive(partial(batched, core=2), by_hand="parts"),
    "ragged_all_to_all": Primitive(None, collective="all-to-all"),
    "ragged_dot_general": Primitive(ragged_dot_general, by_hand="sums"),
    "random_bits": Primitive(drawn, draws=True, counts=True),
    "random_clone": Primitive(elementwise),
    "random_fold_in": Primitive(elementwise),
    "random_gamma": Primitive(drawn, draws=True),
    "random_seed": Primitive(elementwise),
    "random_split": Primitive(drawn, draws=True),
    "random_unwrap": Primitive(leading, fused=True),
    "random_wrap": Primitive(leading, fused=True),
    "real": Primitive(elementwise, fused=True, additive="all"),
    "reduce": Primitive(reduce, fused=True),
    "reduce_and": Primitive(partial(reduction, combiner="and"), fused=True, partial_on_parts=True),
    "reduce_max": Primitive(partial(reduction, combiner="max"), fused=True, partial_on_parts=True, extreme=True),
    "reduce_min": Primitive(partial(reduction, combiner="min"), fused=True, partial_on_parts=True, extreme=True),
    "reduce_or": Primitive(partial(reduction, combiner="or"), fused=True, partial_on_parts=True),
    "reduce_precision": Primitive(elementwise, fused=True),
    "reduce_prod": Primitive(partial(reduction, combiner="mul"), fused=True),
    "reduce_scatter": Primitive(None, collective="reduce-scatter"),
    "reduce_scatter_done": Primitive(elementwise, fused=True, renames=True),
    "reduce_scatter_start": Primitive(None, collective="reduce-scatter"),
    "reduce_sum": Primitive(
        partial(reduction, combiner="add"), fused=True, partial_on_parts=True, rounds=True, additive="all"
    ),
    "reduce_window": Primitive(reduce_window, resizes=True),
    "reduce_window_max": Primitive(pooling, resizes=True, slides=pooling_slides),
    "reduce_window_min": Primitive(pooling, resizes=True, slides=pooling_slides),
    "reduce_window_sum": Primitive(pooling, resizes=True, rounds=True, slides=pooling_slides, additive="all"),
    "reduce_xor": Primitive(reduce_xor, fused=True),
    "reduced_vary_cast": Primitive(elementwise, fused=True),
    "reduced_vary_cast_p": Primitive(elementwise, fused=True),
    "regularized_incomplete_beta": Primitive(elementwise, fused=True),
    "relayout": Primitive(elementwise, fused=True),
    "rem": Primitive(elementwise, fused=True),
    "reshape": Primitive(reshape, fused=True, carries=True, reshapes=True, additive="all"),
    "reshard": Primitive(elementwise, fused=True),
    "rev": Primitive(rev, resizes=True, fused=True, turns=True, moves=True, additive="all"),
    "rng_bit_generator": Primitive(rng_bit_generator),
    "rng_uniform": Primitive(created),
    "roll": Primitive(roll, joins=True, turns=True, slides=roll_slides, additive="all"),
    "round": Primitive(elementwise, fused=True),
    "rsqrt": Primitive(elementwise, fused=True, slow=True),
    "scaled_dot": Primitive(scaled_dot),
    "scatter": Primitive(scatter, streams=True, updates=2, overwrites=True, by_hand="barrier"),
    "scatter-add": Primitive(
        partial(scatter_combined, combiner="add"),
        streams=True,
        updates=2,
        rounds=True,
        by_hand="barrier",
        additive=(0, 2),
    ),
    "scatter-max": Primitive(partial(scatter_combined, combiner="max"), streams=True, updates=2, by_hand="barrier"),
    "scatter-min": Primitive(partial(scatter_combined, combiner="min"), streams=True, updates=2, by_hand="barrier"),
    "scatter-mul": Primitive(partial(scatter_combined, combiner="mul"), streams=True, updates=2, by_hand="barrier"),
    "scatter-sub": Primitive(scatter, streams=True, updates=2, by_hand="barrier"),
    "schur": Primitive(partial(batched, core=2), by_hand="parts"),
    "select_and_gather_add": Primitive(reduce_window, resizes=True),
    "select_and_scatter": Primitive(select_and_scatter),
    "select_and_scatter_add": Primitive(select_and_scatter_add, resizes=True, slides=gradient_slides),
    "select_if_vmap": Primitive(elementwise, fused=True),
    "select_n": Primitive(elementwise, fused=True, moves=True, additive=(1, 2)),
    "shard_alike": Primitive(paired),
    "sharding_constraint": Primitive(elementwise, places=True, additive="all"),
    "shift_left": Primitive(elementwise, fused=True),
    "shift_right_arithmetic": Primitive(elementwise, fused=True),
    "shift_right_logical": Primitive(elementwise, fused=True),
    "sign": Primitive(elementwise, fused=True),
    "sin": Primitive(elementwise, fused=True, slow=True, stored_up_to_bytes=4),
    "sinh": Primitive(elementwise, fused=True),
    "slice": Primitive(slice_, resizes=True, fused=True, picks=True, moves=True, additive="all"),
    "sort": Primitive(sort),
    "split": Primitive(split, streams=True, moves=True, additive="all"),
    "sqrt": Primitive(elementwise, fused=True, slow=True),
    "square": Primitive(elementwise, fused=True, squares=True),
    "squeeze": Primitive(squeeze, fused=True, carries=True, reshapes=True, additive="all"),
    "stack": Primitive(stack, additive="all"),
    "stage": Primitive(elementwise, fused=True),
    "stop_gradient": Primitive(elementwise, fused=True, reshapes=True, additive="all"),
    "sub": Primitive(elementwise, fused=True, adds=True, additive="all"),
    "svd": Primitive(partial(batched, core=2), by_hand="parts"),
    "symmetric_product": Primitive(partial(batched, core=2), by_hand="parts"),
    "tan": Primitive(elementwise, fused=True, slow=True),
    "tanh": Primitive(elementwise, fused=True, costly=True, stored_up_to_bytes=2),
    "threefry2x32": Primitive(elementwise),
    "threefry4x32": Primitive(elementwise),
    "tie": Primitive(elementwise, fused=True),
    "tile": Primitive(tile, fused=True, additive="all"),
    "to_edtype": Primitive(leading, fused=True),
    "top_k": Primitive(top_k, by_hand="parts"),
    "transpose": Primitive(transpose, fused=True, carries=True, turns=True, additive="all"),
    "triangular_solve": Primitive(triangular_solve, by_hand="parts"),
    "tridiagonal": Primitive(partial(batched, core=2), by_hand="parts"),
    "tridiagonal_solve": Primitive(tridiagonal_solve, by_hand="parts"),
    "unreduced_pmax": Primitive(None, collective="all-reduce"),
    "unreduced_pmin": Primitive(None, collective="all-reduce"),
    "unreduced_psum": Primitive(None, collective="all-reduce"),
    "unreduced_psum_start": Primitive(None, collective="all-reduce"),
    "unreduced_reduce_scatter": Primitive(None, collective="reduce-scatter"),
    "unreduced_reduce_scatter_start": Primitive(None, collective="reduce-scatter"),
    "unstack": Primitive(unstack, additive="all"),
    "vary_unreduced_cast": Primitive(elementwise, fused=True),
    "vary_unreduced_cast_p": Primitive(elementwise, fused=True),
    "with_memory_space_constraint": Primitive(elementwise, fused=True),
    "xla_metadata_value": Primitive(elementwise, fused=True),
    "xor": Primitive(elementwise, fused=True),
    "zeros_like": Primitive(elementwise, fused=True),
    "zeta": Primitive(elementwise, fused=True),
}
"""The primitives known by name. Names are JAX's; those of `equinox` are markers that return their operand."""

_NO_ROW = Primitive(None)


def traits(kind: str) -> Primitive:
    """The row of a primitive; for any other kind of op one that says nothing."""
    return PRIMITIVES.get(kind, _NO_ROW)


def kinds_where(predicate: Callable[[Primitive], object]) -> frozenset[str]:
    """The primitives whose row answers yes."""
    return frozenset(kind for kind, row in PRIMITIVES.items() if predicate(row))


def updates_in_place(op: Op) -> bool:
    """Whether an op writes over a part of its first operand."""
    return traits(op.kind).updates is not None


def rule_of(
    kind: str,
    operands: Sequence[Aval],
    results: Sequence[Aval],
    params: Mapping[str, Any],
) -> Rule | None:
    """The rule of one op, or None where there is none: an unknown primitive, or params of a form not known.

    Parameters: `kind`, the primitive's name; `operands` and `results`, the avals in order, literals as scalars;
    `params`, those of the equation.
    """
    function = traits(kind).rule
    if function is None or not results:
        return None
    try:
        rule = function(operands, results, params)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        # Params change between JAX releases. Without a rule the op is replicated and listed: correct, and not silent.
        return None
    return rule if fits(rule, operands, results) else None


def rule_of_op(graph: Graph, op: Op) -> Rule | None:
    """The rule of an op of a graph."""
    return rule_of(op.kind, graph.avals(op.operands), graph.avals(op.results), op.params)


def slides(
    kind: str, operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]
) -> tuple[Slide, ...]:
    """The dims of an op whose split needs, or may need, a halo; none for ops that slide nothing.

    Not among them: dims whose windows are single elements that stay in place, which split like any batch, and dims
    whose parts would differ in what they see.
    """
    function = traits(kind).slides
    return () if function is None else function(operands, results, params)


def slides_of(graph: Graph, op: Op) -> tuple[Slide, ...]:
    """The slides of an op of a graph."""
    if traits(op.kind).slides is None:
        return ()
    return slides(op.kind, graph.avals(op.operands), graph.avals(op.results), op.params)
