"""Promises on programs that nobody looked at: train steps drawn at random, predicted beside compiled.

    python -m benchmarks.random_steps [--first SEED] [--count N] [--topology T,T] [--out FILE.json]
    python -m benchmarks.random_steps --summary [--first SEED] [--out FILE.json]

The compiler model was written while looking at the programs of `benchmarks/suite.py`, which flatters it there. Here every
seed is a train step of another kind and size, with another optimizer, on another topology: perceptrons, transformers
scanned and written out, with as many heads of keys as of queries or a quarter, mixtures of experts, convolutions, language
models of a table alone. Each is planned as the planner would, unchecked, and compiled with no device. As in
`benchmarks.fidelity` the judge is the compiler's schedule at the rates of the table of chips, and no machine.

Rows in the file stay, so that a run can go on; each has its seed and the commit that it is of.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from benchmarks.fidelity import measure, off
from benchmarks.models.base import Model, Tree, train_step
from benchmarks.stamp import stamp
from cost_models import parse_topology
from planner.errors import PlannerError
from planner.verify.kept_reports import KeptReports

RESULTS = Path(__file__).resolve().parent / "results" / "random_steps.json"
TOPOLOGIES = ("v5e:2x4", "v5e:4x4", "v5p:2x2x2", "v5p:4x4x4", "v6e:2x4", "v6e:4x4", "h100:8")
CLASSES = 32768
Program = tuple[Tree, Callable[[Tree, jax.Array], jax.Array], jax.ShapeDtypeStruct]
"""The shapes of parameters, the loss of parameters and a batch, and the shape of the batch."""


def _squares(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


def _cast(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


def perceptron(dice: random.Random, dtype: Any) -> Program:
    """Layers of two matmuls and a GELU, written out."""
    width, wide, layers = *_widths(dice), dice.choice((2, 4, 8))
    shapes = [(width, wide), (wide, width)] * layers

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        for up, down in zip(params[::2], params[1::2], strict=True):
            x = jax.nn.gelu(x @ _cast(up)) @ _cast(down)
        return _squares(x)

    return [_of(shape, dtype) for shape in shapes], loss, _of((_batch(dice) * dice.choice((256, 1024)), width))


def transformer(dice: random.Random, dtype: Any) -> Program:
    """Causal attention and a SwiGLU, scanned with checkpoints or written out without."""
    width, wide, layers, scanned = *_widths(dice), dice.choice((2, 4, 8)), dice.random() < 2 / 3
    head, narrow = dice.choice((64, 128)), width // dice.choice((1, 1, 4))
    shapes = {"q": (width, width), "k": (width, narrow), "v": (width, narrow), "o": (width, width)}
    shapes |= {"gate": (width, wide), "up": (width, wide), "down": (wide, width), "norm": (width,)}

    def layer(x: jax.Array, weights: Tree) -> jax.Array:
        of = {name: _cast(weight) for name, weight in weights.items()}
        scale = lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True) + 1e-6)
        y = x * _cast(scale) * of["norm"]
        q, k, v = ((y @ of[name]).reshape(*x.shape[:2], -1, head) for name in "qkv")
        x = x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape) @ of["o"]
        return x + (jax.nn.silu(x @ of["gate"]) * (x @ of["up"])) @ of["down"]

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        if scanned:
            return _squares(lax.scan(jax.checkpoint(lambda x, w: (layer(x, w), None)), x, params)[0])
        for weights in params:
            x = layer(x, weights)
        return _squares(x)

    one = {name: _of(shape, dtype) for name, shape in shapes.items()}
    stacked = jax.tree.map(lambda weight: _of((layers, *weight.shape), dtype), one)
    return stacked if scanned else [one] * layers, loss, _of((_batch(dice), dice.choice((256, 512, 1024, 2048)), width))


def experts(dice: random.Random, dtype: Any) -> Program:
    """One layer of experts, all of them computed and two of them weighted."""
    (width, wide), count = _widths(dice), dice.choice((8, 16))

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        shares, chosen = lax.top_k(jax.nn.softmax((x @ _cast(params["router"])).astype(jnp.float32)), 2)
        weights = jnp.sum(jax.nn.one_hot(chosen, count, dtype=x.dtype) * _cast(shares)[..., None], -2)
        hidden = jax.nn.relu(jnp.einsum("nd,edf->enf", x, _cast(params["up"])))
        return _squares(jnp.einsum("enf,efd,ne->nd", hidden, _cast(params["down"]), weights))

    shapes = {"router": (width, count), "up": (count, width, wide), "down": (count, wide, width)}
    params = {name: _of(shape, dtype) for name, shape in shapes.items()}
    return params, loss, _of((_batch(dice) * dice.choice((32, 128)), width))


def convolutions(dice: random.Random, dtype: Any) -> Program:
    """3 x 3 convolutions of images of 64 x 64, and a mean."""
    features, layers = dice.choice((32, 64, 128)), dice.choice((2, 4, 8))

    def loss(params: Tree, x: jax.Array) -> jax.Array:
        for kernel in params:
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(lax.conv_general_dilated(x, _cast(kernel), (1, 1), "SAME", dimension_numbers=layout))
        return _squares(jnp.mean(x, (1, 2)))

    return [_of((3, 3, features, features), dtype)] * layers, loss, _of((_batch(dice), 64, 64, features))


def language_model(dice: random.Random, dtype: Any) -> Program:
    """A table of words, a product with another, and the cross entropy."""
    width, _ = _widths(dice)

    def loss(params: Tree, words: jax.Array) -> jax.Array:
        logits = (_cast(params["table"])[words] @ _cast(params["out"])).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, words).mean()

    params = {"table": _of((CLASSES, width), dtype), "out": _of((width, CLASSES), dtype)}
    return params, loss, _of((_batch(dice), dice.choice((256, 512, 1024))), jnp.int32)


KINDS = (perceptron, transformer, transformer, transformer, experts, convolutions, language_model)


def drawn(seed: int) -> tuple[Model, random.Random]:
    """The train step of a seed, and the dice that drew it."""
    dice = random.Random(seed)
    kind, dtype = dice.choice(KINDS), dice.choice((jnp.float32, jnp.bfloat16))
    params, loss, batch = kind(dice, dtype)
    optimizer = dice.choice((optax.sgd, optax.adamw, optax.adafactor))(1e-3)
    state = jax.eval_shape(optimizer.init, params)
    args, count = (params, state, batch), batch.shape[0]
    step = train_step(loss, optimizer)
    return Model(
        name=kind.__name__, kind="train", fn=step, args=args, donate_argnums=(0, 1), batch=count, tokens=count
    ), dice


def _of(shape: Sequence[int], dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _batch(dice: random.Random) -> int:
    return dice.choice((64, 128, 256, 512))


def _widths(dice: random.Random) -> tuple[int, int]:
    width = dice.choice((512, 1024, 2048, 4096))
    return width, width * dice.choice((2, 4))


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The shares of promises kept, by chip and by kind, and by which part computing is promised in the median.

    Peaks count within a tenth, and within that or a hundredth of the chip's memory.
    """
    head = f"{'':<16}{'plans':>6}{'seconds 10 %':>14}{'15 %':>7}{'20 %':>7}{'median':>8}{'computing':>11}"
    yield f"{head}{'peak 10 %':>11}{'or 1 % of memory':>18}"
    compiled = [row for row in rows if "seconds" in row["compiled"]]
    chips = {row["topology"].split(":")[0]: None for row in compiled}
    for name in (*chips, *dict.fromkeys(row["program"] for row in compiled), "all"):
        own = [r for r in compiled if name in (r["topology"].split(":")[0], r["program"], "all")]
        seconds, peaks = [off(row, "seconds") for row in own], [off(row, "peak_bytes") for row in own]
        shares = [sum(abs(one) <= most for one in seconds) / len(own) for most in (0.10, 0.15, 0.20)]
        cells = "".join(f"{share:>{wide}.0%}" for share, wide in zip(shares, (14, 7, 7), strict=True))
        computing = statistics.median(1 + off(row, "compute_seconds") for row in own)
        near = sum(abs(one) <= 0.10 for one in peaks) / len(own)
        little = sum(
            abs(one) * row["compiled"]["peak_bytes"] <= 0.01 * parse_topology(row["topology"]).chip.hbm_bytes
            or abs(one) <= 0.10
            for one, row in zip(peaks, own, strict=True)
        )
        median = f"{1 + statistics.median(seconds):>8.2f}{computing:>11.2f}"
        yield f"{name:<16}{len(own):>6}{cells}{median}{near:>11.0%}{little / len(own):>18.0%}"


def line(row: Mapping[str, Any]) -> str:
    """One train step."""
    head = f"{row['seed']:<5}{row['program']:<16}{row['topology']:<11}{'x'.join(map(str, row['mesh'].values())):<9}"
    a, b = row["predicted"], row["compiled"]
    if "seconds" not in b:
        return f"{head}{b['status']}: {b.get('message', '')[:80]}"
    seconds = f"{1e3 * a['seconds']:>9.2f} {1e3 * b['seconds']:>9.2f} ms {off(row, 'seconds'):>+5.0%}"
    parts = f"computing {off(row, 'compute_seconds'):>+5.0%}, exposed {1e3 * a['communication_seconds']:.2f} "
    return f"{head}{seconds}  {parts}{1e3 * b['exposed_seconds']:.2f}  peak {off(row, 'peak_bytes'):>+5.0%}"


def main() -> None:
    """Plans and compiles what is drawn, prints each as it is made, and writes them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--topology", default=",".join(TOPOLOGIES))
    parser.add_argument("--summary", action="store_true", help="only say what the file holds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    made, kept = stamp(), KeptReports()
    for seed in () if options.summary else range(options.first, options.first + options.count):
        model, dice = drawn(seed)
        topology = dice.choice(options.topology.split(","))
        key = {"seed": seed, "program": model.name, "topology": topology}
        try:
            row = key | measure(model, topology, None, kept) | {"commit": made["commit"]}
        except PlannerError as error:
            print(f"{seed} {model.name} {topology}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        rows = [one for one in rows if one["seed"] != seed] + [row]
        print(line(row), flush=True)
        options.out.write_text(json.dumps({"stamp": made, "rows": rows}, indent=1) + "\n")
    told = sorted((row for row in rows if row["seed"] >= options.first), key=lambda row: row["topology"])
    for row in told if options.summary else ():
        print(line(row))
    print("\n".join(summary(told)))


if __name__ == "__main__":
    main()
