"""Saved and recomputed values, written.

In: a jaxpr with a backward pass.
Out: the residuals that cross to it, and jaxprs that save others.
Entry: `planner.program.jaxpr.remat.rewrite_saved.with_saved`.
"""
