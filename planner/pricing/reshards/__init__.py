"""What moves a tensor from one spec to another.

In: two specs of a tensor on a mesh, and what a compiler spares of its collectives.
Out: the price, the collectives and the steps that are emitted.
Entry: `planner.pricing.reshards.reshard`.
"""
