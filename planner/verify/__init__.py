"""Verification.

In: what a plan promises.
Out: what the compiled program does: numerics, collectives, memory, seconds.
Entry: `planner.verify.verification.verify`.
"""
