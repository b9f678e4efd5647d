"""Explanations.

In: an assignment and its problem.
Out: the op graph as decided; the alternatives of a tensor, each with a reason.
Entry: `planner.explain.explain.explain`.
"""
