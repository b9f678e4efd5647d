"""Probes of the passes over collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from cost_models import parse_topology
from planner.compiler.emission.options import plan_options
from planner.verify.hlo.schedule_walk import start_of
from planner.verify.hlo.text import Computation, Instruction
from tests.compiler.probes.fusion import is_matmul
from tests.compiler.probes.probe import Array, Compiled, Probe, Program, laid, sharding

WIDTH = 8192


def scattered(x: Any, devices: int) -> Any:
    """The sum of what all devices have, scattered over them."""
    return jax.shard_map(
        lambda part: lax.psum_scatter(part * 2, "x", tiled=True),
        mesh=sharding(devices).mesh,
        in_specs=P("x"),
        out_specs=P("x"),
    )(x)


def _gradients(x: Any, w: Any, v: Any, y: Any) -> Any:
    def loss(w: Any, v: Any) -> Any:
        return ((jnp.tanh(x @ w) @ v - y).astype(jnp.float32) ** 2).sum()

    first, second = jax.grad(loss, (0, 1))(w, v)
    return laid(first, 4), laid(second, 4)


GRADIENTS = Program(
    fn=_gradients,
    args=(
        Array(shape=(65536, WIDTH), spec=P("x")),
        *(Array(shape=(WIDTH, WIDTH)),) * 2,
        Array(shape=(65536, WIDTH), spec=P("x")),
    ),
    devices=4,
)
"""The gradients of two weights, summed over devices."""


def starts(found: Compiled, one: Instruction, kind: str) -> bool:
    """Whether an instruction starts a collective of a kind, by itself or as a call of its computation."""
    if one.opcode in (kind, f"{kind}-start"):
        return True
    inner = one.called if one.opcode in ("async-start", "call-start", "call") else ()
    return any(starts(found, other, kind) for name in inner for other in found.module.computations[name].instructions)


def kernels_beside(found: Compiled, kind: str, where: Computation | None = None) -> list[Instruction]:
    """What a schedule launches while collectives of a kind are on their way."""
    computation = where or found.entry
    instructions = computation.instructions
    sent = [one.name for one in instructions if one.opcode.endswith("-start") and starts(found, one, kind)]
    if not sent:
        return []
    at = {one.name: position for position, one in enumerate(instructions)}
    ends = {start_of(one, computation): at[one.name] for one in instructions if one.opcode.endswith("-done")}
    return [one for name in sent for one in instructions[at[name] + 1 : ends.get(name, 0)]]


def matmuls_beside(found: Compiled, kind: str, where: Computation | None = None) -> bool:
    """Whether a matmul runs while collectives of a kind are on their way."""
    return any(is_matmul(found, one) for one in kernels_beside(found, kind, where))


def _gathered(x: Any, up: Any, down: Any) -> Any:
    def body(x: Any, weights: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ laid(weights[0], 4)) @ laid(weights[1], 4)), None

    return lax.scan(body, x, (up, down))[0]


def _gathers(tokens: int, width: int, inner: int) -> Program:
    return Program(
        fn=_gathered,
        args=(
            Array(shape=(tokens, width), spec=P("x")),
            Array(shape=(4, width, inner), spec=P(None, "x")),
            Array(shape=(4, inner, width), spec=P(None, "x")),
        ),
        devices=4,
    )


def _gathers_beside_matmuls(found: Compiled) -> bool:
    """Whether a matmul of the loop runs while a weight is on its way."""
    (body,) = found.bodies
    fused = any(one.name.startswith("async-collective-start") for one in body.instructions)
    return fused or matmuls_beside(found, "all-gather", body)


def _exchanged(x: Any, query: Any, key: Any) -> Any:
    def body(x: Any, _: None) -> Any:
        exchanged = laid(jnp.tanh(x @ query), 4, None, "x")
        return laid(exchanged * 2, 4, "x") + jnp.tanh(x @ key), None

    return lax.scan(body, x, None, length=4)[0]


EXCHANGED = Program(
    fn=_exchanged,
    args=(Array(shape=(65536, 4096), spec=P("x")), *(Array(shape=(4096, 4096)),) * 2),
    devices=4,
)
"""In a loop, the result of a product is exchanged for one split along its other dim, and back; another product is left."""


def _exchanged_beside_matmuls(found: Compiled) -> bool:
    (body,) = found.bodies
    return matmuls_beside(found, "all-to-all", body)


def _both_ways(x: Any, y: Any) -> Any:
    def fn(x: Any, y: Any) -> Any:
        up = [(n, (n + 1) % 4) for n in range(4)]
        return lax.ppermute(x, "x", up) + lax.ppermute(y, "x", [(to, of) for of, to in up])

    return jax.shard_map(fn, mesh=sharding(4).mesh, in_specs=P("x"), out_specs=P("x"))(x, y)


def _at_once(found: Compiled) -> bool:
    opcodes = [one.opcode for one in found.entry.instructions if one.opcode.startswith("collective-permute")]
    return opcodes == ["collective-permute-start"] * 2 + ["collective-permute-done"] * 2


SLICE_SUM = Program(fn=lambda x: scattered(x, 16), args=(Array(shape=(16384, 1024), spec=P("x")),), devices=16)
SUMS = Program(
    fn=lambda *arrays: tuple(laid((one * one).sum(0), 4) for one in arrays),
    args=tuple(Array(shape=(1024, width), spec=P("x")) for width in (128, 256, 512)),
    devices=4,
)
AWAITED_SUMS = replace(
    SUMS,
    fn=lambda x, w: (x - laid(x.mean(0), 4)) * jax.lax.rsqrt(laid((x * x).mean(0), 4)) @ w,
    args=(Array(shape=(1024, 512), spec=P("x")), Array(shape=(512, 512), spec=P())),
)
LARGE_SUMS = replace(
    SUMS,
    args=tuple(Array(shape=(8, millions * 2**20), spec=P("x")) for millions in (9, 12, 40, 2)),
    options=plan_options(parse_topology("h100:4")),
)
TERMS = Program(
    fn=lambda x, w, y, v: jnp.tanh(laid(x @ w, 4) + laid(y @ v, 4)),
    args=(Array(shape=(256, 1024), spec=P(None, "x")), Array(shape=(1024, 512), spec=P("x"))) * 2,
    devices=4,
)
TOTAL_BYTES = 2 * 256 * 512


def _part_of_sum(x: Any) -> Any:
    """What all devices have, summed whole; the part that each reads, squared."""
    summed = jax.shard_map(
        lambda part: lax.psum(part * 2, "x"), mesh=sharding(4).mesh, in_specs=P("x"), out_specs=P(), check_vma=False
    )(x)
    return laid(laid(summed, 4, "x") ** 2, 4, "x")


PROBES = (
    *(
        Probe(
            of="all-reduce-reassociate",
            topology=topology,
            programs=(TERMS,),
            shows="two sums over devices that are added are one",
            seen=lambda found: sum(one.logical_bytes for one in found.report.collectives) == TOTAL_BYTES,
        )
        for topology in ("v5e:2x2", "cpu:4")
    ),
    Probe(
        of="reduce-scatter-creator",
        topology="v5e:2x2",
        programs=(Program(fn=_part_of_sum, args=(Array(shape=(4096, 512), spec=P("x")),), devices=4),),
        shows="a sum of which each device reads its part is scattered",
        seen=lambda found: [one.kind for one in found.report.collectives] == ["reduce-scatter"],
    ),
    *(
        Probe(
            of="all-reduce-combiner",
            topology=topology,
            programs=(program,),
            shows=f"{which} are one collective",
            seen=lambda found: found.count("all-reduce") == len(found.report.collectives) == 1,
        )
        for program, which, topologies in (
            (SUMS, "three sums that nothing waits for", ("v5e:2x2", "h100:4", "cpu:4")),
            (AWAITED_SUMS, "two sums for which a matmul waits, but neither for the other,", ("v5e:2x2", "h100:4")),
        )
        for topology in topologies
    ),
    Probe(
        of="all-reduce-combiner",
        topology="h100:4",
        programs=(LARGE_SUMS,),
        shows="of four sums that of 160 MiB stays alone",
        seen=lambda found: found.count("all-reduce") == len(found.report.collectives) == 2,
    ),
    *(
        Probe(
            of="async-all-gather",
            topology=topology,
            programs=(program,),
            shows="the second weight of a loop's body is gathered beside the matmul with the first",
            seen=_gathers_beside_matmuls,
        )
        for topology, program in (
            ("v5e:2x2", _gathers(32768, 2048, 2048)),
            ("v5p:2x2x1", replace(_gathers(32768, 2048, 2048), options=plan_options(parse_topology("v5p:2x2x1")))),
            ("h100:4", _gathers(65536, 4096, 16384)),
        )
    ),
    *(
        Probe(
            of="async-all-gather",
            topology=topology,
            programs=(replace(_gathers(32768, 2048, 2048), options=plan_options(parse_topology(topology))),),
            shows="the first weight of a loop's body is gathered before its matmul, beside nothing",
            seen=lambda found: [one.opcode for one in found.bodies[0].instructions].count("all-gather") == 1,
        )
        for topology in ("v5e:2x2", "v5p:2x2x1")
    ),
    Probe(
        of="async-all-reduce",
        topology="h100:4",
        programs=(GRADIENTS,),
        shows="the sum of a gradient runs beside matmuls after it",
        seen=lambda found: matmuls_beside(found, "all-reduce"),
    ),
    Probe(
        of="async-collectives",
        topology="h100:4",
        programs=(EXCHANGED,),
        shows="what a product made is exchanged beside a product that needs none of it",
        seen=_exchanged_beside_matmuls,
    ),
    Probe(
        of="sparse-core-collectives",
        topology="v6e:2x2",
        programs=(replace(GRADIENTS, options=plan_options(parse_topology("v6e:2x2"))),),
        shows="the sum of a gradient runs beside matmuls after it",
        seen=lambda found: matmuls_beside(found, "all-reduce"),
    ),
    Probe(
        of="async-collective-permute",
        topology="v5e:2x2",
        programs=(Program(fn=_both_ways, args=(Array(shape=(4096, 1024), spec=P("x")),) * 2, devices=4),),
        shows="permutes in opposite directions are in flight at once",
        seen=_at_once,
    ),
    Probe(
        of="reduce-scatter-decomposer",
        topology="v5e:4x4",
        programs=(SLICE_SUM,),
        shows="a sum that is scattered over all of a torus is summed whole",
        seen=lambda found: found.count("all-reduce") == len(found.report.collectives) == 1,
    ),
    Probe(
        of="reduce-scatter-decomposer",
        topology="cpu:4",
        programs=(
            Program(
                fn=lambda x, w: laid(x @ w, 4, "x"),
                args=(Array(shape=(1024, 4096), spec=P(None, "x")), Array(shape=(4096, 1024), spec=P("x"))),
                devices=4,
            ),
        ),
        shows="a sum that is wanted scattered is summed whole",
        seen=lambda found: found.count("all-reduce") == len(found.report.collectives) == 1,
    ),
    Probe(
        of="cpu-collectives",
        topology="cpu:4",
        programs=(TERMS,),
        shows="a sum of numbers of 16 bits moves 32",
        seen=lambda found: all(one.promoted for one in found.report.collectives),
    ),
)
