"""The strategies that may be chosen on a mesh.

In: a decision node and a mesh.
Out: all strategies that divide evenly, less those that pins and hazards rule out.
Entry: `planner.pricing.candidates.strategies`.
"""
