"""Networks: the wires under mesh axes.

In: a topology and a mesh.
Out: links, and the seconds of collectives over them.
Entry: `cost_models.network.collectives.seconds`.
"""
