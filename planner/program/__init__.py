"""Programs.

In: a function and its arguments.
Out: its flat op graph, and the pytrees and names around it.
Entry: `planner.program.graph.Graph`.
"""
