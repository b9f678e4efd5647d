"""The programs that plans are judged on, at real sizes for a topology: layers are left out where the chips cannot hold all.

`PROGRAMS[name].build(topology)` gives the model. Batches grow with the number of devices where programs are trained on so
many sequences each, as people scale them; graphs, grids and the batches of the others stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import jax

from benchmarks.hand_plans.families import FAMILIES, Family
from benchmarks.models import (
    bert,
    decode,
    deep,
    gnn,
    gpt,
    llama,
    lstm,
    mlp,
    moe,
    resnet,
    sparse,
    spectral,
    t5,
    unet,
    vit,
)
from benchmarks.models.attention import KERNELS, Kernel
from benchmarks.models.base import Model
from cost_models import Topology

TOPOLOGIES = ("v5e:4x4", "v5e:16x16", "v5p:4x4x4", "h100:8", "h100:4x8")
STATE_SHARE = 0.4
"""The share of all memory that arguments may take; the rest is for activations and what is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How a program is built for a topology, and the family of its hand plans.

    `plain` is the name of the same program with attention in plain JAX, of one whose attention is a kernel.
    """

    build: Callable[[Topology], Model]
    family: Family
    plain: str | None = None


def argument_bytes(model: Model) -> int:
    """The bytes of a model's arguments."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(model.args))


def layers_held(build: Callable[[int], Model], most: int, topology: Topology) -> int:
    """How many layers, of at most so many, have arguments that fit their share of a topology's memory; at least one.

    `build(layers)` gives the model; its bytes grow evenly with the layers.
    """
    one, two = argument_bytes(build(1)), argument_bytes(build(2))
    room = STATE_SHARE * topology.chip.hbm_bytes * topology.num_devices
    return max(1, min(most, 1 + int((room - one) / (two - one))))


def _layered(build: Callable[[int, Topology], Model], most: int) -> Callable[[Topology], Model]:
    """`build(layers, topology)` with as many layers as a topology holds."""

    def sized(topology: Topology) -> Model:
        return build(layers_held(lambda layers: build(layers, topology), most, topology), topology)

    return sized


def _kernel(plain: str | None, topology: Topology) -> Kernel | None:
    """The kernel for attention on a topology, in the version with a kernel of a program that is `plain` elsewhere."""
    return KERNELS[topology.chip.platform] if plain is not None else None


def _llama(name: str, *, sequence: int = 8192, query_block: int | None = 512, plain: str | None = None) -> Program:
    config = replace(llama.CONFIGS[name], sequence=sequence, query_block=query_block)

    def build(n: int, topology: Topology) -> Model:
        sized = replace(config, layers=n, kernel=_kernel(plain, topology))
        return llama.llama(sized, batch=topology.num_devices * 8192 // sequence, size="real")

    return Program(family=FAMILIES["llama"], build=_layered(build, config.layers), plain=plain)


def _gpt(name: str, *, layers: int | None = None, scan: bool = True, plain: str | None = None) -> Program:
    config = gpt.CONFIGS[name]

    def build(n: int, topology: Topology) -> Model:
        sized = replace(config, layers=n, kernel=_kernel(plain, topology))
        return gpt.gpt(sized, batch=max(64, topology.num_devices), scan=scan, tied=scan, size="real")

    return Program(family=FAMILIES["gpt"], build=_layered(build, layers or config.layers), plain=plain)


def _sparse(name: str, *, plain: str | None = None) -> Program:
    config = sparse.CONFIGS[name]

    def build(n: int, topology: Topology) -> Model:
        sized = replace(config, layers=n, kernel=_kernel(plain, topology))
        return sparse.sparse(sized, batch=topology.num_devices, size="real")

    return Program(family=FAMILIES["sparse"], build=_layered(build, config.layers), plain=plain)


def _deep(*, plain: str | None = None) -> Program:
    config = replace(deep.REAL, layers=16)

    def build(topology: Topology) -> Model:
        return deep.deep(replace(config, kernel=_kernel(plain, topology)), batch=512, size="real")

    return Program(family=FAMILIES["deep"], build=build, plain=plain)


def _decode(name: str, batch: int, *, quantized: bool = False) -> Program:
    config = llama.CONFIGS[name]

    def build(n: int, _: Topology) -> Model:
        return decode.decode(replace(config, layers=n), batch=batch, size="real", quantized=quantized)

    return Program(family=FAMILIES["decode"], build=_layered(build, config.layers))


def _per_device(family: str, each: int, build: Callable[[int], Model]) -> Program:
    """`build(batch)` with so many examples for each device."""
    return Program(family=FAMILIES[family], build=lambda topology: build(each * topology.num_devices))


def _resnet(name: str, images: int) -> Program:
    config = resnet.CONFIGS[name]
    return _per_device("resnet", images, lambda batch: resnet.resnet(config, batch=batch, size="real"))


def _fixed(name: str, build: Callable[[], Model]) -> Program:
    return Program(family=FAMILIES[name], build=lambda topology: build())


PROGRAMS: Mapping[str, Program] = {
    "llama 8B": _llama("8B"),
    "llama 8B s4096": _llama("8B", sequence=4096, query_block=None),
    "llama 70B": _llama("70B"),
    "gpt 1.3B": _gpt("1.3B"),
    "gpt 175B": _gpt("175B"),
    "gpt unrolled x8": _gpt("1.3B", layers=8, scan=False),
    "gpt deep x16": _deep(),
    "mixtral 8x7B": _sparse("8x7B"),
    "deepseek-like 708B": _sparse("V3"),
    "llama 8B kernel": _llama("8B", plain="llama 8B"),
    "llama 8B s4096 kernel": _llama("8B", sequence=4096, plain="llama 8B s4096"),
    "llama 70B kernel": _llama("70B", plain="llama 70B"),
    "gpt 1.3B kernel": _gpt("1.3B", plain="gpt 1.3B"),
    "gpt 175B kernel": _gpt("175B", plain="gpt 175B"),
    "gpt deep x16 kernel": _deep(plain="gpt deep x16"),
    "mixtral 8x7B kernel": _sparse("8x7B", plain="mixtral 8x7B"),
    "deepseek-like 708B kernel": _sparse("V3", plain="deepseek-like 708B"),
    "t5 large": _per_device("t5", 64, lambda batch: t5.t5(t5.LARGE, batch=batch, size="real")),
    "moe": _fixed("moe", lambda: moe.build("real")),
    "bert": _fixed("bert", lambda: bert.build("real")),
    "vit": _fixed("vit", lambda: vit.build("real")),
    "vit large": _per_device("vit", 64, lambda batch: vit.vit(vit.LARGE, batch=batch, size="real")),
    "unet remat": _per_device(
        "unet", 64, lambda batch: unet.unet(replace(unet.REAL, remat=True), batch=batch, size="real")
    ),
    "wide resnet 250M": _resnet("250M", 16),
    "resnet50": _resnet("resnet50", 64),
    "unet": _fixed("unet", lambda: unet.build("real")),
    "lstm": _fixed("lstm", lambda: lstm.build("real")),
    "mlp": _fixed("mlp", lambda: mlp.build("real")),
    "gnn": _fixed("gnn", lambda: gnn.build("real")),
    "spectral": _fixed("spectral", lambda: spectral.build("real")),
    "decode 8B b128": _decode("8B", 128),
    "decode 70B b8": _decode("70B", 8),
    "decode 70B b256": _decode("70B", 256),
    "decode 70B b256 int8": _decode("70B", 256, quantized=True),
}
"""By the names under which results are kept."""
