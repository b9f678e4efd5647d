"""The decisions of a program, for any mesh.

In: the op graph.
Out: op groups, their factors, and the graph of decision nodes and transfers.
Entry: `planner.decisions.groups.group_ops`.
"""
