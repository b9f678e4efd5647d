"""The rules of JAX's primitives, by kind of op.

In: avals and parameters of an op.
Out: its factors.
Entry: `planner.rules.primitives.PRIMITIVES`.
"""
