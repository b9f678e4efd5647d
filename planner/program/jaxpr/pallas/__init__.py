"""Pallas kernels, read.

In: a Pallas call.
Out: the axes of its grid that may be split, and its work.
Entry: `planner.program.jaxpr.pallas.pallas_calls.pallas_call_of`.
"""
