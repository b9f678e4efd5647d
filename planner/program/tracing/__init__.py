"""Tracing.

In: a function and its arguments.
Out: a program: jaxpr, pytrees, names, what it mutates, notes for the user.
Entry: `planner.program.tracing.trace.trace`.
"""
