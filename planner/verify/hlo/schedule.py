"""The time of one step, estimated from a scheduled TPU program: a judge that compares plans, not a simulator.

Instructions are walked in schedule order with one clock per computation:

    an op           takes its `estimated_cycles` over the clock rate where the text has them (finished compiles), else
                    max(flops / flops_per_s, HBM bytes / hbm_bytes_per_s, kernel_seconds)
    a copy or slice that is brought to the chip ahead of its use
                    runs beside the rest while that leaves the HBM idle, after those before it; so a step takes no less
                    than its HBM bytes over the bandwidth. Allocating takes nothing
    a collective    takes its ring time; if asynchronous it runs from its start to its done, after those before it over
                    the same groups, and only what has not passed by its done is exposed
    a copy to the memory of the host, or from there
                    takes its bytes over the host's link, after those before it that way; from its start to its done it
                    runs beside the rest, and what has not passed by then is exposed
    a while loop    takes its body's time times its trip count

Ignored: contention between collectives over different groups, wrap-around and hop distance of the physical torus,
collectives in flight across loop iterations, dispatch overhead, and that the compiler's cycles of elementwise fusions
are 2 to 5 times too many (so never compare an estimate by cycles with one without). Differences under 5 % are ties.
`work` has the operations and bytes, those of padded tiles included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from planner.verify.hlo.collectives import CompiledCollective, describe_collectives
from planner.verify.hlo.schedule_walk import FREE, WRAPPERS, ScheduleEstimate, ScheduleWalk, Totals, start_of
from planner.verify.hlo.text import Computation, Instruction, bytes_of, kind_of
from planner.verify.hlo.work import attends, hbm_bytes_of, instruction_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the judge assumes of a chip.

    `clock_hz` None means: do not use the compiler's cycles. `kernel_seconds` is the least time of any kernel; `lanes` is
    the extent to which matrix units fill up the dims of their weights; `attention_efficiency` is the share of these rates
    that kernels with exponentials reach; `host_bytes_per_s` is the rate of the link to the host, each way.
    """

    flops_per_s: float
    hbm_bytes_per_s: float
    clock_hz: float | None = None
    kernel_seconds: float = 0.0
    lanes: int = 1
    attention_efficiency: float = 1.0
    host_bytes_per_s: float = math.inf


def estimate_seconds(
    scheduled_hlo_text: str,
    *,
    num_devices: int,
    rates: Rates,
    collective_seconds: Callable[[CompiledCollective], float],
) -> ScheduleEstimate:
    """The estimate of a step from scheduled HLO text (`is_scheduled=true`).

    Parameters: `num_devices`, partitions of the program; `rates`; `collective_seconds`, the time of one collective.
    Raises: ArgumentError when the text is not scheduled, for its order then says nothing about time.
    """
    return _Walker(scheduled_hlo_text, num_devices, rates, collective_seconds).estimate()


def ring_seconds(kind: str, bytes: float, group_size: int, link_bytes_per_s: float, hop_seconds: float) -> float:
    """Seconds of one collective over its group as a ring of links used in both directions.

    With n devices, b bytes (the larger of operand and result) and a link of l bytes/s per direction:
    all-gather, reduce-scatter and broadcast b (n-1)/n / 2l; all-reduce twice that; all-to-all b n/8 / l (mean distance
    n/4, both directions); a permute b / l. Latency: one hop per step.
    Reference: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH" (2005).
    """
    n, b = group_size, bytes
    match kind:
        case "all-reduce":
            return b * (n - 1) / n / link_bytes_per_s + 2 * (n - 1) * hop_seconds
        case "all-to-all" | "ragged-all-to-all":
            return b * n / 8 / link_bytes_per_s + n / 2 * hop_seconds
        case "collective-permute":
            return b / link_bytes_per_s + hop_seconds
        case _:
            return b * (n - 1) / n / 2 / link_bytes_per_s + (n - 1) * hop_seconds


class _Clock:
    """The time of one computation, with the collectives and the fetches that are in flight."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._ends: dict[object, float] = {}  # when collectives in flight end, by the key that their done will give
        self._busy: dict[object, float] = {}  # when the links of a grouping are free again
        self._left: dict[object, float] = {}  # seconds of the HBM that each fetch still takes, in their order

    def run(self, part: Totals) -> None:
        """Runs something; meanwhile fetches go on while it leaves the HBM idle."""
        self.totals.add(part)
        idle = part.clock - part.memory
        for key, left in list(self._left.items()):
            moved = min(left, idle)
            idle -= moved
            self.totals.memory += moved
            self._left[key] = left - moved

    def send(self, key: object, resource: object, seconds: float) -> None:
        """Starts a collective, after those before it over the same links."""
        begin = max(self.totals.clock, self._busy.get(resource, 0.0))
        self._busy[resource] = self._ends[key] = begin + seconds

    def fetch(self, key: object, seconds: float) -> None:
        """Starts bringing something to the chip."""
        self._left[key] = seconds

    def wait(self, key: object) -> None:
        """Waits for a fetch, after those before it, or for a collective, which is exposed so far."""
        if key in self._left:
            order = list(self._left)
            late = sum(self._left[before] for before in order[: order.index(key) + 1])
            self.run(Totals(clock=late))
            del self._left[key]
        else:
            late = max(0.0, self._ends.pop(key, 0.0) - self.totals.clock)
            self.run(Totals(clock=late, exposed=late))

    def finish(self) -> None:
        """Waits for all that is in flight."""
        for key in (*self._ends, *self._left):
            self.wait(key)


class _HostCopy(NamedTuple):
    to_host: bool
    bytes: float
    starts: bool


HOST = "S(5)"
"""How a layout says that an array is in the memory of the host."""
_MAY_COPY = ("async-start", "copy", "dynamic-slice", "dynamic-update-slice", "fusion")


class _Walker(ScheduleWalk[Rates]):
    def walk(self, computation: Computation) -> Totals:
        clock = _Clock()
        totals = clock.totals
        for instruction in computation.instructions:
            opcode = instruction.opcode
            collective = self._collective(instruction, computation)
            if collective is not None:
                seconds = self.price(collective)
                totals.collective += seconds
                key = _async_key(instruction, collective)
                clock.send(key, collective.groups, seconds)
                if not self._is_start(instruction):
                    clock.wait(key)
            elif (host := self._host_copy(instruction, computation)) is not None:
                clock.send(instruction.name, host.to_host, host.bytes / self.rates.host_bytes_per_s)
                if not host.starts:
                    clock.wait(instruction.name)
            elif opcode in ("copy-start", "slice-start"):
                self._fetch(clock, instruction.name, _first_array(instruction.shape))
            elif opcode == "async-start" and self._is_slice(instruction):
                callee = self.module.computations[instruction.called[0]]
                self._fetch(clock, instruction.name, callee.instructions[-1].shape)
            elif opcode in ("copy-done", "slice-done"):
                clock.wait(instruction.operands[0])
            elif opcode.endswith("-done"):
                clock.wait(start_of(instruction, computation))
            elif opcode == "fusion" and (channel := self._done_channel(instruction)) is not None:
                clock.wait(channel)
            elif (inner := self.called(instruction, computation)) is not None:
                clock.run(inner)
            elif opcode not in FREE and '"AllocateBuffer"' not in instruction.attributes:
                clock.run(self._op(instruction, computation))
        clock.finish()
        return totals

    def _host_copy(self, instruction: Instruction, computation: Computation) -> _HostCopy | None:
        """What an instruction copies to the memory of the host or from there; None where it does not."""
        if instruction.opcode == "copy-start":
            result, source = re.findall(r"\w+\[[^\]]*\](?:\{[^}]*\})?", instruction.shape)[:2]
            to_host, from_host, moved = HOST in result, HOST in source, result
        elif instruction.opcode in _MAY_COPY:
            callee = self.module.computations[instruction.called[0]] if instruction.called else computation
            root = callee.root if instruction.called else instruction
            read = [callee.by_name[name].shape for name in root.operands if name in callee.by_name]
            updated = read[1:2] if root.opcode == "dynamic-update-slice" else read
            to_host, from_host = HOST in root.shape, any(HOST in shape for shape in updated)
            moved = root.shape if updated is read else read[1]
        else:
            return None
        if to_host == from_host:
            return None
        return _HostCopy(to_host=to_host, bytes=bytes_of(moved), starts=instruction.opcode.endswith("-start"))

    def _fetch(self, clock: _Clock, name: str, shape: str) -> None:
        clock.fetch(name, bytes_of(shape) / self.rates.hbm_bytes_per_s)

    def _op(self, instruction: Instruction, computation: Computation) -> Totals:
        """What an op takes of its own."""
        memory = hbm_bytes_of(instruction, computation, self.module) / self.rates.hbm_bytes_per_s
        cycles = re.search(r'"estimated_cycles":"(\d+)"', instruction.attributes)
        if cycles and self.rates.clock_hz:
            seconds = int(cycles[1]) / self.rates.clock_hz
            return Totals(clock=seconds, noted=seconds, memory=min(memory, seconds))
        reached = self.rates.attention_efficiency if attends(instruction) else 1.0
        seconds = max(
            instruction_flops(instruction, computation, self.module, lanes=self.rates.lanes)
            / self.rates.flops_per_s
            / reached,
            memory / reached,
            self.rates.kernel_seconds if instruction.opcode == "fusion" else 0.0,
        )
        return Totals(clock=seconds, memory=memory)

    def _collective(self, instruction: Instruction, computation: Computation) -> CompiledCollective | None:
        """The collective an instruction starts or is, looking into fusions and wrappers made for one."""
        if kind_of(instruction):
            return describe_collectives(instruction, computation, self.module, self.num_devices)
        if instruction.opcode not in WRAPPERS:
            return None
        scatter = any("all-reduce-scatter" in name for name in instruction.called)
        if not scatter and not self._is_start(instruction):
            return None
        found = self.wrapped(instruction)
        return replace(found, kind="reduce-scatter") if found is not None and scatter else found

    def _is_start(self, instruction: Instruction) -> bool:
        if instruction.opcode.endswith("-start"):
            return True
        return instruction.opcode == "fusion" and self._calls(instruction, "AsyncCollectiveStart")

    def _is_slice(self, instruction: Instruction) -> bool:
        """Whether what an instruction starts is the slice of an array that is brought to the chip ahead of its use."""
        body = [i for i in self.module.computations[instruction.called[0]].instructions if i.opcode not in FREE]
        return [i.opcode for i in body] == ["slice"]

    def _calls(self, instruction: Instruction, target: str) -> bool:
        callee = self.module.computations[instruction.called[0]]
        return any(i.opcode == "custom-call" and f'"{target}"' in i.attributes for i in callee.instructions)

    def _done_channel(self, instruction: Instruction) -> object:
        if not self._calls(instruction, "AsyncCollectiveDone"):
            return None
        callee = self.module.computations[instruction.called[0]]
        return next((i.attribute("channel_id") for i in callee.instructions if kind_of(i)), None)


def _first_array(shape: str) -> str:
    match = re.search(r"[a-z][a-z0-9]*\[[0-9,<= ]*\]", shape)
    return match[0] if match else ""


def _async_key(instruction: Instruction, collective: CompiledCollective) -> object:
    """What the matching done will ask for: the start's name, or the channel where fusions carry the state."""
    return str(collective.channel_id) if instruction.opcode == "fusion" else instruction.name
