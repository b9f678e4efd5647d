"""The cost of computing: seconds, flops and memory traffic of every strategy of a group, on its local shards.

An op that is not fused is a roofline of its own: its flops against the bytes of its operands and results. A fused group
is one pass over memory (see `fused_pass`). Ops that index move only what they touch. Where it is known how the compiler
makes kernels of a program (`Model.kernels`) the bytes are what these move between them and the memory, in tiles, and
products of matrices multiply what their tiles are filled up with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cost_models import CostModel
from cost_models.hardware import MEASURED_BATCH, MEASURED_EXTENTS
from pbqp.vectors import Floats
from planner.compiler.analysis import Model
from planner.compiler.fusion.bytes_accessed import ON_CHIP, WORKING_SET, Array
from planner.compiler.fusion.loop_fusion import FusedPass
from planner.compiler.fusion.ragged_dot import WEIGHTS, has_transposed_weights, times_computed
from planner.compiler.model import CompilerModel
from planner.compiler.program import CompiledProgram
from planner.compiler.simplify.convert_mover import is_by_vector
from planner.decisions.groups import Group, Grouping
from planner.pricing.candidates.strategies import Strategies
from planner.pricing.mesh import Mesh
from planner.pricing.reshards.alternatives import holds_several
from planner.pricing.reshards.reshard import Locations, local_bytes
from planner.pricing.tpu_tiles import copied_for_rows, in_argument_order, local_tiled_bytes
from planner.program.graph import Graph, Op
from planner.rules.kernels.kernel_parts import kernel_of
from planner.rules.op_work import is_guessed, op_dtype, op_engine, op_flops
from planner.rules.primitives import slides_of, traits
from planner.rules.rule import Dims
from planner.rules.sliding import hops, image_of, margins

SURELY_ON_CHIP = 1 / 2
"""The share of the memory on the chip that is counted on where memory is promised: better too much than too little."""
NOT_HIDDEN = 1 / 20
"""The share of the vector unit's work on operands and results of matmuls that counts: the units work side by side, and of
plans that are equal otherwise the one that computes less is better."""

SPLIT_ELEMENTS = 256 * 128 * 128
"""Of the result of a product that a GPU's compiler contracts in parts, all parts together.

By jaxlib 0.10.2 for h100:8 results of 256 x 256 are contracted in 32 parts, 256 x 1024 in 8, 1024 x 1024 in 4, 1024 x 2048
in 2, and 4096 x 4096 whole (XLA's pass `splitk-rewriter`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Per strategy and call: `seconds`, `flops` and bytes of memory traffic (`traffic_bytes`) of one device.

    `guessed_bytes` are those of ops whose work is guessed. `exchange` is the value of what an op moves itself on the mesh
    (halos, the collectives of a `shard_map`), in the unit of the objective, `exchange_seconds` its seconds.
    """

    seconds: Floats
    flops: Floats
    traffic_bytes: Floats
    guessed_bytes: Floats
    exchange: Floats
    exchange_seconds: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """One collective-permute of a halo: of `bytes` over the axes in the bit set `mask`, in the strategies `rows`.

    `border` says which elements of the tensor: (dim, hops away, width). Where `shared` ops of a region fetch the same,
    the compiler does it once, or all at the same time, and each is charged its share. The bytes are `narrowed` of those of
    its type.
    """

    tensor: int
    border: tuple[int, int, int]
    shared: int
    mask: int
    rows: npt.NDArray[np.int64]
    bytes: Floats
    narrowed: float


def group_work(program: Model, group: Group, strategies: Strategies, model: CostModel, mesh: Mesh) -> Work:
    """The work of every strategy of a group of a program; arrays of shape (len(strategies),)."""
    fused = program.fused_pass(group)
    if fused is not None:
        moved = kernel_traffic(program, group, strategies, mesh)
        traffic = None if moved is None else sum(moved.values(), np.zeros(len(strategies)))
        return _fused(fused, traffic, strategies, model, least_seconds=program.launches(group) * mesh.kernel_seconds)
    op = program.graph.ops[group.ops[0]]
    row = traits(op.kind)
    if row.places or row.collective is not None:
        # A placement is nothing but the moves for it; of a collective the price is all, its passes over memory included.
        return Work(**{part.name: np.zeros(len(strategies)) for part in fields(Work)})
    if op.id in program.host_copies:
        return _host_copy(program, op, strategies, mesh)
    return _heavy(program, op, strategies, model, mesh)


def _host_copy(program: Model, op: Op, strategies: Strategies, mesh: Mesh) -> Work:
    """The work of a copy to the host, or from it: what is waited for of its time on the link."""
    copy, nothing = program.host_copies[op.id], np.zeros(len(strategies))
    waited = copy.exposed(mesh.matmul_flops_per_s * mesh.host_seconds_per_byte) * program.graph.regions[op.region].trips
    located = strategies.locations(program.grouping.placements[op.id].results[0])
    moved = waited * local_bytes(located, strategies.axis_sizes, copy.bytes)
    return Work(
        seconds=nothing,
        flops=nothing,
        traffic_bytes=nothing,
        guessed_bytes=nothing,
        exchange=mesh.host_per_byte * moved,
        exchange_seconds=mesh.host_seconds_per_byte * moved,
    )


def kernel_traffic(program: Model, group: Group, strategies: Strategies, mesh: Mesh) -> dict[int, Floats] | None:
    """The bytes that each op of a group moves to and from memory under every strategy, trips included.

    None where nothing is known of kernels. What stays on the chip is not moved; by a device that stands for several,
    nothing is that could be split so among them that its parts stay on their chips.
    """
    if program.kernels is None:
        return None
    moved: dict[int, Floats] = {}
    sizes: dict[Array, Floats] = {}
    for op, array, times, inside in program.moved(group):
        room = _room(inside, mesh)
        if mesh.pooled_devices > 1:
            fits = math.prod(inside.shape) * inside.itemsize <= mesh.pooled_devices * room
            if fits or array.copied_slice is not None or array.rows is not None or array.several:
                moved.setdefault(op, np.zeros(len(strategies)))
                continue
            room = 0.0
        if array not in sizes:
            sizes[array] = local_bytes_of(array, strategies, mesh.compiler)
        size = np.where(in_memory(inside, strategies, mesh), sizes[array], 0.0) if room else sizes[array]
        moved[op] = moved.get(op, 0.0) + times * size
    return moved


def in_memory(array: Array, strategies: Strategies, mesh: Mesh) -> npt.NDArray[np.bool_]:
    """Whether an array is in memory, and not on the chip, under every strategy.

    What is read soon stays there by the share that its elements take, though it takes whole tiles: in schedules of libtpu
    0.0.42 for v5e 39 MB that fill tiles of 117 do.
    """
    taken, room = local_bytes_of(array, strategies, mesh.compiler), _room(array, mesh)
    if array.home not in ("chip", "product") or array.rows is not None:
        return taken > room
    whole = math.prod(array.shape) * array.itemsize
    elements = local_bytes(strategies.locations(array.dims), strategies.axis_sizes, whole)
    return (elements > room) | (taken > mesh.on_chip_bytes)


def stays_on_chip(local_bytes: Floats, at_once: float, on_chip_bytes: float) -> npt.NDArray[np.bool_]:
    """Whether an array surely stays on a chip with all that is there at once: `at_once` bytes for each of its own."""
    return local_bytes <= SURELY_ON_CHIP * on_chip_bytes / at_once


def _room(array: Array, mesh: Mesh) -> float:
    """The bytes of the largest part of an array that stays on a chip."""
    if array.home in ("product", "late product", "border product") and not mesh.compiler.products_in_vmem:
        return 0.0
    if array.home in ("border", "border product") and not mesh.border_on_chip:
        return 0.0
    return max(min(ON_CHIP[array.home], array.share), WORKING_SET / array.at_once) * mesh.on_chip_bytes


def local_bytes_of(array: Array, strategies: Strategies, compiler: CompilerModel) -> Floats:
    """The bytes of an array that one device moves under every strategy, those of padded tiles included."""
    located = strategies.locations(array.dims)
    if array.rows is not None:
        return copied_for_rows(located, strategies.axis_sizes, array.shape, array.rows)
    if compiler.runs("tiling"):
        sizes = local_tiled_bytes(located, strategies.axis_sizes, array.shape, array.itemsize, in_rows=array.in_rows)
    else:
        sizes = local_bytes(located, strategies.axis_sizes, math.prod(array.shape) * array.itemsize)
    if array.several:
        sizes = sizes * holds_several(located, strategies.axis_sizes, array.shape, array.several)
    if array.copied_slice is None:
        return sizes
    return sizes * in_argument_order(located, strategies.axis_sizes, array.shape, *array.copied_slice)


def _bytes(graph: Graph, strategies: Strategies, tensor: int, dims: Dims) -> Floats:
    aval = graph.tensors[tensor].aval
    return local_bytes(strategies.locations(dims), strategies.axis_sizes, aval.bytes)


def _flops(graph: Graph, grouping: Grouping, op: Op, strategies: Strategies) -> Floats:
    kernel = kernel_of(op)
    if kernel is not None and callable(kernel.work.flops):
        return _of_parts(graph, grouping, op, strategies, kernel.work.flops)
    return op_flops(graph, op) / _parts(grouping, op, strategies)


def _parts(grouping: Grouping, op: Op, strategies: Strategies) -> Floats:
    """Into how many parts each strategy splits an op."""
    placement = grouping.placements[op.id]
    return strategies.shards({f for dims in placement.operands + placement.results for dim in dims for f in dim})


def _of_parts(
    graph: Graph,
    grouping: Grouping,
    op: Op,
    strategies: Strategies,
    amount: Callable[[Sequence[tuple[int, ...]]], float],
) -> Floats:
    """What an amount is under each strategy, from the shapes of the parts of the operands that a device holds."""
    axis_sizes = np.asarray(strategies.axis_sizes, np.int64)
    whole = [graph.tensors[t].aval.shape for t in op.operands]
    held = [
        _local_extents(shape, strategies.locations(dims), axis_sizes)
        for shape, dims in zip(whole, grouping.placements[op.id].operands, strict=True)
        if shape
    ]
    if not held:
        return np.full(len(strategies), amount(whole))
    rows, row_of = np.unique(np.concatenate(held, axis=1), axis=0, return_inverse=True)
    found: list[float] = []
    for row in rows.tolist():
        extents = iter(map(int, row))
        found.append(amount([tuple(next(extents) for _ in shape) for shape in whole]))
    return np.asarray(found)[row_of.ravel()]


def _declared_bytes(graph: Graph, grouping: Grouping, op: Op, strategies: Strategies) -> Floats | None:
    """The memory traffic of a kernel as its user says it; None where nobody does."""
    kernel = kernel_of(op)
    declared = None if kernel is None else kernel.work.bytes
    if callable(declared):
        return _of_parts(graph, grouping, op, strategies, declared)
    return None if declared is None else declared / _parts(grouping, op, strategies)


def moved_bytes(program: CompiledProgram, op: Op, operands: Sequence[Floats], results: Sequence[Floats]) -> Floats:
    """Bytes that a run of an op moves that is not fused, from those of its operands and results.

    An operand that it computes itself is read as what that is computed from; what must be copied for it is moved, too.
    """
    zero, row = np.zeros(()), traits(op.kind)
    shares, copied = program.read_through.shares, program.in_place.extra_traffic.get(op.id, 0.0)
    read = [shares.get((op.id, position), 1.0) * size for position, size in enumerate(operands)]
    again = program.graph.regions[op.region].per_run(copied) * results[0] if copied else zero
    if row.picks:
        return again + sum(read[1:], zero) + 2 * sum(results, zero)
    if row.updates is not None:
        # What an update is combined with is read first.
        written = 1 if row.overwrites else 2
        return again + written * operands[row.updates] + sum(read[1:], zero)
    return again + sum(read, zero) + sum(results, zero)


def fetches(program: Model, op: Op, strategies: Strategies, mesh: Mesh) -> list[Fetch]:
    """What an op that slides a window fetches from its neighbours under each strategy, dim after dim.

    The halo of a later dim includes that of the earlier ones, so that corners need no exchange of their own. What a
    convolution reads narrow on a TPU is moved so.
    """
    graph, grouping, moving = program.graph, program.grouping, slides_of(program.graph, op)
    if not moving:
        return []
    placement, axis_sizes = grouping.placements[op.id], np.asarray(strategies.axis_sizes, np.int64)
    located = [strategies.locations(dims) for dims in placement.operands]
    extents = [
        _local_extents(graph.tensors[t].aval.shape, where, axis_sizes)
        for t, where in zip(op.operands, located, strict=True)
    ]
    found: list[Fetch] = []
    narrowed = [program.compiled.narrow.fraction(t, [(op.id, i)]) for i, t in enumerate(op.operands)]
    for slide in moving:
        masks = ((located[image_of(op.kind)] == slide.image_dim) << np.arange(len(axis_sizes))).sum(axis=1)
        for mask in np.unique(masks[masks > 0]).tolist():
            rows = np.flatnonzero(masks == mask)
            parts = int(np.prod(axis_sizes[[bool(mask >> a & 1) for a in range(len(axis_sizes))]]))
            for margin in margins(op.kind, slide, parts):
                shape, itemsize = extents[margin.operand], graph.tensors[op.operands[margin.operand]].aval.itemsize
                extent = int(shape[rows[0], margin.dim])
                area = narrowed[margin.operand] * itemsize * np.prod(shape[rows], axis=1) / extent
                before, after = (enumerate(hops(n, extent, parts), 1) for n in (margin.left, margin.right))
                for hop, width in (*((-hop, width) for hop, width in before), *after):
                    found.append(
                        Fetch(
                            tensor=op.operands[margin.operand],
                            border=(margin.dim, hop, width),
                            shared=program.shared_halos[op.id, margin.operand],
                            mask=mask,
                            rows=rows,
                            bytes=width * area,
                            narrowed=narrowed[margin.operand],
                        )
                    )
                shape[rows, margin.dim] += margin.left + margin.right
    return found


def _local_extents(
    shape: tuple[int, ...], located: Locations, axis_sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """The extents of a device's part under each strategy: shape (n, rank)."""
    cut = np.prod(np.where(located[:, None, :] == np.arange(len(shape))[:, None], axis_sizes, 1), axis=2)
    return np.asarray(shape, np.float64) / cut


def _heavy(program: Model, op: Op, strategies: Strategies, model: CostModel, mesh: Mesh) -> Work:
    graph, grouping, compiler = program.graph, program.grouping, program.compiler
    placement = grouping.placements[op.id]
    flops = _flops(graph, grouping, op, strategies) * times_computed(graph, op, compiler)
    zero = np.zeros(len(strategies))
    trips = graph.regions[op.region].trips
    traffic = _traffic(program, op, strategies, mesh)
    by_vector = compiler.runs("dot-strength-reduction") and is_by_vector(graph, op)
    engine = "vector" if by_vector else op_engine(op)
    padded = compiler.runs("tiling") and not by_vector
    multiplied = flops * _filled(graph, grouping, op, strategies, mesh) if padded else flops
    dtype, pieces = op_dtype(graph, op), 1.0
    if compiler.runs("gemm-tiling"):
        pieces = _pieces(graph, grouping, op, strategies, flops)
        multiplied = multiplied + 2 * mesh.half_rate_depths.get(dtype, 0.0) * _made(graph, grouping, op, strategies)
    if program.kernels is not None and op.id in program.kernels.of_matmuls:
        multiplied = NOT_HIDDEN * multiplied
    seconds = model.compute_seconds(
        kind=op.kind, engine=engine, dtype=dtype, flops=multiplied, bytes=traffic, pieces=pieces
    )
    kernel = kernel_of(op)
    if kernel is not None and kernel.work.attends and engine == "matrix":
        seconds = seconds / mesh.attention_efficiency
    if program.launches(grouping.groups[grouping.group_of[op.id]]):
        seconds = np.maximum(seconds, mesh.kernel_seconds)
    exchange, exchange_seconds = np.zeros(len(strategies)), np.zeros(len(strategies))
    copied: dict[int, Floats] = {}
    for fetch in fetches(program, op, strategies, mesh):
        kind, mask = "collective-permute", fetch.mask
        value = mesh.fixed[kind][mask] + mesh.per_byte[kind][mask] * fetch.bytes
        duration = mesh.fixed_seconds[kind][mask] + mesh.seconds_per_byte[kind][mask] * fetch.bytes
        exchange[fetch.rows] += value / fetch.shared
        exchange_seconds[fetch.rows] += duration / fetch.shared
        if traits(op.kind).joins:
            continue
        position = op.operands.index(fetch.tensor)
        whole = _bytes(graph, strategies, fetch.tensor, placement.operands[position])
        copied.setdefault(position, np.zeros(len(strategies)))[fetch.rows] = 2 * whole[fetch.rows] / fetch.shared
    if compiler.runs("ragged-operand-layout") and has_transposed_weights(op):
        copied[WEIGHTS] = 2 * _bytes(graph, strategies, op.operands[WEIGHTS], placement.operands[WEIGHTS])
    if copied:
        # A part and its halo are put together in memory before the op runs, and weights transposed.
        moved = sum(copied.values(), zero)
        passes = model.compute_seconds(kind="concatenate", engine="vector", dtype=dtype, flops=zero, bytes=moved)
        seconds = seconds + np.where(moved > 0, passes, 0.0)
        traffic = traffic + moved
    return Work(
        seconds=seconds * trips,
        flops=flops * trips,
        traffic_bytes=traffic * trips,
        guessed_bytes=traffic * trips if is_guessed(op) else zero,
        exchange=exchange * trips,
        exchange_seconds=exchange_seconds * trips,
    )


def _traffic(program: Model, op: Op, strategies: Strategies, mesh: Mesh) -> Floats:
    """The bytes that a run of an op moves that is not fused: as its user says, or its kernel, or the op itself."""
    graph, grouping = program.graph, program.grouping
    zero = np.zeros(len(strategies))
    declared = _declared_bytes(graph, grouping, op, strategies)
    if declared is not None:
        return zero + declared
    if traits(op.kind).joins:
        return zero
    moved = kernel_traffic(program, grouping.groups[grouping.group_of[op.id]], strategies, mesh)
    if moved is not None:
        return sum(moved.values(), zero) * graph.regions[op.region].per_run(1.0)
    placement = grouping.placements[op.id]
    operands, results = (
        [_bytes(graph, strategies, t, d) for t, d in zip(of, dims, strict=True)]
        for of, dims in ((op.operands, placement.operands), (op.results, placement.results))
    )
    return zero + moved_bytes(program.compiled, op, operands, results)


def _filled(graph: Graph, grouping: Grouping, op: Op, strategies: Strategies, mesh: Mesh) -> Floats:
    """By how much more a matrix unit multiplies than the parts of an op ask for, tiles filled up with zeros."""
    multiplied, lanes = _product(graph, grouping, op, strategies, parts=mesh.pooled_devices), mesh.matrix_lanes
    if multiplied is None:
        return np.ones(len(strategies))
    contracted, rows, columns = (np.ceil(extent / lanes) * lanes / extent for extent in multiplied)
    share = contracted * np.minimum(columns, rows)
    return np.broadcast_to(share, len(strategies))


def _made(graph: Graph, grouping: Grouping, op: Op, strategies: Strategies) -> Floats:
    """The elements of the result of a matmul on a device: each takes as long as so many more terms (`half_rate_depths`)."""
    if not traits(op.kind).matmul:
        return np.zeros(len(strategies))
    (result, *_), (dims, *_) = op.results, grouping.placements[op.id].results
    sizes = np.asarray(strategies.axis_sizes, np.int64)
    return np.prod(_local_extents(graph.tensors[result].aval.shape, strategies.locations(dims), sizes), axis=1)


def _pieces(graph: Graph, grouping: Grouping, op: Op, strategies: Strategies, flops: Floats) -> Floats:
    """As how many of the largest measured products of matrices an op counts: parts of one, where it is smaller.

    One whose result has too few tiles to occupy the chip contracts in parts, several at once, which gains nothing in
    float32.
    """
    multiplied = _product(graph, grouping, op, strategies) if op.kind == "dot_general" else None
    if multiplied is None:
        return np.ones(len(strategies))
    extents = [np.broadcast_to(extent, len(strategies)) for extent in multiplied]
    batch = np.maximum(flops / (2 * np.prod(extents, axis=0)), 1.0)
    pieces = batch / np.minimum(batch, MEASURED_BATCH)
    for extent in extents:
        pieces = pieces * extent / np.clip(extent, *MEASURED_EXTENTS)
    if op_dtype(graph, op) == "float32":
        return pieces
    deep = np.maximum(extents[0] / MEASURED_EXTENTS[1], 1.0)
    parts = np.minimum(SPLIT_ELEMENTS / (batch * extents[1] * extents[2]), deep)
    return pieces / np.clip(parts, 1.0, MEASURED_BATCH)


def _product(
    graph: Graph, grouping: Grouping, op: Op, strategies: Strategies, *, parts: int = 1
) -> tuple[Floats, ...] | None:
    """What an op contracts, its rows and its columns on one device; None where it is no product of matrices.

    The most that it contracts, were its results in so many `parts`: of a convolution that is more where these are small.
    """
    product = traits(op.kind).product
    if product is None:
        return None
    axis_sizes = np.asarray(strategies.axis_sizes, np.int64)
    placement = grouping.placements[op.id]
    sides = zip((*op.operands, *op.results), (*placement.operands, *placement.results), strict=True)
    held = [
        list(_local_extents(graph.tensors[t].aval.shape, strategies.locations(dims), axis_sizes).T) for t, dims in sides
    ]
    held[len(op.operands) :] = [[extent / parts for extent in result] for result in held[len(op.operands) :]]
    return tuple(np.maximum(extent, 1.0) for extent in product(held, op.params))


def _fused(
    of: FusedPass, traffic: Floats | None, strategies: Strategies, model: CostModel, *, least_seconds: float
) -> Work:
    flops, hidden = np.zeros(len(strategies)), np.zeros(len(strategies))
    for total, parts in ((flops, of.flops), (hidden, of.hidden)):
        for factors, amount in parts:
            total += amount / strategies.shards(factors)
    if traffic is None:
        traffic = np.zeros(len(strategies))
        for dims, amount in of.traffic:
            traffic += local_bytes(strategies.locations(dims), strategies.axis_sizes, amount)
    seconds = model.compute_seconds(
        kind="elementwise", engine="vector", dtype=of.dtype, flops=flops - (1 - NOT_HIDDEN) * hidden, bytes=traffic
    )
    seconds = np.maximum(seconds, least_seconds)
    nothing = np.zeros(len(strategies))
    return Work(
        seconds=seconds,
        flops=flops,
        traffic_bytes=traffic,
        guessed_bytes=nothing,
        exchange=nothing,
        exchange_seconds=nothing,
    )
