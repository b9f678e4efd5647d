"""The time of one step, estimated from a scheduled GPU program: a judge that compares plans, not a simulator.

Kernels run one after the other, as they are scheduled. Collectives take the price that is given, and run beside them, one
after the other, each from its start to its done; what has not passed by the done is exposed. Kernels that are started and
awaited so, which since jaxlib 0.12 copy the slices of loops, run beside the others likewise. A loop takes its body's time
times its trip count.

What a kernel takes:

    matrix products     what XLA's compiler notes ("sol" of `reification_cost` in the backend's configuration, compiled
                        with `xla_gpu_collect_cost_model_stats`): interpolated from measurements
                        (default_matmul_perf_table.txtpb), put right as below, at the share of the peak that the table
                        of chips has; a roofline where nothing is noted, as of convolutions and attention of libraries
    all others          their bytes at the memory's rate; of kernels with a single result the time that the compiler notes
                        of reading and writing, which is longer where accesses are not coalesced

No kernel takes less than its launch. Of a product whose types were not measured together, "sol" counts every dim in bytes
of the result, so it says too much by the cube of the result's item size (MatmulInterpolator::EstimatedRuntime).

What the compiler notes of computing in other kernels is not used: it takes the cycles of an operation in a chain of them,
each waiting for the one before (hlo_op_profiler), for its share of the chip. So 67 million GELUs would take 228 to 500 us
of an H100, which reads and writes them in 80. Nor of kernels with several results, of which it counts what each of them
reads.

Ignored: what collectives take of the memory's bandwidth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from cost_models import Chip
from planner.verify.hlo.collectives import CompiledCollective, describe_collectives
from planner.verify.hlo.schedule_walk import FREE, ScheduleEstimate, ScheduleWalk, Totals, start_of
from planner.verify.hlo.text import Computation, Instruction, Module, arrays_of, element_bits, kind_of
from planner.verify.hlo.work import convolution_flops, hbm_bytes_of, instruction_flops

_TABLE_EFFICIENCY = {"h100": 0.85, "h200": 0.85, "b200": 0.69}
"""By chip the share of its peak that products in bfloat16 of any depth reach in the compiler's table of measurements."""
_MEASURED_PRODUCTS = frozenset(
    {
        ("bf16", "bf16", "bf16"),
        ("f32", "f32", "f32"),
        ("f8e4m3fn", "f8e4m3fn", "bf16"),
        ("f8e4m3fn", "f8e5m2", "bf16"),
        ("f8e5m2", "f8e4m3fn", "bf16"),
    }
)
"""Types of operands and result that XLA's table of matrix products has."""
_DTYPES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "s8": "int8",
    "u8": "uint8",
    "c64": "complex64",
    "c128": "complex128",
}
_NOTED = re.compile(
    r'"exec_time_us":(?P<all>[\d.e+-]+)[^{}]*"memory_access_time_us":(?P<memory>[\d.e+-]+)[^{}]*"name":"(?P<model>[^"]*)"'
)
_TRITON = '"kind":"__triton'


def estimate_gpu_seconds(
    scheduled_hlo_text: str,
    *,
    num_devices: int,
    chip: Chip,
    collective_seconds: Callable[[CompiledCollective], float],
) -> ScheduleEstimate:
    """The estimate of a step from the scheduled HLO text of a GPU program (`is_scheduled=true`).

    Parameters: `num_devices`, partitions of the program; `chip`, its rates; `collective_seconds`, the time of a
    collective of which the compiler notes none. `from_cycles` of the estimate is the share of the compute time that
    the compiler noted.
    Raises: ArgumentError when the text is not scheduled, for its order then says nothing about time.
    """
    return _Walker(scheduled_hlo_text, num_devices, chip, collective_seconds).estimate()


def _noted(instruction: Instruction, model: str, what: str) -> float | None:
    """Seconds that one of the compiler's models notes of a kernel: of `all`, or of the `memory` alone."""
    found = (match for match in _NOTED.finditer(instruction.attributes) if match["model"] == model)
    return next((float(match[what]) * 1e-6 for match in found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A matrix product inside of a kernel: HLO types of its operands and of the kernel's result."""

    left: str
    right: str
    result: str

    @property
    def dtype(self) -> str:
        """The type that the matrix unit computes in, as `Chip.peak` names it."""
        widest = max((self.left, self.right), key=element_bits)
        return "float8" if widest.startswith("f8") else _DTYPES.get(widest, "float32")

    def put_right(self, seconds: float) -> float:
        """What the compiler's note would be if it counted elements."""
        if (self.left, self.right, self.result) in _MEASURED_PRODUCTS:
            return seconds
        return seconds / (element_bits(self.result) / 8) ** 3


class _Walker(ScheduleWalk[Chip]):
    def walk(self, computation: Computation) -> Totals:
        totals = Totals()
        finish: dict[str, float] = {}  # when the collectives in flight end, by the names of their starts
        free = 0.0  # when the last of them ends
        copied: dict[str, float] = {}  # when kernels beside others end, by the names of their starts
        idle = 0.0  # when the last of these ends

        def wait(name: str) -> None:
            late = max(0.0, finish.pop(name, 0.0) - totals.clock)
            totals.clock += late
            totals.exposed += late

        for instruction in computation.instructions:
            opcode = instruction.opcode
            collective = self._collective(instruction, computation)
            if collective is not None:
                seconds = self.price(collective)
                totals.collective += seconds
                free = finish[instruction.name] = max(totals.clock, free) + seconds
                if not opcode.endswith("-start"):
                    wait(instruction.name)
            elif opcode == "async-start":
                inner = self.walk(self.module.computations[instruction.called[0]])
                idle = copied[instruction.name] = max(totals.clock, idle) + inner.clock
                totals.noted += inner.noted
            elif opcode.endswith("-done"):
                start = start_of(instruction, computation)
                totals.clock = max(totals.clock, copied.get(start, 0.0))
                wait(start)
            elif (inner := self.called(instruction, computation)) is not None:
                totals.add(inner)
            elif opcode not in FREE and not opcode.endswith("-start"):
                seconds, noted = self._kernel(instruction, computation)
                totals.clock += seconds
                totals.noted += seconds * noted
        for name in list(finish):
            wait(name)
        return totals

    def _collective(self, instruction: Instruction, computation: Computation) -> CompiledCollective | None:
        """The collective an instruction starts or is, looking into the wrapper of an asynchronous one."""
        if kind_of(instruction):
            return describe_collectives(instruction, computation, self.module, self.num_devices)
        return self.wrapped(instruction) if instruction.opcode == "async-start" else None

    def _kernel(self, instruction: Instruction, computation: Computation) -> tuple[float, bool]:
        """What a kernel takes, and whether the compiler noted it."""
        kernel, chip = _Kernel(instruction, computation, self.module), self.rates
        product, flops = kernel.product, kernel.flops
        moved, peak = hbm_bytes_of(instruction, computation, self.module), chip.peak(kernel.dtype)
        least = max(flops / peak, moved / chip.memory_bytes_per_s, chip.kernel_latency_s)
        if product is not None and (sol := _noted(instruction, "sol", "all")) is not None:
            reached = _TABLE_EFFICIENCY.get(chip.name, chip.matrix_efficiency)
            slower = reached / chip.matrix_efficiency
            return max(slower * product.put_right(sol), least), True
        if flops:
            matrix = chip.matrix_latency_s + kernel.worked(chip) / (peak * chip.efficiency(kernel.dtype))
            return max(matrix, least), False
        if instruction.shape.startswith("(") or _updates_in_place(instruction, self.module):
            return least, False
        model = "indexing-cost-model" if _TRITON in instruction.attributes else ""
        accesses = _noted(instruction, model, "memory") or 0.0
        return max(accesses, least), accesses > least


class _Kernel:
    """What is in a kernel: its matrix product, if it has one, and its operations."""

    def __init__(self, instruction: Instruction, computation: Computation, module: Module) -> None:
        self.instruction, self.computation, self.module = instruction, computation, module

    @cached_property
    def product(self) -> _Product | None:
        """The matrix product, of several the first."""
        found = _dot_in(self.instruction, self.computation, self.module)
        if found is None:
            return None
        dot, where = found
        left, right = (next(arrays_of(where.by_name[name].shape))[0] for name in dot.operands[:2])
        return _Product(left=left, right=right, result=next(arrays_of(self.instruction.shape))[0])

    @property
    def dtype(self) -> str:
        """The type that its matrix product or convolution computes in."""
        if self.product is not None:
            return self.product.dtype
        return _DTYPES.get(next(arrays_of(self.instruction.shape), ("", ()))[0], "float32")

    @property
    def flops(self) -> float:
        """Operations of matrix products and convolutions."""
        if _is_library_product(self.instruction):
            return _library_flops(self.instruction, self.computation)
        if _is_library_attention(self.instruction):
            return _attention_flops(self.instruction, self.computation)
        if _is_library_convolution(self.instruction):
            roles = _roles(self.instruction, self.computation)
            return convolution_flops(self.instruction.attributes, *roles, lanes=1)
        return instruction_flops(self.instruction, self.computation, self.module)

    def worked(self, chip: Chip) -> float:
        """Operations, as many more as a product takes longer that contracts over little (`Chip.half_rate_depths`)."""
        if _is_library_attention(self.instruction):
            return self.flops
        made = math.prod(next(arrays_of(self.instruction.shape))[1])
        return self.flops + 2 * made * chip.half_rate_depths.get(self.dtype, 0.0)


def _dot_in(
    instruction: Instruction, computation: Computation, module: Module
) -> tuple[Instruction, Computation] | None:
    """The first dot of an instruction, with the computation it stands in."""
    if instruction.opcode == "dot" or _is_library_product(instruction):
        return instruction, computation
    if instruction.opcode != "fusion":
        return None
    for name in instruction.called:
        callee = module.computations[name]
        for inner in callee.instructions:
            found = _dot_in(inner, callee, module)
            if found is not None:
                return found
    return None


def _updates_in_place(instruction: Instruction, module: Module) -> bool:
    """Whether a kernel writes a slice, or single rows, into a buffer that it returns."""
    if instruction.opcode != "fusion":
        return False
    callee = module.computations[instruction.called[0]]
    roots = [callee.root]
    if callee.root.opcode == "tuple":
        roots = [callee.by_name[name] for name in callee.root.operands]
    while any(root.opcode == "bitcast" for root in roots):
        roots = [callee.by_name[root.operands[0]] if root.opcode == "bitcast" else root for root in roots]
    return any(root.opcode in ("dynamic-update-slice", "scatter") for root in roots)


def _is_library_product(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and 'custom_call_target="__cublas$' in instruction.attributes


def _is_library_convolution(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and 'custom_call_target="__cudnn$conv' in instruction.attributes


def _is_library_attention(instruction: Instruction) -> bool:
    return instruction.opcode == "custom-call" and 'custom_call_target="__cudnn$fmha' in instruction.attributes


def _attention_flops(instruction: Instruction, computation: Computation) -> float:
    """Operations of attention that a library computes, as `cost_models` counts them; nothing where its scores are not said.

    The configuration says how many scores there are; the last dim of queries is contracted.
    """
    scores = re.search(r'"intermediate_tensor_shape": ?\{[^{}]*?"dimensions": ?\[([^\]]*)\]', instruction.attributes)
    if scores is None:
        return 0.0
    features = next(arrays_of(computation.by_name[instruction.operands[0]].shape))[1][-1]
    products = 2.0 * features * prod(map(int, re.findall(r"\d+", scores[1])))
    masked = 0.5 if re.search(r'"mask_type": ?"\w*CAUSAL"', instruction.attributes) else 1.0
    return masked * products * (5 if "Backward" in instruction.attributes.split("backend_config")[0] else 2)


def _roles(convolution: Instruction, computation: Computation) -> tuple[str, str, str]:
    """The shapes of image, kernel and result of the convolution that a call computes, or is a gradient of."""
    first, second = (computation.by_name[name].shape for name in convolution.operands[:2])
    result = convolution.shape  # of a tuple, the first array
    if "BackwardFilter" in convolution.attributes:
        return first, result, second
    return (result, second, first) if "BackwardInput" in convolution.attributes else (first, second, result)


def _library_flops(instruction: Instruction, computation: Computation) -> float:
    """Operations of a product that a library computes: 2 per element of the result and of the contracted dims."""
    left = next(arrays_of(computation.by_name[instruction.operands[0]].shape))[1]
    match = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', instruction.attributes)
    contracted, elements = 1.0, 1.0
    for dim in re.findall(r"\d+", match[1]) if match else ():
        contracted *= left[int(dim)]
    for extent in next(arrays_of(instruction.shape))[1]:
        elements *= extent
    return 2.0 * contracted * elements
