"""Fallbacks: plans for the devices that may be left of a machine, and what it takes to go over to them.

In: a plan, and the topologies that may be left.
Out: for each a plan of the same function, what its state moves over which links, and where that comes from.
Entry: `planner.studies.fallbacks.search.fallbacks_of`.
"""
