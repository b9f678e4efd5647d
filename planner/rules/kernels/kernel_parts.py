"""Kernels run on the local parts of their arguments, by a factor rule and with partial results combined.

In a plan they are emitted as `shard_map`s over the axes that the plan splits them by. Elsewhere JAX's custom partitioning
asks for the local function when it compiles.

Kernels that are primitives of a library (attention by cuDNN): run on parts as on the whole, by their own implementation.

JAX lowers them within a custom partitioning, and only where the devices are. What a device runs of a plan needs neither, so
it is traced when it is lowered, within a primitive of ours, and a plan can be compiled for devices that are elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jax import lax
from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from planner.errors import RuleError
from planner.program.graph import Graph, Op, Path
from planner.program.jaxpr.flatten import build_graph
from planner.program.jaxpr.pallas.pallas_calls import pallas_call_of
from planner.program.slots import Slot
from planner.program.spec_entries import axes_of_entry, parts_over
from planner.program.tracing.trace import trace
from planner.rules.kernels.kernel_work import KernelWork
from planner.rules.kernels.pallas_kernel import call_rule, call_work
from planner.rules.primitives import kinds_where, rule_of_op, traits
from planner.rules.rule import Combiner, Dim, Kind, Rule

COMBINE: Mapping[Combiner, Callable[..., Any]] = {
    "add": lax.psum,
    "and": lambda x, axes: lax.pmin(x.astype("int8"), axes).astype(x.dtype),
    "max": lax.pmax,
    "min": lax.pmin,
    "or": lambda x, axes: lax.pmax(x.astype("int8"), axes).astype(x.dtype),
}
"""How partial results become whole ones, over mesh axes."""


def as_sdy_rule(rule: Rule) -> SdyShardingRule:
    """The rule in the form that JAX takes, where every dim has a factor."""
    extra = iter(range(sum(not dim for dims in (*rule.operands, *rule.results) for dim in dims)))
    own: set[int] = set()

    def name(factor: int) -> str:
        return f"f{factor}"

    def mapping(dims: Sequence[Dim]) -> ArrayMapping:
        own.update(dim[0] for dim in dims if len(dim) == 1)
        return ArrayMapping(
            *(
                CompoundFactor(*map(name, dim)) if len(dim) > 1 else name(dim[0]) if dim else f"one{next(extra)}"
                for dim in dims
            )
        )

    def of(*kinds: Kind) -> tuple[str, ...]:
        return tuple(name(factor) for factor, kind in enumerate(rule.kinds) if kind in kinds)

    operands, results = tuple(map(mapping, rule.operands)), tuple(map(mapping, rule.results))
    sizes = {name(factor): size for factor, size in enumerate(rule.sizes) if factor not in own}
    return SdyShardingRule(
        operands,
        results,
        reduction_factors=of("reduce"),
        need_replication_factors=of("replicate", "permute"),
        permutation_factors=(),
        **sizes,
    )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A function of flat arrays that can be run on parts: called by JAX with shardings, it answers with those it keeps.

    `run` takes the operands of `rule`, whole or in parts, and gives its results; `work` is what a run costs. `on_parts`
    does so with parts that are a whole of their own: what it calls may be split again.
    """

    rule: Rule
    run: Callable[..., Sequence[Any]]
    work: KernelWork
    on_parts: Callable[..., Sequence[Any]]

    def __call__(self, mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        """The mesh, the local function, and the shardings of its results and operands. Raises: RuleError for callbacks."""
        structs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in operands]
        if any(traits(op.kind).calls_back for op in build_graph(trace(self.run, structs)).ops):
            # JAX frees the callback before the program runs, which ends the process.
            raise RuleError(
                "a kernel that calls back to Python cannot be split outside of a plan; give its function to planner.plan, "
                "or run it on one device"
            )
        views = [*zip(self.rule.results, results, strict=True), *zip(self.rule.operands, operands, strict=True)]
        axes = self.axes([(dims, array.sharding.spec) for dims, array in views], mesh.shape)
        summed = self.summed(axes)

        def local(*values: Any) -> list[Any]:
            made = list(self.run(*values))
            return [COMBINE[self.rule.combiner](value, summed) for value in made] if summed else made

        lies = [
            [NamedSharding(mesh, spec_on(dims, axes)) for dims in side]
            for side in (self.rule.results, self.rule.operands)
        ]
        return mesh, local, lies[0], tuple(lies[1])

    def summed(self, axes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """The axes that split what is reduced."""
        return tuple(
            axis for kind, names in zip(self.rule.kinds, axes, strict=True) if kind == "reduce" for axis in names
        )

    def axes(
        self, views: Sequence[tuple[Sequence[Dim], PartitionSpec]], sizes: Mapping[str, int]
    ) -> list[tuple[str, ...]]:
        """The mesh axes that split each factor, taken from how the arrays lie; the first of conflicting demands counts."""
        split: list[tuple[str, ...]] = [()] * len(self.rule.sizes)
        used: set[str] = set()

        def left(factor: int) -> int:
            return self.rule.sizes[factor] // parts_over(split[factor], sizes)

        for dims, spec in views:
            for dim, entry in zip(dims, spec, strict=False):
                names = axes_of_entry(entry)
                for factor in dim:
                    if split[factor] != names[: len(split[factor])] or self.rule.kinds[factor] not in (
                        "pass",
                        "reduce",
                    ):
                        break
                    names = names[len(split[factor]) :]
                    while names and names[0] not in used and left(factor) % sizes[names[0]] == 0:
                        split[factor] += (names[0],)
                        used.add(names[0])
                        names = names[1:]
                    if left(factor) > 1:
                        break
        # The minor factor of a dim can only be split once the major ones are split up.
        changed = True
        while changed:
            changed = False
            for dims, _ in views:
                for dim in dims:
                    for major, minor in pairwise(dim):
                        if split[minor] and left(major) > 1:
                            split[minor], changed = (), True
        return split


def spec_on(dims: Sequence[Dim], axes: Sequence[tuple[str, ...]]) -> PartitionSpec:
    """The spec of an array whose factors are split by these axes."""
    return PartitionSpec(*(tuple(axis for factor in dim for axis in axes[factor]) or None for dim in dims))


def kernel_of(op: Op) -> Parts | None:
    """The kernel that an op runs, where a rule of the user's, or its own grid, says how it splits."""
    if op.kind == "pallas_call":
        return _pallas_kernel(op)
    parts = op.params.get("partition") if traits(op.kind).by_hand == "kernel" else None
    return parts if isinstance(parts, Parts) else None


def kernel_work(kind: str, params: Mapping[str, Any]) -> KernelWork | None:
    """The work of the kernel that an equation of this kind runs; None where it runs none that `kernel_of` knows."""
    if kind == "pallas_call":
        return call_work(pallas_call_of(params))
    parts = params.get("partition") if traits(kind).by_hand == "kernel" else None
    return parts.work if isinstance(parts, Parts) else None


def _pallas_kernel(op: Op) -> Parts:
    call = pallas_call_of(op.params)
    work = call_work(call)

    def run(*values: Any) -> list[Any]:
        flops, moved = work.flops, work.bytes
        if isinstance(flops, float) and isinstance(moved, float) and not work.guessed:
            return call.estimated(flops, work.exponentials, moved).smaller(op.primitive, values)
        return call.smaller(op.primitive, values)

    return Parts(rule=call_rule(call), run=run, work=work, on_parts=run)


def runs_on_parts(op: Op) -> bool:
    """Whether an op is a kernel that is run on smaller arrays, as its rule says."""
    return kernel_of(op) is not None


def kernels(
    graph: Graph, constraints: Mapping[Slot, tuple[PartitionSpec, ...]], mesh: Mesh | AbstractMesh
) -> dict[Path, Callable[..., Sequence[Any]]]:
    """For the path of every kernel whose rule is known: a function that runs it on parts, as it is constrained."""
    found: dict[Path, Callable[..., Sequence[Any]]] = {}
    for op in graph.of_kinds(kinds_where(lambda row: row.by_hand == "kernel")):
        parts = kernel_of(op) or _bound(graph, op)
        if parts is not None:
            whole = (PartitionSpec(),)
            operands = [constraints.get(("operand", op.path, i), whole)[-1] for i in range(len(op.operands))]
            results = [constraints.get(("result", op.path, i), whole)[0] for i in range(len(op.results))]
            found[op.path] = _mapped(parts, operands, results, mesh)
    return found


def _bound(graph: Graph, op: Op) -> Parts | None:
    """A primitive that is a kernel, and takes parts of its operands as it takes the whole."""
    rule = rule_of_op(graph, op) if op.kind != "custom_partitioning" else None  # JAX has those of others run on parts
    if rule is None:
        return None
    run = library_run(op)
    work = KernelWork(name=op.kind, flops=None, bytes=None, engine="matrix", guessed=False)
    return Parts(rule=rule, run=run, work=work, on_parts=run)


def _mapped(
    parts: Parts, operands: Sequence[PartitionSpec], results: Sequence[PartitionSpec], mesh: Mesh | AbstractMesh
) -> Callable[..., Sequence[Any]]:
    rule = parts.rule
    views = [*zip(rule.operands, operands, strict=True), *zip(rule.results, results, strict=True)]
    axes = parts.axes(views, mesh.shape)
    summed = parts.summed(axes)
    made = [spec_on(dims, axes) for dims in rule.results]
    missing = [_missing(rule, dims, axes) for dims in rule.results]
    scattered = [_scattered(spec, wanted, summed, rule.combiner) for spec, wanted in zip(made, results, strict=True)]

    def local(*values: Any) -> list[Any]:
        found = [_of_last(value, axes_of) for value, axes_of in zip(parts.run(*values), missing, strict=True)]
        if not summed:
            return found
        return [
            COMBINE[rule.combiner](value, summed)
            if dim is None
            else lax.psum_scatter(value, summed, scatter_dimension=dim, tiled=True)
            for value, dim in zip(found, scattered, strict=True)
        ]

    return jax.shard_map(
        local,
        mesh=mesh,
        in_specs=tuple(spec_on(dims, axes) for dims in rule.operands),
        out_specs=[spec if dim is None else wanted for spec, wanted, dim in zip(made, results, scattered, strict=True)],
        check_vma=False,  # what a kernel does with the axes is not known
    )


def _missing(rule: Rule, dims: Sequence[Dim], axes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The axes that split what passes through a kernel, but not this result."""
    held = {factor for dim in dims for factor in dim}
    return tuple(
        axis
        for factor, (kind, names) in enumerate(zip(rule.kinds, axes, strict=True))
        if kind == "pass" and factor not in held
        for axis in names
    )


def _of_last(value: Any, axes: tuple[str, ...]) -> Any:
    """What the last of all parts made, on all: of what every step of a grid writes anew that of the last is left."""
    if not axes:
        return value
    last = jnp.stack([lax.axis_index(axis) == lax.axis_size(axis) - 1 for axis in axes]).all()
    return lax.psum(jnp.where(last, value, jnp.zeros_like(value)), axes)


def _scattered(made: PartitionSpec, wanted: PartitionSpec, summed: tuple[str, ...], combiner: Combiner) -> int | None:
    """The dim on which a sum is to be left scattered: the one that is wanted split by the summed axes, too."""
    for dim, (before, after) in enumerate(zip(made, wanted, strict=False)):
        if combiner == "add" and summed and axes_of_entry(after) == (*axes_of_entry(before), *summed):
            return dim
    return None


_part_p = jex_core.Primitive("kernel_on_part")
_part_p.multiple_results = True


def _abstract(*avals: Any, kernel: Any, given: Sequence[tuple[str, Any]]) -> Any:
    return kernel.abstract_eval(*avals, **dict(given))[0]


def _run(*values: Any, kernel: Any, given: Sequence[tuple[str, Any]]) -> Sequence[Any]:
    return kernel.impl(*values, **dict(given))


_part_p.def_impl(_run)
_part_p.def_abstract_eval(_abstract)
mlir.register_lowering(_part_p, mlir.lower_fun(_run, multiple_results=True))


def library_run(op: Op) -> Callable[..., Sequence[Any]]:
    """What runs such a kernel on parts of its operands."""

    def run(*values: Any) -> Sequence[Any]:
        return _part_p.bind(*values, kernel=op.primitive, given=tuple(op.params.items()))

    return run
