"""What a choice means: the specs that tensors get where they are made, wanted and stored, and how they move between."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from jax.sharding import PartitionSpec

from planner.compiler.collectives.overlap import HIDDEN
from planner.compiler.collectives.savings import Savings
from planner.compiler.schedule.prefetched_weights import WeightsThere
from planner.decisions.decision_graph import Transfer
from planner.pricing.candidates.specs import spec_of
from planner.pricing.instance import Instance
from planner.pricing.loop_all_reduce import Axes, axes_after_loop
from planner.pricing.memory.memory_model import MemoryModel
from planner.pricing.prefetch import Moving, Multiplying, prefetched_seconds
from planner.pricing.reshards.reshard import Step, reshard_steps, sliced_bytes
from planner.pricing.reshards.shares import SUMMING, Shares, counted_kind, hideable, last_hides_alone, times_larger
from planner.program.graph import Op
from planner.program.spec_entries import axes_of_spec
from planner.rules.rule import Dims

Location = tuple[int, ...]
"""For every axis of a mesh the dim that it splits, or -1."""


class FedOnce(NamedTuple):
    """What feeding an input takes: seconds, bytes that every device takes, and those that the busiest host loads."""

    seconds: float
    device_bytes: float
    host_bytes: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """An instance and one strategy of every node; `apart_above` as in `MemoryModel`."""

    instance: Instance
    choice: tuple[int, ...]
    apart_above: float = math.inf
    _located: dict[tuple[int, int, Dims], Location] = field(
        init=False, repr=False, default_factory=dict[tuple[int, int, Dims], Location]
    )

    # ------------------------------------------------------------ where

    def at(self, node: int, dims: Dims) -> Location:
        """Where a node's strategy puts a tensor with these dims."""
        instance, pick = self.instance, self.choice[node]
        key = (instance.kind_of[node], pick, dims)
        if key not in self._located:
            where = {factor: dim for dim, factors in enumerate(dims) for factor in factors}
            chosen = instance.strategies[node].assignment[pick].tolist()
            self._located[key] = tuple(where.get(factor, -1) for factor in chosen)
        return self._located[key]

    def operand(self, op: Op, position: int) -> Location:
        """Where an op wants one of its operands."""
        grouping = self.instance.model.grouping
        return self.at(grouping.group_of[op.id], grouping.placements[op.id].operands[position])

    def home(self, tensor: int) -> Location:
        """Where a tensor is stored."""
        home = self.instance.model.flow.home[tensor]
        return (-1,) * len(self.instance.mesh.sizes) if home is None else self.at(*home)

    def stored(self, tensor: int) -> PartitionSpec:
        """The spec a tensor is stored in."""
        return self._spec(tensor, self.home(tensor))

    def stored_bytes(self, tensor: int) -> float:
        """Bytes per device of a tensor as it is stored."""
        found = self.instance.stored_bytes(tensor)
        return float(found[1][self.choice[found[0]]]) if found else self.instance.model.graph.tensors[tensor].aval.bytes

    def wanted(self, op: Op, position: int) -> PartitionSpec:
        """The spec that an op wants of one of its operands."""
        return self._spec(op.operands[position], self.operand(op, position))

    def result(self, op: Op, position: int) -> Location:
        """Where an op makes one of its results."""
        grouping = self.instance.model.grouping
        return self.at(grouping.group_of[op.id], grouping.placements[op.id].results[position])

    def made(self, op: Op, position: int) -> PartitionSpec:
        """The spec in which an op makes one of its results."""
        return self._spec(op.results[position], self.result(op, position))

    def returned(self, position: int) -> PartitionSpec:
        """The spec of a result of the program: that of its tensor, unless it is returned in another."""
        tensor, transfer = self.instance.model.graph.outputs[position], self._returned.get(position)
        location = self.home(tensor) if transfer is None else self.at(transfer.target, transfer.target_dims)
        return self._spec(tensor, location)

    @cached_property
    def _returned(self) -> Mapping[int, Transfer]:
        """The transfers that bring results into the form they are returned in, by position."""
        return {t.output: t for t in self.instance.model.flow.transfers if t.output is not None}

    def _spec(self, tensor: int, location: Location) -> PartitionSpec:
        return spec_of(location, len(self.instance.model.graph.tensors[tensor].aval.shape), self.instance.mesh.names)

    @cached_property
    def memory(self) -> MemoryModel:
        """What is held, and when."""
        return MemoryModel(instance=self.instance, apart_above=self.apart_above)

    # ------------------------------------------------------------ what moves, and what it takes

    @cached_property
    def refetched(self) -> Mapping[int, int]:
        """The transfers that fetch again what others brought before, by the tensor that they wait for."""
        return self.memory.refetched(self.choice)

    @cached_property
    def moves(self) -> tuple[tuple[Transfer, tuple[Step, ...]], ...]:
        """The transfers that take any steps, with these."""
        known: dict[object, tuple[Step, ...]] = {}
        moves = [(transfer, self._steps(transfer, known)) for transfer in self.instance.model.moving]
        return tuple([move for move in moves if move[1]])

    def has_steps_transposed(self, transfer: Transfer, steps: Sequence[Step]) -> bool:
        """Whether a sum has these steps, too, where its tensor lies in memory as the transpose does that alone reads it."""
        orders = self.instance.model.memory_orders(transfer)
        return orders is None or self._steps(transfer, {}, orders[-1:]) == steps

    def _steps(
        self,
        transfer: Transfer,
        known: dict[object, tuple[Step, ...]],
        orders: tuple[tuple[int, ...], ...] | None = None,
    ) -> tuple[Step, ...]:
        """The steps of a transfer, by default in any order that its tensor may have; `known` are those that were found."""
        instance = self.instance
        aval = instance.model.graph.tensors[transfer.tensor].aval
        orders = orders or instance.model.memory_orders(transfer)
        key = (*self._ends(transfer), aval.shape, aval.bytes, orders)
        if key not in known:
            made = reshard_steps(instance.mesh, *key[:3], shape=aval.shape, whole_bytes=aval.bytes, orders=orders)
            known[key] = tuple(made)
        return known[key]

    def _ends(self, transfer: Transfer) -> tuple[Location, tuple[bool, ...], Location]:
        """Where a transfer's tensor is, the axes over which it is partial there, and where it goes."""
        source, strategies = self.at(transfer.source, transfer.source_dims), self.instance.strategies[transfer.source]
        factors = strategies.assignment[self.choice[transfer.source]].tolist() if transfer.reduced else ()
        partial = tuple(factor in transfer.reduced for factor in factors) or (False,) * len(source)
        return source, partial, self.at(transfer.target, transfer.target_dims)

    def _slicing_seconds(self, transfer: Transfer) -> float:
        """What the slices of a transfer take in a run of its body, where they are copies."""
        instance = self.instance
        if transfer.id not in instance.model.sliced:
            return 0.0
        source, partial, target = self._ends(transfer)
        ends = np.array([source], np.int8), np.array([partial], np.bool_), np.array([target], np.int8)
        sliced = sliced_bytes(instance.mesh.sizes, ends, instance.model.graph.tensors[transfer.tensor].aval.bytes)
        return float(instance.slicing_seconds(sliced)[0, 0])

    @cached_property
    def summed_after_loop(self) -> Mapping[int, str]:
        """The transfers that sum behind a loop what it accumulates, with the collective that the compiler makes of each."""
        of_tensor = {t.tensor: t for t in self.instance.model.flow.transfers if t.region_after_loop is not None}
        if not of_tensor:
            return {}
        flow, found = self.instance.model.flow, dict[int, str]()
        placed = _Placed(self, {t.tensor: steps for t, steps in self.moves if t.reduced})
        reads: dict[int, list[Transfer]] = {}
        for loop_sum in flow.loop_sums:
            reads.setdefault(loop_sum.read.tensor, []).append(loop_sum.read)
        for accumulator in flow.accumulators:
            axes, (tensor,) = axes_after_loop(accumulator, placed), accumulator.leaves.results
            if axes:
                terms = [of_tensor[term.op.results[0]] for term in accumulator.terms]
                kind = self._summed_as(tensor, terms[0], axes, reads.get(tensor, ()))
                found |= {term.id: kind for term in terms}
        return found

    def _summed_as(self, tensor: int, term: Transfer, axes: Collection[str], reads: Sequence[Transfer]) -> str:
        """What becomes of a sum of such terms in place over these axes, and these transfers of it afterwards.

        A reduce-scatter where all that reads it takes the same part of it.
        """
        mesh, aval = self.instance.mesh, self.instance.model.graph.tensors[tensor].aval
        if not mesh.compiler.runs("reduce-scatter-creator"):
            return "all-reduce"
        partial = [name in axes for name in mesh.names]
        firsts = {
            reshard_steps(
                *(mesh, self.home(tensor), partial, self.at(t.target, t.target_dims)),
                shape=aval.shape,
                whole_bytes=aval.bytes,
                orders=self.instance.model.orders_of_sum(term, aval.shape),
            )[0]
            for t in reads
        }
        return firsts.pop().kind or "all-reduce" if len(firsts) == 1 else "all-reduce"

    @cached_property
    def savings(self) -> Savings:
        """The savings of transfers: sums are merged with others where the choice leaves all of them partial."""
        sums = {t.id: steps[0].mask for t, steps in self.moves if steps[0].kind in SUMMING}
        return self.instance.model.savings_over(lambda transfer: sums.get(transfer.id))

    def spared(self, transfer: Transfer) -> tuple[Shares, float]:
        """The parts of a transfer's collectives that count, and the seconds of them that matmuls hide at most."""
        return self.instance.savings(transfer, None if self.instance.model.kernels is None else self.savings)

    def trips(self, transfer: Transfer) -> float:
        """How often a transfer moves per call, in terms of its tensor's bytes."""
        return transfer.widened * transfer.trips_after_loop if transfer.id in self.summed_after_loop else transfer.trips

    @property
    def seconds(self) -> tuple[float, float]:
        """(seconds of computing, seconds of communication) per device and call."""
        computing, moved = self.total("seconds") - sum(self.prefetched_seconds.values()), self.total("exchange_seconds")
        for transfer, steps in self.moves:
            for step, seconds in zip(steps, self.step_seconds(transfer, steps), strict=True):
                moved += (step.kind is not None) * self.trips(transfer) * seconds
                computing += (step.kind is None) * self.trips(transfer) * seconds
        return computing, moved

    @cached_property
    def prefetched_seconds(self) -> Mapping[int, float]:
        """By op the seconds that products are spared whose weights are on the chip when they run (see `prefetch`)."""
        mesh, products = self.instance.mesh, self.instance.model.weights_there
        if not mesh.compiler.runs("cross-program-prefetch") or not products or not self.moves:
            return {}
        moved = {transfer.tensor for transfer, steps in self.moves if any(step.kind for step in steps)}
        events = [*self._collectives(), *(self._product(one, moved) for one in products)]
        return prefetched_seconds(
            [event for _, event in sorted(events, key=itemgetter(0))],
            on_chip_bytes=mesh.on_chip_bytes,
            hbm_bytes_per_s=self.instance.hbm_bytes_per_s,
        )

    def _collectives(self) -> Iterator[tuple[float, Moving]]:
        """What moves outside of loops: behind the op that makes it, or before the first to read it."""
        model = self.instance.model
        for transfer, steps in self.moves:
            if model.graph.regions[transfer.region].parent is None:
                made = model.graph.tensors[transfer.tensor].producer
                readers = [op for op, _ in model.flow.reads_of(transfer)]
                follows_maker = transfer.reduced or not readers
                at = (-1 if made is None else made) + 0.5 if follows_maker else min(readers) - 0.5
                yield at, Moving(sum(self.step_seconds(transfer, steps)))

    def _product(self, of: WeightsThere, moved: Collection[int]) -> tuple[float, Multiplying]:
        """A product and its weights, but for those that are brought to their place by collectives."""
        instance, node = self.instance, self.instance.model.grouping.group_of[of.op]
        work, pick = instance.works[node], self.choice[node]
        seconds, flops = (0.0, 0.0) if work is None else (float(work.seconds[pick]), float(work.flops[pick]))
        held = 0.0 if of.through & set(moved) else sum(map(self.stored_bytes, of.arguments))
        ready = max(flops / instance.mesh.matmul_flops_per_s, seconds - held / instance.hbm_bytes_per_s)
        return of.op, Multiplying(of.op, held, seconds, min(ready, seconds))

    def step_seconds(self, transfer: Transfer, steps: Sequence[Step]) -> list[float]:
        """What each step of a transfer adds to a run of its body: less than it takes where a compiler spares some of it."""
        return self._exposed(transfer, steps)[0]

    @property
    def hidden_seconds(self) -> float:
        """The seconds of communication per device and call that run beside computing."""
        return sum(self.trips(t) * self._exposed(t, steps)[1] for t, steps in self.moves)

    def _exposed(self, transfer: Transfer, steps: Sequence[Step]) -> tuple[list[float], float]:
        """What each step of a transfer adds to a run of its body, and what of them all is hidden."""
        mesh, (shares, hidden) = self.instance.mesh, self.spared(transfer)
        if transfer.id in self.summed_after_loop:
            # In terms of its bytes (see `trips`); matmuls of the loop hide nothing.
            shares, hidden = times_larger(transfer.widened, shares), 0.0
        kinds = hideable(mesh, summing=bool(transfer.reduced))
        found, hides = list[float](), list[bool]()
        slicing = self._slicing_seconds(transfer)
        for step in steps:
            if step.kind is None:
                found.append(slicing)
                hides.append(False)
                slicing = 0.0
                continue
            of_fixed, of_bytes = self.instance.counted(shares, step)
            kind = mesh.runs_as(self.summed_after_loop.get(transfer.id, step.kind), step.mask, step.bytes)
            fixed, per_byte = mesh.fixed_seconds[kind][step.mask], mesh.seconds_per_byte[kind][step.mask]
            found.append(float(of_fixed * fixed + of_bytes * per_byte * step.bytes))
            hides.append(counted_kind(mesh, step.kind, step.mask, step.bytes) in kinds)
        if last_hides_alone(mesh, summing=bool(transfer.reduced)):
            moving = [at for at, step in enumerate(steps) if step.kind is not None]
            hides = [hide and at == moving[-1] for at, hide in enumerate(hides)]
        moves = sum(seconds for seconds, hide in zip(found, hides, strict=True) if hide)
        beside = min(HIDDEN * moves, hidden)
        shown = 1 - beside / moves if moves else 1.0
        return [shown * seconds if hide else seconds for seconds, hide in zip(found, hides, strict=True)], beside

    def fed(self, tensor: int) -> FedOnce:
        """What feeding an input takes as it is stored."""
        found = self.instance.fed(tensor)
        if found is None:
            return FedOnce(0.0, 0.0, 0.0)
        node, fed = found
        pick = self.choice[node]
        return FedOnce(float(fed.seconds[pick]), float(fed.device_bytes[pick]), float(fed.host_bytes[pick]))

    def total(self, attribute: str) -> float:
        """The sum over groups of one field of `Work`."""
        return sum(
            float(getattr(work, attribute)[pick])
            for work, pick in zip(self.instance.works, self.choice, strict=True)
            if work is not None
        )


@dataclass(frozen=True, slots=True)
class _Placed:
    """How the ops of a choice are split; `sums` are the steps by which results are summed."""

    chosen: Chosen
    sums: Mapping[int, Sequence[Step]]

    def operand(self, op: Op, position: int) -> Axes:
        return axes_of_spec(self.chosen.wanted(op, position), self._rank(op.operands[position]))

    def result(self, op: Op) -> Axes:
        return axes_of_spec(self.chosen.made(op, 0), self._rank(op.results[0]))

    def summed_alone(self, op: Op) -> bool:
        return [step.kind for step in self.sums.get(op.results[0], ())] == ["all-reduce"]

    def _rank(self, tensor: int) -> int:
        return len(self.chosen.instance.model.graph.tensors[tensor].aval.shape)
