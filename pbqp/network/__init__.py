"""Networks.

In: a problem.
Out: nodes and edges in the form that reductions work on, and their tables.
Entry: `pbqp.network.network.Network`.
"""
