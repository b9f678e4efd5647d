"""Plan files.

In: a decision.
Out: strict JSON with a digest, and the decision again.
Entry: `planner.plan_file.store`.
"""
