"""The work of one instruction of a compiled program: operations of the matrix unit, and bytes of memory traffic.

Both count what a TPU's tiles pad: its layouts say so themselves (`{1,0:T(8,128)(2,1)}`), and matrix products are done in
tiles of `lanes` by `lanes` weights. Programs for other platforms have layouts without tiles and `lanes=1`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from planner.program.jaxpr.origins import short_line
from planner.verify.hlo.loops import trip_count_of
from planner.verify.hlo.text import Computation, Instruction, Module, arrays_of, bytes_of, element_bits, parse_module

_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<= ]*)\](?:\{([0-9,]*)(?::([^{}]*))?\})?")
_ON_CHIP = re.compile(r"S\([1-9]\)")
_TILE = re.compile(r"T\(([0-9,*]+)\)")
_ESTIMATE = re.compile(r'"cost_estimate":\{[^}]*"flops":"(\d+)"')
_TRANSCENDENTALS = re.compile(r'"cost_estimate":\{[^}]*"transcendentals":"[1-9]')
_RAGGED = "ragged_dot_tiling="
"""The attribute of a kernel that XLA's TPU compiler makes of a ragged dot."""
_READS_A_PART = ("dynamic-slice", "slice", "gather")
_SAME_VALUES = ("bitcast", "copy", "reshape", "transpose", "convert")


# -------------------------------------------------------------------------------------------------- matrix products


def instruction_flops(instruction: Instruction, computation: Computation, module: Module, *, lanes: int = 1) -> float:
    """Floating-point operations of the matrix products in an op, those inside a fusion included.

    Of a Pallas kernel they are what it says of itself: its cost estimate stands in the text.
    `lanes` is the extent to which a matrix unit fills up the dims of its weights, 1 where there are no tiles.
    """
    if instruction.opcode == "fusion":
        callee = module.computations[instruction.called[0]]
        return sum(
            instruction_flops(i, callee, module, lanes=lanes)
            for i in callee.instructions
            if i.opcode in ("fusion", "dot", "convolution")
        )
    if instruction.opcode == "custom-call":
        estimate = _ESTIMATE.search(instruction.attributes)
        return float(estimate[1]) if estimate else 0.0
    if instruction.opcode == "dot":
        dims = [int(d) for d in _list(instruction, "lhs_contracting_dims")]
        batch = [int(d) for d in _list(instruction, "lhs_batch_dims")]
        left = _dims(computation.by_name[instruction.operands[0]].shape)
        contracted, batched = prod(left[d] for d in dims), prod(left[d] for d in batch)
        rows = prod(left) / max(contracted * batched, 1)
        columns = prod(_dims(instruction.shape)) / max(batched * rows, 1)
        return 2.0 * batched * _filled(contracted, rows, columns, lanes)
    if instruction.opcode == "convolution":
        image, kernel = (computation.by_name[name].shape for name in instruction.operands[:2])
        return convolution_flops(instruction.attributes, image, kernel, instruction.shape, lanes=lanes)
    return 0.0


def attends(instruction: Instruction) -> bool:
    """Whether it is a kernel that says of itself that it computes transcendental functions, as attention does."""
    return instruction.opcode == "custom-call" and _TRANSCENDENTALS.search(instruction.attributes) is not None


def _filled(contracted: float, rows: float, columns: float, lanes: int) -> float:
    """The multiplications of a product of (rows, contracted) and (contracted, columns), tiles of weights filled up.

    Either side may be the weights; the other streams past them.
    """
    if lanes == 1 or not contracted * rows * columns:
        return contracted * rows * columns
    up = _rounded(contracted, lanes)
    return min(up * _rounded(columns, lanes) * rows, up * _rounded(rows, lanes) * columns)


def _rounded(extent: float, unit: int) -> float:
    return -(-extent // unit) * unit


def convolution_flops(attributes: str, image: str, window_of: str, result: str, *, lanes: int) -> float:
    """2 * batch * features in * features out * (output, window) pairs of positions that meet an input element.

    `image`, `window_of` (the kernel) and `result` are the texts of their shapes. As XLA's
    HloCostAnalysis::HandleConvolution counts; the TPU compiler writes every matrix product as a convolution whose batch
    dims are windows that meet one element each.
    """
    left, right, last = re.findall(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes)[0]
    base = dict(zip(left, _dims(image), strict=True))
    kernel = dict(zip(right, _dims(window_of), strict=True))
    out = dict(zip(last, _dims(result), strict=True))
    window = re.search(r"window=\{([^}]*)\}", attributes)
    entries = dict(part.split("=") for part in window[1].split()) if window else {}
    pairs, batch = 1.0, float(out["b"])
    contracted, columns = float(kernel["i"]), float(out["f"])
    for position in range(len(left) - 2):
        label = str(position)

        def entry(key: str, default: str, position: int = position) -> str:
            return entries[key].split("x")[position] if key in entries else default

        stride, low = int(entry("stride", "1")), int(entry("pad", "0_0").split("_")[0])
        base_dilation, window_dilation = int(entry("lhs_dilate", "1")), int(entry("rhs_dilate", "1"))
        places = np.arange(out[label])[:, None] * stride - low + np.arange(kernel[label])[None, :] * window_dilation
        inside = (places >= 0) & (places <= (base[label] - 1) * base_dilation) & (places % base_dilation == 0)
        met = int(inside.sum())
        if kernel[label] > out[label]:
            contracted *= (
                met / out[label]
            )  # a window wider than its steps, as of a kernel's gradient: contracted as well
            pairs *= out[label]
        elif kernel[label] == 1 and met == out[label]:
            batch *= met  # a further dim of the streamed side
        elif base[label] == 1 and met == out[label] == kernel[label]:
            columns *= met  # a further dim of the weights
        else:
            pairs *= met
    return 2.0 * pairs * _filled(contracted, batch, columns, lanes)


# --------------------------------------------------------------------------------------------------- memory traffic


@dataclass(frozen=True, slots=True)
class _Use:
    """How an op uses an operand: bytes read of it, and those of the parts that it overwrites in place (None: none)."""

    read: float
    updated: float | None = None


def hbm_bytes_of(instruction: Instruction, computation: Computation, module: Module) -> float:
    """Bytes an op moves to and from HBM: operands and results, less those in on-chip memory; slices as their slice.

    What is updated in place counts the update. Of a fusion that carries an asynchronous collective through it, the
    buffers in flight are aliased and count nothing.
    """
    operands, results = _own(instruction)
    written = [hbm_bytes(array) for array in results]
    total = sum(written)
    for position in operands:
        source = computation.by_name.get(instruction.operands[position])
        if source is None or source.opcode == "constant":
            continue
        whole = hbm_bytes(source.shape)
        if not whole:
            continue
        use = _use_by(instruction, position, computation, module, whole)
        total += use.read
        if use.updated is not None:
            # What is updated may be read on, and not returned.
            total += use.updated - (min(total, whole) if max(written, default=0.0) >= whole else 0.0)
    return total


def hbm_bytes(shape: str) -> float:
    """Bytes of the arrays in the text of a shape that lie in HBM, with the padding that their tiles say."""
    return sum(
        _padded(dtype, dims, order, layout)
        for dtype, dims, order, layout in _ARRAY.findall(shape)
        if not _ON_CHIP.search(layout)
    )


@lru_cache(maxsize=65536)
def _padded(dtype: str, dims_text: str, order_text: str, layout: str) -> float:
    dims = [int(d.strip("<= ")) for d in dims_text.split(",") if d.strip()]
    tile = _TILE.search(layout)
    if tile and order_text and "*" not in tile[1]:
        order = [int(d) for d in order_text.split(",")]  # minor to major
        for dim, unit in zip(order, reversed([int(t) for t in tile[1].split(",")]), strict=False):
            dims[dim] = -(-dims[dim] // unit) * unit
    return element_bits(dtype) * prod(dims) / 8


def _own(instruction: Instruction) -> tuple[list[int], list[str]]:
    """Positions of the operands, and the shapes of the results, that the computation itself reads and writes.

    `continuation_config` in the backend's configuration says which results are the computation's own; operands that
    pass through, aliased to others, are not.
    """
    results = _parts(instruction.shape)
    positions = list(range(len(instruction.operands)))
    match = re.search(r'"continuation_config":\{([^}]*)\}', instruction.attributes)
    if match is None:
        return positions, results
    bounds = {key: int(value) for key, value in re.findall(r'"(\w+)":"(\d+)"', match[1])}
    first, last = bounds.get("output_tuple_original_start", 0), bounds.get("output_tuple_original_end", 0)
    aliases = re.search(r"output_to_operand_aliasing=\{(.*?)\}, \w+=", instruction.attributes)
    pairs = re.findall(r"\{(\d*)\}: \((\d+)", aliases[1]) if aliases else []
    through = {int(operand) for result, operand in pairs if not result or not first <= int(result) <= last}
    return [p for p in positions if p not in through], results[first : last + 1]


def _parts(shape: str) -> list[str]:
    """The arrays of the text of a shape, each as text."""
    return [match[0] for match in _ARRAY.finditer(shape)]


def _use_by(reader: Instruction, position: int, computation: Computation, module: Module, whole: float) -> _Use:
    """How one reader uses what is its operand at a position; `whole` are that operand's bytes."""
    if reader.opcode == "fusion":
        callee = module.computations[reader.called[0]]
        name = callee.parameters.get(position)
        return _Use(whole) if name is None else _uses(name, callee, module, whole)
    if reader.opcode in _READS_A_PART and position == 0:
        return _Use(min(whole, bytes_of(reader.shape)))
    if reader.opcode == "dynamic-update-slice" and position == 0:
        update = computation.by_name.get(reader.operands[1])
        return _Use(0.0, _updated(update, reader)) if update is not None else _Use(whole)
    if reader.opcode == "scatter" and position == 0:
        update = computation.by_name.get(reader.operands[-1])
        return _Use(_updated(update, reader), _updated(update, reader)) if update is not None else _Use(whole)
    return _Use(whole)


def _updated(update: Instruction, reader: Instruction) -> float:
    """Bytes that an update takes in the type of the array it is written over: in a fusion it may still be a wider one."""
    dtype = next(dtype for dtype, _ in arrays_of(reader.shape))
    return element_bits(dtype) * prod(_dims(update.shape)) / 8


def _uses(name: str, computation: Computation, module: Module, whole: float) -> _Use:
    """How everything in a fused computation uses a value, through what only renames or rearranges it."""
    read, updated = 0.0, None
    for user in computation.consumers.get(name, ()):
        for position in (p for p, operand in enumerate(user.operands) if operand == name):
            if _keeps_values(user, module) and not user.root:
                use = _uses(user.name, computation, module, whole)
            else:
                use = _use_by(user, position, computation, module, whole)
            read += use.read
            if use.updated is not None:
                updated = (updated or 0.0) + use.updated
    return _Use(min(read, whole), updated)


def _keeps_values(instruction: Instruction, module: Module) -> bool:
    """Whether an op only renames or rearranges its operand; a fusion, where all ops in it do."""
    if instruction.opcode != "fusion":
        return instruction.opcode in _SAME_VALUES
    inside = module.computations[instruction.called[0]].instructions
    return all(step.opcode == "parameter" or step.opcode in _SAME_VALUES for step in inside)


def _dims(shape: str) -> tuple[int, ...]:
    return next(iter(arrays_of(shape)), ("", ()))[1]


def _list(instruction: Instruction, key: str) -> list[str]:
    match = re.search(rf"{key}=\{{([\d,]*)\}}", instruction.attributes)
    return match[1].split(",") if match and match[1] else []


_CALLS = ("call", "conditional", "fusion", "async-start", "call-start")


Line = Callable[[Sequence[str]], str]
"""The line that is told of the "file:line"s that a product came from, innermost first."""


def innermost(sources: Sequence[str]) -> str:
    """The innermost line outside of JAX."""
    return short_line(next(iter(sources), ""))


def read_products(hlo_text: str, *, line: Line = innermost) -> dict[str, float] | None:
    """The operations of a call on one device by "folder/file.py:line"; None where it is not known how often loops run."""
    module, found = parse_module(hlo_text), dict[str, float]()
    known = _visit(module.computations[module.entry], module, 1.0, line, found)
    return found if known else None


def _visit(computation: Computation, module: Module, trips: float, line: Line, found: dict[str, float]) -> bool:
    """Adds what a computation multiplies in so many runs; whether it is known how often its loops run."""
    known = True
    for instruction in computation.instructions:
        if instruction.opcode in ("dot", "convolution") or _RAGGED in instruction.attributes:
            at = line(module.sources(instruction))
            found[at] = found.get(at, 0.0) + trips * instruction_flops(instruction, computation, module)
        elif instruction.opcode == "while":
            count = trip_count_of(instruction, computation, module)
            body = module.computations[instruction.attribute("body") or ""]
            known &= _visit(body, module, trips * (1 if count is None else count), line, found) and count is not None
        elif instruction.opcode in _CALLS:
            for name in instruction.called:
                known &= _visit(module.computations[name], module, trips, line, found)
    return known
