"""Emission.

In: an assignment.
Out: constraints on the program, the prediction of a call, and functions that run it.
Entry: `planner.emit.runner.Runner`.
"""
