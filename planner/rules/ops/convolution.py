"""The rule of convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.program.graph import Aval
from planner.rules.factors import Factors
from planner.rules.rule import Dim, Rule
from planner.rules.sliding import convolution_slides


def conv_general_dilated(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> Rule:
    """`b i x, o i w -> b o x | reduce i | replicate w | permute x`: batch, features, space.

    With feature groups the features of the image are `(g i)` and those of the result `(g o)`, with batch groups the
    batch is `(g b)`: groups pass, and are split before what is inside them.

    Space is split where all parts see their image alike (see `rules.sliding`): image and result, `b i (x p), o i w -> b
    o (x q)` with a stride, or, in the gradient by a kernel, image and window: `b i x, o i x -> b o w | reduce i x`.
    Such splits are emitted with an exchange of their own, as the compiler computes some wrongly (output features on an
    earlier axis of the mesh than space; kernel gradients on a mesh with further axes). A window of one element, stride
    1 and no padding passes: every such split tried was right.
    """
    lhs_spec, rhs_spec, out_spec = params["dimension_numbers"]
    lhs_shape, rhs_shape = operands[0].shape, operands[1].shape
    out_shape = results[0].shape
    feature_groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    factors = Factors()
    group = factors.dim(max(feature_groups, batch_groups))
    batch = factors.dim(lhs_shape[lhs_spec[0]] // batch_groups)
    features_in = factors.dim(rhs_shape[rhs_spec[1]], "reduce")
    features_out = group + factors.dim(rhs_shape[rhs_spec[0]] // max(feature_groups, batch_groups))

    lhs: list[Dim] = [()] * len(lhs_shape)
    rhs: list[Dim] = [()] * len(rhs_shape)
    out: list[Dim] = [()] * len(out_shape)
    lhs[lhs_spec[0]] = group + batch if batch_groups > 1 else batch
    lhs[lhs_spec[1]] = group + features_in if feature_groups > 1 else features_in
    rhs[rhs_spec[0]], rhs[rhs_spec[1]] = features_out, features_in
    out[out_spec[0]], out[out_spec[1]] = batch, features_out
    splits = {slide.image_dim: slide for slide in convolution_slides(operands, results, params)}
    for n in range(len(lhs_spec) - 2):
        before, window, after = lhs_spec[2 + n], rhs_spec[2 + n], out_spec[2 + n]
        slide = splits.get(before)
        if slide is None:
            still = (
                rhs_shape[window] == params["window_strides"][n] == params["lhs_dilation"][n] == 1
                and not any(params["padding"][n])
                and lhs_shape[before] == out_shape[after]
            )
            lhs[before], out[after] = (
                (factors.dim(lhs_shape[before]),) * 2 if still else factors.pair(lhs_shape[before], out_shape[after])
            )
            rhs[window] = factors.dim(rhs_shape[window], "replicate")
        elif slide.split == "result":
            lhs[before], out[after] = factors.shared(slide.image, slide.result, slide.count, "permute")
            rhs[window] = factors.dim(rhs_shape[window], "replicate")
        else:
            lhs[before], rhs[window] = factors.shared(slide.image, slide.window, slide.count, "reduce")
            out[after] = factors.dim(out_shape[after], "replicate")
    return factors.rule([lhs, rhs], [out])
