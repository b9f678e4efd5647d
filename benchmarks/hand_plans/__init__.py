"""Plans as people write them by hand, for every program of the benchmarks: what the planner's are held against.

`hand_plans(family_of(name), devices)` gives every kind on every mesh; `jitted` makes of one the `jax.jit` that its author
would write, `pins` what makes the planner follow it. A family with no entry in `families` gets those kinds that need only
the shapes of arguments: data parallel, ZeRO, FSDP, and FSDP with copies.
"""

from benchmarks.hand_plans.kinds import Kind
from benchmarks.hand_plans.plan import NO_WINDOWS, HandPlan, family_of, hand_plans, jitted, meshes_of, pins

__all__ = ["NO_WINDOWS", "HandPlan", "Kind", "family_of", "hand_plans", "jitted", "meshes_of", "pins"]
