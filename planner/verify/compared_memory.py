"""Memory: the bytes of the compiled program beside those that were promised.

Recomputation: whether the compiled program computes again what the plan does, or has merged it with its original.

Products of matrices tell, by the lines of code they came from: a line at which half or more of what is to be computed again
is missing has been merged. That changes no result; it holds more in memory and takes less time than was promised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.decision import Decision
from planner.prediction import Products
from planner.units import quantity
from planner.verify.hlo.memory import CompiledMemory

PEAK_TOLERANCE = 0.10
"""The peak may differ by this share of the larger of both."""
DEVICE_SHARE = 0.01
"""Or by this share of the device's memory: of small programs much lies on the chip, which the peak does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per device, (predicted, compiled); `peak` is only held against a plan where the compiler's is trustworthy.

    `ok` is False where it does not fit, `differs` where the figures are not as promised. `limit_bytes` is what the plan
    must stay within.
    """

    ok: bool | None
    reason: str
    differs: bool = False
    arguments: tuple[float, float] = (0.0, 0.0)
    outputs: tuple[float, float] = (0.0, 0.0)
    aliased: tuple[float, float] = (0.0, 0.0)
    peak: tuple[float, float] = (0.0, 0.0)
    limit_bytes: float = 0.0

    @property
    def fits(self) -> bool | None:
        """Whether the compiled program stays within the limit, by the compiler's peak; None where there is none."""
        return self.peak[1] <= self.limit_bytes if self.peak[1] else None


def compare_memory(decision: Decision, compiled: CompiledMemory, platform: str) -> Memory:
    """Predicted and compiled bytes.

    ok where the compiled peak is within the plan's memory limit; it differs where the predicted one is further from it
    than `PEAK_TOLERANCE` and `DEVICE_SHARE` of the device. The CPU's peak is not trustworthy: there arguments, outputs
    and aliases may differ.
    """
    p, limit = decision.predicted, _limit(decision)
    arguments = (p.argument_bytes, float(compiled.argument_bytes))
    outputs = (p.output_bytes, float(compiled.output_bytes))
    aliased = (p.alias_bytes, float(compiled.alias_bytes))
    peak = (p.peak_bytes, float(compiled.peak_bytes))
    if platform == "cpu":
        ok = True
        differs = any(abs(a - b) > max(1024.0, 0.01 * b) for a, b in (arguments, outputs, aliased))
        extra, peak = "the CPU's peak is not trustworthy", (peak[0], 0.0)
    else:
        allowed = max(PEAK_TOLERANCE * max(peak), DEVICE_SHARE * decision.request.topology.chip.hbm_bytes)
        ok, differs = peak[1] <= limit, abs(peak[0] - peak[1]) > allowed
        extra = peak_text(peak[0], peak[1], limit)
    borders = ", ".join(
        f"{what} {_beside(actual, promised)}"
        for what, (promised, actual) in (("arguments", arguments), ("results", outputs), ("aliased", aliased))
    )
    return Memory(
        ok=ok,
        reason=f"{borders}; {extra}" if ok else f"{extra}; {borders}",
        differs=differs,
        arguments=arguments,
        outputs=outputs,
        aliased=aliased,
        peak=peak,
        limit_bytes=limit,
    )


def _beside(actual: float, promised: float) -> str:
    """Bytes as compiled, and as promised where that is something else."""
    found, other = quantity(actual, "B"), quantity(promised, "B")
    return f"{found} as promised" if found == other else f"{found}, promised {other}"


def does_not_fit(decision: Decision, needed_bytes: float | None) -> Memory:
    """What is known of a program that the compiler refuses because it does not fit; None: it does not say how much."""
    p, limit = decision.predicted, _limit(decision)
    reason = peak_text(p.peak_bytes, needed_bytes or 0.0, limit) if needed_bytes else "it does not fit"
    return Memory(ok=False, reason=reason, peak=(p.peak_bytes, needed_bytes or 0.0), limit_bytes=limit)


def _limit(decision: Decision) -> float:
    """The bytes that a plan must stay within: what was asked for, and no more than a device has."""
    return min(decision.request.memory_limit, float(decision.request.topology.chip.hbm_bytes))


def peak_text(predicted: float, compiled: float, limit: float) -> str:
    """The peaks in words, and by how much the compiled one is above the limit, if it is."""
    text = f"peak {quantity(compiled, 'B')} compiled, {quantity(predicted, 'B')} predicted"
    if compiled <= limit:
        return text
    return f"it does not fit: {text}, {quantity(compiled - limit, 'B')} more than the {quantity(limit, 'B')} there are"


MISSING = 0.5
"""The part of what is computed again at a line that must be missing for the compiler to have undone it."""
SMALL = 0.01
"""Lines at which less than this part of all products is computed again are not looked at: compilers rewrite small ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """Operations of products of matrices, per device and call: `predicted`, of them `again` computed again, `compiled`.

    `undone` are the lines of code ("folder/file.py:line") whose recomputation the compiler has merged with its original.
    `ok`: there are none; None where that cannot be told, and `reason` says why.
    """

    ok: bool | None
    reason: str
    predicted: float = 0.0
    again: float = 0.0
    compiled: float = 0.0
    undone: tuple[str, ...] = ()


def compare_recomputation(
    promised: Sequence[Products], compiled: Mapping[str, float] | None, platform: str
) -> Recomputation | None:
    """The products promised beside those compiled, by line; None where none are computed again."""
    predicted, again = sum(one.flops for one in promised), sum(one.again for one in promised)
    if not again:
        return None
    if platform == "gpu":
        return Recomputation(ok=None, reason="not compared: products of a GPU are calls of libraries", again=again)
    if compiled is None:
        return Recomputation(ok=None, reason="not compared: how often some loop runs is not known", again=again)
    undone = tuple(
        one.line
        for one in promised
        if one.again > SMALL * predicted and compiled.get(one.line, 0.0) < one.flops - MISSING * one.again
    )
    found = sum(compiled.values())
    reason = (
        f"products of matrices: {quantity(found, 'FLOP')} compiled, {quantity(predicted, 'FLOP')} predicted, of which "
        f"{quantity(again, 'FLOP')} are computed again"
    )
    if undone:
        reason += f"; the compiler computes once, and holds, what was to be computed again at {', '.join(undone)}"
    return Recomputation(ok=not undone, reason=reason, predicted=predicted, again=again, compiled=found, undone=undone)
