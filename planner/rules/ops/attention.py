"""Rules of attention that cuDNN computes (`jax.nn.dot_product_attention(implementation="cudnn")`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Dims, Rule

HEADS_FIRST = 1
"""The layout (b, n, t, h); the other one is (b, t, n, h)."""
QUERIES, KEYS, BIAS, LENGTHS, OFFSETS, PAGES, STATISTICS = (
    "queries",
    "keys",
    "bias",
    "lengths",
    "offsets",
    "pages",
    "stats",
)
OPERANDS = (QUERIES, KEYS, KEYS, BIAS, LENGTHS, LENGTHS, OFFSETS, OFFSETS, PAGES, PAGES)
BACKWARD = (STATISTICS, QUERIES, QUERIES)
"""What the gradient takes besides: the softmax's statistics, the result, and the gradient by it."""


def attention(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b t (k g) h, b s k h, b s k h, .. -> b t (k g) h, b (k g) t | replicate t g h s`: batch and heads of keys pass.

    With dropout nothing does: bits are drawn by the place in what a device holds.
    """
    return _attention(operands, results, params, (QUERIES, STATISTICS))


def attention_backward(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """As `attention`, for its gradients. A bias that is the same for all of the batch, or all heads, keeps these whole."""
    return _attention(operands, results, params, (QUERIES, KEYS, KEYS, BIAS))


def _attention(
    operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any], made: Sequence[str]
) -> Rule:
    heads_at = 1 if params["layout"] == HEADS_FIRST else 2
    examples, heads = operands[0].shape[0], operands[0].shape[heads_at]
    keys, bias = operands[1].shape[heads_at], operands[3].shape
    gradient_of_bias = params["variadic_args"][1] and BIAS in made
    packed, paged = operands[6].size > 0, operands[8].size > 0

    def kind(shared: bool) -> Any:
        return "replicate" if params["dropout_rate"] or (gradient_of_bias and shared) else "pass"

    factors = Factors()
    batch = factors.dim(examples, "replicate" if packed else kind(bias[0] != examples))
    of_keys = factors.dim(keys, kind(len(bias) > 1 and bias[1] != heads))
    of_queries = of_keys + factors.dim(heads // keys, "replicate")

    def dims(aval: Aval, what: str) -> Dims:
        named = {
            QUERIES: {0: batch, heads_at: of_queries},
            KEYS: {heads_at: of_keys} if paged else {0: batch, heads_at: of_keys},
            BIAS: {0: batch, 1: of_queries},
            LENGTHS: {0: batch},
            OFFSETS: {},
            PAGES: {0: batch},
            STATISTICS: {1: of_queries} if packed else {0: batch, 1: of_queries},
        }[what]
        extents = {0: examples, 1: heads} if what in (BIAS, LENGTHS, PAGES) else {}
        return tuple(
            named[dim] if dim in named and extents.get(dim, extent) == extent else factors.dim(extent, "replicate")
            for dim, extent in enumerate(aval.shape)
        )

    taken = (*OPERANDS, *BACKWARD)
    return factors.rule(
        [dims(aval, what) for aval, what in zip(operands, taken, strict=False)],
        [dims(aval, what) for aval, what in zip(results, made, strict=False)],
    )
