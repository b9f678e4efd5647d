"""Memory: the bytes of the compiled program beside those that were promised."""

from __future__ import annotations

from dataclasses import dataclass

from planner.decision import Decision
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
    borders = (
        f"arguments {arguments[1]:.6g} of {arguments[0]:.6g}, results {outputs[1]:.6g} of {outputs[0]:.6g}, "
        f"aliased {aliased[1]:.6g} of {aliased[0]:.6g} bytes"
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
