"""The request: what the user wants, checked once.

In: the keywords of `planner.plan`.
Out: the traced program, its target, meshes, pins and limits.
Entry: `planner.request.resolve`.
"""
