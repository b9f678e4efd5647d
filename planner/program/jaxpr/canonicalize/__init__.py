"""Programs rewritten to one form before they are planned.

In: a jaxpr.
Out: a jaxpr with the same results, in which rolls and carried stacks are visible.
Entry: `planner.program.jaxpr.canonicalize.rolls.with_rolls`.
"""
