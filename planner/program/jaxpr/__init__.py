"""All contact with jaxprs: nothing outside of this folder reads one.

In: a jaxpr.
Out: the op graph, and the jaxpr again with constraints laid on it.
Entry: `planner.program.jaxpr.flatten.build_graph`.
"""
