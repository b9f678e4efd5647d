"""Opaque kernels.

In: what their users say of them, or their grids.
Out: rules, work, and how they run on parts.
Entry: `planner.rule_for`.
"""
