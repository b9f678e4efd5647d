"""Memory of a plan.

In: the problem of one mesh, and what is held when.
Out: the bytes alive at every point of the schedule, and rows that limit them.
Entry: `planner.pricing.memory.memory_model`.
"""
