"""Placements that a program names itself.

In: a jaxpr with constraints, `shard_map`s or Explicit types.
Out: what they demand, or the jaxpr without them.
Entry: `planner.program.jaxpr.placements.free_annotations.without_annotations`.
"""
