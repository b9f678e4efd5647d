"""Reproductions of the known hazards: `python -m tests.hazards.hazard_known` tells which of them this JAX still gets wrong.

Each is a small program and the constraints under which XLA's partitioner computes it wrongly, or dies. They run in child
processes. A hazard that is mended on every supported JAX can leave the table of `planner.pricing.candidates.hazards`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

ROOT = Path(__file__).resolve().parents[2]
P = PartitionSpec
NUMBERS = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A program, its arguments, and the specs of its arguments and its result on a mesh that bring out a hazard."""

    function: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    mesh: Mapping[str, int]
    operands: Sequence[PartitionSpec]
    result: PartitionSpec
    integers: Mapping[int, int] | None = None
    """Values of the arguments that are integers, by position."""
    arrives: PartitionSpec | None = None
    """What the first argument is laid in before it is laid in its spec."""
    mended: tuple[int, int] | None = None
    """A release from which on JAX computes it right."""

    def arguments(self) -> list[Any]:
        """Its arguments, floats from a fixed seed."""
        rng = np.random.default_rng(0)
        fixed = self.integers or {}
        return [
            np.full(shape, fixed[n], np.int32) if n in fixed else jnp.asarray(rng.normal(size=shape), np.float32)
            for n, shape in enumerate(self.shapes)
        ]


def _convolution(x: Any, k: Any, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=NUMBERS, feature_group_count=groups)


def _kernel_gradient(x: Any, ct: Any) -> Any:
    k = jnp.zeros((3, 3, 8, 8))
    return jax.vjp(lambda k: _convolution(x, k), k)[1](ct)[0]


_ONE_UPDATE = lax.ScatterDimensionNumbers(
    update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)

CASES: Mapping[str, Known] = {
    "space and output features of a convolution": Known(
        function=_convolution,
        shapes=((8, 16, 16, 16), (3, 3, 16, 16)),
        mesh={"a": 4, "b": 2},
        operands=(P(None, "b"), P(None, None, None, "a")),
        result=P(None, "b", None, "a"),
    ),
    "space in the kernel gradient of a convolution": Known(
        function=_kernel_gradient,
        shapes=((8, 16, 16, 8), (8, 16, 16, 8)),
        mesh={"a": 4, "b": 2},
        operands=(P(None, "a"), P(None, "a")),
        result=P(),
    ),
    "groups of a convolution with a window of one element": Known(
        function=partial(_convolution, groups=2),
        shapes=((8, 8, 8, 16), (1, 1, 8, 16)),
        mesh={"a": 2},
        operands=(P(None, None, None, "a"), P(None, None, None, "a")),
        result=P(None, None, None, "a"),
    ),
    "channels of a depthwise convolution with a window of one element": Known(
        function=partial(_convolution, groups=16),
        shapes=((8, 8, 8, 16), (1, 1, 1, 16)),
        mesh={"a": 4, "b": 2},
        operands=(P(None, None, None, "b"), P(None, None, None, "b")),
        result=P(None, None, None, "b"),
    ),
    "reduced dim of a reduction with an initial value of its own": Known(
        function=lambda x: lax.reduce(x, np.float32(3), lax.add, (0,)),
        shapes=((8, 8),),
        mesh={"a": 4, "b": 2},
        operands=(P("a", "b"),),
        result=P("b"),
    ),
    "dim of a dynamic update of one element": Known(
        function=lambda x, u, i: lax.dynamic_update_slice(x, u, (i, 0)),
        shapes=((8, 8), (1, 8), ()),
        mesh={"a": 2},
        operands=(P("a"), P(), P()),
        result=P("a"),
        integers={2: 20},
    ),
    "indexed dim of a scatter of one update": Known(
        function=lambda x, i, u: lax.scatter_add(x, i, u, _ONE_UPDATE, mode="drop"),
        shapes=((8,), (1,), ()),
        mesh={"a": 2},
        operands=(P("a"), P(), P()),
        result=P("a"),
        integers={1: 6},
        arrives=P(),
        mended=(0, 12),
    ),
}


def difference(known: Known) -> float:
    """How far the sharded result is from the whole one, as a share of its largest value."""
    count = int(np.prod(list(known.mesh.values())))
    devices = np.array(jax.devices()[:count]).reshape(tuple(known.mesh.values()))
    mesh = Mesh(devices, tuple(known.mesh), axis_types=(AxisType.Auto,) * len(known.mesh))
    first, *others = (NamedSharding(mesh, spec) for spec in known.operands)
    arrives = first if known.arrives is None else NamedSharding(mesh, known.arrives)
    split = jax.jit(
        lambda x, *rest: known.function(lax.with_sharding_constraint(x, first), *rest),
        in_shardings=(arrives, *others),
        out_shardings=NamedSharding(mesh, known.result),
    )
    args = known.arguments()
    expected = np.asarray(jax.jit(known.function)(*args))
    return float(np.abs(np.asarray(split(*args)) - expected).max() / np.abs(expected).max())


def verdict(name: str) -> str:
    """What a child process comes to: "wrong (by so much)", "dies: its last words", "is refused: why" or "mended"."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.hazards.hazard_known", name],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    said = [line for line in child.stdout.splitlines() if line.startswith("difference ")]
    if said:
        share = float(said[-1].split()[1])
        return f"wrong (by {share:.2g} of the largest value)" if not share < 1e-3 else "mended"
    lines = [line for line in child.stderr.splitlines() if line.strip()]
    telling = [line for line in lines if "Check failed" in line or "Error" in line] or lines or ["no message"]
    return f"{'dies' if child.returncode < 0 else 'is refused'}: {telling[-1][:200]}"


def main() -> None:
    """Prints the verdict on every hazard, or, given the name of one, how far it is off."""
    if len(sys.argv) > 1:
        print("difference", difference(CASES[sys.argv[1]]))
        return
    for name in CASES:
        print(f"{jax.__version__:10} {name}: {verdict(name)}", flush=True)


if __name__ == "__main__":
    main()
