"""Programs of one op that slides a window, with what it is tried on; every case must hold however its space is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Padding = str | Sequence[tuple[int, int]]


def normal(seed: int, shape: Sequence[int]) -> Any:
    """Normally distributed float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Sliding:
    """A convolution (`kernel` set) or a pooling (`window` and `combine` set) of an image, channels last."""

    name: str
    image: tuple[int, ...]
    kernel: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    combine: Callable[..., Any] | None = None
    strides: tuple[int, ...] = ()
    padding: Padding = "SAME"
    image_dilation: tuple[int, ...] | None = None
    kernel_dilation: tuple[int, ...] | None = None
    groups: int = 1
    numbers: tuple[str, str, str] | None = None

    def __call__(self, x: Any, kernel: Any = None) -> Any:
        """The op itself."""
        space = len(self.image) - 2
        strides = self.strides or (1,) * space
        if self.combine is not None:
            start = {lax.max: -np.inf, lax.min: np.inf, lax.add: 0.0}[self.combine]
            padding = self.padding if isinstance(self.padding, str) else ((0, 0), *self.padding, (0, 0))
            return lax.reduce_window(x, start, self.combine, (1, *self.window, 1), (1, *strides, 1), padding)
        letters = "DHW"[-space:]
        return lax.conv_general_dilated(
            x,
            kernel,
            strides,
            self.padding,
            lhs_dilation=self.image_dilation,
            rhs_dilation=self.kernel_dilation,
            dimension_numbers=self.numbers or (f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=self.groups,
        )

    def arrays(self) -> tuple[Any, ...]:
        """The image and, for a convolution, the kernel."""
        shapes = (self.image, self.kernel) if self.kernel else (self.image,)
        return tuple(normal(n, shape) for n, shape in enumerate(shapes))

    def programs(self) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
        """The op and its gradients by the image and by the kernel, each with its arguments."""
        arrays = self.arrays()
        shape = jax.eval_shape(self, *arrays).shape
        cotangent = normal(9, shape)
        found: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {"forward": (self, arrays)}

        def by_image(x: Any, *rest: Any) -> Any:
            return jax.vjp(lambda x: self(x, *rest[:-1]), x)[1](rest[-1])[0]

        def by_kernel(x: Any, kernel: Any, cotangent: Any) -> Any:
            return jax.vjp(lambda kernel: self(x, kernel), kernel)[1](cotangent)[0]

        if self.combine is not lax.add:
            found["by image"] = (by_image, (*arrays, cotangent))
        if self.kernel:
            found["by kernel"] = (by_kernel, (*arrays, cotangent))
        return found


CASES: tuple[Sliding, ...] = (
    Sliding(name="conv 1d", image=(2, 32, 4), kernel=(5, 4, 8)),
    Sliding(name="conv 1d causal", image=(2, 32, 4), kernel=(3, 4, 8), padding=((2, 0),)),
    Sliding(name="conv 1d cropped", image=(2, 32, 4), kernel=(3, 4, 8), padding=((-1, 3),)),
    Sliding(name="conv 1d of a window wider than parts", image=(2, 16, 2), kernel=(11, 2, 4)),
    Sliding(name="conv 2d", image=(2, 16, 8, 4), kernel=(3, 3, 4, 8)),
    Sliding(name="conv 2d as large as the image", image=(2, 8, 16, 4), kernel=(8, 16, 4, 8), padding="VALID"),
    Sliding(name="conv 2d channels first", image=(2, 4, 16, 8), kernel=(8, 4, 3, 3), numbers=("NCHW", "OIHW", "NCHW")),
    Sliding(name="conv 2d depthwise", image=(2, 16, 8, 4), kernel=(3, 3, 1, 8), groups=4),
    Sliding(name="conv 2d dilated", image=(2, 16, 8, 4), kernel=(3, 3, 4, 8), kernel_dilation=(3, 2)),
    Sliding(name="conv 2d even window", image=(2, 16, 8, 4), kernel=(4, 2, 4, 8)),
    Sliding(name="conv 2d grouped", image=(2, 16, 8, 4), kernel=(3, 3, 2, 8), groups=2),
    Sliding(name="conv 2d patches", image=(2, 32, 16, 4), kernel=(4, 2, 4, 8), strides=(4, 2), padding="VALID"),
    Sliding(name="conv 2d pointwise strided", image=(2, 16, 8, 4), kernel=(1, 1, 4, 8), strides=(2, 2)),
    Sliding(name="conv 2d strided", image=(2, 32, 16, 4), kernel=(3, 3, 4, 8), strides=(2, 2)),
    Sliding(name="conv 2d strided by three", image=(2, 24, 48, 4), kernel=(5, 7, 4, 8), strides=(3, 3)),
    Sliding(
        name="conv 2d strided, torch",
        image=(2, 32, 16, 4),
        kernel=(7, 3, 4, 8),
        strides=(2, 2),
        padding=((3, 3), (1, 1)),
    ),
    Sliding(
        name="conv 2d transposed",
        image=(2, 16, 8, 4),
        kernel=(3, 2, 4, 8),
        padding=((1, 2), (1, 1)),
        image_dilation=(2, 2),
    ),
    Sliding(
        name="conv 2d transposed by three",
        image=(2, 8, 16, 4),
        kernel=(5, 3, 4, 8),
        padding=((3, 3), (2, 2)),
        image_dilation=(3, 3),
    ),
    Sliding(name="conv 2d valid", image=(2, 18, 10, 4), kernel=(3, 3, 4, 8), padding="VALID"),
    Sliding(name="conv 3d", image=(2, 8, 4, 8, 2), kernel=(3, 3, 3, 2, 4)),
    Sliding(name="conv 3d strided", image=(2, 8, 8, 8, 2), kernel=(3, 2, 1, 2, 4), strides=(2, 2, 2)),
    Sliding(name="max pool", image=(2, 16, 32, 4), window=(2, 2), combine=lax.max, strides=(2, 2), padding="VALID"),
    Sliding(
        name="max pool gapped",
        image=(2, 16, 32, 4),
        window=(2, 3),
        combine=lax.max,
        strides=(4, 4),
        padding=((0, 0), (1, 0)),
    ),
    Sliding(name="max pool overlapping", image=(2, 16, 32, 4), window=(3, 3), combine=lax.max, strides=(2, 2)),
    Sliding(name="max pool still", image=(2, 16, 32, 4), window=(3, 5), combine=lax.max),
    Sliding(name="min pool overlapping", image=(2, 16, 32, 4), window=(3, 3), combine=lax.min, strides=(2, 2)),
    Sliding(name="sum pool", image=(2, 16, 32, 4), window=(2, 2), combine=lax.add, strides=(2, 2), padding="VALID"),
    Sliding(name="sum pool overlapping", image=(2, 16, 32, 4), window=(3, 4), combine=lax.add, strides=(1, 2)),
)


def unet() -> Callable[[dict[str, Any], Any], Any]:
    """A U-Net of two levels: strided and transposed convolutions, a max pool, nearest upsampling, instance norms."""

    def conv(x: Any, kernel: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def norm(x: Any) -> Any:
        centred = x - x.mean((1, 2), keepdims=True)
        return centred * lax.rsqrt((centred**2).mean((1, 2), keepdims=True) + 1e-5)

    def forward(p: dict[str, Any], x: Any) -> Any:
        top = jax.nn.relu(norm(conv(x, p["in"])))
        pooled = lax.reduce_window(top, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        middle = jax.nn.relu(norm(conv(pooled, p["down"])))
        deep = jax.nn.relu(conv(middle, p["deep"], 2))
        up = lax.conv_transpose(deep, p["up"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        middle = jax.nn.relu(conv(jnp.concatenate([up, middle], -1), p["merge"]))
        b, h, w, c = middle.shape
        wide = jnp.broadcast_to(middle[:, :, None, :, None], (b, h, 2, w, 2, c)).reshape(b, 2 * h, 2 * w, c)
        return conv(jnp.concatenate([wide, top], -1), p["out"])

    return forward


def unet_parameters(width: int) -> dict[str, Any]:
    """The kernels of `unet`, of unit gain."""
    shapes = {
        "in": (3, 3, 3, width),
        "down": (3, 3, width, 2 * width),
        "deep": (3, 3, 2 * width, 2 * width),
        "up": (2, 2, 2 * width, 2 * width),
        "merge": (3, 3, 4 * width, width),
        "out": (3, 3, 2 * width, 3),
    }
    return {
        name: normal(n, shape) / np.float32(np.sqrt(np.prod(shape[:-1])))
        for n, (name, shape) in enumerate(shapes.items())
    }


def train_step() -> Callable[..., Any]:
    """A step of gradient descent of `unet` towards given images."""
    forward = unet()

    def step(p: dict[str, Any], x: Any, y: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda p: ((forward(p, x) - y) ** 2).mean())(p)
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, gradient), loss

    return step
