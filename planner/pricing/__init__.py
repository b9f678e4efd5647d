"""One program on one mesh.

In: decisions, the compiler model, a mesh.
Out: strategies, their prices and memory rows: the problem to solve.
Entry: `planner.pricing.build_instance`.
"""
