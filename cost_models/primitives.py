"""Primitives whose work needs no formula: those that compute element by element, and those that only move data."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# fmt: off
ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil",
    "clz", "complex", "conj", "convert_element_type", "cos", "cosh", "div", "eq", "eq_to", "erf", "erf_inv", "erfc",
    "exp", "exp2", "expm1", "floor", "ge", "gt", "imag", "is_finite", "le", "le_to", "log", "log1p", "log2",
    "logistic", "lt", "lt_to", "max", "min", "mul", "mulhi", "ne", "neg", "nextafter", "not", "or",
    "population_count", "pow", "real", "reduce_precision", "rem", "round", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh",
    "xor",
})
"""One operation per result element."""

MOVES = frozenset({
    "after_all", "all_gather", "all_gather_invariant", "all_gather_reduced", "all_to_all", "axis_index",
    "bitcast_convert_type", "box_get", "box_set", "broadcast", "broadcast_in_dim", "broadcast_to", "concatenate",
    "copy", "copy_p", "create_token", "dce_sink", "debug_callback", "debug_print", "device_put", "dimension_size",
    "dynamic_slice", "dynamic_update_slice", "empty", "empty2", "empty_ref", "expand_dims", "free_ref", "freeze",
    "from_edtype", "gather", "get", "inspect_sharding", "iota", "iota_2x32_shape",
    "layout_constraint", "lu_pivots_to_permutation", "mesh_cast", "name", "new_ref", "optimization_barrier", "pad",
    "partition_id", "pbroadcast", "pin", "platform_index", "ppermute", "preduced", "pvary",
    "ragged_all_to_all", "random_clone", "random_unwrap", "random_wrap", "relayout", "reshape", "reshard", "rev",
    "scatter", "select_and_gather_add", "shape_assertion", "shard_alike", "sharding_constraint", "slice",
    "split", "squeeze", "stack", "stop_gradient", "swap", "tie", "tile", "to_edtype", "transpose", "unpin", "unstack",
    "with_memory_space_constraint", "xla_metadata_value", "zeros_like",
})
"""No operation: these move, make or name data."""
# fmt: on

SPECIAL: Mapping[str, float] = MappingProxyType(
    {
        "bessel_i0e": 30.0,
        "bessel_i1e": 30.0,
        "clamp": 2.0,
        "digamma": 40.0,
        "igamma": 400.0,
        "igamma_grad_a": 800.0,
        "igammac": 400.0,
        "lgamma": 40.0,
        "one_minus_square": 2.0,
        "polygamma": 200.0,
        "random_gamma": 400.0,
        "random_gamma_grad": 800.0,
        "regularized_incomplete_beta": 800.0,
        "zeta": 150.0,
    }
)
"""Operations per result element of functions that are series or iterations: their lengths in `jax.lax` (special.py and
random.py), rounded to one digit. They are bound by memory less often than the rest."""
