"""Halos: how far beyond its own part an op that slides a window must see, where space is split.

A window of W elements slides over an image of L elements and stops O times. With stride s, image dilation d, window
dilation r and `low` zeros in front, stop o and window element w meet at position

    q = o s + w r - low        of the dilated image, whose element l stands at l d.

Space can be split over n devices in two ways, each wherever all parts see their image alike (a multiple of the part's
number ahead), so that one program fits all:

    "result"   image and result split, window whole      O s = L d    forward passes, gradients by the image
    "window"   image and window split, result summed     W r = L d    gradients by the kernel: the "window" is an image

A roll by k is a window of one element with k zeros in front, where neighbours are those of a ring: beyond the edges of the
image is its other end, so nothing is padded.

Device k then holds image elements [k L/n, (k+1) L/n) and needs `left` more before them and `right` more behind, which
its neighbours send; beyond the edges of the image there is padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from planner.program.graph import Aval, Op

CONVOLUTION = "conv_general_dilated"
POOLING_GRADIENT = "select_and_scatter_add"
ROLL = "roll"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a part needs of its image: `left` and `right` elements of its neighbours', and the padding that remains.

    `low` and `high` pad the (dilated) image of the part with its halo; they are negative where it is cropped.
    """

    left: int
    right: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """A halo of one operand: `left` and `right` elements of its dim `dim`."""

    operand: int
    dim: int
    left: int
    right: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Slide:
    """One dim of a sliding op that can be split, and how; the extents are those of the whole arrays.

    `image_dim`, `window_dim` (None where the window is no operand) and `result_dim` number the dims of the arrays. A part
    holds `least` elements of its image or more.
    """

    image_dim: int
    window_dim: int | None
    result_dim: int
    image: int
    window: int
    result: int
    stride: int
    image_dilation: int
    window_dilation: int
    low: int
    split: Literal["result", "window"]
    least: int = 1

    @property
    def count(self) -> int:
        """The most parts that leave `least` elements in each: a divisor of all that is split."""
        most = math.gcd(self.image, self.result if self.split == "result" else self.window)
        return next((n for n in range(min(most, self.image // self.least), 1, -1) if most % n == 0), 1)

    def reach(self, parts: int) -> Reach:
        """What each of `parts` equal parts needs."""
        image = self.image // parts
        window = self.window // parts if self.split == "window" else self.window
        result = self.result // parts if self.split == "result" else self.result
        last = (result - 1) * self.stride + (window - 1) * self.window_dilation - self.low
        left = max(0, self.low // self.image_dilation)
        right = max(0, last // self.image_dilation - (image - 1))
        low = self.low - left * self.image_dilation
        high = last + 1 - ((image + right - 1) * self.image_dilation + 1)
        return Reach(left=left, right=right, low=low, high=high)

    def scattered(self, parts: int) -> tuple[Reach, Reach]:
        """What a part of the gradient of a pooling needs of its windows and of its image.

        All windows that touch the part, and all elements that these windows touch.
        """
        image, result = self.image // parts, self.result // parts
        before = max(0, (self.window - 1 - self.low) // self.stride)
        after = max(0, (image - 1 + self.low) // self.stride - (result - 1))
        left = before * self.stride + self.low
        last = (result + after - 1) * self.stride - self.low + self.window - 1
        right = max(0, last - (image - 1))
        return (
            Reach(left=before, right=after, low=0, high=0),
            Reach(left=left, right=right, low=0, high=last - (image - 1 + right)),
        )


def image_of(kind: str) -> int:
    """The position of the operand that windows slide over."""
    return 1 if kind == POOLING_GRADIENT else 0


def is_grouped(op: Op) -> bool:
    """Whether an op is a convolution in groups: whatever it is split by, XLA's partitioner may compute it wrongly.

    With windows of one element it does for one axis along the groups; gradients of kernels abort it for some two axes.
    """
    return op.kind == CONVOLUTION and max(op.params["feature_group_count"], op.params["batch_group_count"]) > 1


def margins(kind: str, slide: Slide, parts: int) -> tuple[Margin, ...]:
    """The halos of an op's operands where one dim is split into `parts`."""
    if kind == POOLING_GRADIENT:
        windows, image = slide.scattered(parts)
        return (
            Margin(operand=0, dim=slide.result_dim, left=windows.left, right=windows.right),
            Margin(operand=1, dim=slide.image_dim, left=image.left, right=image.right),
        )
    reach = slide.reach(parts)
    return (Margin(operand=0, dim=slide.image_dim, left=reach.left, right=reach.right),)


def hops(width: int, extent: int, parts: int) -> list[int]:
    """The elements that come from the neighbours 1, 2, ... parts away to make up a halo of `width`.

    Each holds `extent`; what lies further away than there are parts is padding for all.
    """
    return [min(extent, width - hop * extent) for hop in range(min(-(-width // extent), parts - 1))]


def convolution_slides(
    operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]
) -> tuple[Slide, ...]:
    """The slides of a convolution."""
    lhs, rhs, out = params["dimension_numbers"]
    found: list[Slide | None] = []
    for n in range(len(lhs) - 2):
        dims = lhs[2 + n], rhs[2 + n], out[2 + n]
        extents = [aval.shape[dim] for aval, dim in zip((*operands, results[0]), dims, strict=True)]
        found.append(
            _slide(
                dims,
                extents,
                stride=params["window_strides"][n],
                dilations=(params["lhs_dilation"][n], params["rhs_dilation"][n]),
                padding=params["padding"][n],
            )
        )
    return tuple(slide for slide in found if slide is not None)


def pooling_slides(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> tuple[Slide, ...]:
    """The slides of a pooling."""
    return _pooled(operands[0], results[0], params)


def gradient_slides(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> tuple[Slide, ...]:
    """The slides of the gradient of a pooling, whose operands are a value per window and the image."""
    del results
    source, image = operands
    return tuple(slide for slide in _pooled(image, source, params) if slide.low >= 0)


def roll_slides(operands: Sequence[Aval], results: Sequence[Aval], params: Mapping[str, Any]) -> tuple[Slide, ...]:
    """The slide of a roll: what a part needs of others all comes from its next neighbour."""
    del results
    dim, shift = params["dimension"], params["shift"]
    extent = operands[0].shape[dim]
    slide = Slide(
        image_dim=dim,
        window_dim=None,
        result_dim=dim,
        image=extent,
        window=1,
        result=extent,
        stride=1,
        image_dilation=1,
        window_dilation=1,
        low=shift,
        split="result",
        least=abs(shift),
    )
    return (slide,) if slide.count > 1 else ()


def _pooled(image: Aval, result: Aval, params: Mapping[str, Any]) -> tuple[Slide, ...]:
    rank = len(image.shape)
    ones = (1,) * rank
    base = params.get("base_dilation") or ones
    window = params.get("window_dilation") or ones
    strides = params.get("window_strides") or ones
    found = [
        _slide(
            (d, None, d),
            (image.shape[d], params["window_dimensions"][d], result.shape[d]),
            stride=strides[d],
            dilations=(base[d], window[d]),
            padding=params["padding"][d],
        )
        for d in range(rank)
        if base[d] == 1
    ]
    return tuple(slide for slide in found if slide is not None)


def _slide(
    dims: tuple[int, int | None, int],
    extents: Sequence[int],
    *,
    stride: int,
    dilations: tuple[int, int],
    padding: tuple[int, int],
) -> Slide | None:
    """The slide of one dim, None where it needs none or cannot be split; the larger part is split where both can."""
    image, window, result = extents
    dilation, spread = dilations
    if window == stride == dilation == 1 and not any(padding) and image == result:
        return None
    along_result = result * stride == image * dilation
    along_window = dims[1] is not None and window * spread == image * dilation
    if not (along_result or along_window):
        return None
    by_result = along_result and (not along_window or result >= window)
    slide = Slide(
        image_dim=dims[0],
        window_dim=dims[1],
        result_dim=dims[2],
        image=image,
        window=window,
        result=result,
        stride=stride,
        image_dilation=dilation,
        window_dilation=spread,
        low=padding[0],
        split="result" if by_result else "window",
    )
    return slide if slide.count > 1 else None
