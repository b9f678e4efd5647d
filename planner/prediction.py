"""What is predicted of a plan, as records: seconds, memory and collectives, all per device and call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One predicted collective: `bytes` is the larger of its local operand and result, `count` how often it runs.

    `source` is the user's own line of code, `line` that of the innermost code outside of JAX, by which compilers know it.
    `assumed` is the part of `count` that nothing says: the passes of loops that end when some value does. `lifted` are
    both for a compiler that moves out of loops what none of their passes changes. `by_dim` are the axes of a sum by the
    dim that they split, for one that sums over one dim after the other. `emitted` is the kind that the program asks for,
    where `kind` is what a platform's compiler makes of it, and `bytes` are the share `narrowed` of what it asks to move.
    """

    kind: str
    bytes: float
    axes: tuple[str, ...]
    count: float
    source: str
    tensor: str
    dtype: str
    assumed: float
    lifted: tuple[float, float]
    by_dim: tuple[tuple[str, ...], ...] = ()
    emitted: str = ""
    narrowed: float = 1.0
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """All per device and call. `seconds` is the sum of computing and of the communication that is exposed.

    `hidden_seconds` of communication run beside computing. `seconds_range` is what a machine may take, from the spread of
    published runs around predictions; None where a plan of an earlier release does not say it.

    `feed_seconds` are beside them: what it takes to bring the inputs from hosts, which a pipeline that prefetches hides
    behind the call before. `fed_bytes` of inputs go to a device; the busiest host loads `host_bytes` for its devices.
    """

    seconds: float
    compute_seconds: float
    communication_seconds: float
    flops: float
    traffic_bytes: float
    collectives: tuple[Collective, ...]
    peak_bytes: float
    argument_bytes: float
    output_bytes: float
    alias_bytes: float
    energy_joules: float
    feed_seconds: float = 0.0
    fed_bytes: float = 0.0
    host_bytes: float = 0.0
    hidden_seconds: float = 0.0
    seconds_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Operations of products of matrices at a line of code, per device and call, of which `again` are computed again.

    `line` is "folder/file.py:line", by which compilers know it; "" stands for all lines where nothing is computed again.
    """

    line: str
    flops: float
    again: float
